"""Call the scripts about whole queues: policy, streams, numbers and pauses. Only `migrate` moves predictions."""

from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import Struct

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.redis_client import text
from director.broker.scripts.wire import Wire, ms, now
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import LANES, QueueName
from director.core.policy import MAX_STREAMS, NONE, Lane, Objectives, Policy, decode_objectives, encode
from director.core.schema import pairs

Admission = Literal["absorb", "bounded", "reject"]
Unregistered = Literal["done", "live", "dead", "served"]


class QueueStats(Struct, frozen=True, kw_only=True):
    """One queue at one moment. `oldest_ms`: age of the oldest prediction that is not terminal.

    `service_ms`: how long a recent run keeps a slot, 0 if unknown; `service_cost`: the declared cost of such a run.
    `starting`, `setup_failed`, `server_auth`: directors whose servers are in this state. `leaving`: predictions on
    their way to another server. `tally`: total counters.
    """

    high: int
    normal: int
    low: int
    claimed: int
    delayed: int
    dead: int
    live: int
    oldest_ms: int
    directors: int
    streams: int
    read: int
    paused: bool
    slots: int
    service_ms: float
    service_cost: float
    mode: str
    max_queued: int | None
    breaker: str
    starting: int
    setup_failed: int
    server_auth: int
    leaving: int
    objectives: Objectives = NONE
    tally: dict[str, int]

    @property
    def waiting(self) -> int:
        return self.high + self.normal + self.low

    @property
    def accepted(self) -> int:
        """Predictions ever accepted. A revived dead letter is accepted, started and ended once more."""
        return sum(self.tally.get(f"accepted:{lane}", 0) for lane in LANES)

    @property
    def started(self) -> int:
        """Predictions that were handed out for the first time."""
        return self.tally.get("started", 0)

    @property
    def ended(self) -> int:
        return self.tally.get("ended", 0)


class Demand(Struct, frozen=True, kw_only=True):
    """Predictions that a queue runs, and could run now or soon, at server time `now_ms`; and all that waits per lane.

    `slots_each`: of a director; `service_ms`: of a run; both 0 if unknown.
    """

    now_ms: int
    runnable: int
    running: int
    high: int
    normal: int
    low: int
    slots_each: float
    service_ms: float
    paused: bool
    objectives: Objectives


class Migrated(Struct, frozen=True, kw_only=True):
    """One slice: the start of the next, -1 after the last; how many moved, and how many stay as claimed or held."""

    next: int
    moved: int
    claimed: int
    held: int


