"""Story: from what the queue knows of one prediction to what became of it and what is next."""

from typing import Any

import msgspec
import pytest

from director.core.ids import QueueName, new_prediction_id
from director.core.schema import Event, Known, Outlook, Record
from director.core.states import Status
from director.diagnosis.story import Coming, Holding, Story, tell

BORN = 1_800_000_000_000
AT = "2027-01-15T08:00:"  # where all of it happens: BORN is its second 00
MADE = Record(
    id=new_prediction_id(model="acme/echo", now_ms=BORN),
    account="acme",
    model="acme/echo",
    version="v",
    queue=QueueName("acme/echo:v"),
    lane="low",
    status=Status.STARTING,
    created=BORN,
    seq=1,
)
TURN = Outlook(2, 7, 4_000, 9_500, "waiting_its_turn")


def s(seconds: float) -> int:
    """A moment so long after it was made."""
    return BORN + int(seconds * 1000)


OF_THE_QUEUE = ("attempts", "due", "lease", "owed", "is_dead", "outlook")


def known(
    *happened: tuple[str, float] | tuple[str, float, str], log: tuple[Event, ...] | None = None, **facts: Any
) -> Known:
    """What is known 30 s after it was made. Facts that are not the queue's are the record's; `log`: all events."""
    lines = [("created", 0.0, ""), *((*event, "")[:3] for event in happened)]
    seen = tuple(Event(place, kind, s(at), data.encode()) for place, (kind, at, data) in enumerate(lines, start=1))
    of_the_queue = {"attempts": 3, **{name: facts.pop(name) for name in OF_THE_QUEUE if name in facts}}
    record = msgspec.structs.replace(MADE, **facts)
    return Known(now=s(30), record=record, events=seen if log is None else log, **of_the_queue)


def held(story: Story) -> list[tuple[int, str, float | None, float | None, str, bool]]:
    return [(one.number, one.director, one.waited_s, one.held_s, one.how, one.is_spent) for one in story.held]


def comes(story: Story) -> list[tuple[str, str | None]]:
    return [(coming.what, coming.at) for coming in story.next]


SPENT_ONCE = f"1 d1 {s(2)} {s(5)} director_lost"
RUNS = {"status": Status.PROCESSING, "token": "t", "holder": "d2", "claimed": s(8), "started": s(9), "begun": True}


# ── how it came, and why it waits ────────────────────────────────────────────────────────────────────────────────


def test_what_waits_tells_why_and_what_it_was_told_when_it_came() -> None:
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


def test_who_waits_behind_a_crowd_of_its_own_account_is_told_so() -> None:
    detail = tell(known(outlook=Outlook(901, 950, 4_000, 9_500, "waiting_its_turn"))).next[0].detail
    assert "900 of its own account go first, while other accounts have turns of their own" in detail


@pytest.mark.parametrize(
    ("reason", "words"),
    [("no_director", "a director serves its queue"), ("setup_failed", "setup"), ("paused", "no longer paused")],
)
def test_what_has_to_be_mended_first_is_what_comes_next(reason: Any, words: str) -> None:
    assert words in tell(known(outlook=Outlook(1, 0, None, None, reason))).next[0].detail


def test_a_slow_redis_is_told_where_it_was_slow_to_tell_the_story() -> None:
    assert tell(known(), took_ms=240.04).redis_ms == 240.0
    assert tell(known(), took_ms=4).redis_ms is msgspec.UNSET


def test_what_it_was_told_is_unknown_of_one_that_an_older_release_took() -> None:
    assert tell(known(outlook=TURN)).submitted.told is None


def test_a_place_without_a_time_is_told_without_one() -> None:
    told = tell(known(outlook=TURN, place="1 0")).submitted.told
    assert told is not None
    assert told.eta_s is None


def test_what_backs_off_tells_which_attempt_is_next_and_when() -> None:
    story = tell(known(("retried", 5), history=SPENT_ONCE, attempt=1, due=s(40), claimed=s(2), holder="d1"))
    assert story.next == (Coming("attempt", f"{AT}40.000Z", "attempt 2 of 3, not before that"),)
    assert held(story) == [(1, "d1", 2.0, 3.0, "director_lost", True)]


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        ({}, "failed if it has not ended by then"),
        ({"late": "aborted"}, "aborted if it has not ended by then"),
        ({"late": "aborted", "begun": True}, "canceled if it has not ended by then"),
    ],
    ids=["nobody asked for it", "its caller asked for it", "it ran before"],
)
def test_a_deadline_says_as_what_it_ends(facts: dict[str, Any], detail: str) -> None:
    assert tell(known(deadline=s(50), **facts)).next[-1] == Coming("deadline", f"{AT}50.000Z", detail)


