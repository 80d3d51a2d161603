"""What all sweeping roles share: one call for each queue in one pipeline, and the loop around it.

Knows nothing of what a call does. One queue's fault never keeps another from being swept.
"""

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

# Most that one call acts on: a script holds up the whole server while it runs.
LIMIT: Final = 100


async def sweep(places: Iterable[Place], call: Callable[[Place], Awaitable[Reply]]) -> dict[Place, Reply]:
    """Call for each place, all in one turn of the loop and so in one pipeline. Leaves out those that are faulty.

    Raises BackendUnavailable once all calls have come back.
    """
    asked = list(places)
    answers = await asyncio.gather(*(call(place) for place in asked), return_exceptions=True)
    replies: dict[Place, Reply] = {}
    for place, answer in zip(asked, answers, strict=True):
        if not isinstance(answer, BaseException):
            replies[place] = answer
        elif isinstance(answer, BackendUnavailable) or not isinstance(answer, Exception):
            raise answer
        else:
            log.error("one queue cannot be swept", extra={"place": place}, exc_info=answer)
    return replies


async def repeat(run_once: Callable[[], Awaitable[object]], *, role: str, tick_s: float, clock: Clock) -> NoReturn:
    """Sweep for ever, every `tick_s`. Says once that Redis went away and once that it is back."""
    is_away = False
    while True:
        try:
            await run_once()
        except BackendUnavailable as exc:
            if not is_away:
                log.warning("sweeping waits for redis", extra={"role": role, "error": str(exc)})
            is_away = True
        except Exception:
            log.exception("a sweep failed", extra={"role": role})
        else:
            if is_away:
                log.info("sweeping again", extra={"role": role})
            is_away = False
        await clock.sleep(tick_s)
