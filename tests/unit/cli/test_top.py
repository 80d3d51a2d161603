from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from director.cli.top import Change, Screen, keys_in
from director.core.ids import QueueName
from director.operate.findings import Finding
from director.operate.overview import OwedCount, Snapshot
from director.operate.views import QueueView, Waiting, director_view
from director.store.directors import About, DirectorFound, HeartbeatFound, ServerFound
from tests.unit.core.test_samples import NOW_MS


def queue(name: str, **facts: Any) -> QueueView:
    known: dict[str, Any] = {
        "model": "acme/echo",
        "state": "serving",
        "paused": False,
        "breaker": "closed",
        "mode": "absorb",
        "waiting": Waiting(high=0, normal=0, low=0),
        **dict.fromkeys(("max_queued", "oldest_s", "opens_at", "run_s")),
        **dict.fromkeys(("claimed", "delayed", "dead", "live", "slots", "directors"), 0),
        **dict.fromkeys(("accepted", "started", "ended"), 0),
        **dict.fromkeys(("streams", "read"), 16),
    }
    return QueueView(name=QueueName(name), **known | facts)


QUEUES = [
    queue("acme/a:1", waiting=Waiting(high=1, normal=2, low=3), claimed=4, slots=4),
    queue("acme/b:1", waiting=Waiting(high=0, normal=1, low=0), shade="warn", paused=True),
    queue("beta/c:1"),
]
MANY = [*QUEUES, *(queue(f"many/model-{n:02d}:1") for n in range(80))]


def screen(queues: Sequence[QueueView] = QUEUES, findings: Sequence[Finding] = (), away: str = "") -> Screen:
    server = ServerFound(url="http://10.0.0.1:5000", state="ready", since_ms=NOW_MS, slots=4)
    about = About(servers=(server,))
    last = HeartbeatFound(queue=QueueName("acme/a:1"), at_ms=NOW_MS, slots=4, state="ready", about=about)
    snapshot = Snapshot(
        at="2027-01-15T08:00:00.000Z",
        queues=queues,
        more_queues=0,
        directors=[director_view(DirectorFound(name=f"host-{n}", heartbeats=(last,), silent_ms=0)) for n in range(30)],
        more_directors=0,
        owed=OwedCount(count=2, late=1),
        findings=findings,
    )
    return Screen(snapshot, away=away)


def findings(count: int, **facts: Any) -> list[Finding]:
    return [Finding(title=f"Trouble {n}", ask="director doctor", code="queue_paused", **facts) for n in range(count)]


def typed(shown: Screen, *keys: str) -> list[Change]:
    return [change for key in keys if (change := shown.press(key)) is not None]


def plain(shown: Screen, width: int | None = 80, height: int | None = 24) -> list[str]:
    return [line.plain for line in shown.lines(width, height)]


def test_queues_in_trouble_are_first_then_those_with_most_waiting() -> None:
    assert [one.name for one in screen().queues] == ["acme/b:1", "acme/a:1", "beta/c:1"]


def test_change_needs_a_confirming_key() -> None:
    for key in ("n", "q", "escape", "p", "down"):
        shown = screen()
        assert typed(shown, "down", "p", key) == []
        assert (shown.asked, shown.is_over) == (None, False)
    assert typed(screen(), "down", "p", "y") == [Change(QueueName("acme/a:1"), True)]


def test_p_resumes_a_paused_queue() -> None:
    assert typed(screen(), "p", "y") == [Change(QueueName("acme/b:1"), False)]


def test_selection_follows_its_queue_to_another_row() -> None:
    shown = screen()
    typed(shown, "down", "down", "up")
    assert shown.selected == "acme/a:1"
    assert shown.snapshot is not None
    shown.snapshot = replace(shown.snapshot, queues=[replace(QUEUES[0], shade="bad"), *QUEUES[1:]])
    assert typed(shown, "p", "y") == [Change(QueueName("acme/a:1"), True)]
    typed(shown, *["down"] * 9)
    assert shown.selected == "beta/c:1"


def test_q_goes_back_and_then_quits() -> None:
    shown = screen()
    typed(shown, "d", "q")
    assert (shown.view, shown.is_over) == ("queues", False)
    typed(shown, "f", "f")
    assert shown.view == "queues"
    typed(shown, "q")
    assert shown.is_over


@pytest.mark.parametrize("key", ["p", "down", "d", "f", "escape", "x", "\x1b[Z"])
def test_no_key_fails_without_queues_or_before_the_first_look(key: str) -> None:
    for shown in (Screen(), screen([])):
        assert typed(shown, key, key) == []
        assert plain(shown)


@given(
    st.integers(1, 150),
    st.integers(1, 60),
    st.lists(st.sampled_from(["down", "page_down", "d", "f", "escape", "p", "a"]), max_size=8),
)
def test_screen_is_never_larger_than_the_terminal(width: int, height: int, keys: list[str]) -> None:
    shown = screen(MANY, findings(9, level="bad", detail="w" * 99), away="Redis is away")
    typed(shown, *keys)
    lines = plain(shown, width, height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


@pytest.mark.parametrize("view", ["d", "f"])
def test_a_long_view_is_scrolled_to_its_last_line(view: str) -> None:
    shown = screen(findings=findings(30, level="bad", detail="why"))
    typed(shown, view)
    whole = plain(shown, 80, None)
    typed(shown, *["page_down"] * 50)
    assert plain(shown)[-2].strip() == whole[-1].strip()
    typed(shown, *["page_up"] * 50)
    assert plain(shown)[3:5] == whole[3:5]


def test_selected_queue_is_always_on_the_screen() -> None:
    for at in (0, 20, 79):
        shown = screen(MANY)
        shown.selected = shown.queues[at].name
        lines = shown.lines(80, 24)
        assert [line.plain.split()[1] for line in lines if line.style == "reverse"] == [shown.selected]
        assert lines[3].plain.split()[0] == "queue"
        assert len(lines) == 24


def test_totals_cover_all_queues_and_late_webhooks() -> None:
    totals = "waiting 7  running 4 of 4  delayed 0  dead 0  webhooks owed 2 (1 late)"
    assert plain(screen(), None, None)[1] == totals


def test_worst_findings_are_above_the_queues_if_there_is_room() -> None:
    shown = screen(findings=findings(5, level="warn", detail="3 waiting\x1b[2J"))
    found = [line for line in plain(shown) if line.startswith("! ")]
    assert [line.split(":")[0] for line in found] == ["! Trouble 0", "! Trouble 1", "! Trouble 2"]
    assert "\x1b" not in found[0]
    assert not [line for line in plain(shown, 80, 10) if line.startswith("! ")]


def test_f_shows_all_findings() -> None:
    shown = screen(findings=findings(2, level="bad", detail="w" * 99))
    assert any("2 findings: press f" in line for line in plain(shown))
    assert typed(shown, "f", "p", "y") == []
    assert {"Trouble 0", "Trouble 1", "  → director doctor"} <= set(plain(shown))


def test_keys_that_arrive_together_are_separated() -> None:
    assert keys_in("j\x1b[A\x1bOB\x1b[5~\x1b[99zé\x1b") == ["down", "up", "down", "page_up", "\x1b[99z", "é", "escape"]
