"""Store deployments: an account's own names for versions, with numbered releases. Callers check versions and rights.

The calls of a deployment may be split between the version of its release and another one: see `splits.py`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys, replies
from director.broker.redis_client import ask, pipelined, text
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.split import Split
from director.store.splits import Splits, encode_split, read_split, read_tried

MOST: Final = 1_000  # of one account
AT_ONCE: Final = 100  # accounts, or deployments, that one write to the socket asks for


class Release(Struct, frozen=True, kw_only=True):
    number: int
    model: str
    version: str
    created_ms: int
    by: str
    hardware: str
    min_instances: int
    max_instances: int


class StoredDeployment(Struct, frozen=True, kw_only=True):
    """A deployment as it is stored. Its split is stored beside it: without that it can be read, and not changed."""

    owner: str
    name: str
    created_ms: int
    release: Release

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def is_disabled(self) -> bool:
        return self.release.max_instances == 0


class Deployment(StoredDeployment, frozen=True, kw_only=True):
    """A deployment with its split. `split`: of this version, if its calls are or were split. `kept`: the split as it is
    stored, also one that is void.
    """

    split: Split | None
    kept: bytes

    @property
    def trial(self) -> Split | None:
        """Return the split while another version is tried, also one that was stopped."""
        return None if self.split is None or self.split.is_promoted else self.split


class Deployments:
    """A write compares with what was read, and answers 'changed' if another write came first."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self.splits: Final = Splits(redis, scripts)

    async def get(self, owner: str, name: str) -> Deployment | None:
        """Return a deployment with its split, in one write to the socket."""
        both = keys.deployment(owner, name), keys.split(f"{owner}/{name}")
        found, kept = await pipelined(self._redis, lambda pipe: [pipe.get(key) for key in both])
        return None if found is None else join(_read(found), kept or b"")

    async def names(self, owner: str) -> list[tuple[int, str]]:
        """Return all deployments of an account as (created, name), newest first."""

        async def read() -> list[Any]:
            return await self._redis.zrevrange(keys.deployments(owner), 0, MOST - 1, withscores=True)

        return [(int(created), text(name)) for name, created in await ask(read)]

    async def with_splits(self, found: Sequence[StoredDeployment]) -> list[Deployment]:
        splits = await self.splits.many([one.full_name for one in found])
        return [join(one, kept) for one, kept in zip(found, splits, strict=True)]

    async def find_tried(self) -> list[tuple[str, bytes, Deployment | None]]:
        """Return each deployment that tries a version as (name, its split as stored, itself or None). Each is read
        after its split: one that is void then stays void until it is written.
        """
        listed = await read_tried(self._redis)
        found: list[bytes | None] = []
        for start in range(0, len(listed), AT_ONCE):
            found += await self._each(
                [keys.deployment(*name.split("/")) for name, _ in listed[start : start + AT_ONCE]]
            )
        return [
            (name, kept, None if one is None else join(_read(one), kept))
            for (name, kept), one in zip(listed, found, strict=True)
        ]

    async def many(self, owner: str, names: Sequence[str]) -> list[StoredDeployment]:
        async def read() -> list[Any]:
            return await self._redis.mget([keys.deployment(owner, name) for name in names])

        return [_read(found) for found in (await ask(read) if names else []) if found is not None]

    async def one_of(self, owners: Sequence[str], *, model: str, version: str) -> str | None:
        """Return a deployment of these accounts that stands for this version, or tries it, or None."""
        for start in range(0, len(owners), AT_ONCE):
            for found in await self.with_splits(await self._all_of(owners[start : start + AT_ONCE])):
                versions = {found.release.version} | ({found.trial.version} if found.trial else set())
                if found.release.model == model and version in versions:
                    return found.full_name
        return None

    async def _all_of(self, owners: Sequence[str]) -> list[StoredDeployment]:
        names = await pipelined(
            self._redis, lambda pipe: [pipe.zrange(keys.deployments(owner), 0, -1) for owner in owners]
        )
        named = [keys.deployment(owner, text(name)) for owner, of in zip(owners, names, strict=True) for name in of]
        slices = [named[start : start + AT_ONCE] for start in range(0, len(named), AT_ONCE)]
        answers = [await self._each(some) for some in slices]
        return [_read(found) for answer in answers for found in answer if found is not None]

    async def _each(self, names: Sequence[str]) -> list[bytes | None]:
        return await pipelined(self._redis, lambda pipe: [pipe.get(name) for name in names])

    async def create(
        self, owner: str, name: str, *, model: str, version: str, hardware: str, min_instances: int, max_instances: int
    ) -> tuple[replies.Deployed, Deployment]:
        """Create it with its first release. Answers 'changed' if the name is taken, 'full' if there are too many."""
        now_ms = self._clock.now_ms()
        release = Release(
            number=1,
            model=model,
            version=version,
            created_ms=now_ms,
            by=owner,
            hardware=hardware,
            min_instances=min_instances,
            max_instances=max_instances,
        )
        made = join(StoredDeployment(owner=owner, name=name, created_ms=now_ms, release=release), b"")
        return await self._write(None, made), made

    async def release(self, was: Deployment, wanted: Release, *, by: str) -> tuple[replies.Deployed, Deployment]:
        """Make another release, if anything changes. Another version ends a trial, and remembers the version before.

        That is written first: a caller that changed the split meanwhile is noticed, and after a crash the same call, or
        a rollback, goes on from there.
        """
        if wanted.version != was.release.version:
            split = replace(self._begin(was, wanted.version, by=by), is_promoted=True, before="")
            written, was = await self._split(was, split, did=f"{by}: releases {wanted.version}")
            if written != "written":
                return "changed", was
        return ("written", was) if wanted == was.release else await self._release(was, wanted, by)

    async def _release(self, was: Deployment, wanted: Release, by: str) -> tuple[replies.Deployed, Deployment]:
        number = was.release.number + 1
        becomes = replace(was, release=replace(wanted, number=number, created_ms=self._clock.now_ms(), by=by))
        return await self._write(was, becomes), becomes

    async def share(
        self, was: Deployment, *, by: str, version: str, share: int, margin: int | None, least: int | None
    ) -> tuple[replies.Split, Deployment]:
        """Send this share of the calls to another version. Counts go on for a version that is tried already."""
        now_ms, split = self._clock.now_ms(), was.trial
        if split is None or split.version != version:
            split = self._begin(was, version, by=by)
        elif not split.share:  # it was stopped, and is tried again from zero
            split = replace(split, began_ms=now_ms, stopped_why="")
        becomes = replace(
            split,
            share=share,
            since_ms=split.since_ms if split.share == share else now_ms,
            release=was.release.number,
            margin=split.margin if margin is None else margin,
            least=split.least if least is None else least,
            by=by,
        )
        return await self._split(was, becomes, did=f"{by}: {share} % to {version}")

    async def stop(self, was: Deployment, *, by: str, why: str) -> replies.Split:
        """Send nothing more to the new version, and say why."""
        split = was.split
        assert split is not None  # noqa: S101 - for the type checker: see the callers
        becomes = replace(split, share=0, since_ms=self._clock.now_ms(), by=by, stopped_why=why)
        return (await self._split(was, becomes, did=f"{by}: stopped: {why}"))[0]

    async def end_trial(self, was: Deployment, *, by: str) -> tuple[replies.Split, Deployment]:
        """Send all calls to the version of the release. A rollback may still release the one before it."""
        if was.trial is None:
            return "written", was
        split = None
        if was.trial.before:
            begun = self._begin(was, was.release.version, by=by)
            split = replace(begun, former=was.trial.before, is_promoted=True, before="")
        return await self._split(was, split, did=f"{by}: ended")

    async def rollback(self, was: Deployment, *, by: str) -> tuple[replies.Deployed, Deployment]:
        """End the trial or, without one, release the version before.

        That is a release even if a promotion was only begun: its other half then finds another one, and writes nothing.
        """
        assert was.split is not None  # noqa: S101 - for the type checker: see the callers
        if was.trial is not None:
            return await self.end_trial(was, by=by)
        written, became = await self._release(was, replace(was.release, version=was.split.former), by)
        if written == "written":  # else a later trial or promotion is there, which stays
            _, became = await self._split(became, None, did=f"{by}: rolled back to {was.split.former}")
        return written, became

    async def delete(self, was: Deployment) -> replies.Deployed:
        """Delete its split first: no later call would find it."""
        written, was = await self._split(was, None, did=f"{was.owner}: deleted")
        return "changed" if written != "written" else await self._write(was, None)

    async def remove_void(self, name: str, kept: bytes) -> None:
        """Remove a split of a version or a deployment that is gone, unless it changed since it was read."""
        split = read_split(kept)
        if split is not None:
            await self.splits.write(name, kept, None, of=split, did="keeper: void")

    async def _split(self, was: Deployment, becomes: Split | None, *, did: str) -> tuple[replies.Split, Deployment]:
        if becomes is None and not was.kept:
            return "written", was
        of = becomes or was.split or self._begin(was, was.release.version, by="")
        written = await self.splits.write(was.full_name, was.kept, becomes, of=of, did=did)
        return written, replace(was, split=becomes, kept=encode_split(becomes))

    def _begin(self, deployment: Deployment, version: str, *, by: str) -> Split:
        """Return a split without a share yet. It keeps the version that a rollback brings back."""
        now_ms, release, split = self._clock.now_ms(), deployment.release, deployment.split
        before = "" if split is None else split.former if split.is_promoted else split.before
        return Split(
            model=release.model,
            former=release.version,
            version=version,
            share=0,
            began_ms=now_ms,
            since_ms=now_ms,
            release=release.number,
            created_ms=deployment.created_ms,
            by=by,
            before="" if before == release.version else before,
        )

    async def _write(self, was: Deployment | None, becomes: Deployment | None) -> replies.Deployed:
        one = becomes or was
        assert one is not None  # noqa: S101 - for the type checker: see the callers
        return await self._scripts.deploy(
            one.owner, one.name, was=_encode(was), becomes=_encode(becomes), created_ms=one.created_ms, most=MOST
        )


def join(one: StoredDeployment, kept: bytes) -> Deployment:
    """Return the deployment with its split, unless it is of another version, or of a deployment before this one."""
    split = read_split(kept)
    if split is not None:
        is_its = (split.model, split.created_ms) == (one.release.model, one.created_ms)
        split = split if is_its and split.fits(one.release.version) else None
    return Deployment(**_fields_of(one), split=split, kept=kept)


def _fields_of(one: StoredDeployment) -> dict[str, Any]:
    return {name: getattr(one, name) for name in StoredDeployment.__struct_fields__}


def _read(found: bytes | str) -> StoredDeployment:
    return msgspec.json.decode(found, type=StoredDeployment)


def _encode(one: StoredDeployment | None) -> bytes:
    return b"" if one is None else msgspec.json.encode(_fields_of(one))
