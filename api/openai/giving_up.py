"""Cancel the calls whose callers get no more of them, also when Redis answers only later. If this process dies before,
a keeper cancels those that it held.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import anyio

from api.services.services import Services
from api.sites.sites import where_it_is
from api.web.errors import Moved, Problem
from api.web.http import Request
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.store.held_calls import HeldCalls

log = logging.getLogger(__name__)
PAUSE_S: Final = 2.0  # between two rounds. Each one ends at the first call that Redis does not answer
MOST_UNKNOWN: Final = 5  # rounds in which Redis may not know a call: its write may come after the first cancel
Cancel = Callable[[], Awaitable[str]]


async def give_up(request: Request, prediction_id: PredictionId, services: Services) -> None:
    """Cancel a call. If Redis does not answer, that goes on in the background."""
    cancel = cancel_of(request, prediction_id, services)
    with anyio.CancelScope(shield=True):
        try:
            word = await cancel()
        except BackendUnavailable:
            find_abandoned(services).add(prediction_id, cancel)
            return
        except (Moved, Problem) as exc:
            word = type(exc).__name__
        _settle(services.held_calls, prediction_id, word)


def give_up_later(request: Request, prediction_id: PredictionId, services: Services) -> None:
    """Cancel a call that Redis may have, in the background."""
    cancel = cancel_of(request, prediction_id, services)
    find_abandoned(services).add(prediction_id, cancel, most_unknown=MOST_UNKNOWN)


def cancel_of(request: Request, prediction_id: PredictionId, services: Services) -> Cancel:
    account = request.account.name

    async def cancel(services: Services) -> str:
        word = await services.scripts.cancel(prediction_id, account=account)
        if word == "moved":
            known = await services.scripts.replay(prediction_id, after=0, count=0, most_bytes=0)
            raise Moved(known.moved if known else "")
        return word

    return partial(where_it_is, request, prediction_id, cancel, services)


class Abandoned:
    """Calls of one Redis server that are still to be canceled. Its task lives as long as there are any."""

    def __init__(self, held: HeldCalls) -> None:
        self._held = held
        self._calls: dict[PredictionId, tuple[Cancel, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, prediction_id: PredictionId, cancel: Cancel, *, most_unknown: int = 0) -> None:
        """`most_unknown`: in how many rounds Redis may not know it."""
        self._calls[prediction_id] = (cancel, most_unknown)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self.run())

    async def run(self) -> None:
        while self._calls:
            await anyio.sleep(PAUSE_S)
            try:
                await self.run_once()
            except Exception:
                log.exception("could not cancel the calls that were given up")

    async def run_once(self) -> None:
        for prediction_id, (cancel, most_unknown) in list(self._calls.items()):
            try:
                word = await cancel()
            except BackendUnavailable:
                return
            except (Moved, Problem) as exc:
                word = type(exc).__name__
            if word == "unknown" and most_unknown:
                self._calls[prediction_id] = (cancel, most_unknown - 1)
                continue
            del self._calls[prediction_id]
            _settle(self._held, prediction_id, word)


_ABANDONED: Final[WeakKeyDictionary[Services, Abandoned]] = WeakKeyDictionary()


def find_abandoned(services: Services) -> Abandoned:
    return _ABANDONED.setdefault(services, Abandoned(services.held_calls))


def _settle(held: HeldCalls, prediction_id: PredictionId, word: str) -> None:
    held.drop(prediction_id)
    log.info("gave a call up", extra={"prediction": prediction_id, "was": word})
