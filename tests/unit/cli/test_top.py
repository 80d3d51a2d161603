from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from director.cli.top import keys_in
from director.cli.top_screen import (
    SORTS,
    Change,
    Detail,
    Rates,
    Row,
    Seen,
    State,
    blocks,
    pressed,
    screen,
    shown,
    started_per_min,
    waited,
)
from director.core.ids import QueueName
from director.operate.findings import Finding
from director.operate.overview import OwedCount, Snapshot
from director.operate.views import QueueView, Waiting, director_view
from director.store.directors import About, DirectorFound, HeartbeatFound, ServerFound
from director.store.queues import Tenant
from tests.unit.core.test_samples import NOW_MS, sample


def queue(name: str, **facts: Any) -> QueueView:
    known: dict[str, Any] = {
        "model": "acme/echo",
        "state": "serving",
        "paused": False,
        "breaker": "closed",
        "mode": "absorb",
        "waiting": Waiting(high=0, normal=0, low=0),
        **dict.fromkeys(("max_queued", "oldest_s", "run_s")),
        **dict.fromkeys(("claimed", "delayed", "dead", "live", "slots", "directors"), 0),
        **dict.fromkeys(("accepted", "started", "ended"), 0),
        **dict.fromkeys(("streams", "read"), 16),
    }
    return QueueView(name=QueueName(name), **known | facts)


def rows() -> list[Row]:
    return [
        Row(queue("acme/a:1", oldest_s=9.0, state="paused", paused=True), 3.0, (0, 1)),
        Row(queue("acme/b:1", waiting=Waiting(high=1, normal=2, low=3), oldest_s=1.0), None, (5, 6)),
        Row(queue("beta/c:1", claimed=4, slots=4), 60.0, (0, 0)),
    ]


def typed(state: State, *pressed_keys: str) -> State:
    for key in pressed_keys:
        state = pressed(state, key, shown(state, rows())).state
    return state


def order(state: State) -> list[str]:
    return [row.queue.name for row in shown(state, rows())]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("waiting", "acme/b:1"),
        ("oldest", "acme/a:1"),
        ("running", "beta/c:1"),
        ("starts", "beta/c:1"),
        ("trouble", "acme/a:1"),
        ("name", "acme/a:1"),
    ],
)
def test_each_order_puts_the_worst_first(sort: str, first: str) -> None:
    assert order(State(sort=sort))[0] == first


def test_s_cycles_through_all_orders() -> None:
    state, seen = State(), []
    for _ in SORTS:
        seen.append(state.sort)
        state = typed(state, "s")
    assert seen == list(SORTS)
    assert state == State()


def test_filter_is_typed_kept_and_removed() -> None:
    state = typed(State(), "/", *"betq", "backspace", "a", "enter")
    assert order(state) == ["beta/c:1"]
    assert order(typed(state, "escape")) == order(State())
    assert typed(State(), "/", "q").wanted == "q", "what is typed is no command"


def test_change_needs_a_confirming_key() -> None:
    asked = typed(State(), "p")
    assert asked.asked == Change(QueueName("acme/b:1"), True)
    assert pressed(asked, "y", shown(asked, rows())).change == asked.asked
    for other in ("n", "q", "escape", "p", "enter"):
        step = pressed(asked, other, shown(asked, rows()))
        assert (step.change, step.state.asked, step.is_over) == (None, None, False)


def test_p_resumes_a_paused_queue() -> None:
    assert typed(State(sort="oldest"), "p").asked == Change(QueueName("acme/a:1"), False)


def test_selection_survives_another_order() -> None:
    state = typed(State(), "down", "down", "up", "s", "s")
    assert state.selected == "acme/a:1"
    assert typed(State(), *["down"] * 9).selected == "beta/c:1"
    assert typed(State(), "end", "home").selected == "acme/b:1"


def test_removed_queue_is_not_mistaken_for_another() -> None:
    state = typed(State(), "enter")
    assert (state.view, state.selected) == ("queue", "acme/b:1")
    left = [row for row in shown(state, rows()) if row.queue.name != state.selected]
    assert pressed(state, "p", left).state.asked is None


def test_q_goes_back_and_then_quits() -> None:
    inside = typed(State(), "enter")
    step = pressed(inside, "q", rows())
    assert (step.state.view, step.is_over) == ("queues", False)
    assert pressed(step.state, "q", rows()).is_over
    assert typed(State(), "d", "d").view == "queues"


@pytest.mark.parametrize("key", ["p", "enter", "down", "s", "/", "escape", "x", "\x1b[Z"])
def test_no_key_fails_without_queues(key: str) -> None:
    assert pressed(State(), key, []).change is None


def seen(rows: Sequence[Row], away: str = "") -> Seen:
    server = ServerFound(url="http://10.0.0.1:5000", state="ready", since_ms=NOW_MS, slots=4)
    about = About(servers=(server,))
    last = HeartbeatFound(queue=QueueName("acme/a:1"), at_ms=NOW_MS, slots=4, state="ready", about=about)
    snapshot = Snapshot(
        at="2027-01-15T08:00:00.000Z",
        queues=[row.queue for row in rows],
        more_queues=0,
        directors=[director_view(DirectorFound(name=f"host-{n}", heartbeats=(last,), silent_ms=0)) for n in range(30)],
        more_directors=0,
        owed=OwedCount(count=2, late=1),
    )
    tenants = [Tenant(f"account-{n}", 1, 2, False) for n in range(40)]
    detail = Detail(queue=QueueName("acme/b:1"), tenants=tenants, heat={"high": [1, 0]})
    return Seen(now_ms=NOW_MS, snapshot=snapshot, rows=rows, detail=detail, away=away)


