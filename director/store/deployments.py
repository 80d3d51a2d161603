"""Store deployments: an account's own names for versions, with numbered releases. Callers check versions and rights.

The calls of a deployment may be split between the version of its release and another one: see `splits.py`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import Deployed
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.split import Split
from director.store.splits import Splits, read_split

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


class Deployment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`split`: of this release, if its calls are or were split. It is stored beside the deployment, and not in it."""

    owner: str
    name: str
    created_ms: int
    release: Release
    split: Split | None = None

    @property
    def full_name(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def is_disabled(self) -> bool:
        return self.release.max_instances == 0


class Deployments:
    """A write compares with what was read, and answers 'changed' if another write came first."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self.splits: Final = Splits(redis, scripts, clock)

    async def get(self, owner: str, name: str) -> Deployment | None:
        """Return a deployment with its split, in one write to the socket."""
        both = keys.deployment(owner, name), keys.split(f"{owner}/{name}")
        found, split = await pipelined(self._redis, lambda pipe: [pipe.get(key) for key in both])
        return None if found is None else _join(_read(found), read_split(split))

    async def names(self, owner: str) -> list[tuple[int, str]]:
        """Return all deployments of an account as (created, name), newest first."""

        async def read() -> list[Any]:
            return await self._redis.zrevrange(keys.deployments(owner), 0, MOST - 1, withscores=True)

        return [(int(created), text(name)) for name, created in await ask(read)]

    async def with_splits(self, found: Sequence[Deployment]) -> list[Deployment]:
        splits = await self.splits.many([one.full_name for one in found])
        return [_join(one, split) for one, split in zip(found, splits, strict=True)]

    async def many(self, owner: str, names: Sequence[str]) -> list[Deployment]:
        """Return deployments without their splits."""

        async def read() -> list[Any]:
            return await self._redis.mget([keys.deployment(owner, name) for name in names])

        return [_read(found) for found in (await ask(read) if names else []) if found is not None]

    async def one_of(self, owners: Sequence[str], *, model: str, version: str) -> str | None:
        """Return a deployment of these accounts that stands for this version, or tries it, or None."""
        for watched in await self.splits.list_watched():
            split = watched.split
            if split is not None and (split.model, split.version) == (model, version) and not split.is_promoted:
                return watched.name
        for start in range(0, len(owners), AT_ONCE):
            for found in await self._all_of(owners[start : start + AT_ONCE]):
                if (found.release.model, found.release.version) == (model, version):
                    return found.full_name
        return None

    async def _all_of(self, owners: Sequence[str]) -> list[Deployment]:
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
    ) -> tuple[Deployed, Deployment]:
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
        made = Deployment(owner=owner, name=name, created_ms=now_ms, release=release)
        return await self._write(None, made), made

    async def release(
        self,
        was: Deployment,
        *,
        by: str,
        version: str,
        hardware: str,
        min_instances: int,
        max_instances: int,
        remembers: bool = True,
    ) -> tuple[Deployed, Deployment]:
        """Make another release, if anything changes. Another version ends a split. `remembers`: the version before, so
        that it can be taken back.
        """
        changes = {
            "version": version,
            "hardware": hardware,
            "min_instances": min_instances,
            "max_instances": max_instances,
        }
        wanted = replace(was.release, **changes)
        if wanted == was.release:
            return "written", was
        now_ms, number = self._clock.now_ms(), was.release.number + 1
        becomes = replace(was, release=replace(wanted, number=number, created_ms=now_ms, by=by), split=None)
        if was.split is not None and version == was.release.version:
            # no keeper may find it void and remove it before it is of the new release
            split = replace(was.split, release=number)
            await self.splits.note_change(was.full_name)
        elif remembers and version != was.release.version:
            split = new_split(was, version, share=0, by=by, now_ms=now_ms)
            split = replace(split, release=number, is_promoted=True)
        else:
            split = None
        written = await self._write(was, becomes)
        if written != "written":
            return written, becomes
        return written, replace(becomes, split=await self._follow(was, split, by, number))

    async def _follow(self, was: Deployment, split: Split | None, by: str, number: int) -> Split | None:
        """Write the split of the release that was just made, unless a later one is there."""
        stored = await self.splits.get(was.full_name)
        is_later = stored is not None and stored.created_ms == was.created_ms and stored.release >= number
        if stored == split or is_later:
            return stored
        did = f"release {number}" if split is None else f"release {number}, {split.version}"
        await self.splits.write(was.full_name, stored, split, by=by, did=did)
        return split

    async def share(
        self, was: Deployment, *, by: str, version: str, share: int, margin: int | None, least: int | None
    ) -> tuple[Deployed, Deployment]:
        """Send this share of the calls to another version. Counts go on for a version that is tried already."""
        now_ms, known = self._clock.now_ms(), was.split
        begun = known if known is not None and known.version == version and known.share else None
        split = begun or new_split(was, version, share=share, by=by, now_ms=now_ms)
        changes = {"margin": margin, "least": least}
        given = {name: value for name, value in changes.items() if value is not None}
        since_ms = split.since_ms if split.share == share else now_ms
        becomes = replace(split, share=share, since_ms=since_ms, by=by, **given)
        stored = known or await self.splits.get(was.full_name)
        if known is None and _join(was, stored).split is not None:
            return "changed", was
        written = await self.splits.write(was.full_name, stored, becomes, by=by, did=f"{share} % to {version}")
        return written, replace(was, split=becomes)

    async def stop(self, was: Deployment, *, by: str, why: str) -> Deployed:
        """Send nothing more to the new version, and say why."""
        split = was.split
        assert split is not None  # noqa: S101 - for the type checker: see the callers
        becomes = replace(split, share=0, since_ms=self._clock.now_ms(), by=by, stopped_why=why)
        return await self.splits.write(was.full_name, split, becomes, by=by, did=f"stopped: {why}")

    async def unsplit(self, was: Deployment, *, by: str) -> Deployed:
        """Send all calls to the version of the release."""
        if was.split is None:
            return "written"
        return await self.splits.write(was.full_name, was.split, None, by=by, did="ended")

    async def delete(self, was: Deployment) -> Deployed:
        written = await self._write(was, None)
        if written == "written":
            split = await self.splits.get(was.full_name)
            if split is not None:
                await self.splits.write(was.full_name, split, None, by=was.owner, did="deleted")
            await self.splits.forget(was.full_name)
        return written

    async def _write(self, was: Deployment | None, becomes: Deployment | None) -> Deployed:
        one = becomes or was
        assert one is not None  # noqa: S101 - for the type checker: see the callers
        return await self._scripts.deploy(
            one.owner, one.name, was=_encode(was), becomes=_encode(becomes), created_ms=one.created_ms, most=MOST
        )


def new_split(deployment: Deployment, version: str, *, share: int, by: str, now_ms: int) -> Split:
    return Split(
        model=deployment.release.model,
        former=deployment.release.version,
        version=version,
        share=share,
        began_ms=now_ms,
        since_ms=now_ms,
        release=deployment.release.number,
        created_ms=deployment.created_ms,
        by=by,
    )


def _join(deployment: Deployment, split: Split | None) -> Deployment:
    """Return the deployment with its split, unless it is of another release, or of a deployment before this one."""
    if split is None or (split.release, split.created_ms) != (deployment.release.number, deployment.created_ms):
        return deployment
    return replace(deployment, split=split)


def _read(found: bytes | str) -> Deployment:
    return msgspec.json.decode(found, type=Deployment)


def _encode(deployment: Deployment | None) -> bytes:
    return b"" if deployment is None else msgspec.json.encode(replace(deployment, split=None))
