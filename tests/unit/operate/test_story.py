from typing import Any

import msgspec
import pytest

from director.core.schema import Event, Known, Outlook
from director.core.states import Status
from director.operate.story import Coming, Story, tell
from tests.unit.core.test_view import MADE

BORN = 1_800_000_000_000
AT = "2027-01-15T08:00:"  # the minute of all times here; BORN is its second 00
TURN = Outlook(2, 7, 4_000, 9_500, "waiting_its_turn")


def s(seconds: float) -> int:
    """Return the time this long after the prediction was created."""
    return BORN + int(seconds * 1000)


OF_THE_QUEUE = ("attempts", "due", "lease", "owed", "is_dead", "outlook")


def known(
    *happened: tuple[str, float] | tuple[str, float, str], log: tuple[Event, ...] | None = None, **facts: Any
) -> Known:
    """Return the knowledge 30 s after creation, of the record unless OF_THE_QUEUE has it. `log` sets all events."""
    lines = [("created", 0.0, ""), *((*event, "")[:3] for event in happened)]
    seen = tuple(Event(place, kind, s(at), data.encode()) for place, (kind, at, data) in enumerate(lines, start=1))
    of_the_queue = {"attempts": 3, **{name: facts.pop(name) for name in OF_THE_QUEUE if name in facts}}
    record = msgspec.structs.replace(MADE, **{"lane": "low", "seq": 1} | facts)
    return Known(now=s(30), record=record, events=seen if log is None else log, **of_the_queue)


def held(story: Story) -> list[tuple[int, str, float | None, float | None, str, bool]]:
    return [(one.number, one.director, one.waited_s, one.held_s, one.how, one.is_spent) for one in story.held]


def comes(story: Story) -> list[tuple[str, str | None]]:
    return [(coming.what, coming.at) for coming in story.next]


SPENT_ONCE = f"1 d1 {s(2)} {s(5)} director_lost"
RUNS = {"status": Status.PROCESSING, "token": "t", "holder": "d2", "claimed": s(8), "started": s(9), "begun": True}


def test_waiting_prediction_shows_reason_and_first_estimate() -> None:
    story = tell(known(outlook=TURN, place="3 41", eta50=12_000, eta90=30_500))
    assert (story.submitted.at, story.submitted.lane, story.submitted.account) == (f"{AT}00.000Z", "low", "acme")
    told = story.submitted.told
    assert told is not None
    assert told.eta_s is not None
    assert (told.position, told.ahead, told.eta_s.p50, told.eta_s.p90) == (3, 41, 12.0, 30.5)
    assert isinstance(story.queue, msgspec.Struct)
    assert (story.queue.position, story.queue.ahead, story.queue.reason) == (2, 7, "waiting_its_turn")
    assert story.held == ()
    assert story.next == (Coming("attempt", None, "attempt 1 of 3, when its turn has come"),)


def test_crowd_of_its_own_account_is_mentioned() -> None:
    detail = tell(known(outlook=Outlook(901, 950, 4_000, 9_500, "waiting_its_turn"))).next[0].detail
    assert "900 of its own account go first, while other accounts have turns of their own" in detail


@pytest.mark.parametrize(
    ("reason", "words"),
    [("no_director", "a director serves its queue"), ("setup_failed", "setup"), ("paused", "no longer paused")],
)
def test_next_step_names_what_must_be_repaired_first(reason: Any, words: str) -> None:
    assert words in tell(known(outlook=Outlook(1, 0, None, None, reason))).next[0].detail


def test_slow_redis_is_shown_only_when_slow() -> None:
    assert tell(known(), took_ms=240.04).redis_ms == 240.0
    assert tell(known(), took_ms=4).redis_ms is msgspec.UNSET


def test_first_estimate_is_shown_as_far_as_known() -> None:
    assert tell(known(outlook=TURN)).submitted.told is None
    told = tell(known(outlook=TURN, place="1 0")).submitted.told
    assert told is not None
    assert told.eta_s is None