@given(
    st.integers(1, 150),
    st.integers(1, 60),
    st.lists(st.sampled_from(["down", "page_down", "enter", "d", "f", "escape", "s", "p", "/", "a", "q"]), max_size=8),
)
def test_screen_is_never_larger_than_the_terminal(width: int, height: int, typed_keys: list[str]) -> None:
    known = [*rows(), *(Row(queue(f"many/model-{n}:1")) for n in range(80))]
    state = State()
    for key in typed_keys:
        state = pressed(state, key, shown(state, known)).state
    lines = screen(state, seen(known, away="Redis is away"), width=width, height=height)
    assert len(lines) <= height
    assert all(cell_len(line.plain) <= width for line in lines)


def test_selected_queue_is_always_on_the_screen() -> None:
    known = [Row(queue(f"many/model-{n:02d}:1")) for n in range(80)]
    for at in (0, 20, 79):
        lines = screen(State(selected=known[at].queue.name), seen(known), width=80, height=24)
        assert [line.plain.split()[1] for line in lines if line.style == "reverse"] == [known[at].queue.name]
        assert lines[3].plain.split()[0] == "queue"
        assert len(lines) == 24


def test_totals_cover_all_queues_and_late_webhooks() -> None:
    totals = screen(State(), seen(rows()), width=None)[1].plain
    assert totals == "waiting 6  running 4 of 4  delayed 0  dead 0  webhooks owed 2 (1 late)  starts 63/min"


def with_findings(count: int, **facts: Any) -> Seen:
    known = seen(rows())
    found = [Finding(title=f"Trouble {n}", ask="director doctor", code="queue_paused", **facts) for n in range(count)]
    return replace(known, snapshot=replace(known.snapshot, findings=found))


def test_worst_findings_are_above_the_queues_if_there_is_room() -> None:
    known = with_findings(5, level="warn", detail="3 waiting\x1b[2J")
    told = [line.plain for line in screen(State(), known, width=80, height=24) if line.plain.startswith("! ")]
    assert [line.split(":")[0] for line in told] == ["! Trouble 0", "! Trouble 1", "! Trouble 2"]
    assert "\x1b" not in told[0]
    assert not [line for line in screen(State(), known, width=80, height=10) if line.plain.startswith("! ")]


def test_screen_of_a_queue_shows_its_accounts() -> None:
    state = replace(State(), view="queue", selected=QueueName("acme/b:1"))
    text = [line.plain for line in screen(state, seen(rows()), width=80, height=60)]
    assert "  high     1 waiting; in its streams 1 █▁" in text
    assert any(line.split()[:3] == ["account-7", "1", "2"] for line in text)


def test_f_shows_all_findings() -> None:
    found = with_findings(2, level="bad", detail="w" * 99)
    assert any("2 findings: press f" in line.plain for line in screen(State(), found, width=80, height=24))
    told = [line.plain for line in screen(typed(State(), "f"), found, width=80, height=24)]
    assert {"Trouble 0", "Trouble 1", "  → director doctor"} <= set(told)
    assert typed(State(), "f", "p").asked is None


def test_keys_that_arrive_together_are_separated() -> None:
    assert keys_in("j\x1b[A\x1bOB\r\x7f\x1b[5~\x1b[99zé\x1b") == [
        *("j", "up", "down", "enter", "backspace", "page_up", "\x1b[99z", "é", "escape")
    ]


def test_rate_counts_starts_of_the_last_minute() -> None:
    rates, name = Rates(), QueueName("a")
    for at_s, started in ((0, 0), (2, 10)):
        rates.note(at_s, [queue("a", started=started)])
    assert rates.per_min(name) is None, "two seconds say little"
    rates.note(10, [queue("a", started=20)])
    assert rates.per_min(name) == 120
    rates.note(75, [queue("a", started=20)])
    rates.note(80, [queue("a", started=5)])
    assert rates.per_min(name) == 0, "it was made again, and started nothing since"
    assert rates.per_min(QueueName("b")) is None


def test_trend_is_the_maximum_of_each_part_of_ten_minutes() -> None:
    samples = [sample(700, waiting=99), sample(590, waiting=3), sample(310, waiting=5), sample(305, waiting=8)]
    assert waited(samples, now_ms=NOW_MS, now=2, parts=4) == [3, 8, 0, 2]


def test_first_rate_comes_from_the_keepers_samples() -> None:
    assert started_per_min([sample(70, waiting=0, started=9), sample(30, waiting=0, started=4)], now_ms=NOW_MS) == 4
    assert started_per_min([], now_ms=NOW_MS) is None


def test_blocks_scale_with_numbers_and_show_every_nonzero() -> None:
    assert blocks([0, 1, 50, 100]) == "▁▂▅█"
    assert blocks([0, 0]) == "▁▁"
    assert blocks([]) == ""