class QueueScripts(Wire):
    """The scripts for one queue as a whole."""

    async def register(self, queue: QueueName, *, version: str, policy: Policy) -> bool:
        """Register a queue, or refresh its policy. Returns False if its name belongs to another version."""
        _refuse_streams(policy.streams)
        args: list[Arg] = [version, policy.streams, min(policy.size, policy.streams), *_promised(policy.objectives)]
        for name in policy.__struct_fields__:
            if name in ("streams", "size", "objectives"):
                continue
            value = getattr(policy, name)
            is_span = name.endswith("_s")
            args += [f"{name[:-2]}_ms" if is_span else name, "" if value is None else ms(value) if is_span else value]
        return bool(await self._call("register", [keys.meta(queue)], args))

    async def unregister(
        self, queue: QueueName, *, only_asks: bool = False, alive_s: float = 60.0, now_ms: int | None = None
    ) -> Unregistered:
        """Forget an empty queue that no director serves, or return the reason why not; nothing is written then.

        `only_asks`: write nothing in any case.
        """
        args: list[Arg] = [queue, ms(alive_s), "1" if only_asks else "", now(now_ms)]
        reply = await self._call("unregister", [keys.meta(queue)], args)
        return cast(Unregistered, reply.decode())

    async def resize(self, queue: QueueName, *, streams: int) -> tuple[int, int]:
        """Change the streams of each lane. Returns (streams that take new work, streams that are read)."""
        _refuse_streams(streams)
        reply = await self._call("resize", [keys.meta(queue)], [queue, streams])
        if not reply:
            raise UnknownQueue(queue)
        return reply[0], reply[1]

    async def migrate(
        self, queue: QueueName, *, to: QueueName, start: int, count: int, only_asks: bool, now_ms: int | None = None
    ) -> Migrated | None:
        """Move the waiting predictions of one slice to another queue of the model; None if that queue is unknown."""
        args: list[Arg] = [queue, to, start, count, "1" if only_asks else "", now(now_ms)]
        reply = await self._call("migrate", [keys.live(queue)], args)
        return Migrated(**dict(zip(Migrated.__struct_fields__, reply, strict=True))) if reply else None

    async def stats(self, queue: QueueName, *, now_ms: int | None = None) -> QueueStats:
        """Return the numbers of a queue. Raises UnknownQueue."""
        reply = await self._call("stats", [keys.meta(queue)], [queue, now(now_ms)])
        if not reply:
            raise UnknownQueue(queue)
        fields: dict[str, Any] = dict(zip(QueueStats.__struct_fields__, reply[:-1], strict=False))
        for name in ("service_cost", "mode", "breaker", "max_queued"):
            fields[name] = text(fields[name])
        fields["max_queued"] = fields["max_queued"] or None
        fields["mode"] = fields["mode"] or "absorb"
        fields["objectives"] = _read_objectives(fields["objectives"])
        fields["tally"] = {name.decode(): int(value) for name, value in pairs(reply[-1])}
        return msgspec.convert(fields, QueueStats, strict=False)

    async def demand(self, queue: QueueName, *, soon_s: float, now_ms: int | None = None) -> Demand:
        """Return what the queue runs, and what it could run now or within `soon_s`. Raises UnknownQueue."""
        reply = await self._call("demand", [keys.meta(queue)], [queue, ms(soon_s), now(now_ms)])
        if not reply:
            raise UnknownQueue(queue)
        fields: dict[str, Any] = {
            name: text(value) if isinstance(value, bytes) else value
            for name, value in zip(Demand.__struct_fields__, reply, strict=True)
        }
        fields["objectives"] = _read_objectives(reply[-1])
        return msgspec.convert(fields, Demand, strict=False)

    async def pause(
        self,
        queue: QueueName,
        *,
        paused: bool,
        tenant: str = "",
        revision: int | None = None,
        now_ms: int | None = None,
    ) -> None:
        """Pause or resume one tenant, or the whole queue. Claims that are held run on.

        `revision`: of the account's suspension; an older revision than the known one changes nothing.
        """
        args: list[Arg] = [queue, int(paused), tenant, now(now_ms), "" if revision is None else revision]
        if not await self._call("pause", [keys.meta(queue)], args):
            raise UnknownQueue(queue)

    async def bound(self, queue: QueueName, *, mode: Admission, max_queued: int | None = None) -> None:
        """Set how the queue treats more work than it can run; `max_queued` goes with `bounded`."""
        if (mode == "bounded") != (max_queued is not None):
            raise ValueError("a bounded queue has max_queued, and no other has")
        if not await self._call("bound", [keys.meta(queue)], [mode, "" if max_queued is None else max_queued]):
            raise UnknownQueue(queue)

    async def limit(
        self,
        queue: QueueName,
        tenant: str,
        *,
        weight: float,
        most_running: int | Literal["kept"] | None,
        revision: int = 0,
    ) -> None:
        """Set a tenant's weight and most running claims, for its waiting work too. `revision`: of the account's limits.

        `kept`: leave the most running as it is.
        """
        running: Arg = "" if most_running is None else most_running
        if not await self._call("limit", [keys.meta(queue)], [queue, tenant, f"{weight:g}", running, revision]):
            raise UnknownQueue(queue)


def _promised(objectives: Objectives) -> list[Arg]:
    spans: list[Arg] = [ms(each.within_s) if (each := objectives.get(lane)) else "" for lane in get_args(Lane)]
    return [encode(objectives), *spans]


def _read_objectives(found: bytes) -> Objectives:
    try:
        return decode_objectives(found)
    except SettingsError:  # a newer release wrote it
        return NONE


def _refuse_streams(streams: int) -> None:
    if not 1 <= streams <= MAX_STREAMS:  # beyond the bit mask an entry would never be read
        raise ValueError(f"a lane has 1 to {MAX_STREAMS} streams, not {streams}")
