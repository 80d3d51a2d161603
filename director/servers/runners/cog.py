"""Run predictions, or trainings, on one Cog server.

The end of a run is taken only from the answer to a PUT that is held open, or from the last callback of a server that
would hear nothing else meanwhile. Never POSTs a prediction, since a server runs that twice. Never polls, since asking
for a run that is over starts it again.
"""

import asyncio
import logging
from contextlib import nullcontext, suppress
from itertools import chain, repeat
from typing import Final

import httpx
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.runner_config import CogConfig
from director.servers.runners import cog_answers, outcomes
from director.servers.runners.answers import Unreadable, one_line, read_json
from director.servers.runners.cog_follow import Run, put_called, put_stream, put_sync
from director.servers.runners.http_base import Feed, HttpBase, RunnerOptions, no_health
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import (
    Capabilities,
    Ended,
    Health,
    HealthStatus,
    NoAnswer,
    Outcome,
    Restarted,
    RunRequest,
)
from director.servers.runners.transport import connection_lost

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
MAX_BODY: Final = 64 * MIB
HEALTH_TIMEOUT_S: Final = 12.0  # a server whose worker hangs answers after 10 s
SLOT_PATIENCE_S: Final = 5.0
STRANGER_PATIENCE_S: Final = 30.0
LET_GO_PATIENCE_S: Final = 2.0
FIRST_CANCEL_AFTER_S: Final = 0.1
PAUSES_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1)
LONGEST_S: Final = 0.25
MAX_HEALTH_BODY: Final = 8 * MIB  # mostly what setup printed
MAX_OPENAPI_BODY: Final = 1 * MIB

# We never ask for more than its slots, so a run that no director owns holds one, or it lost one. If it stays busy with
# nothing of ours, a restart helps against both
NO_SLOT: Final = Ended(
    outcome=Outcome.REFUSED,
    error="The model server had no free slot",
    server_is_dead=True,
    has_no_slot=True,
    in_doubt=True,
)
DEAF: Final = "It runs, and hears nothing meanwhile"
NOT_STREAMED: Final = outcomes.end(Observation.FAULT, "The model server answered 406 to a request for JSON")
STRANGER_STAYS: Final = Ended(
    outcome=Outcome.LOST,
    error="An earlier run of this prediction does not end on the model server, though it was canceled",
    server_is_dead=True,
    hangs=True,
)