def test_backoff_shows_next_attempt_and_its_time() -> None:
    story = tell(known(("retried", 5), history=SPENT_ONCE, attempt=1, due=s(40), claimed=s(2), holder="d1"))
    assert story.next == (Coming("attempt", f"{AT}40.000Z", "attempt 2 of 3, not before that"),)
    assert held(story) == [(1, "d1", 2.0, 3.0, "director_lost", True)]


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        ({}, "failed if it has not ended by then"),
        ({"deadline_status": "aborted"}, "aborted if it has not ended by then"),
        ({"deadline_status": "aborted", "begun": True}, "canceled if it has not ended by then"),
    ],
    ids=["no caller asked for it", "its caller asked for it", "it ran before"],
)
def test_deadline_shows_the_status_it_leads_to(facts: dict[str, Any], detail: str) -> None:
    assert tell(known(deadline=s(50), **facts)).next[-1] == Coming("deadline", f"{AT}50.000Z", detail)


def test_start_by_counts_until_the_first_start() -> None:
    assert comes(tell(known(start_by=s(40))))[1:] == [("start_by", f"{AT}40.000Z")]
    assert "start_by" not in dict(comes(tell(known(start_by=s(40), begun=True))))


def test_running_prediction_shows_director_and_times() -> None:
    story = tell(known(("started", 9), attempt=1, lease=s(40), **RUNS))
    assert held(story) == [(1, "d2", 8.0, 22.0, "", True)]
    [run] = story.held
    assert (run.claimed_at, run.started_at, run.ended_at) == (f"{AT}08.000Z", f"{AT}09.000Z", None)
    assert comes(story) == [("end", None), ("lease", f"{AT}40.000Z")]


def test_claimed_prediction_starts_next() -> None:
    story = tell(known(attempt=1, token="t", holder="d1", claimed=s(8), lease=s(40)))
    assert story.next[0] == Coming("start", None, "d1 starts attempt 1 of 3")


SILENT = "its director went silent: a keeper takes it back, and attempt 2 of 3 begins"


@pytest.mark.parametrize(
    ("attempt", "lease", "detail"),
    [
        (1, s(40), "if d2 sends no heartbeat until then, attempt 2 of 3 begins"),
        (3, s(40), "if d2 sends no heartbeat until then, it is a dead letter"),
        (1, s(29), SILENT),
        (1, None, SILENT),
    ],
    ids=["not the last", "the last", "ran out", "lost"],
)
def test_lease_shows_what_follows_its_end(attempt: int, lease: int | None, detail: str) -> None:
    assert tell(known(attempt=attempt, lease=lease, **RUNS)).next[1].detail == detail


def test_requested_cancel_is_next() -> None:
    assert tell(known(attempt=1, lease=s(40), cancel="user", **RUNS)).next[0].what == "cancel"


def test_each_claim_waited_since_the_end_of_the_previous() -> None:
    events = [("started", 3), ("retried", 5), ("released", 7, f"server_full d9 {s(6)}"), ("started", 9)]
    story = tell(known(*events, history=SPENT_ONCE, attempt=2, lease=s(40), **RUNS))
    assert held(story) == [
        (1, "d1", 2.0, 3.0, "director_lost", True),
        (2, "d9", 1.0, 1.0, "server_full", False),
        (2, "d2", 1.0, 22.0, "", True),
    ]
    assert [one.started_at for one in story.held] == [f"{AT}03.000Z", None, f"{AT}09.000Z"]


def test_release_by_an_older_version_has_no_claim_time() -> None:
    story = tell(known(("released", 7, "drain d9"), attempt=1, lease=s(40), **RUNS))
    assert held(story) == [(1, "d9", None, None, "drain", False), (1, "d2", 1.0, 22.0, "", True)]


def test_revived_prediction_waits_and_counts_from_its_revival() -> None:
    events = (Event(1, "revived", s(20)), Event(2, "released", s(22), f"drain d1 {s(21)}".encode()))
    history = ";".join(f"{n} d1 {s(n * 2)} {s(n * 2 + 1)} broken" for n in (1, 2, 3))
    story = tell(known(log=events, history=history, revivals=1, outlook=TURN, claimed=s(21), holder="d1"))
    assert (story.submitted.revivals, story.submitted.revived_at) == (1, f"{AT}20.000Z")
    assert held(story)[3:] == [(1, "d1", 1.0, 1.0, "drain", False)]
    assert story.next[0].detail == "attempt 1 of 3, when its turn has come"


DONE = {"status": Status.SUCCEEDED, "holder": "d2", "claimed": s(8), "started": s(9), "begun": True, "ended_by": "t"}


