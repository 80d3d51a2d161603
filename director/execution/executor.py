"""Accompany one claimed prediction to its end, in named steps: start and follow → end → settle → tell.

Sees to it that what the tracker decides is done (`performer.py`), and decides nothing itself. Whatever happens, the
claim is finished, given back, or left to its lease; it is never ended twice, since every write carries its token.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from director.broker.scripts import Requeued, Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.policy import Policy
from director.core.schema import Claim, Record, Stored, spent_attempts
from director.core.states import Status
from director.core.trace_context import TraceHeaders
from director.execution.ends import CLAIMED_AHEAD, FAULTS, RULES, ErrorClass, Finish, GiveBack, Limits, backoff_s
from director.execution.file_inputs import FileInputs
from director.execution.holdings import Held, Holdings
from director.execution.metering import Metering, error_label
from director.execution.moderation import Moderator
from director.execution.performer import Performer, Progress
from director.execution.publishing import Publishing
from director.execution.storing import Storing
from director.execution.tracker import Tracker
from director.runtime import crash
from director.runtime.tracing import OFF, Facts, Span, Tracing, facts_of
from director.servers.runners.runner import Began, Ended, OneAnswer, Outcome, RunEvent, RunRequest
from director.servers.server import Permit
from director.servers.servers import Servers
from director.webhooks.outbox import GRACE_S, Outbox, Post

# The spans of one claim: the wait before it, the claim itself, and the run within it.
#
# Times of the wait are those of the record. Where nobody collects spans it hands on the headers of the trace, no more.


class ClaimSpans:
    """Of one claim, from its first moment here."""

    def __init__(self, tracing: Tracing, record: Record) -> None:
        self._tracing = tracing
        self._facts = _span_facts(tracing, record) if tracing.is_on else None
        self._run: Span | None = None
        if tracing.is_on and record.claimed is not None:
            wait = tracing.begin("wait", record.trace, at_ms=_waits_since(record), facts=self._facts)
            wait.end(at_ms=record.claimed)
        self._claim: Span | None = tracing.begin("claim", record.trace, facts=self._facts)

    def asks(self) -> TraceHeaders:
        """Its run is asked for now: what the server is given."""
        trace = self._claim.headers if self._claim is not None else {}
        self._run = self._tracing.begin("run", trace, kind="client", facts=self._facts)
        return self._run.headers

    def ran(self, ended: Ended) -> None:
        """Its run is over."""
        self._end_run(error=FAULTS.get(ended.outcome, ""), facts={"outcome": ended.outcome})

    def settled(self, end: Finish | GiveBack | None) -> None:
        """Its end is written, unless the claim was lost."""
        if not self._tracing.is_on:
            return
        self._end_run(error="left")
        match end:
            case Finish():
                self._end_claim({"status": end.status}, error=error_label(end.code))
            case GiveBack():
                self._end_claim({"status": "given_back"}, error=end.fault or "")
            case None:
                self._end_claim({}, error="claim_lost")

    def drop(self) -> None:
        """Nothing more is done about it here. What was not settled is left to its lease."""
        if self._tracing.is_on:
            self._end_run(error="left")
            self._end_claim({}, error="left")

    def _end_run(self, *, error: str, facts: Facts | None = None) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end(facts, error=error)

    def _end_claim(self, facts: Facts, *, error: str) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end(facts, error=error)


def _span_facts(tracing: Tracing, record: Record) -> Facts:
    return {**facts_of(tracing, record), "attempt": record.attempt}


def _waits_since(record: Record) -> int:
    """Since it was made, or since an attempt of it was used up."""
    spent = spent_attempts(record.history)
    return spent[-1].ended if spent else record.created


# What one run took: the metrics that go on the record beside the model's own, and into one line of the log. Pure.
#
# All times are ours: no clock of a model server is believed. None of them replaces what Replicate shows.


def metrics_of(record: Record, tracker: Tracker, *, setup_wait_s: float, ahead_s: float = 0) -> dict[str, float]:
    """Of the attempt that ends it. Times are in seconds; what cannot be told is left out.

    `ahead_s`: what it still waited for a slot after it was claimed. `setup_wait_s`: how much of the time in the queue
    no server of this director could run anything.
    """
    found: dict[str, float] = {}
    if record.claimed is not None:
        found["queue_time"] = max(0, record.claimed - record.created) / 1000 + ahead_s
        found["setup_wait_time"] = setup_wait_s
    if tracker.began_at is not None:
        if tracker.over_at is not None:
            found["run_time"] = tracker.over_at - tracker.began_at
        if tracker.first_output_at is not None:
            found["time_to_first_output"] = tracker.first_output_at - tracker.began_at
            found["output_count"] = tracker.outputs
            spread = tracker.last_output_at - tracker.first_output_at
            if tracker.outputs > 1 and spread > 0:
                found["outputs_per_second"] = (tracker.outputs - 1) / spread
    return {name: round(value, 4) for name, value in found.items()}


def with_metrics(told: bytes, ours: dict[str, float]) -> bytes:
    """What the model measured, with ours. A model's own figure of the same name stays."""
    metrics = msgspec.json.decode(told, type=dict[str, Raw]) if told else {}
    return msgspec.json.encode({**ours, **metrics})


