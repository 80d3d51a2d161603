"""Run one line: file it as its POST would be, wait for its end, and show what the POST would have answered.

The prediction of a line is noted once it is filed. So after a kill it is found also where the token, the model or the
idempotency key is gone. That key is made of the batch and the line's number, and finds what was not noted yet. Limits,
a full Redis and a suspended account make a line wait.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from api.accounts.limits import take
from api.batches.lines import Outcome
from api.batches.opening import Opening
from api.batches.patience import LONGEST_PAUSE_S, PAUSE_S
from api.batches.targets import Target, find_target
from api.models.deployments import cancel_if_disabled
from api.openai import errors as openai_errors
from api.openai.ends import CANCELED, NO_CHUNK, failure, failure_of
from api.openai.giving_up import cancel_of
from api.predictions.bodies import LONGEST_LIFE_S, SHORTEST_START_S
from api.predictions.intake import Filed, accept, read_here
from api.services.services import Services
from api.services.waiters import Wait
from api.sites.sites import State, where_it_is
from api.web import errors
from api.web.errors import Code, Problem
from api.web.http import Request, type_of
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import NewPrediction, Record, Stored
from director.core.states import Status
from director.core.view import view
from director.store.accounts import Account
from director.store.batches import Batch
from director.store.predictions import Ending

log = logging.getLogger(__name__)
WAITING: Final = frozenset({402, 429, 503})  # statuses of refusals after which a line is filed again
LOOK_S: Final = 30.0  # between two looks whether a line went to another site
MOST_LOOKS: Final = 20  # at a line that went to a server of others
START_BY_EXCEEDED: Final = "start_by_exceeded"
CAUSE: Final = re.compile(r"[a-z0-9_]{1,64}")
MOST_TRIES: Final = 3  # of a line whose data was removed before its answer was read


class Unfiled(Exception):
    """The line was not filed, or did not run: its batch runs no more lines, or none out of its hours."""


class Callers:
    """Makes the requests of a batch's lines, for the account of the token that made the batch."""

    def __init__(self, state: State, batch: Batch) -> None:
        self._state = state
        self._batch = batch
        base = urlsplit(batch.base)
        given = msgspec.json.decode(batch.headers, type=dict[str, str])
        named = given | {"host": base.netloc, "idempotency-key": f"batch_{batch.id}"}
        self._headers = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        self._scheme = base.scheme
        self._own_start_s = int(given.get("x-start-by", LONGEST_LIFE_S))
        self._opening = Opening(batch.hours, given)

    @property
    def is_open(self) -> bool:
        """Return whether lines may start now."""
        return self._opening.seconds_left(self._state["services"].clock.now_ms()) != 0

    def opens_at(self) -> int | None:
        """Return when lines may start: now, or with the next hours."""
        return self._opening.opens_at(self._state["services"].clock.now_ms())

    def is_closed_out(self, record: Record) -> bool:
        """Return whether a line ended because its batch's hours did, and not by the X-Start-By of its caller."""
        if not self._batch.hours or record.code != START_BY_EXCEEDED or record.completed is None:
            return False
        return record.completed - record.created < self._own_start_s * 1000

    async def request(self, *, files: bool = True) -> Request:
        """Return a request. Unless `files`, it finds what was filed before, and files nothing. Raises Problem for an
        account that may run nothing.
        """
        account = await self._account()
        return self._request(account if files else replace(account, limits=replace(account.limits, max_queued=0)))

    def limit_start(self, new: NewPrediction) -> NewPrediction:
        """Return a line's prediction, which starts before the hours close or not at all. It comes after the fingerprint
        of its idempotency key, or each try of a line would be another request.
        """
        left_s = self._opening.seconds_left(self._state["services"].clock.now_ms())
        if left_s is None:
            return new
        left_ms = max(SHORTEST_START_S, min(left_s, LONGEST_LIFE_S)) * 1000
        return replace(new, start_by_ms=left_ms if new.start_by_ms is None else min(left_ms, new.start_by_ms))

    def own_request(self) -> Request:
        """Return a request that may only look at what the account has, and cancel it."""
        return self._request(Account(self._batch.account))

    def _request(self, account: Account) -> Request:
        request = Request(
            {
                "type": "http",
                "http_version": "1.1",
                "method": "POST",
                "scheme": self._scheme,
                "path": "",
                "raw_path": b"",
                "query_string": b"",
                "headers": list(self._headers),
                "client": None,
                "path_params": {},
                "state": {**self._state},
            },
            _no_body,
            _no_answer,
        )
        request.services = self._state["services"]
        request.account = account
        return request

    async def _account(self) -> Account:
        account = await self._state["services"].lookups.account_of(self._batch.api_token)
        if account is None:
            raise errors.invalid_token()
        if "run" not in account.scopes:
            raise errors.forbidden("This token does not have the scope 'run'.")
        if account.suspension is not None:
            raise errors.account_suspended(why=errors.WHY_SUSPENDED[account.suspension.reason])
        if (most := account.limits.max_queued) is None:
            return account
        return replace(account, limits=replace(account.limits, max_queued=max(1, most // 2)))  # the rest is for calls


async def _no_body() -> Any:
    raise NotImplementedError


async def _no_answer(_: Any) -> None:
    raise NotImplementedError


class LineRun:
    """One line under way. `stop` cancels its prediction, and lets it file none. While `is_full` it reads no answer."""

    def __init__(
        self,
        callers: Callers,
        number: int,
        target: Target,
        *,
        reads: asyncio.Semaphore,
        again: asyncio.Semaphore,
        is_full: Callable[[], bool],
        known: PredictionId | None,
        note: Callable[[int, PredictionId], Awaitable[None]],
        waits: dict[int, Problem],
    ) -> None:
        self._callers = callers
        self._number = number
        self._target = target
        self._reads = reads
        self._again = again  # held while it is filed again
        self._is_full = is_full
        self._known = known
        self._note = note
        self._waits = waits  # why lines are not accepted just now, by number
        self._stopped = asyncio.Event()
        self._request: Request | None = None
        self._filed: Filed | None = None
        self._wait = Wait()
        self._where: Services | None = None  # which has it now

    async def stop(self) -> None:
        """Cancel it. Safe to repeat. Raises BackendUnavailable."""
        self._stopped.set()
        if self._filed is not None and self._request is not None and self._where is not None:
            with suppress(Problem):
                await cancel_of(self._request, self._filed.stored.record.id, self._where)()

    def leave(self) -> None:
        """Wait for its end no longer. Safe to repeat."""
        self._wait.leave()

    async def file(self) -> Outcome | None:
        """File it once nothing is in its way, unless it is known to have a prediction. Returns its outcome if it is
        refused. Raises Unfiled.
        """
        if self._known is not None:
            self._request = request = self._callers.own_request()
            try:
                stored = await self._read(request, self._known)
            except Problem as exc:
                return refuse(self._target, exc)
            if stored is not None and self._where is not None:
                self._filed = Filed(stored, self._where, is_repeat=True)
                return None
        return await self._file(0)

    async def end(self) -> Outcome:
        """Wait for its end, and return what its POST would have answered. Raises Unfiled."""
        try:
            return await self._read_answer()
        except Unfiled:
            raise
        except Problem as exc:
            return refuse(self._target, exc)
        except Exception as exc:  # a fault of one line is that line's, or its batch would begin again and again
            log.exception("the answer of a line cannot be read")
            return refuse(self._target, errors.problem_of(exc))

    async def _read_answer(self) -> Outcome:
        tries = removed = 0
        while removed < MOST_TRIES:
            stored = await self._end()
            is_closed_out = stored is not None and self._callers.is_closed_out(stored.record)
            if self._stopped.is_set() and stored is not None and stored.record.status is Status.CANCELED:
                raise Unfiled
            if stored is not None and stored.input is not None and not is_closed_out:
                return show(self._target, stored)
            tries, removed = tries + 1, removed + (not is_closed_out)
            async with self._again:
                # what another keeper filed after it is found by its key, also once the batch is canceled
                outcome = await self._file(tries)
            if outcome is not None:
                return outcome
        return refuse(self._target, errors.data_removed())

    async def _file(self, tries: int) -> Outcome | None:
        while True:
            try:
                self._filed = await self._accept(tries)
                self._where = self._filed.services
                self._waits.pop(self._number, None)
                await self._note(self._number, self._filed.stored.record.id)
            except Exception as exc:  # whatever its POST would have been answered with
                self.leave()
                problem = errors.problem_of(exc)
                may_file = self._callers.is_open and not self._stopped.is_set()
                if not may_file and not isinstance(exc, BackendUnavailable):
                    raise Unfiled from exc
                if problem.status not in WAITING and problem.code != Code.ACCOUNT_SUSPENDED:
                    if not errors.is_expected(exc):
                        log.exception("a line of a batch could not be filed")
                    return refuse(self._target, problem)
                self._waits[self._number] = problem
                await self._pause(problem.document.retry_after)
            else:
                return None

    async def _accept(self, tries: int) -> Filed:
        files = self._callers.is_open and not self._stopped.is_set()
        self._request = request = await self._callers.request(files=files)
        item = f"/{self._number}" + (f"/{tries}" if tries else "")
        called = await find_target(request, self._target, item)
        rate_token = await take(request, request.account, "create") if files else None
        self._wait = Wait()
        filed = await accept(
            *(request, called, self._target.asked),
            rate_token=rate_token,
            item=item,
            listener=self,
        )
        return await cancel_if_disabled(request, filed) if called.deployment else filed

    def listen(self, services: Services, new: NewPrediction) -> NewPrediction:
        new = self._callers.limit_start(new)
        return replace(new, waiter=services.waiters.expect(new.id, self._wait))

    async def _pause(self, after_s: int | None) -> None:
        seconds = min(LONGEST_PAUSE_S, max(PAUSE_S, after_s or 0)) * (1 + random.random())  # noqa: S311 - a spread
        if self._stopped.is_set():
            await asyncio.sleep(PAUSE_S)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    async def _end(self) -> Stored | None:
        """Return the prediction once it has ended, or None if its record is gone."""
        request, filed = self._request, self._filed
        assert request is not None  # noqa: S101 - it was filed first
        assert filed is not None  # noqa: S101
        stored: Stored | None = filed.stored
        try:
            while stored is not None and not stored.record.is_terminal:
                services = self._where or filed.services
                ended = await services.waiters.wait_for_end(
                    stored.record.id,
                    seconds=LOOK_S,
                    account=stored.record.account,
                    wait=None if self._wait.is_over or filed.is_repeat else self._wait,
                    whole=False,
                    stays=True,
                )
                if isinstance(ended, Ending):
                    return ended.of(stored)
                stored = await self._read(request, stored.record.id)
        finally:
            self.leave()
        return stored

    async def _read(self, request: Request, prediction_id: PredictionId) -> Stored | None:
        """Read the prediction with its data, wherever it is now, once there is room for its answer. Raises a Problem if
        it went to a server of others and does not come back.
        """

        async def read(services: Services) -> Stored | None:
            self._where = services
            return await read_here(services, prediction_id)

        looks = 0
        while True:
            try:
                async with self._reads:
                    if not self._is_full():
                        return await where_it_is(request, prediction_id, read, self._where)
                await asyncio.sleep(PAUSE_S)
            except BackendUnavailable:
                await asyncio.sleep(PAUSE_S)
            except Problem as exc:
                if exc.status != errors.was_moved.status:  # its site is gone
                    return None
                looks += 1
                if self._stopped.is_set() or looks == MOST_LOOKS:
                    raise
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), LOOK_S)


def show(target: Target, stored: Stored) -> Outcome:
    """Return the answer of a line's POST that waited for this end."""
    record = stored.record
    is_good = record.status is Status.SUCCEEDED
    if target.kind != "openai":
        body = msgspec.json.encode(view(stored))
        return Outcome(status=201, request_id=record.id, body=body, is_good=is_good, cause=_cause_of(stored))
    output = bytes(stored.output or b"")
    if is_good and type_of(output) == "object":
        return Outcome(status=200, request_id=record.id, body=output, is_good=True)
    failed = failure("model_failed", NO_CHUNK) if is_good else failure_of(stored)
    return Outcome(status=failed.status, request_id=record.id, body=failed.body, cause=_cause_of(stored))


def _cause_of(stored: Stored) -> str:
    """Return the code of an end. A model server may have chosen it, so it is a short word or it is not named."""
    record = stored.record
    if record.status in CANCELED:
        return "canceled"
    return record.code if CAUSE.fullmatch(record.code or "") else "model_failed"


def refuse(target: Target, problem: Problem) -> Outcome:
    """Return the answer of a line's POST that was refused."""
    if target.kind != "openai":
        return Outcome(status=problem.status, body=msgspec.json.encode(problem.document), cause=problem.code)
    status, error = openai_errors.describe(problem)
    return Outcome(status=status, body=openai_errors.encode(error), cause=problem.code)
