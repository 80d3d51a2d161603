"""Sweep queues in one pipeline, and repeat a sweep for ever. A fault of one queue never keeps another from a sweep."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NoReturn, TypeVar

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import Partition, QueueName

log = logging.getLogger(__name__)

Place = TypeVar("Place", QueueName, Partition)
Reply = TypeVar("Reply")

# The most items that one call handles: a script blocks the whole server while it runs.
LIMIT: Final = 100


async def sweep(places: Iterable[Place], call: Callable[[Place], Awaitable[Reply]]) -> dict[Place, Reply]:
    """Call for each place in one pipeline, without those that fail. Raises BackendUnavailable after all calls."""
    asked = list(places)
    answers = await asyncio.gather(*(call(place) for place in asked), return_exceptions=True)
    replies: dict[Place, Reply] = {}
    for place, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, BaseException):
            replies[place] = answer
        elif isinstance(answer, BackendUnavailable) or not isinstance(answer, Exception):
            raise answer
        else:
            log.error("a queue cannot be swept", extra={"place": place}, exc_info=answer)
    return replies


async def repeat(run_once: Callable[[], Awaitable[object]], *, role: str, tick_s: float, clock: Clock) -> NoReturn:
    """Sweep every `tick_s`, for ever. Log once when Redis goes away and once when it is back."""
    is_away = False
    while True:
        try:
            await run_once()
        except BackendUnavailable as exc:
            if not is_away:
                log.warning("sweeping waits for redis", extra={"role": role, "error": str(exc)})
            is_away = True
        except Exception:  # a fault in one sweep must not end its role
            log.exception("a sweep failed", extra={"role": role})
        else:
            if is_away:
                log.info("sweeping again", extra={"role": role})
            is_away = False
        await clock.sleep(tick_s)