class Patience:
    """A limit on how long something is tried, from the first pause on, with ever longer pauses."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until: float | None = None
        self._pauses = chain(PAUSES_S, repeat(LONGEST_S))

    async def pause(self) -> bool:
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._limit_s
        if now >= self._until:
            return False
        await asyncio.sleep(min(next(self._pauses), self._until - now))
        return True


class CogRunner(HttpBase):
    """Drives one Cog server. A `fast` one is asked for no callbacks: they cost the server 5 ms each and time quadratic
    in the length of output and logs. Failures then have no logs.
    """

    capabilities = Capabilities(streams=True, idempotent=True, restarts=True)

    def __init__(self, config: CogConfig, options: RunnerOptions) -> None:
        super().__init__(options, name="cog")
        self._slots = options.slots
        self._inbox = None if config.fast else options.inbox
        self._fast = config.fast
        self._max_files = options.max_files
        self._arrivals = None if options.inbox is None else options.inbox.arrivals
        self._trains = options.trains
        self._known: cog_answers.Known | None = None
        self._sent_at: dict[str, float] = {}
        self._deaf_for = 0
        self._may_hold_strangers = True

    async def health(self) -> Health:
        if self._deaf_for and self._known is not None:  # the connection of the run tells whether the server is there
            known = self._known
            return Health(status=HealthStatus.BUSY, detail=DEAF, server=known.name, since=known.since)
        sighting = await self._look()
        if sighting.health.can_run:
            return replace(sighting.health, server=(await self._learn(sighting)).name)
        return sighting.health

    async def _look(self) -> cog_answers.Sighting:
        answer = await self._ask("GET", "/health-check", limit=MAX_HEALTH_BODY, timeout_s=HEALTH_TIMEOUT_S)
        if answer.trouble:
            return cog_answers.Sighting(health=no_health(answer))
        return cog_answers.read_health(answer.status, answer.body)

    async def openapi_schema(self) -> Raw | None:
        answer = await self._ask("GET", "/openapi.json", limit=MAX_OPENAPI_BODY)
        if answer.trouble:  # a server without a schema says so, with a status
            raise NoAnswer(answer.trouble)
        with suppress(Unreadable):
            read_json(answer.body, dict[str, Raw])  # JSON that was cut off is not JSON
            return Raw(answer.body) if answer.status == 200 else None
        return None

    async def cancel(self, prediction_id: str) -> bool:
        """Ask the server to stop a run. Repeat it until the run has ended: a cancel in its first ms can get lost."""
        # it acts on the first cancel only, so the first must not get lost
        if self._known is not None and not self._known.kind.cancels_again:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(self._sent_at.get(prediction_id, 0.0) + FIRST_CANCEL_AFTER_S - now)
        known = self._known or cog_answers.UNKNOWN
        place = known.kind.cancels_trainings_at if self._trains else "/predictions"
        return (await self._ask("POST", f"{place}/{prediction_id}/cancel")).status == 200

    async def shutdown(self) -> bool:
        """Ask the server to end its process. It waits for the connections of runs, so close those first."""
        return (await self._ask("POST", "/shutdown")).status == 200

    async def _follow(self, request: RunRequest, feed: Feed) -> Ended:
        try:
            ended = await self._until_ended(request, feed)
        except asyncio.CancelledError:
            self._may_hold_strangers = True
            # The connection is closed by now, but a Python server goes on without its client, and so does coglet if
            # the client leaves within the first ms of the run. The server is asked until the run has ended
            with suppress(TimeoutError):
                async with asyncio.timeout(LET_GO_PATIENCE_S):  # a server that hangs takes longer over each answer
                    await self._evict(request.id, Patience(LET_GO_PATIENCE_S))
            raise
        except Exception:  # after any fault the server may go on with the run
            self._may_hold_strangers = True
            raise
        if ended.outcome is Outcome.LOST or ended.in_doubt:
            self._may_hold_strangers = True
        return ended

    async def _until_ended(self, request: RunRequest, feed: Feed) -> Ended:
        for_a_slot = Patience(SLOT_PATIENCE_S)
        with_a_stranger = Patience(STRANGER_PATIENCE_S)
        if self._known is None:
            await self.health()
        lagged = False
        while True:
            known = self._known or cog_answers.UNKNOWN
            streamed = known.streams and not lagged and (request.wants_progress or not self._fast)
            called = not known.kind.hears_meanwhile and not known.may_have_files and self._inbox is not None
            # Otherwise the answer tells that a run of this id is already there
            is_quiet = streamed or called or (self._slots > 1 and not known.kind.repeats)
            may_be_there = is_quiet and self._may_hold_strangers and not request.is_first
            if may_be_there and not await self._evict(request.id, with_a_stranger):
                return STRANGER_STAYS
            match await self._put(request, feed, known, streamed=streamed, called=called):
                case Ended() as ended:
                    return ended
                case cog_answers.Again.NO_SLOT:
                    if not await for_a_slot.pause():
                        return NO_SLOT
                case cog_answers.Again.RUNNING:
                    if not (await with_a_stranger.pause() and await self._evict(request.id, with_a_stranger)):
                        return STRANGER_STAYS
                case cog_answers.Again.LAGGED:
                    # Put it once more without a stream: another attempt would lag again
                    log.warning("a run outpaced its stream and is put again", extra={"prediction": request.id})
                    feed.add(Restarted("stream_lagged"))
                    lagged, request = True, replace(request, wants_progress=False)
                    self._may_hold_strangers = True
                case cog_answers.Again.NO_STREAM:
                    if not streamed:
                        return NOT_STREAMED
                    self._known = replace(known, streams=False)

    async def _put(
        self, request: RunRequest, feed: Feed, known: cog_answers.Known, *, streamed: bool, called: bool
    ) -> Ended | cog_answers.Again:
        run = Run(request=request, known=known, max_body=self._max_body, path=self._path(request.id))
        is_deaf = not (known.kind.hears_meanwhile or called)
        self._deaf_for += is_deaf
        self._sent_at[request.id] = asyncio.get_running_loop().time()
        try:
            with (
                nullcontext()
                if self._arrivals is None
                # for this PUT only, so that the files of one PUT are not taken for those of a repeated one
                else self._arrivals.expect(request.id, feed.add, most=self._max_files)
            ):
                if streamed:
                    return await put_stream(self._server, run, feed, accepted=self._note_accepted)
                if called and self._inbox is not None:
                    return await put_called(
                        self._server, run, feed, inbox=self._inbox, look=self._look, accepted=self._note_accepted
                    )
                return await put_sync(self._server, run, feed, inbox=self._inbox)
        except httpx.TransportError as exc:
            return connection_lost(exc, has_begun=feed.has_begun)
        finally:
            self._deaf_for -= is_deaf
            self._sent_at.pop(request.id, None)

    def _path(self, prediction_id: str) -> str:
        known = self._known or cog_answers.UNKNOWN
        return f"{known.kind.trains_at if self._trains else '/predictions'}/{prediction_id}"

    async def _evict(self, prediction_id: str, patience: Patience) -> bool:
        """End any run of this id: a stream would quietly attach to a run that a dead director left behind."""
        while await self.cancel(prediction_id):
            if not await patience.pause():
                return False
        return True

    def _note_accepted(self) -> None:
        if self._slots == 1:  # with one slot, it can hold no other run now
            self._may_hold_strangers = False

    async def _learn(self, sighting: cog_answers.Sighting) -> cog_answers.Known:
        known = self._known
        if known is not None and known.since == sighting.since and known.coglet == (sighting.coglet is not None):
            return known
        answer = await self._ask("GET", "/openapi.json", limit=MAX_OPENAPI_BODY)
        model = cog_answers.read_model(answer.body) if answer.status == 200 else cog_answers.Model()
        is_coglet = sighting.coglet is not None
        version = "" if is_coglet else await self._python_version()
        learned = cog_answers.Known(
            since=sighting.since,
            name=sighting.health.server or f"cog {version}".strip() + " (python)",
            coglet=is_coglet,
            kind=cog_answers.COGLET if is_coglet else cog_answers.python_kind(version),
            streams=model.streams and sighting.can_stream and not self._trains,
            is_array=model.is_array and not self._trains,
            may_have_files=model.may_have_files or self._trains,
        )
        if not answer.trouble:  # without an answer the model stays unknown: ask again next time
            self._known = learned
        return learned

    async def _python_version(self) -> str:
        answer = await self._ask("GET", "/")
        with suppress(Unreadable):
            return one_line(read_json(answer.body, _Index).cog_version)
        return ""


def make(config: CogConfig, options: RunnerOptions) -> CogRunner:
    """Return the runner. An answer of Cog has its files in it, so its bound is never less than 64 MiB."""
    return CogRunner(config, replace(options, max_body=MAX_BODY))


class _Index(Struct):
    cog_version: str = ""
