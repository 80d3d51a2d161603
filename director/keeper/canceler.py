"""Cancel the calls of OpenAI's API that an API process held when it died: their callers are gone."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.runtime.sweep import LIMIT
from director.store.held_calls import HeldCall, forget_held, read_held
from director.store.processes import TICK_S, Presence, Processes

log = logging.getLogger(__name__)

DEAD_S: Final = 60.0
LONGEST_GAP_S: Final = 2.5 * TICK_S


@dataclass(slots=True, eq=False)
class Signs:
    """Which processes are silent, as one keeper saw it without a gap. Pure: `at_s` is its monotonic time. The server's
    clock, which may step, is compared with nothing.
    """

    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # newest sign, and when it was new
    _last_s: float = 0.0

    def note(self, newest: Mapping[str, float], *, at_s: float) -> list[str]:
        """Note the newest sign of each process. Returns those that gave none for DEAD_S."""
        if at_s - self._last_s > LONGEST_GAP_S:  # the keeper stood still, and the others may have too
            self._seen = {}
        self._last_s = at_s
        self._seen = {
            name: seen if (seen := self._seen.get(name)) is not None and seen[0] == sign else (sign, at_s)
            for name, sign in newest.items()
        }
        return [name for name, (_, since_s) in self._seen.items() if at_s - since_s >= DEAD_S]

    def forget(self) -> None:
        self._seen = {}


@dataclass(slots=True, eq=False)
class Canceler:
    """Gives the sign of this keeper, and looks which API processes give none. A sign is a write: while this keeper can
    write none, because Redis is away or full, others cannot either, and silence proves nothing. Several keepers may do
    this: a call that is canceled twice is canceled once.
    """

    _redis: Redis
    _scripts: Scripts
    _presence: Presence
    _clock: Clock
    _signs: Signs = field(default_factory=Signs)

    async def run_once(self) -> int:
        """Return how many calls are canceled or asked to stop."""
        try:
            await self._presence.run_once()
            newest = await Processes(self._redis).newest_signs("api")
        except Exception:
            self._signs.forget()
            raise
        dead = self._signs.note(newest, at_s=self._clock.monotonic())
        return sum([await self._cancel_all(process) for process in dead])

    async def _cancel_all(self, process: str) -> int:
        stopped = 0
        while calls := await read_held(self._redis, process, most=LIMIT):
            words = await asyncio.gather(*map(self._cancel, calls))
            settled = [call for call, word in zip(calls, words, strict=True) if word]
            await forget_held(self._redis, process, settled)
            stopped += sum(word in ("canceled", "asked") for word in words)
            if len(settled) < len(calls):  # the next look tries again
                break
        if stopped:
            log.warning("calls of a dead API process canceled", extra={"api": process, "count": stopped})
        return stopped

    async def _cancel(self, call: HeldCall) -> str:
        """Return what became of the call, or nothing if its Redis server does not answer."""
        prediction_id, account = call
        try:
            return await self._scripts.cancel(prediction_id, account=account)
        except BackendUnavailable:
            return ""
        except Exception:  # one damaged record must not keep the others
            log.exception("a call cannot be canceled", extra={"prediction": prediction_id})
            return "fault"
