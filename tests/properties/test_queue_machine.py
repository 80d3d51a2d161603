"""Nothing accepted is lost, doubled or stranded, whatever happens in whatever order: the scripts against a plain model.

Every step is a typed call to a real server that is killed and started again on the way; after each one the server's
books are compared with the model's, key by key.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from director.core import gatherer as gathering
from director.core import keys
from director.core.catalog import OPEN_SCHEMA, Catalog
from director.core.clock import SystemClock
from director.core.gatherer import Gatherer
from director.core.ids import PredictionId
from director.core.policy import Policy
from director.core.redis_client import client
from director.core.schema import Claim
from director.core.scripts import Scripts
from tests.properties.books import MOST_STREAMS, Books, read_books
from tests.properties.queue_model import ATTEMPTS, Model, Prediction
from tests.support.keyspace import leaks
from tests.support.queue_driver import MODEL, START_MS, VERSION, QueueDriver
from tests.support.servers import Kind, RedisServer, redis_server

# few places, so that steps meet
STREAMS, LANES, CONSUMERS = (
    st.sampled_from([0, 2, 5]),
    st.sampled_from(["normal", "low"]),
    st.sampled_from(["d1", "d2"]),
)
WHICH = st.integers(0, 30)
Wish = tuple[int, str, int | None, str, bool]
WISHES: st.SearchStrategy[Wish] = st.tuples(
    STREAMS, LANES, st.sampled_from([None, None, 5, 20]), st.sampled_from(["", "aborted"]), st.booleans()
)
HOUR_S = 3600.0


class QueueMachine(RuleBasedStateMachine):
    """`held`: every claim ever handed out, stale ones too: their holders do not know yet."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.server = server
        self.runner = asyncio.Runner()
        self.model = Model(START_MS)
        self.held: list[Claim] = []
        self.replies: dict[str, tuple[str, list[Claim]]] = {}
        self.has_lost_a_group = False
        self.do(self._open())

    async def _open(self) -> None:
        self.redis = client(self.server.url)  # ours, to look with; the scripts' connections mend themselves
        await self.redis.flushall()
        self.gatherer = Gatherer(client(self.server.url))
        scripts = Scripts(self.gatherer)
        policy = Policy(streams=6, size=1, attempts=ATTEMPTS)
        catalog = Catalog(self.redis, scripts, SystemClock())
        queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=policy)
        self.driver = QueueDriver(self.redis, scripts, queue)

    def do(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(step)

    def books(self) -> Books:
        return self.do(read_books(self.redis, self.driver.queue, list(self.model.all)))

    def one(self, which: int) -> Prediction:
        return list(self.model.all.values())[which % len(self.model.all)]

    def claim_of(self, which: int) -> tuple[Claim, Prediction]:
        claim = self.held[-1 - which % len(self.held)]
        return claim, self.model.all[claim.id]

    # ── the caller ────────────────────────────────────────────────────────────────────────────────────────────

    @initialize(wishes=st.lists(WISHES, min_size=2, max_size=4))
    def begin_with_some(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self.enqueue(wish)
        self.claim(count=2, consumer="d1")

    @rule(wish=WISHES)
    def enqueue(self, wish: Wish) -> None:
        stream, lane, lifetime_s, late, wants_webhook = wish
        webhook = {"webhook": "https://example.com", "events": "completed"} if wants_webhook else {}
        lifetime_ms = None if lifetime_s is None else lifetime_s * 1000
        options = {"streams": [stream], "lane": lane, "lifetime_ms": lifetime_ms, "late": late, **webhook}
        prediction_id = self.driver.new_id()
        for _ in range(2):  # its reply may be lost, and the call is made again
            assert self.do(self.driver.submit(prediction_id, **options)) == prediction_id
        deadline = None if lifetime_ms is None else self.model.now_ms + lifetime_ms
        self.model.accept(Prediction(prediction_id, lane, deadline, late, wants_webhook))

    @precondition(lambda self: self.model.all)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        p = self.one(which)
        assert self.do(self.driver.cancel(p.id)) == self.model.cancel(p)

    # ── directors ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 4), consumer=CONSUMERS)
    def claim(self, count: int, consumer: str) -> None:
        nonce = f"n{len(self.held)}-{consumer}-{self.driver.now_ms}"
        doomed = [p for p in self.model.all.values() if self.model.is_doomed(p)]
        claims = self.do(self.driver.claim(count, consumer=consumer, nonce=nonce))
        for claim in claims:
            p = self.model.all[claim.id]
            self.model.claim(p, token=claim.token, holder=consumer)
            assert (claim.record.attempt, claim.record.claims) == (p.attempt, p.claims)
            assert claim.token not in {older.token for older in self.held}
            self.held.append(claim)
        records = self.books().records
        for p in doomed:
            if records[p.id]["status"] != "starting":
                self.model.doom(p)
        if len(claims) < count and not self.model.is_paused:
            assert self.model.at("waiting") == [], "it waits, and no claim finds it"
        if claims:
            self.replies[consumer] = nonce, claims

    @precondition(lambda self: self.replies)
    @rule(which=WHICH)
    def claim_again_after_a_lost_reply(self, which: int) -> None:
        consumer, (nonce, claims) = list(self.replies.items())[which % len(self.replies)]
        again = self.do(self.driver.claim(4, consumer=consumer, nonce=nonce))
        kept = [claim for claim in claims if self.model.all[claim.id].token == claim.token]
        assert [(claim.id, claim.token) for claim in again] == [(claim.id, claim.token) for claim in kept]

    @rule(which=WHICH, count=st.integers(0, 4), consumer=CONSUMERS)
    def extend(self, which: int, count: int, consumer: str) -> None:
        claims = [claim for claim in self.held if claim.record.holder == consumer]
        claims = claims[which % len(claims) :][:count] if claims else []
        holds = [self.model.extend(self.model.all[claim.id], claim.token) for claim in claims]
        assert self.do(self.driver.extend(*claims, consumer=consumer)) == holds
        self.model.signs_of_life[consumer] = self.model.now_ms

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def begin(self, which: int) -> None:
        claim, p = self.claim_of(which)
        advanced = self.do(
            self.driver.scripts.advance(
                p.id,
                token=claim.token,
                seq=claim.record.seq,
                ran_ms=0,
                events=[("started", b"")],
                now_ms=self.model.now_ms,
            )
        )
        assert advanced.hold == self.model.begin(p, claim.token)

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def finish(self, which: int) -> None:
        claim, p = self.claim_of(which)
        assert self.do(self.driver.finish(claim, output=b"1")) == self.model.finish(p, claim.token)

    @precondition(lambda self: self.held)
    @rule(which=WHICH, is_spent=st.booleans(), delay_s=st.sampled_from([0, 0, 3]))
    def release(self, which: int, is_spent: bool, delay_s: int) -> None:
        claim, _ = self.claim_of(which)
        self._release(claim, is_spent=is_spent, delay_s=delay_s)

    @precondition(lambda self: self.model.at("claimed") and not self.model.is_paused)
    @rule(which=WHICH, consumer=CONSUMERS)
    def break_until_it_is_dead(self, which: int, consumer: str) -> None:
        """Rarely so by chance, and without it there is nothing to revive or drop."""
        claimed = self.model.at("claimed")
        p = claimed[which % len(claimed)]
        while p.stage == "claimed":
            [claim] = [claim for claim in self.held if claim.token == p.token]
            self._release(claim, is_spent=True, delay_s=0)
            self.claim(count=4, consumer=consumer)

    def _release(self, claim: Claim, *, is_spent: bool, delay_s: int) -> None:
        p = self.model.all[claim.id]
        expected = self.model.release(p, claim.token, is_spent=is_spent, delay_ms=delay_s * 1000)
        released = self.do(self.driver.release(claim, spent=is_spent, delay_s=delay_s, error="e", code="c"))
        assert released == expected

    # ── keepers ───────────────────────────────────────────────────────────────────────────────────────────────

    @rule(role=st.sampled_from(["reap", "reap", "recover", "promote", "expire", "reconcile", "retire"]))
    def keep(self, role: str) -> None:
        """One rule for all, so that what they do does not crowd out what gives them work."""
        getattr(self, role)()

    def reap(self) -> None:
        self._taken_back(self.do(self.driver.reap()), self.model.lost())

    def recover(self) -> None:
        before = self.books()
        pending = {name for name, entries in before.entries.items() if any(entry.is_pending for entry in entries)}
        found = {}
        for lane in keys.LANES:
            for number in range(MOST_STREAMS):
                cursor, batch = self.do(self.driver.recover(number, lane=lane))
                assert cursor == "0-0"
                found |= batch
        self._taken_back(found, [p for p in self.model.lost() if p.id in pending])

    def _taken_back(self, found: dict[PredictionId, Any], lost: list[Prediction]) -> None:
        delayed = self.books().indexes["delayed"]
        assert found == {p.id: self.model.take_back(p, due=delayed.get(p.id)) for p in lost}

    def promote(self) -> None:
        assert self.do(self.driver.promote()) == self.model.promote()

    def expire(self) -> None:
        assert self.do(self.driver.expire()) == self.model.expire()

    def reconcile(self) -> None:
        start, slices = 0, 0
        while start or not slices:
            start, repaired = self.do(self.driver.reconcile(start=start, count=2))
            assert repaired == {}, "what is well was touched"
            slices += 1

    def retire(self) -> None:
        pending = self.books().consumers
        silent = {name for name, at in self.model.signs_of_life.items() if at <= self.model.now_ms - HOUR_S * 1000}
        idle = {name for name in silent if name not in pending}
        gone = self.do(self.driver.retire(silent_s=HOUR_S))
        assert gone in idle if idle else gone == ""
        self.model.signs_of_life.pop(gone, None)
        self.replies.pop(gone, None)

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(streams=st.integers(1, MOST_STREAMS))
    def resize(self, streams: int) -> None:
        taken, read = self.do(self.driver.scripts.resize(self.driver.queue, streams=streams))
        assert taken == streams <= read

    @rule(is_paused=st.sampled_from([True, False, False]))
    def pause(self, is_paused: bool) -> None:
        self.do(self.driver.pause(paused=is_paused))
        self.model.is_paused = is_paused

    @precondition(lambda self: any(p.is_dead for p in self.model.all.values()))
    @rule(which=WHICH, is_dropped=st.sampled_from([True, False, False]))
    def decide_on_a_dead_letter(self, which: int, is_dropped: bool) -> None:
        dead = [p for p in self.model.all.values() if p.is_dead]
        p = dead[which % len(dead)]
        for _ in range(2):  # the second time there is no dead letter any more
            if is_dropped:
                assert self.do(self.driver.drop(p.id)) == self.model.drop(p)
            else:
                assert self.do(self.driver.revive(p.id)) == self.model.revive(p)

    @precondition(lambda self: self.model.at("ended"))
    @rule(which=WHICH)
    def revive_what_ended_by_itself(self, which: int) -> None:
        others = [p for p in self.model.at("ended") if not p.is_dead]
        if others:
            assert not self.do(self.driver.revive(others[which % len(others)].id))

    # ── the world ─────────────────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([1, 4, 6, 16, HOUR_S]))
    def pass_time(self, seconds: float) -> None:
        self.driver.pass_time(seconds)
        self.model.now_ms = self.driver.now_ms

    @rule()
    def kill_the_server(self) -> None:
        self.server.kill()
        self.server.start()
        self.do(self.redis.connection_pool.disconnect())

    @precondition(lambda self: self.model.all)
    @rule(which=WHICH)
    def lose_a_group(self, which: int) -> None:
        """No harm by itself: the next claim makes it anew, and entries are judged by their records."""
        for entry in self.books().entries.get(self.one(which).id, []):
            stream = keys.stream(self.driver.queue, entry.lane, entry.number)
            self.do(self.redis.xgroup_destroy(stream, keys.GROUP))
            self.has_lost_a_group = True

    @precondition(lambda self: self.model.at("waiting"))
    @rule(which=WHICH, is_whole_stream=st.booleans())
    def lose_an_entry_and_repair(self, which: int, is_whole_stream: bool) -> None:
        waiting = self.model.at("waiting")
        books = self.books()
        [entry] = books.entries[waiting[which % len(waiting)].id]
        stream = keys.stream(self.driver.queue, entry.lane, entry.number)
        self.do(self.redis.delete(stream) if is_whole_stream else self.redis.xdel(stream, entry.mid))
        left = self.books().entries
        lost = {p.id: "placed" for p in waiting if p.id not in left}
        assert self.do(self.driver.reconcile()) == (0, lost)
        # what was claimed from it is only in its lease now: it has no entry until it is given back
        self.has_lost_a_group = self.has_lost_a_group or is_whole_stream

    @precondition(lambda self: self.model.at("claimed"))
    @rule()
    def lose_all_leases_and_repair(self) -> None:
        self.do(self.redis.delete(keys.lease(self.driver.queue)))
        claimed = self.model.at("claimed")
        assert self.do(self.driver.reconcile()) == (0, {p.id: "leased" for p in claimed})
        for p in claimed:
            p.lease_end = self.model.now_ms + 15_000

    # ── what is always true ───────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def books_agree(self) -> None:
        model, books = self.model, self.books()
        assert len(model.all) == sum(len(model.at(stage)) for stage in ("waiting", "claimed", "delayed", "ended"))
        for p in model.all.values():
            record = books.records[p.id]
            found = {name: record.get(name, "") for name in ("status", "token", "cancel")}
            assert found == {"status": p.status, "token": p.token, "cancel": p.cancel}, p
            assert (int(record["attempt"]), int(record["claims"])) == (p.attempt, p.claims), p
            assert p.ends == p.revivals + (p.stage == "ended")
            assert books.ends[p.id] == (p.stage == "ended"), "each terminal state once"
            has_lifetime = [lifetime > 0 for lifetime in books.lifetimes[p.id]]
            assert has_lifetime == [p.stage == "ended"] * 3, "it lives for ever, or goes before its end"
        self._check_entries(books)
        assert books.indexes["live"].keys() == {p.id for p in model.all.values() if p.stage != "ended"}
        assert books.indexes["lease"] == {p.id: p.lease_end for p in model.at("claimed")}
        assert books.indexes["delayed"] == {p.id: p.due for p in model.at("delayed")}
        assert books.indexes["deadline"] == {p.id: p.deadline for p in model.all.values() if p.is_watched}
        assert books.indexes["dead"].keys() == {p.id for p in model.all.values() if p.is_dead}
        assert books.indexes["owed"].keys() == {p.id for p in model.all.values() if p.is_owed}
        assert books.indexes["directors"] == model.signs_of_life

    def _check_entries(self, books: Books) -> None:
        model = self.model
        standing = {p.id for p in (*model.at("waiting"), *model.at("claimed"))}
        assert books.entries.keys() <= standing, "an entry of what waits nowhere"
        assert books.stray == [], "a pending entry that is not there"
        for p in model.at("waiting"):
            assert len(books.entries[p.id]) == 1, "one place, one entry"
            [entry] = books.entries[p.id]
            record = books.records[p.id]
            assert (entry.lane, str(entry.number), entry.mid) == (p.lane, record["stream"], record["mid"])
            assert not entry.is_pending, "it waits, and somebody was given it"
            assert not entry.is_past, "it waits, and claims read on behind it"
            assert books.may_hold(entry.lane, entry.number), "it waits where no claim looks"
            assert entry.number < int(books.meta["read"]), "it waits where nobody counts"
        if not self.has_lost_a_group:
            for p in model.at("claimed"):
                assert len(books.entries[p.id]) == 1, "one place, one entry"
                [entry] = books.entries[p.id]
                assert entry.is_pending

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            self.do(self._close())
            self.runner.close()

    def _drain(self) -> None:
        """With patience everything ends, and leaves nothing that would stay for ever."""
        self.pause(is_paused=False)
        for _ in range(ATTEMPTS + 1):
            self.pass_time(61)
            self.reap()
            self.promote()
            self.expire()
            self.books_agree()
            self.claim(count=len(self.model.all) + 1, consumer="d3")
            for claim in self.held:
                if self.model.all[claim.id].token == claim.token:
                    assert self.do(self.driver.finish(claim)) == self.model.finish(
                        self.model.all[claim.id], claim.token
                    )
        self.books_agree()
        assert {p.stage for p in self.model.all.values()} <= {"ended"}
        assert self.do(leaks(self.redis)) == []

    async def _close(self) -> None:
        await self.gatherer.aclose()
        await self.gatherer.redis.aclose()
        await self.redis.aclose()


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis7", marks=pytest.mark.redis7)])
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One that nobody else uses: it is killed."""
    kind: Kind = request.param
    with redis_server(kind) as started:
        yield started


BOUNDED = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_any_order_of_anything_loses_doubles_and_strands_nothing(own_server: RedisServer) -> None:
    run_state_machine_as_test(lambda: QueueMachine(own_server), settings=BOUNDED)


@pytest.mark.heavy
def test_any_order_of_anything_at_length(own_server: RedisServer) -> None:
    """Another walk each time."""
    longer = settings(BOUNDED, max_examples=400, stateful_step_count=80, derandomize=False, print_blob=True)
    run_state_machine_as_test(lambda: QueueMachine(own_server), settings=longer)


MUTATIONS = {
    "a stale claim may finish": ("finish", "if r.token ~= token then return 'lost' end", ""),
    "what is taken back keeps its old entry": (
        "reap",
        "  unplace(r)\n  redis.call('ZREM', queue_key(r.queue, 'lease'), id)",
        "",
    ),
    "claims are not told of a new entry": ("enqueue", "  offer(r.queue, r.lane, best)\n", ""),
    "an end forgets its deadline": ("finish", "'live', 'lease', 'deadline', 'delayed'", "'live', 'lease', 'delayed'"),
    "a paused queue hands out": ("claim", "if state[2] == '1' then return { 'paused' } end", ""),
    "a revived one keeps its lifetime": ("revive", "redis.call('PERSIST', KEYS[1])", ""),
    "a due retry is promoted twice": ("promote", "redis.call('ZREM', KEYS[1], id)", ""),
}


QUICK = ("a stale claim may finish", "claims are not told of a new entry")


@pytest.mark.parametrize(
    "mutation", [*QUICK, *(pytest.param(name, marks=pytest.mark.heavy) for name in MUTATIONS if name not in QUICK)]
)
def test_it_bites(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, mutation: str) -> None:
    broken, wanted, instead = MUTATIONS[mutation]
    source = gathering.source
    if wanted not in source(broken):
        pytest.fail(f"{broken}.lua has changed: nothing would be broken")

    def mutated(name: str) -> str:
        return source(name).replace(wanted, instead) if name == broken else source(name)

    monkeypatch.setattr(gathering, "source", mutated)
    quick = settings(BOUNDED, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(lambda: QueueMachine(own_server), settings=quick)
