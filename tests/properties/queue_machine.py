"""Do everything that can happen to one queue in any order: callers, directors, keepers, operators and losses.

After each step the server's books are compared with the model's, key by key. Some walks kill the server.
"""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from director.broker import keys
from director.core.ids import LANES, PredictionId
from tests.properties.audit import audit
from tests.properties.books import MOST_STREAMS, Books, Entry
from tests.properties.queue_model import ATTEMPTS, LEASE_MS, Prediction
from tests.properties.queue_steps import TENANTS, WHICH, WHO, WISHES, QueueSteps, Wish, policy
from tests.support.keyspace import leaks
from tests.support.queue_driver import VERSION

MOST = st.sampled_from([None, None, 1, 2])
HOUR_S: Final = 3600.0
ALL: Final = 10_000  # more than a walk can submit: the model does not know a keeper that looks at only some
LOSSES: Final = ("server", "group", "entry", "stream", "leases", "line", "turns", "times", "mask", "delayed", "counts")


class QueueMachine(QueueSteps):
    """All steps of all parties."""

    @initialize(
        wishes=st.lists(WISHES, min_size=2, max_size=4),
        breaker_after=st.sampled_from([0, 2]),
        slots=st.integers(1, 8),
        runs_once=st.sampled_from([False, False, True]),
    )
    def begin_with_some(self, wishes: list[Wish], breaker_after: int, slots: int, runs_once: bool) -> None:
        self.set_policy(breaker_after, refuses_while_broken=False, runs_once=runs_once)
        self.extend(which=0, count=0, consumer="d1", slots=slots)
        for wish in wishes:
            self.enqueue(wish)
        self.claim(count=2, consumer="d1", budget=None, is_alone=True, warm="")

    @precondition(lambda self: self.model.breaker.after and len(self.model.at("claimed")) > 1)
    @rule(seconds=st.sampled_from([1, 5]), count=st.integers(1, 4))
    def let_the_servers_fail(self, seconds: float, count: int) -> None:
        """Let all model servers fail one after the other, then claim some time later."""
        for p in self.model.at("claimed"):
            [claim] = [claim for claim in self.held if claim.token == p.token]
            self.release_one(claim, is_spent=True, delay_s=0)
            self.pass_time(1)
        self.pass_time(seconds)
        self.claim(count=count, consumer="d1", budget=None, is_alone=True, warm="")

    @rule(role=st.sampled_from(["reap", "reap", "recover", "promote", "expire", "reconcile", "retire"]))
    def keep(self, role: str) -> None:
        """Run one keeper role. One rule for all roles leaves room for the steps that give them work."""
        getattr(self, role)()

    def reap(self) -> None:
        self._taken_back(self.do(self.driver.reap(limit=ALL)), self.model.expired())

    def recover(self) -> None:
        pending = self.books().entries
        for lane in LANES:
            for number in range(MOST_STREAMS):
                here = {
                    name: entry.mid
                    for name, entries in pending.items()
                    for entry in entries
                    if entry.is_pending and (entry.lane, entry.number) == (lane, number)
                }
                cursor, found = self.do(self.driver.recover(number, lane=lane, count=ALL))
                assert cursor == "0-0"
                lost = [p for p in self.model.expired() if p.id in here]
                self._taken_back(found, sorted(lost, key=lambda p: list(here).index(p.id)))

    def _taken_back(self, found: dict[PredictionId, Any], lost: list[Prediction]) -> None:
        if found or lost:
            delayed = self.books().indexes["delayed"]
            assert found == {p.id: self.model.take_back(p, due=delayed.get(p.id)) for p in lost}

    def promote(self) -> None:
        assert self.do(self.driver.promote(limit=ALL)) == self.model.promote()
        if self.model.breaker.is_ripe(self.model.now_ms):
            assert self.books().has_rung, "it may be tried again, and no wakeup was sent"

    def expire(self) -> None:
        assert self.do(self.driver.expire(limit=ALL)) == self.model.expire()

    def reconcile(self) -> None:
        start, slices, untimed = 0, 0, self.model.untimed()
        found: dict[PredictionId, str] = {}
        while start or not slices:
            start, repaired = self.do(self.driver.reconcile(start=start, count=2))
            found |= repaired
            slices += 1
        assert found == {p.id: "timed" for p in untimed}, "what is well was touched"
        self._put_right(untimed)

    def _put_right(self, untimed: list[Prediction]) -> None:
        for p in untimed:
            p.timed = p.soonest
        if not self.model.at("waiting", "claimed", "delayed"):  # nothing is there, and so nothing is counted
            self.model.lost -= {"counts"}
            self.model.unseen_backlog.clear()
            for tenant in self.model.tenants.values():
                tenant.queued = tenant.running = 0

    def retire(self) -> None:
        pending = self.books().consumers
        silent = {name for name, at in self.model.signs_of_life.items() if at <= self.model.now_ms - HOUR_S * 1000}
        idle = {name for name in silent if name not in pending}
        gone = self.do(self.driver.retire(silent_s=HOUR_S))
        assert gone in idle if idle else gone == ""
        self.model.signs_of_life.pop(gone, None)
        self.replies.pop(gone, None)

    @precondition(lambda self: self.model.at("waiting", "delayed", "leaving"))
    @rule(which=WHICH, is_put_back=st.booleans())
    def leave_or_come_back(self, which: int, is_put_back: bool) -> None:
        """Move a prediction to another server that does not exist: it is put back, or it arrives there and returns."""
        choice = self.model.at("waiting", "delayed", "leaving")
        p = choice[which % len(choice)]
        if p.stage != "leaving":
            asked = [(p.id, p.tenant)]
            [became] = self.do(
                self.driver.scripts.depart(self.driver.queue, asked, site="far", now_ms=self.driver.now_ms)
            )
            assert became == self.model.depart(p)
        elif is_put_back:
            assert self.do(self.driver.scripts.stay(p.id, site="far", now_ms=self.driver.now_ms)) == self.model.stay(p)
        else:
            self.do(self._return(p))
            self.model.come_back(p)

    async def _return(self, p: Prediction) -> None:
        scripts, now_ms = self.driver.scripts, self.driver.now_ms
        flat = [part for pair in (await self.redis.hgetall(keys.record(p.id))).items() for part in pair]
        move = int(await self.redis.hget(keys.record(p.id), "moves"))
        data, events = await self.redis.get(keys.input_data(p.id)), await self.redis.lrange(keys.events(p.id), 0, -1)
        if p.cancel:
            assert await scripts.vacate(p.id, site="far", now_ms=now_ms) == "cancel"
            p.cancel = ""  # the other server is notified, and undoes it when it sends the prediction back
        assert await scripts.vacate(p.id, site="far", canceled=True, now_ms=now_ms) == "moved"
        for _ in range(2):
            arrived = await scripts.arrive(
                p.id, self.driver.queue, move=move + 1, record=flat, input=data, events=events, now_ms=now_ms
            )
            assert arrived == "here"

    @rule(streams=st.integers(1, MOST_STREAMS))
    def resize(self, streams: int) -> None:
        taken, read = self.do(self.scripts.resize(self.driver.queue, streams=streams))
        assert taken == streams <= read

    @rule(is_paused=st.sampled_from([True, False, False]))
    def pause(self, is_paused: bool) -> None:
        self.do(self.driver.pause(paused=is_paused))
        self.model.is_paused = is_paused

    @rule(tenant=WHO, is_held=st.booleans())
    def pause_a_tenant(self, tenant: str, is_held: bool) -> None:
        self.do(self.driver.pause(paused=is_held, account=tenant))
        self.model.tenants[tenant].is_held = is_held

    @precondition(lambda self: self.model.at("waiting"))
    @rule(which=WHICH, is_by_limit=st.booleans())
    def stop_a_tenant_that_stands_ready(self, which: int, is_by_limit: bool) -> None:
        """Return a ready prediction from its stream to its backlog, which rarely happens by chance."""
        books = self.books()
        ready = [p for p, _ in self._ready(books)] or self.model.at("waiting")
        p = ready[which % len(ready)]
        tenant = self.model.of(p)
        if is_by_limit and tenant.running:
            self.limit(p.tenant, tenant.weight, tenant.running)
        else:
            self.pause_a_tenant(p.tenant, is_held=True)
        self.claim(count=4, consumer="d2", budget=None, is_alone=True, warm="")
        self.pause_a_tenant(p.tenant, is_held=False)

    @rule(wish=WISHES, weight=st.sampled_from([1, 2, 0.5]), most=MOST, is_by_hand=st.booleans())
    def change_limits(self, wish: Wish, weight: float, most: int | None, is_by_hand: bool) -> None:
        """Change limits by hand, then submit from an API with the former limits; or change them with a submit."""
        tenant = self.model.tenants[wish.tenant]
        known = tenant.weight, tenant.most_running, tenant.revision
        if is_by_hand:
            self.limit(wish.tenant, weight, most)
            self.submit(wish, known)
        elif self.submit(wish, (weight, most, tenant.revision)):
            tenant.limit(weight, most, tenant.revision)

    def limit(self, tenant: str, weight: float, most: int | None) -> None:
        t = self.model.tenants[tenant]
        newer = t.revision + 1
        if t.is_known:
            t.limit(weight, most, newer)
        limited = self.scripts.limit(self.driver.queue, tenant, weight=weight, most_running=most, revision=newer)
        self.do(limited)

    @rule(mode=st.sampled_from(["absorb", "absorb", "bounded", "reject"]), max_queued=st.integers(2, 6))
    def bound(self, mode: Any, max_queued: int) -> None:
        most = max_queued if mode == "bounded" else None
        self.do(self.driver.bound(mode, most))
        self.model.mode, self.model.max_queued = mode, most

    @rule(
        breaker_after=st.sampled_from([0, 2]),
        refuses_while_broken=st.booleans(),
        runs_once=st.sampled_from([False, False, True]),
    )
    def set_policy(self, breaker_after: int, refuses_while_broken: bool, runs_once: bool = False) -> None:
        mine = policy(breaker_after, refuses_while_broken=refuses_while_broken, runs_once=runs_once)
        assert self.do(self.scripts.register(self.driver.queue, version=VERSION, policy=mine))
        self.model.breaker.set_after(breaker_after)
        self.model.refuses_while_broken, self.model.runs_once = refuses_while_broken, runs_once

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

    @rule(seconds=st.sampled_from([1, 4, 6, 16, HOUR_S]))
    def pass_time(self, seconds: float) -> None:
        self.driver.pass_time(seconds)
        self.model.now_ms = self.driver.now_ms

    @precondition(lambda self: self.model.all)
    @rule(
        which=WHICH,
        what=st.sampled_from(LOSSES),
    )
    def lose(self, what: str, which: int) -> None:
        """Lose and restart the server, or lose one key and let reconcile repair it."""
        getattr(self, f"_lose_{what}")(which)

    def _lose_server(self, which: int) -> None:
        self.server.kill()
        self.server.start()
        self.do(self.redis.connection_pool.disconnect())

    def _lose_group(self, which: int) -> None:
        """Lose a group. The next claim creates it again and judges entries by their records."""
        for entry in self.books().entries.get(self.one(which).id, []):
            stream = keys.stream(self.driver.queue, entry.lane, entry.number)
            self.do(self.redis.xgroup_destroy(stream, keys.GROUP))
            self.model.lost.add("group")

    def _lose_entry(self, which: int) -> None:
        for p, entry in self._ready(self.books())[which % 3 :][:1]:
            self.do(self.redis.xdel(keys.stream(self.driver.queue, entry.lane, entry.number), entry.mid))
            self._repair({p.id: "placed"})

    def _lose_stream(self, which: int) -> None:
        """Lose a stream. Claims from it exist only in their leases and have no entry until they are released."""
        ready = self._ready(self.books())
        for _, lost in ready[which % 3 :][:1]:
            self.do(self.redis.delete(keys.stream(self.driver.queue, lost.lane, lost.number)))
            self.model.lost.add("stream")
            self._repair(
                {p.id: "placed" for p, entry in ready if (entry.lane, entry.number) == (lost.lane, lost.number)}
            )

    def _lose_leases(self, which: int) -> None:
        self.do(self.redis.delete(keys.lease(self.driver.queue)))
        claimed = self.model.at("claimed")
        for p in claimed:
            p.lease_end = self.model.now_ms + LEASE_MS
        self._repair({p.id: "leased" for p in claimed})

    def _lose_line(self, which: int) -> None:
        """Lose a backlog. Its length is unknown, so its predictions are counted twice for a time."""
        p = self.one(which)
        backlog = self.books().backlogs[p.lane, p.tenant]
        self.do(self.redis.delete(keys.backlog(self.driver.queue, p.lane, p.tenant)))
        self.model.unseen_backlog[p.lane] = self.model.unseen_backlog.get(p.lane, 0) + len(backlog)
        self._repair({PredictionId(name): "placed" for name in backlog})

    def _lose_turns(self, which: int) -> None:
        lane = self.one(which).lane
        self.do(self.redis.delete(keys.vtime(self.driver.queue, lane)))
        self._repair(self._offered_again())

    def _lose_mask(self, which: int) -> None:
        lane = self.one(which).lane
        self.do(self.redis.hdel(keys.meta(self.driver.queue), f"mask:{lane}"))
        self._repair(self._offered_again())

    def _lose_times(self, which: int) -> None:
        self.do(self.redis.delete(keys.deadline(self.driver.queue)))
        for p in self.model.all.values():
            p.timed = None
        self._repair({})

    def _lose_delayed(self, which: int) -> None:
        self.do(self.redis.delete(keys.delayed(self.driver.queue)))
        delayed = self.model.at("delayed")
        for p in delayed:
            self.model.plan(p)
        self._repair({p.id: "placed" for p in delayed})

    def _lose_counts(self, which: int) -> None:
        """Lose the counts. They are right again once the queue was empty."""
        lost = (keys.queued, keys.running)[which % 2]
        self.do(self.redis.delete(lost(self.driver.queue)))
        for tenant in self.model.tenants.values():
            tenant.queued, tenant.running = (0, tenant.running) if lost is keys.queued else (tenant.queued, 0)
        self.model.lost.add("counts")
        self._repair(self._offered_again())

    def _ready(self, books: Books) -> list[tuple[Prediction, Entry]]:
        return [(p, books.entries[p.id][0]) for p in self.model.at("waiting") if p.id in books.entries]

    def _offered_again(self) -> dict[PredictionId, str]:
        """Return the first prediction of each stream and backlog that no claim would visit."""
        books, seen, offered = self.books(), set(), {}
        for name in sorted(books.indexes["live"], key=lambda name: (books.indexes["live"][name], name)):
            p = self.model.all[PredictionId(name)]
            if p.stage != "waiting":
                continue
            [entry] = books.entries.get(p.id, [None])
            if entry is None:
                place: tuple[str, str | int] = p.lane, p.tenant
                is_looked_at = p.tenant in books.turns[p.lane] or not self.model.of(p).may_run
            else:
                place = p.lane, entry.number
                is_looked_at = books.may_hold(p.lane, entry.number)
            if not is_looked_at and place not in seen:
                seen.add(place)
                offered[p.id] = "offered"
        return offered

    def _repair(self, expected: dict[PredictionId, str]) -> None:
        untimed = self.model.untimed()
        following, repaired = self.do(self.driver.reconcile(count=ALL))
        assert (following, repaired) == (0, {p.id: "timed" for p in untimed} | expected)
        self._put_right([p for p in untimed if expected.get(p.id) != "offered"])

    @invariant()
    def books_agree(self) -> None:
        audit(self.model, self.books())

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            self.do(self._close())
            self.runner.close()

    def _drain(self) -> None:
        """Check that everything ends eventually and leaves no key without a lifetime."""
        self.pause(is_paused=False)
        self.set_policy(0, refuses_while_broken=False)
        for p in self.model.at("leaving"):
            assert self.do(self.driver.scripts.stay(p.id, site="far", now_ms=self.driver.now_ms)) == self.model.stay(p)
        for tenant in TENANTS:
            self.pause_a_tenant(tenant, is_held=False)
            self.limit(tenant, 1, None)
        for _ in range(ATTEMPTS + 1):
            self.pass_time(61)
            self.reap()
            self.promote()
            self.expire()
            self.books_agree()
            self.serve_while_the_bell_rings(count=10)
            for claim in self.held:
                if self.model.all[claim.id].token == claim.token:
                    assert self.do(self.driver.finish(claim)) == self.model.finish(
                        self.model.all[claim.id], claim.token
                    )
        if self.model.lost or self.model.unseen_backlog:
            self.reconcile()
        self.books_agree()
        assert {p.stage for p in self.model.all.values()} <= {"ended"}
        assert self.do(leaks(self.redis)) == []

    async def _close(self) -> None:
        await self.gatherer.aclose()
        await self.gatherer.redis.aclose()
        await self.redis.aclose()
