"""Play a fault-injection run by hand: real scripts on a real server, parties that a test moves, and their journals."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec.structs import replace

from api.services.stream_events import Frames, Mark
from director.core.errors import IdempotencyMismatch
from director.core.ids import LANES, PredictionId, partition_of
from director.core.schema import Claim
from director.core.states import Status
from director.core.usage import Used
from director.lab.chaos.checker import Report, check
from director.lab.chaos.evidence import Rules
from director.lab.chaos.journal import (
    Answered,
    Called,
    CogEnded,
    CogStarted,
    Delivered,
    Fault,
    Followed,
    Healed,
    Heard,
    Journal,
    Line,
    Listed,
    Sent,
    Spoken,
    Visited,
)
from director.lab.chaos.plan import SCHEDULE_S
from director.lab.chaos.rest import leftovers, predictions, server_log, size
from tests.support.event_stream import Told, take_apart
from tests.support.queue_driver import ACCOUNT, QueueDriver

LEASE_S: Final = 15
RECONCILE_S: Final = 30
STREAMS: Final = 16
TOKENS: Final = 7  # of each run
NOTHING: Final[Mapping[str, int]] = {}

Outcome = Literal["succeeded", "failed", "canceled", "crashed"]


class PlayedRun:
    def __init__(self, play: "Play", claim: Claim, name: str, *, pid: int) -> None:
        self.claim = claim
        self.name = name
        self.item = b'{"run":"%s","i":0}' % name.encode()
        self._play = play
        self._began = play.now_ms
        play.note("cog", CogStarted(at=self._began, id=claim.id, run=name, server=f"cog-{pid}", pid=pid))

    async def shows(self) -> None:
        driver = self._play.driver
        await driver.scripts.advance(
            self.claim.id,
            token=self.claim.token,
            seq=self.claim.record.seq,
            ran_ms=0,
            events=[("started", b""), ("output", self.item)],
            now_ms=driver.now_ms,
        )
        self._play.note("cog", Spoken(at=driver.now_ms, run=self.name, data=self.item.decode(), tokens=0))

    async def is_to_stop(self) -> bool:
        """The director extends its claim. Return whether the caller has canceled it."""
        return await self._play.driver.extend(self.claim) == ["user"]

    def ends(self, outcome: Outcome = "succeeded") -> None:
        now_ms = self._play.now_ms
        asked = now_ms if outcome == "canceled" else 0
        ended = CogEnded(at=now_ms, id=self.claim.id, run=self.name, outcome=outcome, asked=asked, tokens=TOKENS)
        self._play.note("cog", ended)

    async def is_finished(self, status: Status = Status.SUCCEEDED) -> bool:
        output = b"[" + self.item + b"]"
        ran_ms = self._play.now_ms - self._began
        return await self._play.driver.finish(
            self.claim,
            status,
            output=output,
            seq=self.claim.record.seq + 2,
            ran_ms=ran_ms,
            used=Used(runs=1, ms=ran_ms, output_tokens=TOKENS),
        )


class PlayedReader:
    def __init__(self, play: "Play", prediction_id: PredictionId) -> None:
        self._play = play
        self._id = prediction_id
        self._after = ""
        self._note(Followed(at=play.now_ms, id=prediction_id, tenant=0))

    async def comes(self) -> None:
        scripts, after = self._play.driver.scripts, self._after
        stream = Frames(Mark.parse(after))
        page = await scripts.replay(self._id, after=stream.mark.seq, count=100, most_bytes=10_000)
        assert page is not None
        said = stream.events(page.events)
        if stream.at_end:
            stored = await scripts.get(self._id, outlook=False)
            assert stored is not None
            rest, _ = stream.rest(stored.output, stored.logs, most_bytes=10_000)
            said += rest + stream.end(stored)
        for told in map(take_apart, said.decode().split("\n\n")[:-1]):
            if isinstance(told, Told):
                self._after = told.id
                self._note(Heard(at=self._play.now_ms, id=self._id, event=told.event, mark=told.id, data=told.data))
            else:
                self._note(Heard(at=self._play.now_ms, id=self._id, event=told.text))
        end: Literal["done", "left"] = "done" if stream.at_end else "left"
        self._note(Visited(at=self._play.now_ms, id=self._id, after=after, status=200, end=end))

    async def lists(self) -> None:
        events: list[tuple[int, str]] = []
        has_more = True
        while has_more:
            page = await self._play.driver.scripts.replay(self._id, after=len(events), count=2, most_bytes=10_000)
            assert page is not None
            events += [(event.seq, event.kind) for event in page.events]
            has_more = page.has_more and bool(page.events)
        self._note(Listed(at=self._play.now_ms, id=self._id, events=events))

    def _note(self, line: Line) -> None:
        self._play.note("client", line)


class Play:
    """The scene. All journals are in `folder`; `data` is the server's folder, with its log."""

    def __init__(self, driver: QueueDriver, folder: Path, data: Path) -> None:
        self.driver = driver
        self._folder = folder
        self._data = data
        self._log_start = size(data)
        self._ids: set[str] = set()
        self._kept_s = 0

    @property
    def now_ms(self) -> int:
        return self.driver.now_ms

    def note(self, party: str, line: Line) -> None:
        journal = Journal(self._folder / f"{party}.jsonl")
        journal.write(line)
        journal.close()

    async def ask(
        self,
        key: str = "k",
        *,
        account: str = ACCOUNT,
        plan: str = "plain",
        start_by_s: int = 0,
        is_heard: bool = True,
        has_webhook: bool = True,
        is_call: bool = False,
    ) -> PredictionId | None:
        """A client submits. `is_heard`: the answer arrives; `has_webhook`: it wants a webhook; `is_call`: it is a
        streamed call of OpenAI's API.
        """
        driver = self.driver
        sent = Sent(at=self.now_ms, key=key, action="create", webhook=has_webhook, plan=plan, start_by_s=start_by_s)
        self.note("client", sent)
        idempotency = (hashlib.sha256(key.encode()).hexdigest(), hashlib.sha256(plan.encode()).hexdigest())
        try:
            options: dict[str, Any] = (
                {"webhook": "http://sink.test", "webhook_events": "completed"} if has_webhook else {}
            )
            if is_call:
                options |= {"endpoint": "chat", "once_shown": True}
            if start_by_s:
                options["start_by_ms"] = start_by_s * 1000
            accepted = await driver.submit(account=account, idempotency=idempotency, **options)
        except IdempotencyMismatch:
            self._hears(key, status=422)
            return None
        self._ids.add(accepted)
        self._hears(key, status=201 if is_heard else 0, prediction_id=accepted if is_heard else "")
        return accepted

    def _hears(self, key: str, *, status: int, prediction_id: str = "") -> None:
        answered = Answered(at=self.now_ms, key=key, action="create", status=status, id=prediction_id, shown="starting")
        self.note("client", answered)

    def is_over(self, prediction_id: PredictionId, *chunks: str, key: str = "k") -> None:
        """The stream of a call ends after these chunks."""
        called = Called(
            at=self.now_ms, key=key, id=prediction_id, plan="chat", status=200, chunks=[*chunks], end="whole"
        )
        self.note("client", called)

    async def cancel(self, prediction_id: PredictionId, key: str = "k") -> None:
        self.note("client", Sent(at=self.now_ms, key=key, action="cancel"))
        await self.driver.cancel(prediction_id, account=ACCOUNT)
        shown = (await self.driver.record(prediction_id)).status
        answered = Answered(at=self.now_ms, key=key, action="cancel", status=200, id=prediction_id, shown=shown)
        self.note("client", answered)

    async def claim(self, *, pid: int) -> Claim | None:
        claims = await self.driver.claim(consumer=f"host-{pid}-0a", lease_s=LEASE_S)
        return claims[0] if claims else None

    async def run(self, name: str, *, pid: int) -> PlayedRun | None:
        claim = await self.claim(pid=pid)
        return None if claim is None else PlayedRun(self, claim, name, pid=pid)

    def kill(self, pid: int) -> None:
        phases: tuple[Literal["begin", "end"], ...] = ("begin", "end")
        for phase in phases:
            fault = Fault(at=self.now_ms, kind="kill_director", target=f"director-{pid}", phase=phase, pid=pid)
            self.note("nemesis", fault)

    def freeze(self, pid: int) -> None:
        self.note(
            "nemesis", Fault(at=self.now_ms, kind="stop_director", target=f"director-{pid}", phase="begin", pid=pid)
        )

    async def keep(self, seconds: float = LEASE_S + 1) -> None:
        """Pass this time under a keeper that reaps and promotes every second and sometimes checks everything."""
        driver = self.driver
        for _ in range(int(seconds)):
            driver.pass_time(1)
            self._kept_s += 1
            await driver.reap()
            await driver.scripts.promote(driver.queue, limit=100, now_ms=self.now_ms)
            if self._kept_s % RECONCILE_S == 0:
                await self._cross_check()

    async def _cross_check(self) -> None:
        driver, options = self.driver, {"count": 100, "now_ms": self.now_ms}
        for lane in LANES:
            for number in range(STREAMS):
                # idle entries go by the server's own clock, which stands still here
                await driver.scripts.recover(driver.queue, lane, number, cursor="0-0", idle_s=0, **options)
        await driver.scripts.reconcile(driver.queue, start=0, lease_s=LEASE_S, **options)

    async def deliver(self, *, answered: int = 200, otherwise: Mapping[str, int] = NOTHING) -> None:
        """Deliver what is due. `otherwise`: how the receivers of some predictions answer."""
        driver = self.driver
        for name in sorted(self._ids):
            prediction_id = PredictionId(name)
            due = await driver.scripts.due(partition_of(prediction_id), limit=100, hold_s=60, now_ms=self.now_ms)
            for each in due:
                await self._deliver_one(each, otherwise.get(each, answered))

    async def _deliver_one(self, prediction_id: PredictionId, answered: int) -> None:
        is_delivered = answered < 300
        self.note(
            "sink",
            Delivered(
                at=self.now_ms,
                id=prediction_id,
                webhook_id=f"msg_{prediction_id}_completed",
                status=(await self.driver.record(prediction_id)).status,
                answered=answered,
                signed=True,
            ),
        )
        noted = await self.driver.scripts.deliver(
            prediction_id,
            outcome="delivered" if is_delivered else "failed",
            delay_s=None if is_delivered else 2,
            account=ACCOUNT,
            is_away=answered >= 500,
            now_ms=self.now_ms,
        )
        if noted == "others":
            partition = partition_of(prediction_id)
            await self.driver.scripts.forward(partition, ACCOUNT, "?", limit=9, now_ms=self.now_ms)

    async def verdict(self) -> Report:
        redis: Any = self.driver.redis
        self.note("nemesis", Healed(at=self.now_ms))
        async for prediction in predictions(redis, self._ids):
            self.note("queue", replace(prediction, listed=None))  # a play has no API, which writes the lists
        for line in server_log(self._data, start=self._log_start):
            self.note("server", line)
        # the test's time differs from the server's
        rules = Rules(
            lease_s=LEASE_S,
            attempts=3,
            slots=1,
            clock_s=math.inf,
            schedule_s=SCHEDULE_S,
            is_counted=True,
            has_steps=True,
        )
        return check(self._folder, rules, leftovers=await leftovers(redis))