log = logging.getLogger(__name__)

AWAY_S: Final = 0.5
AWAY_MOST_S: Final = 5.0
# Well within the grace after which a courier tries, and as many as one director should remember the ends of
TELL_S: Final = 25.0
MOST_TELLING: Final = 64
# Whose files are stored, or whose output is judged, off their slots
MOST_ENDING: Final = 8

ABANDONED: Final = Ended(outcome=Outcome.LOST, error="The run was abandoned")
FAULT: Final = Ended(outcome=Outcome.LOST, error="Following the run failed inside the director")
NO_INPUT: Final = Ended(outcome=Outcome.REFUSED, error="The files of its input could not be looked up")
LEFT: Final = Ended(outcome=Outcome.LOST, error="It was left on its server, for another director to follow")
NO_TURN: Final = Ended(outcome=Outcome.REFUSED, code=CLAIMED_AHEAD)
NEVER_BEGAN: Final = Ended(outcome=Outcome.REFUSED, error="It was asked to stop before it was started")


class Executor:
    """Runs claims on permits. One for all of a director's claims; each call of `execute` is one claim.

    `policy` and `run_limit_s` may change: what is claimed from then on goes by them.
    """

    def __init__(
        self,
        *,
        scripts: Scripts,
        clock: Clock,
        holdings: Holdings,
        servers: Servers,
        post: Post,
        limits: Limits,
        policy: Policy,
        run_limit_s: float,
        dice: Callable[[], float],
        storing: Storing | None = None,
        moderator: Moderator | None = None,
        file_inputs: FileInputs | None = None,
        publishing: Publishing | None = None,
        metering: Metering | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        self._scripts = scripts
        self._clock = clock
        self._holdings = holdings
        self._servers = servers
        self._post = post
        self._limits = limits
        self.policy = policy
        self.run_limit_s = run_limit_s
        self._dice = dice
        self._storing = storing
        self._moderator = moderator
        self._file_inputs = file_inputs
        self._publishing = publishing
        self._metering = metering or Metering()
        self._tracing = tracing
        self._ending = 0
        self._telling = 0

    async def execute(self, claim: Claim, permit: Permit) -> None:
        """From the claim to its last write. Never raises for what the server, the model or Redis does."""
        tracker = Tracker(claim.record, self._limits, is_moderated=self._moderator is not None)
        self._metering.claimed(claim.record)
        spans = ClaimSpans(self._tracing, claim.record)
        waited_ms = 0 if claim.record.claimed is None else claim.record.claimed - claim.record.created
        setup_wait_s = self._servers.setup_wait_s(waited_ms / 1000)
        self._servers.permits.move(permit, claim.record.remote)
        held = Held(claim, tracker, permit.server.runner, self._clock)
        outbox = Outbox(claim.record, self._post, lambda started_ms: self._snapshot(held, started_ms))
        progress = Progress(held, self._scripts, self._clock, outbox if claim.record.webhook else None)
        performer = Performer(
            held,
            progress,
            self._clock,
            storing=self._storing,
            moderator=self._moderator,
            run_limit_s=self.run_limit_s,
        )
        try:
            with self._holdings.holding(held):
                await self._follow(held, performer, permit, spans)
                end = await self._end(held, performer, permit)
                if self._publishing is not None and claim.record.kind == "training":
                    self._servers.permits.release(permit)
                    end = await self._publishing.publish(held, end)
                if not isinstance(end, Finish):  # from here on another attempt may be told of
                    outbox.drop()
                if isinstance(end, Finish):
                    end = self._measured(held, end, setup_wait_s)
                # Released before the last write, so that the next claim is sent together with it
                self._servers.permits.release(permit)
                finished = await self._settle(held, progress, end)
                spans.settled(end)
            if finished:
                await self._tell(outbox)
            performer.drop()
            if self._storing and finished and performer.has_files and _leaves_files_unnamed(claim, end):
                await self._storing.remove(claim.record)
        except Exception:
            log.exception("a claim is left to its lease", extra={"prediction": claim.id})
        finally:
            if held.is_lost:
                self._metering.lost(claim.record)
            self._servers.permits.release(permit)
            spans.drop()
            performer.drop()
            progress.drop()
            outbox.drop()

    def _measured(self, held: Held, end: Finish, setup_wait_s: float) -> Finish:
        record = held.claim.record
        held.took = metrics_of(record, held.tracker, setup_wait_s=setup_wait_s, ahead_s=held.ahead_s)
        self._metering.measured(record, held.took)
        return replace(end, metrics=with_metrics(end.metrics, held.took))

    async def _tell(self, outbox: Outbox) -> None:
        """Tell the caller of the end, beside the slot. The courier has it too, so no receiver that keeps silent may
        pile up ends here: beyond a time and a number it is left to the courier.
        """
        if not outbox.is_wanted or self._telling >= MOST_TELLING:
            return
        self._telling += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_S):
                    await outbox.complete()
        finally:
            self._telling -= 1

    async def _follow(self, held: Held, performer: Performer, permit: Permit, spans: ClaimSpans) -> None:
        """Start the run and follow it until it is over, or the claim is lost."""
        try:
            await held.read(self._read(held, performer, permit, spans))
        except Exception:
            log.exception("following a run failed", extra={"prediction": held.claim.id})
        if held.is_lost:
            return
        if not held.tracker.is_over:
            ends = ((held.stuck, ABANDONED), (held.unbegun, NEVER_BEGAN), (held.left, LEFT))
            performer.feed(next((end for is_so, end in ends if is_so), FAULT))
        if held.stuck:
            self._servers.doubt(permit)

    async def _read(self, held: Held, performer: Performer, permit: Permit, spans: ClaimSpans) -> None:
        await held.turn()
        given = await self._given(held.claim)
        if given is None:
            performer.feed(NO_INPUT)
            return
        waits_since = self._now()
        if not await self._servers.permits.turn(permit):
            performer.feed(NO_TURN)
            return
        held.ahead_s = self._now() - waits_since
        crash.at("before_put")
        record = held.claim.record
        request = RunRequest(
            id=held.claim.id,
            input=given,
            remote=record.remote,
            place=permit.place,
            alone=record.attempt > 1,
            cost=record.cost,
            trace=spans.asks(),
        )
        self._servers.permits.start(permit)

        def hear(event: RunEvent) -> None:
            if isinstance(event, Began):
                self._began(held)
            elif isinstance(event, Ended):
                spans.ran(event)
                unasked = held.tracker.stopped is None
                self._servers.ended(permit, event, unasked=unasked, account=record.account)
            performer.feed(event)

        if isinstance(held.runner, OneAnswer):
            await held.runner.hear(request, hear)
            return
        async with aclosing(held.runner.run(request)) as events:
            async for event in events:
                hear(event)
                await performer.room()

    def _began(self, held: Held) -> None:
        held.limit(self.run_limit_s)
        crash.at("after_put")
        self._metering.started(held.claim.record)
        log.debug("prediction started", extra=_facts(held.claim))

    async def _given(self, claim: Claim) -> Raw | None:
        """The input for this run; None while it cannot be told where its files are."""
        if self._file_inputs is None:
            return claim.input
        try:
            return await self._file_inputs.for_run(claim.record, claim.input)
        except Exception:  # Redis is away, or the store, which is somebody else's
            log.warning("the files of an input cannot be looked up", extra=_facts(claim), exc_info=True)
            return None

    async def _end(self, held: Held, performer: Performer, permit: Permit) -> Finish | GiveBack | None:
        """What the end of the run asks for, once its files are stored and its output may be released; None when the
        claim was lost.

        The slot is not kept meanwhile, but only for so many: whoever is slower than the runs must slow them, or what
        they put out would pile up here.
        """
        if performer.end is None and not held.is_lost:
            if self._ending < MOST_ENDING:
                self._servers.permits.release(permit)
            self._ending += 1
            try:
                await performer.done()
            finally:
                self._ending -= 1
        return None if held.is_lost else performer.end

    async def _settle(self, held: Held, progress: Progress, end: Finish | GiveBack | None) -> bool:
        """Write the end, for as long as it takes: what the model made must not be lost to a Redis that is away.

        True when the prediction is terminal and its webhook is ours to deliver first. A claim that seems lost by now
        is no reason to stop asking: it looks the same when `finish` was carried out and its answer got lost.
        """
        pause = AWAY_S
        asked_at = self._now()
        unwritten = await progress.close()
        while end is not None:
            try:
                if isinstance(end, GiveBack):
                    await self._give_back(held, end)
                    return False
                crash.at("before_finish")
                finished = await self._scripts.finish(
                    held.claim.id,
                    token=held.claim.token,
                    status=end.status,
                    error=end.error,
                    code=end.code,
                    output=end.output,
                    logs=end.logs,
                    metrics=end.metrics,
                    ran_ms=held.tracker.ran_ms(self._now()),
                    over_ms=held.tracker.over_ms(self._now()),
                    claimed_ms=held.claimed_ms,
                    grace_s=GRACE_S,
                    seq=progress.seq,
                    events=unwritten,
                )
            except BackendUnavailable:
                # what failed together must not be sent again together
                await self._clock.sleep(pause * (0.5 + self._dice()))
                pause = min(2 * pause, AWAY_MOST_S)
            else:
                crash.at("after_finish")
                if finished:
                    self._metering.ended(held.claim.record, end.status, end.code, now_ms=self._clock.now_ms())
                log.info("inference" if finished else "claim lost", extra=_facts_of_end(held, end))
                # the grace began when it was carried out, and that may be as long ago as it was first asked for
                return finished and self._now() - asked_at < GRACE_S - TELL_S
        return False

    async def _give_back(self, held: Held, end: GiveBack) -> Requeued:
        claim = held.claim
        policy = self.policy
        delay_s = 0.0
        if end.fault is not None:
            delay_s = backoff_s(
                end.fault,
                claim.record.attempt,
                base_s=policy.backoff_s,
                cap_s=policy.backoff_cap_s,
                dice=self._dice(),
                asked_s=end.asked_s,
            )
        spent = end.fault is not None and RULES[end.fault].spent
        crash.at("before_release")
        became = await self._scripts.release(
            claim.id,
            token=claim.token,
            spent=spent,
            delay_s=delay_s,
            error=end.error,
            code=end.code,
            began=_may_have_begun(held, end),
            claimed_ms=held.claimed_ms,
        )
        crash.at("after_release")
        self._metering.given_back(claim.record, end, became)
        log.warning("claim given back", extra={**_facts(claim), "spent": spent, "code": end.code, "became": became})
        return became

    def _snapshot(self, held: Held, started_ms: int | None) -> Stored:
        """The prediction as GET shows it while it runs."""
        began_ms = self._clock.now_ms() - (held.tracker.ran_ms(self._now()) or 0)
        record = replace(held.claim.record, status=Status.PROCESSING, started=started_ms or began_ms)
        return Stored(record=record, input=held.claim.input, output=held.tracker.output, logs=held.tracker.logs)

    def _now(self) -> float:
        return self._clock.monotonic()


def _may_have_begun(held: Held, end: GiveBack) -> bool:
    """Could another attempt be a second run? A server that died may have begun what it was sent.

    A slow refusal looks like a run that began, so there the server's word counts.
    """
    if end.fault is ErrorClass.INFRASTRUCTURE or held.tracker.is_accepted:
        return True
    return end.fault is None and held.tracker.began_at is not None


def _leaves_files_unnamed(claim: Claim, end: Finish | GiveBack | None) -> bool:
    """Does nothing name its files after this end? Of a training an earlier attempt may have made a version of them."""
    return isinstance(end, Finish) and not end.output and claim.record.kind != "training"


def _facts_of_end(held: Held, end: Finish) -> dict[str, object]:
    record = held.claim.record
    facts = {"model": record.model, "version": record.version, "server": held.runner.url, "status": end.status}
    return {**_facts(held.claim), **facts, "code": end.code, **held.took}


def _facts(claim: Claim) -> dict[str, object]:
    return {"prediction": claim.id, "queue": claim.record.queue, "attempt": claim.record.attempt}
