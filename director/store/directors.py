"""Read which directors there are from their heartbeats. A silent one is shown as silent until a keeper removes it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, server_ms, text
from director.core.ids import PredictionId, QueueName

ALIVE_S: Final = 20.0  # as the scripts count them: ALIVE_MS in lib/keys
MOST_OF_A_QUEUE: Final = 200
MOST_NEWCOMERS: Final = 1_000
AT_ONCE: Final = 100  # queues of one write
REPORTS_AT_ONCE: Final = 50  # reports of one write: one may have the logs of 16 servers
SKEW_MS: Final = 1_000  # a smaller difference between the clocks of a director and of the server does not count
LOOP: Final = 2  # failed starts in a row; fewer may be an accident


class ServerFound(Struct, frozen=True, kw_only=True):
    url: str
    state: str
    since_ms: int
    slots: int
    detail: str = ""
    failed_starts: int = 0
    log: str = ""  # the last lines of a failed setup
    has_schema: bool = True
    is_other_version: bool = False  # it shows another schema than the version that is served


class RunFound(Struct, frozen=True, kw_only=True):
    """A run that has begun. `limit_s` is its run limit, `cost` what its caller declared."""

    id: PredictionId
    since_ms: int
    limit_s: float
    cost: float = 1


class EndsFound(Struct, frozen=True, kw_only=True):
    """Ends of one queue at one director, of the last 15 minutes. `timed_out_in_a_row` are its newest ends, of any age,
    `failed_id` its newest failure. `longest_s`: about the longest of the last few hundred runs that succeeded.
    """

    ended: int = 0
    failed: int = 0
    timed_out_in_a_row: int = 0
    failed_id: str = ""
    failed_ms: int = 0
    longest_s: float = 0.0


class SwapFound(Struct, frozen=True):
    """One load of a model, and the models that made room for it. `ready_ms`: its end, None if it failed."""

    began_ms: int
    ready_ms: int | None
    instead_of: tuple[str, ...] = ()


class ShelfFound(Struct, frozen=True, kw_only=True):
    """A model that shares devices. `place`: the bytes that it takes on each device, or would take. `room`: all bytes of
    these devices. `loads`, `lost_s`: of the last hour, and the time that its loads and rests took. `behind`: the models
    that it waits for. `failed`: loads in a row. `is_stuck`: it is not loaded before an operator acts. `overdue_s`: how
    long its server has been there after it should have ended.
    """

    machine: str
    state: str
    since_ms: int
    place: Mapping[str, int] = {}
    room: Mapping[str, int] = {}
    order: str = ""
    loads: int = 0
    lost_s: float = 0.0
    failed: int = 0
    why: str = ""
    is_stuck: bool = False
    overdue_s: float = 0.0
    behind: tuple[str, ...] = ()
    swaps: tuple[SwapFound, ...] = ()


class About(Struct, frozen=True, kw_only=True):
    """The report of a director with each heartbeat, by its own clock. `more` counts servers that it left out.

    `oldest` is its oldest run of the queue. `files`: why its store of files does not work.
    """

    version: str = ""
    now_ms: int | None = None
    since_ms: int | None = None
    held: int | None = None
    servers: tuple[ServerFound, ...] = ()
    more: int = 0
    oldest: RunFound | None = None
    ends: EndsFound | None = None
    shelf: ShelfFound | None = None
    files: str = ""


class HeartbeatFound(Struct, frozen=True, kw_only=True):
    queue: QueueName
    at_ms: int
    slots: int
    state: str
    about: About


class DirectorFound(Struct, frozen=True, kw_only=True):
    """One director, with the queues that it claims from. `silent_ms` counts from its last heartbeat."""

    name: str
    heartbeats: tuple[HeartbeatFound, ...]
    silent_ms: int

    @property
    def last(self) -> HeartbeatFound:
        return _newest(self.heartbeats)

    @property
    def held(self) -> int | None:
        counts = [heartbeat.about.held for heartbeat in self.heartbeats if heartbeat.about.held is not None]
        return sum(counts) if counts else None

    @property
    def is_alive(self) -> bool:
        return self.silent_ms <= ALIVE_S * 1000

    def is_alive_in(self, heartbeat: HeartbeatFound) -> bool:
        """Return whether it still works on this queue of it: it may have ended there alone."""
        return self.silent_ms + self.last.at_ms - heartbeat.at_ms <= ALIVE_S * 1000


class Report(Struct, frozen=True):
    """The report of a director whose model has no queue yet. `state`: of its servers. `about`: an `About`."""

    state: str
    about: Raw


class Directors:
    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # ours answers in bytes

    async def newcomers(self) -> list[DirectorFound]:
        """Return the directors whose model has no queue, because no server of it was ever ready. The name of the model
        stands in place of the queue's. One that ends leaves the list, at the latest after 20 s.
        """
        now_ms = await server_ms(self._redis)
        since_ms = now_ms - ALIVE_S * 1000
        signs = await ask(
            lambda: self._redis.zrangebyscore(keys.newcomers(), since_ms, "+inf", 0, MOST_NEWCOMERS, withscores=True)
        )
        named = [
            (queue, name, int(at_ms)) for member, at_ms in signs for queue, _, name in [text(member).partition(" ")]
        ]
        reports = await pipelined(
            self._redis, lambda pipe: [pipe.get(keys.newcomer(queue, name)) for queue, name, _ in named]
        )
        return [
            DirectorFound(name=name, heartbeats=(_newcomer(queue, report, at_ms),), silent_ms=abs(now_ms - at_ms))
            for (queue, name, at_ms), report in sorted(zip(named, reports, strict=True), key=lambda one: one[0])
            if report is not None
        ]

    async def note_newcomer(self, queue: str, name: str, state: str, about: bytes) -> None:
        at_ms = await server_ms(self._redis)
        report = msgspec.json.encode(Report(state, Raw(about)))

        def note(pipe: Any) -> None:
            pipe.set(keys.newcomer(queue, name), report, px=int(ALIVE_S * 1000))
            pipe.zadd(keys.newcomers(), {f"{queue} {name}": at_ms})
            pipe.zremrangebyscore(keys.newcomers(), "-inf", at_ms - ALIVE_S * 1000)
            pipe.pexpire(keys.newcomers(), int(ALIVE_S * 1000))

        await pipelined(self._redis, note)

    async def forget_newcomer(self, queue: str, name: str) -> None:
        await ask(lambda: self._redis.zrem(keys.newcomers(), f"{queue} {name}"))

    async def of(self, queues: Sequence[QueueName]) -> list[DirectorFound]:
        """Return the directors of these queues by name. Of each queue the 200 newest heartbeats are read."""
        now_ms = await server_ms(self._redis)  # heartbeats carry the server's time
        heartbeats: dict[str, list[HeartbeatFound]] = {}
        for start in range(0, len(queues), AT_ONCE):
            for name, heartbeat in await self._heartbeats(queues[start : start + AT_ONCE]):
                heartbeats.setdefault(name, []).append(heartbeat)
        # a heartbeat in the future came before the server's clock went back
        return [
            DirectorFound(name=name, heartbeats=tuple(found), silent_ms=abs(now_ms - _newest(found).at_ms))
            for name, found in sorted(heartbeats.items())
        ]

    async def _heartbeats(self, queues: Sequence[QueueName]) -> Iterable[tuple[str, HeartbeatFound]]:
        def newest(pipe: Any) -> None:
            for queue in queues:
                pipe.zrange(keys.directors(queue), 0, MOST_OF_A_QUEUE - 1, desc=True, withscores=True)

        signs = [
            (queue, text(name), int(at_ms))
            for queue, found in zip(queues, await pipelined(self._redis, newest), strict=True)
            for name, at_ms in found
        ]

        def details(pipe: Any, some: Sequence[tuple[QueueName, str, int]]) -> None:
            for queue, name, _ in some:
                pipe.hget(keys.slots(queue), name)
                pipe.get(keys.about(queue, name))

        found: list[Any] = []
        for start in range(0, len(signs), REPORTS_AT_ONCE):
            found += await pipelined(self._redis, partial(details, some=signs[start : start + REPORTS_AT_ONCE]))
        replies = iter(found)
        return [
            (name, _heartbeat(queue, at_ms, text(standing or b""), about))
            for (queue, name, at_ms), standing, about in zip(signs, replies, replies, strict=True)
        ]


def _newest(heartbeats: Sequence[HeartbeatFound]) -> HeartbeatFound:
    return max(heartbeats, key=lambda heartbeat: heartbeat.at_ms)


def _newcomer(queue: str, written: bytes, at_ms: int) -> HeartbeatFound:
    try:
        report = msgspec.json.decode(written, type=Report)
    except msgspec.DecodeError:
        report = Report("starting", Raw(b"{}"))
    return HeartbeatFound(
        queue=QueueName(queue),
        at_ms=at_ms,
        slots=0,
        state=report.state,
        about=about_of(bytes(report.about), at_ms=at_ms),
    )


def _heartbeat(queue: QueueName, at_ms: int, standing: str, about: bytes | None) -> HeartbeatFound:
    slots, _, state = standing.partition(" ")
    return HeartbeatFound(
        queue=queue, at_ms=at_ms, slots=int(slots or 0), state=state or "starting", about=about_of(about, at_ms=at_ms)
    )


def about_of(written: bytes | None, *, at_ms: int) -> About:
    """Return what came with a heartbeat, by the server's clock; empty if nothing there is understood."""
    try:
        about = msgspec.json.decode(written, type=About) if written else About()
    except msgspec.DecodeError:
        return About()
    ahead_ms = 0 if about.now_ms is None else about.now_ms - at_ms
    if abs(ahead_ms) < SKEW_MS:  # no more than the heartbeat's travel time, which varies
        return about
    servers = tuple(replace(server, since_ms=server.since_ms - ahead_ms) for server in about.servers)
    since_ms = None if about.since_ms is None else about.since_ms - ahead_ms
    oldest = about.oldest and replace(about.oldest, since_ms=about.oldest.since_ms - ahead_ms)
    return replace(about, since_ms=since_ms, servers=servers, oldest=oldest)