def test_a_start_that_was_asked_for_counts_until_it_began_once() -> None:
    assert comes(tell(known(start_by=s(40))))[1:] == [("start_by", f"{AT}40.000Z")]
    assert "start_by" not in dict(comes(tell(known(start_by=s(40), begun=True))))


# ── who had it ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_runs_tells_who_runs_it_and_since_when() -> None:
    story = tell(known(("started", 9), attempt=1, lease=s(40), **RUNS))
    assert story.held == (
        Holding(
            number=1,
            director="d2",
            waited_s=8.0,
            claimed_at=f"{AT}08.000Z",
            started_at=f"{AT}09.000Z",
            ended_at=None,
            held_s=22.0,
            how="",
            is_spent=True,
        ),
    )
    assert comes(story) == [("end", None), ("lease", f"{AT}40.000Z")]
    assert story.next[1].detail == "without a heartbeat until then, attempt 2 of 3 begins"


def test_what_is_claimed_and_has_not_begun_is_started_next() -> None:
    story = tell(known(attempt=1, token="t", holder="d1", claimed=s(8), lease=s(40)))
    assert story.next[0] == Coming("start", None, "d1 starts attempt 1 of 3")


def test_the_last_attempt_that_is_lost_is_a_dead_letter() -> None:
    story = tell(known(attempt=3, lease=s(40), **RUNS))
    assert story.next[1].detail == "without a heartbeat until then, it is a dead letter"


@pytest.mark.parametrize("lease", [s(29), None], ids=["ran out", "lost"])
def test_a_director_that_went_silent_is_said_to_be(lease: int | None) -> None:
    coming = tell(known(attempt=1, lease=lease, **RUNS)).next[1]
    assert coming.detail == "its director went silent: a keeper takes it back, and attempt 2 of 3 begins"


def test_a_cancel_that_was_asked_for_is_next() -> None:
    assert tell(known(attempt=1, lease=s(40), cancel="user", **RUNS)).next[0].what == "cancel"


def test_each_holding_waited_from_the_end_of_the_one_before_it() -> None:
    events = [("started", 3), ("retried", 5), ("released", 7, f"server_full d9 {s(6)}"), ("started", 9)]
    story = tell(known(*events, history=SPENT_ONCE, attempt=2, lease=s(40), **RUNS))
    assert held(story) == [
        (1, "d1", 2.0, 3.0, "director_lost", True),
        (2, "d9", 1.0, 1.0, "server_full", False),
        (2, "d2", 1.0, 22.0, "", True),
    ]
    assert [one.started_at for one in story.held] == [f"{AT}03.000Z", None, f"{AT}09.000Z"]


def test_what_an_older_release_gave_back_is_told_without_its_beginning() -> None:
    story = tell(known(("released", 7, "drain d9"), attempt=1, lease=s(40), **RUNS))
    assert held(story) == [(1, "d9", None, None, "drain", False), (1, "d2", 1.0, 22.0, "", True)]


def test_what_an_operator_revived_waits_from_then_on_and_counts_anew() -> None:
    events = (
        Event(1, "revived", s(20)),
        Event(2, "released", s(22), f"drain d1 {s(21)}".encode()),
    )
    history = ";".join(f"{n} d1 {s(n * 2)} {s(n * 2 + 1)} broken" for n in (1, 2, 3))
    story = tell(known(log=events, history=history, revivals=1, outlook=TURN, claimed=s(21), holder="d1"))
    assert (story.submitted.revivals, story.submitted.revived_at) == (1, f"{AT}20.000Z")
    assert held(story)[3:] == [(1, "d1", 1.0, 1.0, "drain", False)]
    assert story.next[0].detail == "attempt 1 of 3, when its turn has come"


# ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

DONE = {"status": Status.SUCCEEDED, "holder": "d2", "claimed": s(8), "started": s(9), "begun": True, "ended": "t"}


def test_what_has_ended_tells_how_long_all_of_it_took() -> None:
    story = tell(known(("started", 9), attempt=1, completed=s(12.5), **DONE))
    assert story.ended is not None
    assert (story.ended.status, story.ended.total_s, story.ended.ran_s) == ("succeeded", 12.5, 3.5)
    assert held(story) == [(1, "d2", 8.0, 4.5, "succeeded", True)]
    assert comes(story) == [("nothing", None)]


