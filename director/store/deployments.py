"""Store deployments: an account's own names for versions, with numbered releases. Callers check versions and rights."""

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


class Deployment(Struct, frozen=True, kw_only=True):
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


class Deployments:
    """A write compares with what was read, and answers 'changed' if another write came first."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock

    async def get(self, owner: str, name: str) -> Deployment | None:
        found = await ask(lambda: self._redis.get(keys.deployment(owner, name)))
        return None if found is None else _read(found)

    async def names(self, owner: str) -> list[tuple[int, str]]:
        """Return all deployments of an account as (created, name), newest first."""

        async def read() -> list[Any]:
            return await self._redis.zrevrange(keys.deployments(owner), 0, MOST - 1, withscores=True)

        return [(int(created), text(name)) for name, created in await ask(read)]

    async def many(self, owner: str, names: Sequence[str]) -> list[Deployment]:
        async def read() -> list[Any]:
            return await self._redis.mget([keys.deployment(owner, name) for name in names])

        return [_read(found) for found in (await ask(read) if names else []) if found is not None]

    async def one_of(self, owners: Sequence[str], *, model: str, version: str) -> str | None:
        """Return a deployment of these accounts that stands for this version, or None."""
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
        self, was: Deployment, *, by: str, version: str, hardware: str, min_instances: int, max_instances: int
    ) -> tuple[Deployed, Deployment]:
        changes = {
            "version": version,
            "hardware": hardware,
            "min_instances": min_instances,
            "max_instances": max_instances,
        }
        wanted = replace(was.release, **changes)
        if wanted == was.release:
            return "written", was
        following = replace(wanted, number=was.release.number + 1, created_ms=self._clock.now_ms(), by=by)
        becomes = replace(was, release=following)
        return await self._write(was, becomes), becomes

    async def delete(self, was: Deployment) -> Deployed:
        return await self._write(was, None)

    async def _write(self, was: Deployment | None, becomes: Deployment | None) -> Deployed:
        one = becomes or was
        assert one is not None  # noqa: S101 - for the type checker: see the callers
        return await self._scripts.deploy(
            one.owner, one.name, was=_encode(was), becomes=_encode(becomes), created_ms=one.created_ms, most=MOST
        )


def _read(found: bytes | str) -> Deployment:
    return msgspec.json.decode(found, type=Deployment)


def _encode(deployment: Deployment | None) -> bytes:
    return b"" if deployment is None else msgspec.json.encode(deployment)