@pytest.mark.parametrize(
    ("facts", "how"),
    [({}, "succeeded"), ({"status": Status.CANCELED, "ended_by": ""}, "canceled")],
    ids=["by itself", "canceled"],
)
def test_ended_prediction_shows_total_and_run_time(facts: dict[str, Any], how: str) -> None:
    story = tell(known(("started", 9), attempt=1, completed=s(12.5), **DONE | facts))
    assert story.ended is not None
    assert (story.ended.status, story.ended.total_s, story.ended.ran_s) == (how, 12.5, 3.5)
    assert held(story) == [(1, "d2", 8.0, 4.5, how, True)]
    assert comes(story) == [("nothing", None)]


def test_prediction_that_ended_while_waiting_has_no_last_claim() -> None:
    canceled = {"status": Status.CANCELED, "completed": s(9)}
    story = tell(known(**canceled))
    assert (story.held, story.ended and story.ended.ran_s) == ((), None)
    after_a_try = tell(known(("retried", 5), history=SPENT_ONCE, claimed=s(2), holder="d1", attempt=1, **canceled))
    assert held(after_a_try) == [(1, "d1", 2.0, 3.0, "director_lost", True)]


def test_dead_letter_waits_for_an_operator() -> None:
    facts = {
        **DONE,
        "status": Status.FAILED,
        "ended_by": "",
        "completed": s(12),
        "code": "broken",
        "error": "It broke.",
    }
    story = tell(known(("started", 9), history=f"3 d2 {s(8)} {s(12)} broken", attempt=3, is_dead=True, **facts))
    assert held(story) == [(3, "d2", 8.0, 4.0, "broken", True)]
    assert story.ended is not None
    assert (story.ended.code, story.ended.error) == ("broken", "It broke.")
    detail = "it is a dead letter: its attempts ended with broken. An operator may revive it"
    assert story.next == (Coming("dead_letter", None, detail),)


def test_without_events_only_the_record_counts() -> None:
    canceled = {"status": Status.CANCELED, "completed": s(9), "claimed": s(8), "holder": "d1"}
    story = tell(known(log=(), **canceled))
    assert (story.has_events, story.held) == (False, ())
    revived = tell(known(log=(), attempt=1, completed=s(12), revivals=1, history=SPENT_ONCE, **DONE))
    assert [one.waited_s for one in revived.held] == [None, None]


HOOK = {"webhook": "https://Receiver.example:8443/secret?token=secret#secret", "webhook_events": "start,completed"}


def test_webhook_shows_host_and_progress_but_no_secret() -> None:
    story = tell(
        known(attempt=1, completed=s(12), owed=s(59), webhook_outcome="failed", webhook_attempts=2, **DONE, **HOOK)
    )
    webhook = story.webhook
    assert webhook is not None
    assert (webhook.host, webhook.events) == ("receiver.example:8443", ("start", "completed"))
    assert (webhook.is_owed, webhook.attempts, webhook.last) == (True, 2, "failed")
    detail = "attempt 3 to deliver its webhook, at the latest; receiver.example:8443 failed the last one"
    assert story.next == (Coming("webhook", f"{AT}59.000Z", detail),)
    assert b"secret" not in msgspec.json.encode(story)


def test_each_delivery_attempt_is_listed() -> None:
    log = [
        ("webhook", 13, f"completed failed - 1 {s(15)} h.example"),
        ("webhook", 15, "completed delivered 204 2 - h.example"),
    ]
    story = tell(
        known(*log, attempt=1, completed=s(12), webhook_outcome="delivered", webhook_attempts=2, **DONE, **HOOK)
    )
    assert story.webhook is not None
    assert (story.webhook.is_owed, comes(story)) == (False, [("nothing", None)])
    told = [(one.at, one.attempt, one.outcome, one.status, one.next_at) for one in story.webhook.deliveries]
    assert told == [
        (f"{AT}13.000Z", 1, "failed", None, f"{AT}15.000Z"),
        (f"{AT}15.000Z", 2, "delivered", 204, None),
    ]
    assert held(story) == held(tell(known(attempt=1, completed=s(12), **DONE, **HOOK))), "and nothing else changes"


def test_unreadable_webhook_url_is_not_repeated() -> None:
    story = tell(known(webhook="https://user:secret@host/", webhook_events="completed"))
    assert story.webhook is not None
    assert story.webhook.host == "?"