def test_what_ended_while_it_waited_was_held_by_nobody() -> None:
    canceled = {"status": Status.CANCELED, "completed": s(9)}
    story = tell(known(**canceled))
    assert (story.held, story.ended and story.ended.ran_s) == ((), None)
    after_a_try = tell(known(("retried", 5), history=SPENT_ONCE, claimed=s(2), holder="d1", attempt=1, **canceled))
    assert held(after_a_try) == [(1, "d1", 2.0, 3.0, "director_lost", True)]


def test_what_was_canceled_under_a_director_that_let_go_of_it_was_held_to_its_end() -> None:
    facts = {**DONE, "status": Status.CANCELED, "ended": ""}
    assert held(tell(known(attempt=1, completed=s(12), **facts))) == [(1, "d2", 8.0, 4.0, "canceled", True)]


def test_a_dead_letter_waits_for_an_operator() -> None:
    facts = {**DONE, "status": Status.FAILED, "ended": "", "completed": s(12), "code": "broken", "error": "It broke."}
    story = tell(known(("started", 9), history=f"3 d2 {s(8)} {s(12)} broken", attempt=3, is_dead=True, **facts))
    assert held(story) == [(3, "d2", 8.0, 4.0, "broken", True)]
    assert story.ended is not None
    assert (story.ended.code, story.ended.error) == ("broken", "It broke.")
    assert story.next == (
        Coming("dead_letter", None, "it is a dead letter: its attempts ended with broken. An operator may revive it"),
    )


def test_without_its_events_only_what_the_record_proves_is_told() -> None:
    canceled = {"status": Status.CANCELED, "completed": s(9), "claimed": s(8), "holder": "d1"}
    story = tell(known(log=(), **canceled))
    assert (story.has_events, story.held) == (False, ())
    revived = tell(known(log=(), attempt=1, completed=s(12), revivals=1, history=SPENT_ONCE, **DONE))
    assert [one.waited_s for one in revived.held] == [None, None]


# ── its webhook ──────────────────────────────────────────────────────────────────────────────────────────────────

HOOK = {"webhook": "https://Receiver.example:8443/secret?token=secret#secret", "events": "start,completed"}


def test_of_a_webhook_the_host_and_how_it_goes_are_told() -> None:
    story = tell(known(attempt=1, completed=s(12), owed=s(59), told="failed", tellings=2, **DONE, **HOOK))
    webhook = story.webhook
    assert webhook is not None
    assert (webhook.host, webhook.events) == ("receiver.example:8443", ("start", "completed"))
    assert (webhook.is_owed, webhook.attempts, webhook.last) == (True, 2, "failed")
    assert story.next == (
        Coming(
            "webhook",
            f"{AT}59.000Z",
            "attempt 3 to deliver its webhook, at the latest; receiver.example:8443 failed the last one",
        ),
    )
    assert b"secret" not in msgspec.json.encode(story)


def test_each_attempt_to_tell_its_end_is_told() -> None:
    log = [
        ("webhook", 13, f"completed failed - 1 {s(15)} h.example"),
        ("webhook", 15, "completed delivered 204 2 - h.example"),
    ]
    story = tell(known(*log, attempt=1, completed=s(12), told="delivered", tellings=2, **DONE, **HOOK))
    assert story.webhook is not None
    told = [(one.at, one.attempt, one.outcome, one.status, one.next_at) for one in story.webhook.deliveries]
    assert told == [
        (f"{AT}13.000Z", 1, "failed", None, f"{AT}15.000Z"),
        (f"{AT}15.000Z", 2, "delivered", 204, None),
    ]
    assert held(story) == held(tell(known(attempt=1, completed=s(12), **DONE, **HOOK))), "and nothing else changes"


def test_a_webhook_that_arrived_is_no_more_to_come() -> None:
    story = tell(known(attempt=1, completed=s(12), told="delivered", tellings=1, **DONE, **HOOK))
    assert story.webhook is not None
    assert (story.webhook.is_owed, comes(story)) == (False, [("nothing", None)])


def test_an_address_that_cannot_be_read_is_not_repeated() -> None:
    story = tell(known(webhook="https://user:secret@host/", events="completed"))
    assert story.webhook is not None
    assert story.webhook.host == "?"


def test_it_reads_back_as_it_was_written() -> None:
    story = tell(known(("started", 9), attempt=1, lease=s(40), deadline=s(50), **RUNS, **HOOK))
    assert msgspec.json.decode(msgspec.json.encode(story), type=Story) == story
