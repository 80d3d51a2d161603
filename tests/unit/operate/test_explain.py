import json

import msgspec
import pytest

from director.cli.main import main
from director.cli.predictions import story_lines
from director.core.schema import Event, Known, Outlook
from director.core.states import Status
from director.core.words import share, span
from director.operate.story import tell
from tests.unit.cli.test_cli import Service
from tests.unit.core.test_view import ID, MADE

BORN = 1_800_000_000_000
PLACED = msgspec.structs.replace(MADE, place="3 41", eta50=12_000, eta90=30_000)
CREATED = Event(1, "created", BORN)
WAITING = Known(
    now=BORN + 5_000, record=PLACED, events=(CREATED,), attempts=3, outlook=Outlook(2, 7, 4_000, None, "paused")
)
ENDED = Known(
    now=BORN + 60_000,
    record=msgspec.structs.replace(
        PLACED,
        status=Status.FAILED,
        holder="d2",
        claimed=BORN + 20_000,
        started=BORN + 21_000,
        completed=BORN + 29_000,
        ended_by="t",
        begun=True,
        attempt=2,
        error="ValueError: too\nmany words",
        history=f"1 d1 {BORN + 2_000} {BORN + 17_000} director_lost",
        webhook="https://receiver.example/?secret",
        webhook_events="start,completed",
        webhook_outcome="failed",
        webhook_attempts=1,
    ),
    events=(
        CREATED,
        Event(2, "released", BORN + 19_000, b"server_full d9 %d" % (BORN + 18_000)),
        Event(3, "webhook", BORN + 29_500, b"completed failed 500 1 %d receiver.example" % (BORN + 62_000)),
    ),
    attempts=3,
    owed=BORN + 62_000,
)


def test_story_of_a_waiting_prediction_is_in_order() -> None:
    assert list(story_lines(tell(WAITING))) == [
        f"{ID} of acme/echo: starting",
        "2027-01-15T08:00:00.000Z  accepted from acme, lane normal",
        "                          the answer said: place 3 in its account's line, 41 before it in total, "
        "about 12 s until it starts (9 of 10: 30 s)",
        "2027-01-15T08:00:05.000Z  waits, place 2 in its account's line, 7 before it in total. "
        "An operator paused this queue.",
        "next                      attempt 1 of 3, when it is no longer paused",
    ]


def test_story_of_a_terminal_prediction_is_in_order() -> None:
    assert list(story_lines(tell(ENDED)))[3:] == [
        "2027-01-15T08:00:02.000Z  claimed by d1 after waiting 2.0 s: attempt 1",
        "2027-01-15T08:00:17.000Z  claim of d1 ended after 15 s: director_lost",
        "2027-01-15T08:00:18.000Z  claimed by d9 after waiting 1.0 s: attempt 2",
        "2027-01-15T08:00:19.000Z  claim of d9 ended after 1.0 s: server_full, not counted as an attempt",
        "2027-01-15T08:00:20.000Z  claimed by d2 after waiting 1.0 s: attempt 2",
        "2027-01-15T08:00:21.000Z  run began",
        "2027-01-15T08:00:29.000Z  failed 29 s after it was accepted; 8.0 s of that in its last run",
        "                          ValueError: too",
        "2027-01-15T08:00:29.500Z  webhook attempt 1 to receiver.example: failed, status 500",
        "webhook                   receiver.example wants start, completed",
        "                          attempts to deliver the end: 1, the last one failed",
        "2027-01-15T08:01:02.000Z  next: attempt 2 to deliver its webhook, at the latest; "
        "receiver.example failed the last one",
    ]


def test_receiver_that_did_not_answer_is_told_from_one_that_refused() -> None:
    silent = Event(3, "webhook", BORN + 29_500, b"completed failed - 1 - receiver.example")
    told = list(story_lines(tell(msgspec.structs.replace(ENDED, events=(CREATED, silent)))))
    assert "2027-01-15T08:00:29.500Z  webhook attempt 1 to receiver.example: failed, no answer" in told


def test_explain_prints_the_story_or_the_unchanged_json(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.loads(msgspec.json.encode(tell(WAITING)))
    service = Service((200, body), (200, body), (404, {"detail": "Not found."}))
    with service.serving() as url:
        assert main(["explain", ID, "--url", url, "--token", "t"]) == 0
        assert capsys.readouterr().out.splitlines() == list(story_lines(tell(WAITING)))
        assert main(["explain", ID, "--json", "--url", url, "--token", "t"]) == 0
        assert json.loads(capsys.readouterr().out) == body
        assert main(["explain", ID, "--url", url, "--token", "t"]) == 1
    assert service.asked == [f"GET /v1/predictions/{ID}/explain"] * 3
    assert capsys.readouterr().err.startswith(f"director: there is no prediction {ID} for this token")


def test_story_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    steered = msgspec.structs.replace(ENDED.record, error="\x1b[2J\u202egone \x9b1mé 日本\r")
    body = json.loads(msgspec.json.encode(tell(msgspec.structs.replace(ENDED, record=steered))))
    with Service((200, body)).serving() as url:
        assert main(["explain", ID, "--url", url, "--token", "t"]) == 0
    [line] = [line for line in capsys.readouterr().out.split("\n") if "gone" in line]
    assert line.strip() == "\ufffd[2J\ufffdgone \ufffd1mé 日本"


def test_malformed_story_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Service((200, {"id": ID})).serving() as url:
        assert main(["explain", ID, "--url", url, "--token", "t"]) == 1
    assert "the server there is not Director" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (12.4, "12 s"), (119, "119 s")),
        *((120, "2 min"), (7_199, "120 min"), (7_200, "2 h"), (172_800, "2 d")),
    ],
)
def test_duration_has_a_fitting_unit(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_share_of_nothing_has_words() -> None:
    assert (share(3, 1), share(0, 0)) == ("3 of 4 (75 %)", "none yet")
