"""Run one claimed prediction: follow its run, decide its end, write the end, notify the caller.

The tracker decides; `Run` carries out what the tracker asks for. Every claim is finished, released, or left to its
lease. It is never finished twice, because every write carries the claim's fencing token.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, assert_never

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from director.broker.scripts import Scripts
from director.core import data_bytes
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.policy import Policy
from director.core.schema import REFERENCE_BYTES, Claim, Record, Stored, reference_in
from director.core.settings import DirectorSettings
from director.core.states import Status
from director.core.usage import Used
from director.execution import tracker
from director.execution.active_claims import ActiveClaim, ActiveClaims, Cut, Pace, Progress
from director.execution.metering import ClaimMeter, ClaimSpans, Metering, with_metrics
from director.execution.moderation import Moderator
from director.execution.quoted_secrets import without_secrets
from director.execution.run_files import FileInputs, StoredFile, Storing
from director.execution.side_work import SideWork
from director.execution.uploads import Upload
from director.files.data_files import DataFiles
from director.files.store import FileName
from director.runtime import crash
from director.runtime.tracing import OFF, Tracing
from director.servers.runners.outcomes import REFUSALS_OF_AN_ATTEMPT
from director.servers.runners.runner import Began, Ended, OneAnswer, Outcome, RunEvent, RunRequest
from director.servers.servers import Permit, Servers
from director.store.removal import TrainedVersions
from director.webhooks.delivery import GRACE_S, Outbox, Post

log = logging.getLogger(__name__)

AWAY_S: Final = 0.5
AWAY_MOST_S: Final = 5.0
PUBLISH_AGAIN_S: Final = 1.0
# Less than the grace after which a courier delivers, and no more deliveries than one director should hold in memory.
# An account may have as many as are left: half if it is alone. So its dead receivers leave some to each other account.
TELL_S: Final = 25.0
MOST_TELLING: Final = 128
# Claims that have left their slots while their files are stored or their output is judged
MOST_ENDING: Final = 8
LONGEST_AWAY_S: Final = 1800.0  # until an input in the file store is read again

CUT: Final = {
    Cut.NEVER_BEGAN: Ended(outcome=Outcome.REFUSED, error="It was asked to stop before it was started"),
    Cut.STUCK: Ended(outcome=Outcome.LOST, error="The run was abandoned"),
    Cut.LEFT: Ended(outcome=Outcome.LOST, error="It was left on its server, for another director to follow"),
}
FAULT: Final = Ended(outcome=Outcome.LOST, error="Following the run failed inside the director")
NO_INPUT: Final = Ended(outcome=Outcome.REFUSED, error="The files of its input could not be looked up")
INPUT_AWAY: Final = Ended(
    outcome=Outcome.REFUSED, code=tracker.INPUT_AWAY, error="Its input cannot be read from the file store"
)
NO_ENDPOINT: Final = Ended(
    outcome=Outcome.INVALID, error="The server of this model does not have this endpoint of OpenAI's API"
)
NO_SLOT: Final = Ended(outcome=Outcome.REFUSED, code=tracker.CLAIMED_AHEAD)
ONE_ALONE: Final = Ended(outcome=Outcome.REFUSED, error="Another prediction that was lost twice runs alone here")
GONE: Final = "The destination of this training is gone, or the version that it trained is."


class Executor(Struct, kw_only=True, eq=False):
    """Everything that the runs of one director share. `settings` and `policy` may change for later claims."""

    scripts: Scripts
    clock: Clock
    claims: ActiveClaims
    servers: Servers
    post: Post
    limits: tracker.Limits
    policy: Policy
    settings: DirectorSettings
    dice: Callable[[], float]
    data_files: DataFiles
    storing: Storing | None = None
    moderator: Moderator | None = None
    file_inputs: FileInputs | None = None
    trained: TrainedVersions | None = None
    metering: Metering = field(default_factory=Metering)
    tracing: Tracing = OFF
    pace: Pace = field(default_factory=Pace)
    ending: int = 0
    telling: Counter[str] = field(default_factory=Counter)  # by account

    def take_settings(self, settings: DirectorSettings) -> None:
        """Use these settings for later claims."""
        self.settings, self.policy = settings, settings.policy
        for part in (self.storing, self.file_inputs):
            if part is not None:
                part.settings = settings

    async def execute(self, claim: Claim, permit: Permit) -> None:
        """Run a claim up to its last write. Never raises for what the model server, the model or Redis does."""
        run = Run(self, claim, permit)
        try:
            try:
                await run.follow(self.claims.add(run.active))
                end = await run.end()
                finished = await run.settle(end)
            finally:
                self.claims.remove(run.active)
            if finished:
                await run.notify(end)
                await run.remove_unnamed_files(end)
        except Exception:  # a fault in one claim must not end the others: its lease brings it back
            log.exception("a claim is left to its lease", extra={"prediction": claim.id})
        finally:
            run.drop()


class Run:
    """One claim: call `follow`, `end`, `settle` and `notify` in this order, and `drop` in every case."""

    def __init__(self, executor: Executor, claim: Claim, permit: Permit) -> None:
        record = claim.record
        self._executor = executor
        self._now = executor.clock.monotonic
        self._claim = claim
        self._permit = permit
        series = executor.metering.of(record.queue)
        series.note_claim(record)
        waited_ms = 0 if record.claimed is None else record.claimed - record.created
        self._meter = ClaimMeter(
            series,
            claimed_at=self._now(),
            setup_wait_s=executor.servers.setup_wait_s(waited_ms / 1000),
            spans=ClaimSpans(executor.tracing, record) if executor.tracing.is_on else None,
        )
        if record.remote:
            executor.servers.permits.move(permit, record.remote)
        self._tracker = tracker.Tracker(record, executor.limits, is_moderated=executor.moderator is not None)
        self.active = ActiveClaim(claim, self._tracker, permit.server.runner, executor.clock)
        # not a method of this run: a circle of references would be left to the garbage collector
        snapshot = partial(_snapshot, claim, self._tracker, executor.clock) if record.webhook else None
        self._outbox = None if snapshot is None else Outbox(record, executor.post, snapshot)
        self._progress = Progress(self.active, executor.scripts, self._outbox, executor.pace)
        self._run_limit_s = executor.settings.run_limit_s
        self._decided: tracker.End | None = None
        self._side_work: SideWork | None = None
        self._input_bytes = len(claim.input)  # in Redis
        self._data_bytes = 0  # in the file store

    async def follow(self, older: ActiveClaim | None = None) -> None:
        """Follow the run to its end. It starts once the run of an `older` claim is no longer followed: the server knows
        both by the id of the prediction.
        """
        active = self.active
        starting = self._start_and_read(older)
        older = None  # it may hold megabytes of output
        try:
            await active.follow(starting)
        except Exception:  # any fault ends this run as FAULT below
            log.exception("following a run failed", extra={"prediction": self._claim.id})
        if active.is_lost:
            return
        if not self._tracker.is_over:
            self._apply(CUT[active.cut] if active.cut else FAULT)
        if active.cut is Cut.STUCK:
            self._executor.servers.doubt(self._permit)

    async def _start_and_read(self, older: ActiveClaim | None) -> None:
        if older is not None:
            await older.wait_detached()
            older = None
        endpoint = self._claim.record.endpoint
        if endpoint and endpoint not in self._permit.server.runner.capabilities.endpoints:
            self._apply(NO_ENDPOINT)
            return
        if len(self._claim.input) == REFERENCE_BYTES and not await self._has_read_input():
            self._apply(replace(INPUT_AWAY, retry_after_s=_away_s(self._claim.record.claims)))
            return
        files = self._executor.file_inputs
        given = self._claim.input if files is None else await self._look_up_files(files)
        if given is None:
            self._apply(NO_INPUT)
            return
        permits = self._executor.servers.permits
        if self._permit.slot is not None:
            waits_since = self._now()
            if not await permits.wait_for_slot(self._permit):
                self._apply(NO_SLOT)
                return
            self._meter.ahead_s = self._now() - waits_since
        record = self._claim.record
        is_suspect = record.history and _may_kill_servers(record, self._executor.policy.attempts)
        if is_suspect and not await permits.be_alone(self._permit):
            self._apply(replace(ONE_ALONE, retry_after_s=_alone_again_s(record.claims)))
            return
        crash.at("before_put")
        request = RunRequest(
            id=record.id,
            input=given,
            remote=record.remote,
            place=self._permit.place,
            alone=record.attempt > 1 or record.claims > REFUSALS_OF_AN_ATTEMPT,
            cost=record.cost,
            trace=record.trace if self._meter.spans is None else self._meter.spans.run(),
            is_first=record.claims == 1 and not record.revivals,
            endpoint=record.endpoint,
        )
        permits.start(self._permit)
        runner = self.active.runner
        if isinstance(runner, OneAnswer):
            await runner.hear(request, self._hear)
            return
        async with aclosing(runner.run(request)) as events:
            async for event in events:
                self._hear(event)
                if self._side_work is not None and not self._tracker.is_over:  # a run that is over keeps no slot for it
                    await self._side_work.wait_for_store()

    async def _has_read_input(self) -> bool:
        """Read the input if it is in the file store. False if that fails: no attempt is counted for an outage."""
        claim, reference = self._claim, reference_in(self._claim.input)
        self._data_bytes = reference.size if reference else 0
        try:
            claim.input = await self._executor.data_files.read(claim.id, claim.input) or claim.input
        except BackendUnavailable as exc:
            log.warning("an input cannot be read", extra={**_facts(self._claim.record), "reason": str(exc)})
            return False
        return True

    async def _look_up_files(self, files: FileInputs) -> Raw | None:
        try:
            takes_bytes = self._permit.server.runner.capabilities.takes_bytes
            return await files.for_run(self._claim.record, self._claim.input, takes_bytes=takes_bytes)
        except Exception:  # Redis is away, or the store: any store may raise anything
            log.warning("the files of an input cannot be looked up", extra=_facts(self._claim.record), exc_info=True)
            return None

    def _hear(self, event: RunEvent) -> None:
        match event:
            case Began():
                self.active.limit(self._run_limit_s)
                crash.at("after_put")
                self._meter.series.note_start(self._claim.record)
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("prediction started", extra=_facts(self._claim.record))
            case Ended():
                if event.error and self._claim.record.secret:
                    event = replace(event, error=without_secrets(event.error, self._claim.record, self._claim.input))
                if self._meter.spans is not None:
                    self._meter.spans.ran(event)
                unasked, servers = self._tracker.stopped is None, self._executor.servers
                if event.may_be_input and unasked:
                    event = servers.judge_refusal(self._permit, event, self._claim.id)
                servers.judge_end(self._permit, event, unasked=unasked, account=self._claim.record.account)
        self._apply(event)

    def _apply(self, event: tracker.Happening) -> None:
        for effect in self._tracker.apply(event, self._now()):
            match effect:
                case tracker.Finish() | tracker.GiveBack():
                    self._decided = effect
                case tracker.Write():
                    self._progress.add(effect.events)
                case tracker.Remember():
                    self._progress.remember(effect.remote)
                case tracker.Tell():
                    self._progress.tell(effect.event)
                case tracker.Halt():
                    self.active.stop(effect.why)
                case Upload() | tracker.Ask():
                    self._do_beside(effect)
                case _:
                    assert_never(effect)

    def _do_beside(self, work: Upload | tracker.Ask) -> None:
        if self._side_work is None:
            storing, moderator = self._executor.storing, self._executor.moderator
            self._side_work = SideWork(self.active, self._apply, storing=storing, moderator=moderator)
        self._side_work.add(work)

    async def end(self) -> tracker.End | None:
        if self._decided is None and not self.active.is_lost and self._side_work is not None:
            await self._wait_beside(self._side_work)
        end = None if self.active.is_lost else self._decided
        if self._executor.trained is not None and self._claim.record.kind == "training":
            self._executor.servers.permits.release(self._permit)
            end = await self._publish(self._executor.trained, end)
        return end

    async def _wait_beside(self, work: SideWork) -> None:
        """Wait off the slot, at most `MOST_ENDING` claims at once: else a slow store would let output pile up here."""
        if self._executor.ending < MOST_ENDING:
            self._executor.servers.permits.release(self._permit)
        self._executor.ending += 1
        try:
            await work.finish()
        finally:
            self._executor.ending -= 1

    async def _publish(self, versions: TrainedVersions, end: tracker.End | None) -> tracker.End | None:
        """Make a version of a training that succeeded. Waits while Redis is away; None if the claim is lost first."""
        if not isinstance(end, tracker.Finish) or end.status is not Status.SUCCEEDED:
            return end
        while not self.active.is_lost:
            try:
                made = await versions.make(self._claim.record, weights_of(end.output))
            except BackendUnavailable:
                await self._executor.clock.sleep(PUBLISH_AGAIN_S)
                continue
            if made is None:
                return replace(end, status=Status.FAILED, code="destination_gone", error=GONE, output=b"")
            log.info("training made a version", extra={"prediction": self._claim.id, "version": made.version})
            return replace(end, output=msgspec.json.encode(made))
        return None

    async def settle(self, end: tracker.End | None) -> bool:
        """Write the end. True when the prediction is terminal and its webhook is ours to deliver first."""
        # before the last write: the next claim then leaves together with it
        self._executor.servers.permits.release(self._permit)
        if isinstance(end, tracker.Finish):
            self._meter.measure(self._claim.record, self._tracker)
        elif self._outbox is not None:  # from here on another attempt may notify the caller
            self._outbox.drop()
        last = LastWrite(
            self._executor,
            self.active,
            self._meter,
            self._progress,
            input_bytes=self._input_bytes,
            data_bytes=self._data_bytes,
            files=self._side_work.files if self._side_work else {},
        )
        is_ours = await last.write(end)
        if self._meter.spans is not None:
            self._meter.spans.end(end)
        return is_ours

    async def notify(self, end: tracker.End | None) -> None:
        """Deliver the terminal webhook, off the slot. The courier delivers those beyond a time and a number."""
        if self._outbox is None or not isinstance(end, tracker.Finish):
            return
        last = _snapshot(self._claim, self._tracker, self._executor.clock, None)
        last = replace(last, output=Raw(end.output) if end.output else None, logs=end.logs)
        telling, account = self._executor.telling, self._claim.record.account
        if telling[account] >= MOST_TELLING - telling.total():
            return
        telling[account] += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELL_S):
                    await self._outbox.complete(last)
        finally:
            telling[account] -= 1
            if not telling[account]:
                del telling[account]

    async def remove_unnamed_files(self, end: tracker.End | None) -> None:
        """Delete the files of a prediction without an output; never of a training, whose version may name them, nor if
        the input is among them.
        """
        storing, work, record = self._executor.storing, self._side_work, self._claim.record
        if storing is None or work is None or not work.has_files or self._data_bytes or record.kind == "training":
            return
        if isinstance(end, tracker.Finish) and not end.output:
            work.drop()
            await storing.remove(record)

    def drop(self) -> None:
        if self.active.is_lost:
            self._meter.series.lost.inc()
        if self._permit.taken:
            self._executor.servers.permits.release(self._permit)
        if self._meter.spans is not None:
            self._meter.spans.drop()
        if self._side_work is not None:
            self._side_work.drop()
            self._side_work = None  # it holds this run, in a circle
        self._progress.drop()
        if self._outbox is not None:
            self._outbox.drop()


class LastWrite(Struct, eq=False):
    """The last write of one claim. `input_bytes`: in Redis. `data_bytes`: of input and output in the file store.
    `files`: what its side work has stored. That may still grow.
    """

    executor: Executor
    active: ActiveClaim
    meter: ClaimMeter
    progress: Progress
    input_bytes: int
    data_bytes: int
    files: Mapping[FileName, StoredFile]

    @property
    def files_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    async def write(self, end: tracker.End | None) -> bool:
        """Try for as long as it takes, since the output must not be lost because Redis is away. Go on if the claim
        seems lost: it looks the same when `finish` was carried out and its answer was lost. Returns whether the
        prediction is terminal and its webhook is ours to deliver first.
        """
        executor, claim, run = self.executor, self.active.claim, self.active.tracker
        pause = AWAY_S
        asked_at = executor.clock.monotonic()
        unwritten = await self.progress.close()
        given = output = end.output if isinstance(end, tracker.Finish) else b""
        if len(given) >= executor.data_files.from_bytes:
            output = await executor.data_files.put(claim.id, given)
            self.data_bytes += 0 if output is given else len(given)
        while end is not None:
            try:
                if isinstance(end, tracker.GiveBack):
                    # first: else the next director would start a run again that goes on on its server
                    await self.progress.write_remote()
                    await self._give_back(end)
                    return False
                crash.at("before_finish")
                now = executor.clock.monotonic()
                finished = await executor.scripts.finish(
                    claim.record.id,
                    queue=claim.record.queue,
                    token=claim.record.token,
                    status=end.status,
                    error=end.error,
                    code=end.code,
                    output=output,
                    logs=end.logs,
                    metrics=with_metrics(end.metrics, self.meter.times),
                    ran_ms=run.ran_ms(now),
                    over_ms=run.over_ms(now),
                    claimed_ms=round((now - self.meter.claimed_at) * 1000),
                    ahead_ms=round(self.meter.ahead_s * 1000),
                    grace_s=GRACE_S,
                    seq=self.progress.seq,
                    used=self._count_usage(now),
                    events=unwritten,
                )
            except BackendUnavailable:
                # what failed together must not be sent again together
                await executor.clock.sleep(pause * (0.5 + executor.dice()))
                pause = min(2 * pause, AWAY_MOST_S)
            else:
                crash.at("after_finish")
                if finished:
                    self._count_end(end, output)
                    if self.data_bytes and executor.storing is not None:
                        # input and output, and with them the files that were counted before
                        await executor.storing.count(claim.record, self.data_bytes + self.files_bytes)
                log.info("inference" if finished else "claim lost", extra=self._facts_of(end))
                # the grace began when `finish` was carried out: perhaps as early as the first try
                return finished and executor.clock.monotonic() - asked_at < GRACE_S - TELL_S
        return False

    def _count_usage(self, now: float) -> Used:
        """Return what the run used. One that goes on for another director to follow is counted at its end."""
        used = self.active.tracker.count_usage(now, file_bytes=self.files_bytes if self.files else 0)
        return Used(ms=used.ms) if self.active.cut is Cut.LEFT else used

    def _count_end(self, end: tracker.Finish, output: bytes) -> None:
        """Count the end, and the data that it left in Redis if that is more than was counted before. The call is not
        awaited: if it is lost, the figure is too low until the data expires.
        """
        record, now_ms = self.active.claim.record, self.executor.clock.now_ms()
        run_s = self.meter.times.get("run_time", 0.0)
        self.meter.series.note_end(record, end.status, end.code, now_ms=now_ms, run_s=run_s)
        ttl_ms = record.data_ttl_ms or int(self.executor.policy.data_ttl_s * 1000)
        counted = data_bytes.at_end(
            record.id,
            input_bytes=self.input_bytes,
            left_bytes=len(output) + tracker.size_of(end.logs) + self.active.tracker.shown_bytes,
            lived_ms=now_ms - record.created,
            now_ms=now_ms,
            ttl_ms=ttl_ms,
        )
        if counted is not None:
            self.executor.scripts.weigh(record.account, *counted)
        # the record keeps them: 16 KiB and 64 KiB at most
        record_ttl_ms = int(self.executor.policy.record_ttl_s * 1000)
        stays = data_bytes.lasting((end.error, end.metrics), now_ms=now_ms, record_ttl_ms=record_ttl_ms)
        if stays.bytes:
            self.executor.scripts.weigh(record.account, stays)

    async def _give_back(self, end: tracker.GiveBack) -> None:
        claim, policy = self.active.claim, self.executor.policy
        delay_s = end.asked_s or 0.0
        if end.fault is not None:
            delay_s = tracker.backoff_s(
                end.fault,
                claim.record.attempt,
                base_s=policy.backoff_s,
                cap_s=policy.backoff_cap_s,
                dice=self.executor.dice(),
                asked_s=end.asked_s,
            )
        spent = end.fault is not None and tracker.RULES[end.fault].spent
        crash.at("before_release")
        now = self.executor.clock.monotonic()
        became = await self.executor.scripts.release(
            claim.id,
            token=claim.token,
            spent=spent,
            delay_s=delay_s,
            error=end.error,
            code=end.code,
            began=_may_have_begun(self.active, end),
            claimed_ms=round((now - self.meter.claimed_at) * 1000),
            used=self._count_usage(now),
        )
        crash.at("after_release")
        self.meter.series.note_release(end, became)
        log.warning(
            "claim given back", extra={**_facts(claim.record), "spent": spent, "code": end.code, "became": became}
        )

    def _facts_of(self, end: tracker.Finish) -> dict[str, object]:
        record = self.active.claim.record
        return {
            **_facts(record),
            "model": record.model,
            "version": record.version,
            "server": self.active.runner.url,
            "status": end.status,
            "code": end.code,
            **self.meter.times,
        }


def _facts(record: Record) -> dict[str, object]:
    return {"prediction": record.id, "queue": record.queue, "attempt": record.attempt}


def _may_have_begun(active: ActiveClaim, end: tracker.GiveBack) -> bool:
    """Return whether another attempt could be a second run: a model server that died may have begun what it was sent.
    A slow refusal looks like a run that began, so there the answer of the server decides. A run that was left to the
    next director goes on: that director follows it and starts none.
    """
    if active.cut is Cut.LEFT:
        return False
    if end.fault is tracker.ErrorClass.INFRASTRUCTURE or active.tracker.is_accepted:
        return True
    return end.fault is None and active.tracker.began_at is not None


def _may_kill_servers(record: Record, attempts: int) -> bool:
    """Return whether its input may be what kills its servers: two were lost with it, or one before its last attempt. A
    single loss says little, since one death ends all runs of a server: fifty would be repeated one by one.
    """
    lost = record.history.count(" server_lost")
    return lost > 1 or (lost > 0 and record.attempt >= attempts)


def _alone_again_s(claims: int) -> float:
    """Return the wait until a run asks again to be alone. Its 20 claims last for hours: to wait must not end it."""
    return min(2.0 ** max(1, claims - 2), LONGEST_AWAY_S)


def _away_s(claims: int) -> float:
    """Return the wait until an input is read again. A prediction has 20 claims in all: so they last for six hours."""
    return min(7.5 * 2.0**claims, LONGEST_AWAY_S)


def _snapshot(claim: Claim, run: tracker.Tracker, clock: Clock, started_ms: int | None) -> Stored:
    began_ms = clock.now_ms() - (run.ran_ms(clock.monotonic()) or 0)
    record = replace(claim.record, status=Status.PROCESSING, started=started_ms or began_ms)
    return Stored(record=record, input=claim.input, output=run.output, logs=run.logs)


def weights_of(output: bytes) -> str | None:
    """Return the address of the weights: the `weights` of what a model's `train` returned, or all of it."""
    try:
        said: Any = msgspec.json.decode(output) if output else None
    except msgspec.DecodeError:  # a number beyond all floats, say
        return None
    weights = said.get("weights") if isinstance(said, dict) else said
    return weights if isinstance(weights, str) else None
