"""Compare the books of a queue with its model, key by key: each prediction is in one place, each counter is right.

This module only compares. A difference is an AssertionError that explains it.
"""

from collections import Counter

from director.core.ids import LANES
from tests.properties.books import Books
from tests.properties.queue_model import Model, Prediction

ALL_SHARES = 8 + 3 + 1


def audit(model: Model, books: Books) -> None:
    """Check everything that must hold after each step."""
    for p in model.all.values():
        _record(p, books)
    _places(model, books)
    _indexes(model, books)
    _counts(model, books)
    _turns(model, books)
    _breaker(model, books)
    if not model.breaker.state and model.claimable():
        assert books.has_rung, "it could be claimed, and no wakeup was sent"


def _record(p: Prediction, books: Books) -> None:
    record = books.records[p.id]
    found = {name: record.get(name, "") for name in ("status", "token", "cancel")}
    assert found == {"status": p.status, "token": p.token, "cancel": p.cancel}, p
    assert (int(record["attempt"]), int(record["claims"])) == (p.attempt, p.claims), p
    assert p.ends == p.revivals + (p.stage == "ended")
    assert books.ends[p.id] == (p.stage == "ended"), "each terminal state once"
    assert bool(record.get("completed")) == (p.stage == "ended"), "no end without its time"
    has_lifetime = [lifetime > 0 for lifetime in books.lifetimes[p.id]]
    assert has_lifetime == [p.stage == "ended"] * 3, "it lives for ever, or goes before its end"


def _places(model: Model, books: Books) -> None:
    assert books.stray == [], "a pending entry that is not there"
    backlogged = [name for backlog in books.backlogs.values() for name in backlog]
    standing = {p.id for p in model.at("waiting", "claimed")}
    assert books.entries.keys() <= standing, "an entry of what waits nowhere"
    assert set(backlogged) <= {p.id for p in model.at("waiting")}, "it has a turn, and does not wait"
    for p in model.at("waiting"):
        assert backlogged.count(p.id) + len(books.entries.get(p.id, [])) == 1, "it waits in one place"
        if p.id in backlogged:
            record = books.records[p.id]
            assert books.backlogs[p.lane, p.tenant][p.id] == int(record["arrival"]), "in its own line, by its arrival"
            assert not any(record.get(name) for name in ("stream", "mid", "charged"))
        else:
            _waits_in_a_stream(p, books)
    if not model.lost & {"group", "stream"}:
        for p in model.at("claimed"):
            [entry] = books.entries[p.id]
            assert entry.is_pending


def _waits_in_a_stream(p: Prediction, books: Books) -> None:
    [entry], record = books.entries[p.id], books.records[p.id]
    assert (entry.lane, str(entry.number), entry.mid) == (p.lane, record["stream"], record["mid"])
    assert not entry.is_pending, "it waits, and a consumer has it"
    assert not entry.is_past, "it waits, and claims read on behind it"
    assert books.may_hold(entry.lane, entry.number), "it waits where no claim looks"
    assert entry.number < books.number("read"), "it waits in an uncounted stream"


def _indexes(model: Model, books: Books) -> None:
    assert books.indexes["live"].keys() == {p.id for p in model.at("waiting", "delayed", "claimed")}
    assert books.indexes["leaving"].keys() == {p.id for p in model.at("leaving")}
    assert books.indexes["lease"] == {p.id: p.lease_end for p in model.at("claimed")}
    assert books.indexes["delayed"] == {p.id: p.due for p in model.at("delayed")}
    assert books.indexes["deadline"] == {p.id: p.timed for p in model.all.values() if p.timed is not None}
    assert books.indexes["dead"].keys() == {p.id for p in model.all.values() if p.is_dead}
    assert books.indexes["owed"].keys() == {p.id for p in model.all.values() if p.is_owed}
    assert books.indexes["directors"] == model.signs_of_life


def _counts(model: Model, books: Books) -> None:
    """Check that the scripts count as the model does, and that lossless counters equal the real numbers."""
    assert books.counts["queued"] == {name: t.queued for name, t in model.tenants.items() if t.queued}
    assert books.counts["running"] == {name: t.running for name, t in model.tenants.items() if t.running}
    if "counts" not in model.lost:
        assert books.counts["queued"] == Counter(p.tenant for p in model.at("waiting", "delayed"))
        assert books.counts["running"] == Counter(p.tenant for p in model.at("claimed"))
    waiting = model.at("waiting")
    for lane in LANES:
        ready = sum(p.lane == lane and p.id in books.entries for p in waiting)
        assert books.number(f"ready:{lane}") == ready, "what stands ready is miscounted"
        backlogged = books.backlogged(lane) + model.unseen_backlog.get(lane, 0)
        assert books.number(f"backlogged:{lane}") == backlogged, "what waits for a turn is miscounted"


def _turns(model: Model, books: Books) -> None:
    """Check that exactly the tenants with a backlog that may run have turns."""
    limits = {
        name: f"{t.weight:g} {'' if t.most_running is None else t.most_running} {t.revision}"
        for name, t in model.tenants.items()
    }
    assert books.limits == {name: limit for name, limit in limits.items() if limit != "1  0"}
    assert books.held == {name for name, t in model.tenants.items() if t.is_held}
    for lane in LANES:
        entitled = {name for name, t in model.tenants.items() if books.backlogs[lane, name] and t.may_run}
        assert books.turns[lane].keys() == entitled, "a turn for nothing, or nothing though it has a turn"
        assert not books.turns[lane].keys() & books.debts[lane].keys(), "two virtual times of one tenant"
        assert abs(float(books.meta.get(f"credit:{lane}", 0))) <= ALL_SHARES, "a lane has saved turns up"


def _breaker(model: Model, books: Books) -> None:
    breaker = model.breaker
    assert books.meta.get("breaker", "") == breaker.state
    assert books.meta.get("probe", "") == breaker.probe
    assert books.number("failures") == breaker.failures
    if breaker.state == "open":
        assert books.number("open_until") == breaker.open_until
