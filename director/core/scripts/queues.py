"""What is known of a queue: its policy, its streams, its numbers, its pause. Moves no prediction."""

from msgspec import Struct

from director.core import keys
from director.core.errors import UnknownQueue
from director.core.gatherer import Arg
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.scripts.wire import Wire, ms, now
from director.core.shards import MAX_STREAMS

__all__ = ("QueueScripts", "QueueStats")


class QueueStats(Struct, frozen=True, kw_only=True):
    """One queue at one moment. `oldest_ms`: how long ago the oldest that has not ended was accepted."""

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

    @property
    def waiting(self) -> int:
        return self.high + self.normal + self.low


class QueueScripts(Wire):
    """The calls about one queue as a whole."""

    async def register(self, queue: QueueName, *, version: str, policy: Policy) -> bool:
        """Make a queue known, or refresh its policy; False when its name belongs to another version."""
        _refuse_streams(policy.streams)
        size: list[Arg] = [version, policy.streams, min(policy.size, policy.streams)]
        retries: list[Arg] = [policy.attempts, policy.on_lost, ms(policy.backoff_s), ms(policy.backoff_cap_s)]
        args: list[Arg] = [*size, *retries, ms(policy.data_ttl_s), ms(policy.record_ttl_s)]
        return bool(await self._call("register", [keys.meta(queue)], args))

    async def resize(self, queue: QueueName, *, streams: int) -> tuple[int, int]:
        """Change the streams of each lane; returns (streams that take new work, streams that are read)."""
        _refuse_streams(streams)
        reply = await self._call("resize", [keys.meta(queue)], [queue, streams])
        if not reply:
            raise UnknownQueue(queue)
        return reply[0], reply[1]

    async def stats(self, queue: QueueName, *, alive_s: float = 15.0, now_ms: int | None = None) -> QueueStats:
        """How much waits, runs, is delayed and dead, and how many directors serve it."""
        args: list[Arg] = [queue, ms(alive_s), now(now_ms)]
        reply = await self._call("stats", [keys.meta(queue)], args)
        if not reply:
            raise UnknownQueue(queue)
        *counts, paused = reply
        names = [name for name in QueueStats.__struct_fields__ if name != "paused"]
        return QueueStats(**dict(zip(names, counts, strict=True)), paused=bool(paused))

    async def pause(self, queue: QueueName, *, paused: bool) -> None:
        """Hand nothing out, or resume. What is claimed runs on."""
        if not await self._call("pause", [keys.meta(queue)], [queue, int(paused)]):
            raise UnknownQueue(queue)


def _refuse_streams(streams: int) -> None:
    if not 1 <= streams <= MAX_STREAMS:  # beyond the mask an entry would never be read
        raise ValueError(f"a lane has 1 to {MAX_STREAMS} streams, not {streams}")
