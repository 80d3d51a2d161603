"""File one call, wait for its end, and give it up."""

from contextlib import suppress
from typing import Final, Self

from msgspec.structs import replace
from starlette.responses import Response

from api.models.deployments import cancel_if_disabled
from api.openai.ends import NO_CHUNK, Failure, failure, failure_of
from api.openai.giving_up import give_up, give_up_later
from api.predictions import bodies
from api.predictions.intake import Called, Filed, Listener, accept
from api.services.services import Services
from api.services.waiters import Wait, Waiters
from api.sites.sites import Sites
from api.web import errors
from api.web.http import MEDIA_TYPE, Request, carry, raw, type_of, watching
from director.core.errors import BackendUnavailable
from director.core.schema import NewPrediction, Record, Stored
from director.core.states import Status
from director.core.view import place
from director.store.predictions import Ending

RETRY_S: Final = 5
HUNG_UP: Final = 499  # it is counted, and has no reader
MOVED_S: Final = 30.0  # between two looks whether a call went to another site


class Attempts:
    """Notes under which id and at which server a call was filed last. `is_held`: a keeper cancels it if this process
    dies.
    """

    def __init__(self, listener: Listener, *, is_held: bool) -> None:
        self.last: tuple[NewPrediction, Services] | None = None
        self._listener = listener
        self._is_held = is_held

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        heard = self._listener.listen(services, new)
        self.drop()
        self.last = (new, services)
        if self._is_held:
            services.held_calls.hold(new.id, new.account)
        return heard

    def drop(self) -> None:
        """Note that the last one was not accepted."""
        if self.last is not None:
            new, services = self.last
            services.held_calls.drop(new.id)


class Run:
    """Files one call, and gives it up. `continues`: it runs on if its caller hangs up. So does one that another request
    has filed. `has_key`: a repeat finds it.
    """

    def __init__(self, request: Request, called: Called, asked: bodies.CreatePrediction, *, continues: bool) -> None:
        self.request = request
        self._called = called
        self._asked = asked
        self._continues = continues
        self._has_key = "idempotency-key" in request.headers
        self.services = request.services  # where it is

    async def file(self, listener: Listener) -> Filed:
        """File it. Each answer from then on has its id and its place in the queue."""
        request, deployment = self.request, self._called.deployment
        attempts = Attempts(listener, is_held=not (self._continues or self._has_key))
        try:
            filed = await accept(
                request,
                self._called,
                self._asked,
                rate_token=request.rate_token,
                listener=attempts,
            )
            self._continues |= filed.is_repeat
            if deployment:
                filed = await cancel_if_disabled(request, filed)
        except Exception as exc:  # of a task that is cut off, because this process ends, Redis may have the call
            may_have_it = isinstance(exc, BackendUnavailable) and not exc.is_untouched
            if attempts.last is None or not may_have_it:
                attempts.drop()
                raise
            new, services = attempts.last
            carry(request, raw({"x-request-id": new.id}))
            if not self._has_key:  # its caller will call again
                give_up_later(request, new.id, services)
            raise
        self.services = filed.services
        carry(request, raw(headers_of(filed)))
        return filed

    async def give_up(self, record: Record, services: Services, *, is_refused: bool = False) -> None:
        """Cancel it, because its caller gets no more of it. `is_refused`: the caller was told to call again, and so it
        runs on only for a repeat.
        """
        if not (self._has_key if is_refused else self._continues):
            await give_up(self.request, record.id, services)

    async def find_moved(self, record: Record, services: Services) -> Services | None:
        """Return where it is now, or None if it has not moved, or not to a site of this API."""
        sites: Sites | None = self.request.sites
        if sites is None or services.is_leaving:
            return None
        with suppress(BackendUnavailable):
            known = await services.scripts.replay(record.id, after=0, count=0, most_bytes=0)
            there = await sites.find_called(known.moved) if known and known.moved else None
            if there is not None and services.held_calls.drop(record.id):
                there.held_calls.hold(record.id, record.account)
            return there
        return None

    def note_end(self, record: Record, services: Services) -> None:
        """Note that it has ended, so that no keeper cancels it."""
        services.held_calls.drop(record.id)


def headers_of(filed: Filed) -> dict[str, str]:
    record, outlook = filed.stored.record, filed.stored.outlook
    headers = {"x-request-id": str(record.id)}
    if filed.is_repeat:
        headers["Idempotency-Replayed"] = "true"
    if outlook is not None:
        shown = place(outlook, record)
        headers |= {"X-Queue-Ahead": str(shown.ahead), "X-Queue-Reason": shown.reason}
        if shown.eta_s is not None:
            headers["X-Queue-Estimate"] = f"{shown.eta_s.p50:g}"
    return headers


class Waiting:
    """A call's wait for its end. It keeps its room until it is left."""

    def __init__(self) -> None:
        self.wait = Wait()
        self._waiters: Waiters | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        if self._waiters is not None:
            self._waiters.give_back(self.wait)

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        self.leave()
        self._waiters = services.waiters
        return replace(new, waiter=self._waiters.reserve(new.id, self.wait, new.account, len(new.input)))


async def answer(run: Run) -> Response:
    with Waiting() as waiting:
        filed = await run.file(waiting)
        if filed.is_repeat:  # it waits for another one
            waiting.leave()
        stored = await _wait_for_end(run, filed, waiting)
    if stored is None:
        return Response(status_code=HUNG_UP)
    if stored.record.status is not Status.SUCCEEDED:
        return refuse(failure_of(stored))
    if stored.output is None:
        raise errors.data_removed()
    if type_of(bytes(stored.output)) != "object":
        return refuse(failure("model_failed", NO_CHUNK))
    return Response(bytes(stored.output), media_type=MEDIA_TYPE)


async def _wait_for_end(run: Run, filed: Filed, waiting: Waiting) -> Stored | None:
    """Return how the call ended, or None if its caller has left."""
    stored, services = filed.stored, filed.services
    record = stored.record
    if record.is_terminal:
        return stored
    ended: Ending | Stored | None = None
    try:
        with watching(run.request) as gone:
            while ended is None and not gone.done() and not services.is_leaving:
                ended = await services.waiters.wait_for_end(
                    record.id,
                    seconds=MOVED_S,
                    account=record.account,
                    weight=len(stored.input or b""),
                    wait=waiting.wait,
                    gone=gone,
                    stays=True,
                )
                if ended is None:
                    services = await run.find_moved(record, services) or services
    finally:
        if ended is None:
            await run.give_up(record, services, is_refused=not gone.done())
        else:
            run.note_end(record, services)
    if ended is not None:
        return ended.of(stored) if isinstance(ended, Ending) else ended
    if gone.done():
        return None
    raise errors.leaving(retry_after=RETRY_S)


def refuse(failed: Failure) -> Response:
    return Response(failed.body, failed.status, headers=failed.headers, media_type=MEDIA_TYPE)
