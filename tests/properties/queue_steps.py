"""Act as callers and directors of one queue: each rule is a typed call to a real server, compared with a plain model.

Keepers, operators and losses are in `queue_machine`.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from redis import exceptions
from redis.exceptions import ResponseError

from director.broker import keys
from director.broker.gatherer import Call, Gatherer, _command, _runs
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import QueueRefused
from director.core.ids import LANES, PredictionId
from director.core.policy import Policy
from director.core.schema import Claim
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.properties.books import Books, read_books
from tests.properties.breaker_model import COOL_MS
from tests.properties.queue_model import ATTEMPTS, LEASE_MS, Model, Prediction, Tenant
from tests.support.kinds import Mortal, whole
from tests.support.queue_driver import MODEL, START_MS, VERSION, QueueDriver

# few of each, so that steps meet
TENANTS: Final = ("whale", "ant", "bee")
WHO = st.sampled_from(TENANTS)
CONSUMERS = st.sampled_from(["d1", "d2"])
KEYS: Final = ("", "", "00000001000000aa", "00000002000000bb")
WHICH = st.integers(0, 30)
MANY = st.integers(1, 33)  # up to one more than fits into one run of a script
FAULT = st.sampled_from(["", "", "broken item", "no script", "lost reply"])
ID_LENGTH: Final = 26


class Wish(NamedTuple):
    """The options of one submit."""

    tenant: str
    stream: int
    lane: str
    cost: float
    lifetime_s: int | None
    start_by_s: int | None
    late: str
    wants_webhook: bool
    affinity: str
    most_queued: int | None
    once_shown: bool = False

    @property
    def start_after_s(self) -> int | None:
        """Return a planned start for some, without a draw of its own: walks that find a fault stay as they are."""
        return 3 if self.tenant == "ant" and self.cost == 5 else None


WISHES = st.builds(
    Wish,
    tenant=WHO,
    stream=st.sampled_from([0, 2, 5]),
    lane=st.sampled_from(["normal", "normal", "low", "high"]),
    cost=st.sampled_from([1, 1, 2, 5]),
    lifetime_s=st.sampled_from([None, None, 5, 20]),
    start_by_s=st.sampled_from([None, None, None, 5]),
    late=st.sampled_from(["", "aborted"]),
    wants_webhook=st.booleans(),
    affinity=st.sampled_from(KEYS),
    most_queued=st.sampled_from([None, None, None, 3]),
    once_shown=st.booleans(),
)


class LosingGatherer(Gatherer):
    """Sends as the product does. `loses_reply`: the next call is carried out, and its reply is lost."""

    loses_reply = False

    async def _send_once(self, calls: list[Call]) -> list[Call]:
        if not self.loses_reply:
            return await super()._send_once(calls)
        self.loses_reply = False
        await self._pipes.ask([_command(run) for run in _runs(calls)], [run[0].key for run in _runs(calls)])
        raise exceptions.ConnectionError("the reply was lost")


class QueueSteps(RuleBasedStateMachine):
    """The steps of callers and directors. `held`: every claim ever handed out, stale ones included. `scan`: the most
    entries that one claim looks at.
    """

    def __init__(self, server: Mortal, *, scan: int) -> None:
        super().__init__()
        self.server = server
        self.scan = scan
        self.runner = asyncio.Runner()
        self.model = Model(START_MS, {name: Tenant() for name in TENANTS})
        self.held: list[Claim] = []
        self.calls = 0
        self.replies: dict[str, tuple[str, list[Claim]]] = {}
        self.do(self._open())

    async def _open(self) -> None:
        # for the test's own reads; the scripts' connections reconnect by themselves
        self.redis = whole(self.server.admin_url)
        await self.redis.flushall()
        self.gatherer = LosingGatherer(client(self.server.url))
        self.scripts = Scripts(self.gatherer)
        catalog = Catalog(self.redis, self.scripts, SystemClock())
        queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=policy())
        self.driver = QueueDriver(self.redis, self.scripts, queue)

    def do(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(step)

    def books(self) -> Books:
        return self.do(read_books(self.redis, self.driver.queue, list(self.model.all), TENANTS))

    def one(self, which: int) -> Prediction:
        return list(self.model.all.values())[which % len(self.model.all)]

    def claim_of(self, which: int) -> tuple[Claim, Prediction]:
        claim = self.held[-1 - which % len(self.held)]
        return claim, self.model.all[claim.id]

    @rule(wish=WISHES)
    def enqueue(self, wish: Wish) -> None:
        tenant = self.model.tenants[wish.tenant]
        self.submit(wish, (tenant.weight, tenant.most_running, tenant.revision))

    def submit(self, wish: Wish, limits: tuple[float, int | None, int]) -> bool:
        """Submit with limits that the API believes to be valid. Return True if it was accepted."""
        weight, most_running, revision = limits
        webhook = {"webhook": "https://example.com", "webhook_events": "completed"} if wish.wants_webhook else {}
        options = {
            "account": wish.tenant,
            "streams": [wish.stream],
            "lane": wish.lane,
            "cost": wish.cost,
            "lifetime_ms": _ms(wish.lifetime_s),
            "start_by_ms": _ms(wish.start_by_s),
            "deadline_status": wish.late,
            "affinity": wish.affinity,
            "once_shown": wish.once_shown,
            "start_after": None if wish.start_after_s is None else self.model.now_ms + wish.start_after_s * 1000,
            "weight": weight,
            "most_queued": wish.most_queued,
            "most_running": most_running,
            "limits_rev": revision,
            **webhook,
        }
        prediction_id, now_ms = self.driver.new_id(), self.model.now_ms
        slots = int(self.do(self.driver.meta("slots")) or 0)
        is_planned = wish.start_after_s is not None
        refusal = self.model.refusal(wish.tenant, most_queued=wish.most_queued, slots=slots, is_planned=is_planned)
        refused = self._submit(prediction_id, options)
        if refused is not None and refused.code == "cannot_start_in_time":
            assert (refused.eta_s or 0) > (wish.start_by_s or math.inf)
            assert not refusal, "refused for another reason than the first"
            return False
        assert (refused.code if refused else "") == refusal
        if refused:
            return False
        deadline = None if wish.lifetime_s is None else now_ms + wish.lifetime_s * 1000
        start_by = None if wish.start_by_s is None else now_ms + wish.start_by_s * 1000
        p = Prediction(prediction_id, wish.tenant, wish.lane, wish.cost, wish.affinity, deadline, start_by, wish.late)
        p.wants_webhook, p.once_shown, p.start_after = wish.wants_webhook, wish.once_shown, options["start_after"]
        self.model.accept(p)
        return True

    def _submit(self, prediction_id: PredictionId, options: dict[str, Any]) -> QueueRefused | None:
        """Submit, and repeat the call as if its reply were lost."""
        try:
            for _ in range(2):
                assert self.do(self.driver.submit(prediction_id, **options)) == prediction_id
        except QueueRefused as refused:
            return refused
        return None

    @rule(lane=st.sampled_from(["normal", "high"]), many=st.integers(3, 12), affinity=st.sampled_from(KEYS))
    def flood(self, lane: str, many: int, affinity: str) -> None:
        """Submit many predictions of the whale."""
        for _ in range(many):
            self.enqueue(Wish("whale", 0, lane, 1, None, None, "", False, affinity, None))

    @rule(lane=st.sampled_from(["normal", "high"]), many=MANY, cost=st.sampled_from([1, 2]), fault=FAULT, at=WHICH)
    def flood_in_one_batch(self, lane: str, many: int, cost: float, fault: str, at: int) -> None:
        """Submit for all tenants in one turn of the loop. Some may be refused, and one be at fault, between others."""
        slots = int(self.do(self.driver.meta("slots")) or 0)
        expected, calls, broken = [], [], at % many if fault == "broken item" else None
        for number in range(many):
            name = TENANTS[number % len(TENANTS)]
            tenant = self.model.tenants[name]
            p = Prediction(self.driver.new_id(), name, lane, cost, "", None, None, "")
            if number == broken:
                occupied = (keys.record, keys.events)[at % 2](p.id)
                self.do(self.redis.set(occupied, "no hash and no list"))
                expected.append("at fault")
            else:
                expected.append(self.model.refusal(name, most_queued=None, slots=slots))
            if not expected[-1]:
                self.model.accept(p)
            limits = {"weight": tenant.weight, "most_running": tenant.most_running, "limits_rev": tenant.revision}
            calls.append(self.driver.submit(p.id, account=name, streams=[2 * number], lane=lane, cost=cost, **limits))
        assert [_became(answer) for answer in self._together(calls, fault)] == expected
        if broken is not None:
            self.do(self.redis.delete(occupied))

    @precondition(lambda self: self.held)
    @rule(which=WHICH, many=MANY, fault=FAULT, at=WHICH)
    def finish_in_one_batch(self, which: int, many: int, fault: str, at: int) -> None:
        """Finish claims in one turn of the loop, stale and repeated ones among them. One record may be at fault."""
        claims = [self.claim_of(which + number)[0] for number in range(many)]
        broken = self.model.all[claims[at % many].id] if fault == "broken item" else None
        if broken is not None and broken.stage == "claimed":
            kept = self.do(self.redis.hget(keys.record(broken.id), "seq"))
            self.do(self.redis.hset(keys.record(broken.id), "seq", ""))
        else:
            broken = None
        expected: list[Any] = []
        for claim in claims:
            p = self.model.all[claim.id]
            is_at_fault = p is broken and claim.token == p.token
            expected.append("at fault" if is_at_fault else self.model.finish(p, claim.token))
        answers = self._together([self.driver.finish(claim, output=b"1") for claim in claims], fault)
        assert [_became(answer) for answer in answers] == [_became(answer) for answer in expected]
        if broken is not None:
            self.do(self.redis.hset(keys.record(broken.id), "seq", kept))

    def _together(self, calls: list[Coroutine[Any, Any, Any]], fault: str) -> list[Any]:
        """Call in one turn of the loop. Before it the server forgets its scripts, or the reply is lost after it."""
        if fault == "no script":
            self.do(self.redis.script_flush())
        self.gatherer.loses_reply = fault == "lost reply"
        answers: list[Any] = self.do(_together(calls))
        self.gatherer.loses_reply = False  # another release may have carried them out
        return answers

    @precondition(lambda self: self.model.all)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        p = self.one(which)
        assert self.do(self.driver.cancel(p.id, account=p.tenant)) == self.model.cancel(p)

    @precondition(lambda self: self.model.at("waiting", "delayed"))
    @rule(which=WHICH)
    def ask_how_it_stands(self, which: int) -> None:
        waiting = self.model.at("waiting", "delayed")
        p = waiting[which % len(waiting)]
        outlook = self.do(self.driver.outlook(p.id))
        assert outlook.position >= 1
        assert outlook.ahead >= 0
        if self.model.is_planned(p):
            assert outlook.reason == "start_after"
        elif self.model.is_paused or self.model.of(p).is_held:
            assert outlook.reason == "paused"

    @rule(
        count=st.sampled_from([1, 2, 3, 4, 16]),
        consumer=CONSUMERS,
        budget=st.sampled_from([None, None, 1, 3]),
        is_alone=st.booleans(),
        warm=st.sampled_from(KEYS),
    )
    def claim(self, count: int, consumer: str, budget: float | None, is_alone: bool, warm: str) -> None:
        model = self.model
        before = self.books()
        doomed = [p for p in model.all.values() if model.is_doomed(p)]
        could, looked_at = model.claimable(), len(model.at("waiting", "claimed"))
        most = model.breaker.may_claim(model.now_ms)
        self.do(self.driver.hear_bell())
        self.calls += 1
        nonce = f"n{self.calls}-{consumer}"
        claims = self.do(
            self.driver.claim(count, consumer=consumer, nonce=nonce, budget=budget, alone=is_alone, warm=warm)
        )
        if claims and not doomed:
            self._was_its_turn(claims[0].id, before, warm)
        for claim in claims:
            p = model.all[claim.id]
            model.claim(p, token=claim.token, holder=consumer)
            assert (claim.record.attempt, claim.record.claims) == (p.attempt, p.claims)
            self.held.append(claim)
        after = self.books()
        for p in doomed:
            if after.records[p.id]["status"] != "starting":
                model.doom(p)
        for lane in LANES:  # a claim that finds an empty backlog may correct its count
            if after.number(f"backlogged:{lane}") == after.backlogged(lane):
                model.unseen_backlog.pop(lane, None)
        count = count if most is None else min(count, most)
        assert len(claims) <= count
        if budget is not None:
            cost = sum(model.all[claim.id].cost for claim in claims)
            assert cost <= budget or (is_alone and len(claims) == 1), "more than was asked for"
        if looked_at < self.scan:
            assert claims or not could or (budget is not None and not is_alone), "it could be had, and was not"
            if len(claims) < count and budget is None:
                assert model.claimable() == [], "it waits, and no claim finds it"
        if claims:
            self.replies[consumer] = nonce, claims

    def _was_its_turn(self, name: PredictionId, before: Books, warm: str) -> None:
        """Check that the first claim was the oldest prediction of the least served tenant."""
        p = self.model.all[name]
        backlog, turns = before.backlogs[p.lane, p.tenant], before.turns[p.lane]
        if name in backlog:
            assert turns[p.tenant] == min(turns.values()), "another one had the turn"
            oldest = min(backlog, key=lambda other: backlog[other])
            assert name == oldest or (warm and p.affinity == warm), "not the first of its line"

    @rule(count=st.integers(1, 3))
    def serve_while_the_bell_rings(self, count: int) -> None:
        """Claim while wakeups come. This claims everything claimable, and no wakeup is without work."""
        for _ in range(2 * len(self.model.all) + 2):
            if not self.do(self.driver.hear_bell()):
                return
            self.claim(count=count, consumer="d1", budget=None, is_alone=True, warm="")
        raise AssertionError("the bell rings on, and there is nothing to claim")

    @precondition(lambda self: self.replies)
    @rule(which=WHICH)
    def claim_again_after_a_lost_reply(self, which: int) -> None:
        consumer, (nonce, claims) = list(self.replies.items())[which % len(self.replies)]
        again = self.do(self.driver.claim(4, consumer=consumer, nonce=nonce))
        kept = [claim for claim in claims if self.model.all[claim.id].token == claim.token]
        assert [(claim.id, claim.token) for claim in again] == [(claim.id, claim.token) for claim in kept]

    @rule(which=WHICH, count=st.integers(0, 4), consumer=CONSUMERS, slots=st.integers(1, 8))
    def extend(self, which: int, count: int, consumer: str, slots: int) -> None:
        claims = [claim for claim in self.held if claim.record.holder == consumer]
        claims = claims[which % len(claims) :][:count] if claims else []
        holds = [self.model.extend(self.model.all[claim.id], claim.token) for claim in claims]
        found = self.do(
            self.scripts.extend(
                self.driver.queue,
                consumer=consumer,
                lease_s=LEASE_MS / 1000,
                claims=[(claim.id, claim.token) for claim in claims],
                slots=slots,
                now_ms=self.model.now_ms,
            )
        )
        assert found == holds
        self.model.signs_of_life[consumer] = self.model.now_ms

    @precondition(lambda self: self.held)
    @rule(which=WHICH, shows=st.booleans())
    def begin(self, which: int, shows: bool) -> None:
        self.begin_one(self.claim_of(which)[0], shows=shows)

    def begin_one(self, claim: Claim, *, shows: bool) -> None:
        p = self.model.all[claim.id]
        advanced = self.do(
            self.scripts.advance(
                p.id,
                token=claim.token,
                seq=claim.record.seq,
                ran_ms=0,
                events=[("started", b""), *([("output", b"1")] if shows else [])],
                now_ms=self.model.now_ms,
            )
        )
        assert advanced.hold == self.model.begin(p, claim.token, shows=shows)

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        claim, p = self.claim_of(which)
        assert self.do(self.driver.finish(claim, output=b"1")) == self.model.finish(p, claim.token)

    @precondition(lambda self: self.held)
    @rule(which=WHICH, is_spent=st.booleans(), delay_s=st.sampled_from([0, 0, 3]))
    def release(self, which: int, is_spent: bool, delay_s: int) -> None:
        claim, _ = self.claim_of(which)
        self.release_one(claim, is_spent=is_spent, delay_s=delay_s)

    def _may_not_run_twice(self) -> list[Prediction]:
        return [p for p in self.model.at("claimed") if self.model.runs_once or p.once_shown]

    @precondition(lambda self: self._may_not_run_twice())
    @rule(which=WHICH, is_spent=st.booleans(), shows=st.booleans())
    def give_back_what_began(self, which: int, is_spent: bool, shows: bool) -> None:
        """Release a run that began, which rarely happens by chance."""
        claimed = self._may_not_run_twice()
        p = claimed[which % len(claimed)]
        [claim] = [claim for claim in self.held if claim.token == p.token]
        self.begin_one(claim, shows=shows)
        self.release_one(claim, is_spent=is_spent, delay_s=0)

    @precondition(lambda self: self.model.at("claimed") and not self.model.is_paused)
    @rule(which=WHICH, consumer=CONSUMERS)
    def break_until_it_is_dead(self, which: int, consumer: str) -> None:
        """Make a dead letter. This rarely happens by chance, and revive and drop need one."""
        claimed = self.model.at("claimed")
        p = claimed[which % len(claimed)]
        for _ in range(ATTEMPTS):
            if p.stage == "claimed":
                [claim] = [claim for claim in self.held if claim.token == p.token]
                self.release_one(claim, is_spent=True, delay_s=0)
                self.claim(count=4, consumer=consumer, budget=None, is_alone=True, warm="")

    def release_one(self, claim: Claim, *, is_spent: bool, delay_s: int) -> None:
        p = self.model.all[claim.id]
        expected = self.model.release(p, claim.token, is_spent=is_spent, delay_ms=delay_s * 1000)
        released = self.do(self.driver.release(claim, spent=is_spent, delay_s=delay_s, error="e", code="c"))
        assert released == expected


def _became(answer: Any) -> Any:
    """Return "" for an accepted prediction, the code of a refusal, or True or False for a finish."""
    if isinstance(answer, ResponseError):
        return "at fault"
    if isinstance(answer, QueueRefused):
        return answer.code
    return "" if isinstance(answer, str) and answer.isalnum() and len(answer) == ID_LENGTH else answer


async def _together(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def policy(breaker_after: int = 0, *, refuses_while_broken: bool = False, runs_once: bool = False) -> Policy:
    """Return a policy with limits small enough that a walk reaches all of them."""
    return Policy(
        streams=6,
        size=1,
        attempts=ATTEMPTS,
        breaker_after=breaker_after,
        breaker_cool_s=COOL_MS / 1000,
        breaker_mode="fail" if refuses_while_broken else "hold",
        on_lost="fail" if runs_once else "retry",
    )


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000
