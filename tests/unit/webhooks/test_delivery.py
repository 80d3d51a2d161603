from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from director.core.errors import SettingsError
from director.core.ids import PredictionId, new_prediction_id
from director.core.schema import Stored
from director.core.states import Status
from director.core.webhooks import new_secret, sign_headers
from director.files.data_files import DataAway
from director.webhooks.delivery import LONGEST_S, SCHEDULE, Noted, Schedule, Webhooks, message_id
from director.webhooks.sender import Delivery
from tests.support.clock import FakeClock
from tests.unit.execution.test_tracker import RECORD

FAILED = Delivery(ok=False, status=500)
MIDDLE = 0.5
LAST = len(SCHEDULE.waits_s) - 1
HOUR_S = 3600.0
NOW_MS = 1_800_000_000_000
OVER_S = sum(SCHEDULE.waits_s)


def noted(
    delivery: Delivery, *, steps: int = 0, owed_s: float | None = None, jitter: float = MIDDLE, is_early: bool = False
) -> Noted:
    """Judge an attempt whose time is that of its step, or `owed_s`."""
    passed_s = sum(SCHEDULE.waits_s[:steps]) if owed_s is None else owed_s
    return SCHEDULE.judge(delivery, steps=steps, owed_s=passed_s, jitter=jitter, is_early=is_early)


def failed(delay_s: float, *, is_asked: bool = False, is_early: bool = False) -> Noted:
    is_missed = not is_asked and not is_early
    delay: float = pytest.approx(delay_s)
    return Noted("failed", delay, is_asked=is_asked, is_early=is_early, is_missed=is_missed, host_answers=False)


def test_waits_follow_the_schedule() -> None:
    waits = [noted(FAILED, steps=steps).delay_s for steps in range(len(SCHEDULE.waits_s))]
    minutes = [120, 300, 1800]
    hours = [hours * 3600 for hours in (2, 5, 10, 14, 20, 24)]
    assert waits == pytest.approx([2, 5, 15, 30, 60, *minutes, *hours])


def test_webhook_is_given_up_after_the_last_wait() -> None:
    assert noted(FAILED, steps=LAST).outcome == "failed"
    assert noted(FAILED, steps=LAST + 1) == Noted("given_up", host_answers=False)
    assert noted(FAILED, steps=LAST + 9) == Noted("given_up", host_answers=False)
    assert noted(FAILED, steps=LAST + 1, owed_s=OVER_S * 0.9).outcome == "given_up", "all waits were short"


@pytest.mark.parametrize(
    ("owed_s", "wait_s"), [(0, 2), (27, 30), (24 * HOUR_S, 14 * HOUR_S), (OVER_S * 0.8, 24 * HOUR_S)]
)
def test_too_many_attempts_in_too_little_time_give_nothing_up(owed_s: float, wait_s: float) -> None:
    for steps in (LAST + 1, LAST + 99):
        assert noted(FAILED, steps=steps, owed_s=owed_s) == failed(wait_s)


def test_an_early_attempt_never_ends_the_schedule() -> None:
    assert noted(FAILED, steps=LAST + 1, is_early=True) == failed(0, is_early=True)
    assert noted(FAILED, steps=1, is_early=True) == failed(0, is_early=True)
    patient = Delivery(ok=False, status=503, retry_after_s=600.0)
    assert noted(patient, is_early=True) == failed(600, is_asked=True, is_early=True)
    assert noted(FAILED, owed_s=LONGEST_S, is_early=True).outcome == "given_up"


@pytest.mark.parametrize(
    ("delivery", "is_missed"),
    [
        (Delivery(ok=False, status=500), True),
        (Delivery(ok=False, status=503), True),
        (Delivery(ok=False, reason="no connection"), True),
        (Delivery(ok=False, status=404), False),
        (Delivery(ok=False, status=429), False),
        (Delivery(ok=False, status=301), False),
        (Delivery(ok=False, status=503, retry_after_s=60.0), False),
        (Delivery(ok=False, was_sent=False), False),
    ],
)
def test_only_what_an_absent_host_missed_is_brought_forward(delivery: Delivery, *, is_missed: bool) -> None:
    assert noted(delivery).is_missed is is_missed
    assert not noted(delivery, is_early=True).is_missed


def test_webhook_is_given_up_before_its_data_goes() -> None:
    assert noted(FAILED, steps=1, owed_s=LONGEST_S - 1).delay_s == pytest.approx(1)
    assert noted(FAILED, steps=1, owed_s=LONGEST_S).outcome == "given_up"
    patient = Delivery(ok=False, status=503, retry_after_s=24 * HOUR_S)
    assert noted(patient, steps=1, owed_s=LONGEST_S - HOUR_S).delay_s == pytest.approx(HOUR_S)


@pytest.mark.parametrize(
    ("delivery", "outcome"),
    [
        (Delivery(ok=True, status=200), "delivered"),
        (Delivery(ok=False, status=410, gone=True), "gone"),
        (Delivery(ok=False, rule="private_address"), "refused"),
    ],
)
@pytest.mark.parametrize("steps", [0, LAST, LAST + 1])
def test_final_outcomes_have_no_next_attempt(delivery: Delivery, outcome: str, steps: int) -> None:
    result = noted(delivery, steps=steps, owed_s=LONGEST_S)
    assert (result.outcome, result.delay_s) == (outcome, None)


@pytest.mark.parametrize(
    ("asked_s", "steps", "expected"),
    [
        (600.0, 0, failed(600, is_asked=True)),
        (0.0, 3, failed(30)),
        (600.0, LAST + 1, Noted("given_up", host_answers=False)),
    ],
    ids=["longer", "shorter", "after the last wait"],
)
def test_requested_delay_only_lengthens_a_wait_of_the_schedule(asked_s: float, steps: int, expected: Noted) -> None:
    assert noted(Delivery(ok=False, status=503, retry_after_s=asked_s), steps=steps) == expected


@pytest.mark.parametrize(
    ("delivery", "answers"),
    [
        (Delivery(ok=True, status=204), True),
        (Delivery(ok=False, status=404), True),
        (Delivery(ok=False, status=301), True),
        (Delivery(ok=False, status=410, gone=True), True),
        (Delivery(ok=False, status=429), False),
        (Delivery(ok=False, status=500), False),
        (Delivery(ok=False, reason="no connection"), False),
        (Delivery(ok=False, rule="private_address"), None),
        (Delivery(ok=False, was_sent=False), None),
    ],
)
def test_attempt_shows_whether_its_host_answers(delivery: Delivery, answers: bool | None) -> None:
    assert noted(delivery).host_answers is answers
    assert noted(delivery, steps=LAST + 1).host_answers is answers


@given(st.integers(0, LAST), st.floats(0, 1))
def test_jitter_is_at_most_a_tenth_and_keeps_order(steps: int, jitter: float) -> None:
    delay_s = noted(FAILED, steps=steps, jitter=jitter).delay_s
    assert delay_s is not None
    assert abs(delay_s - SCHEDULE.waits_s[steps]) <= SCHEDULE.waits_s[steps] * 0.1 + 1e-6


def test_jitter_spreads() -> None:
    assert noted(FAILED, steps=4, jitter=0.0) == failed(54)
    assert noted(FAILED, steps=4, jitter=1.0) == failed(66)


def test_schedule_is_read_from_one_setting() -> None:
    assert Schedule.parse("0.2s, 30s,5m , 1.5h").waits_s == (0.2, 30.0, 300.0, 5400.0)
    assert Schedule.parse("1s").judge(FAILED, steps=1, owed_s=1.0, jitter=0.5).outcome == "given_up"


@pytest.mark.parametrize("text", ["", "5", "5s,", "0s", "-1s", "5s 6s", "5d", "1e3s", "nans", "5S"])
def test_invalid_schedule_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_WEBHOOK_SCHEDULE: give waits such as"):
        Schedule.parse(text)


def test_schedule_longer_than_the_data_is_rejected() -> None:
    assert Schedule.parse("81h").waits_s == (81 * HOUR_S,)
    with pytest.raises(SettingsError, match=r"all waits together are 82\.0 h, and may be 81\.8 h"):
        Schedule.parse("82h")


def test_message_id_is_of_its_prediction_and_can_be_signed() -> None:
    prediction_id = new_prediction_id(model="acme/echo", now_ms=1)
    assert message_id(prediction_id, "completed") == f"msg_{prediction_id}_completed"
    named = message_id(prediction_id, "output_1_3")
    assert sign_headers([new_secret()], message_id=named, timestamp_s=1, body=b"")["webhook-id"] == named


class Parts:
    """Stands in for the scripts, the accounts and the sender. The file of the prediction is lost."""

    def __init__(self, tellings: int) -> None:
        since = NOW_MS - round(sum(SCHEDULE.waits_s[:tellings]) * 1000)
        ended = replace(
            RECORD, status=Status.SUCCEEDED, completed=since, webhook_attempts=tellings, webhook="http://receiver/"
        )
        self.without = Stored(record=ended, input=None)
        self.bodies: list[Any] = []

    async def get(self, _: PredictionId) -> Stored:
        raise DataAway("the file is lost", without=self.without)

    async def deliver(self, *_: Any, **__: Any) -> str:
        return "noted"

    async def webhook_secrets(self, _: str) -> list[str]:
        return [new_secret()]

    async def send(self, *_: Any, body: bytes, **__: Any) -> Delivery:
        self.bodies.append(msgspec.json.decode(body))
        return Delivery(ok=True, status=200)


@pytest.mark.parametrize(("tellings", "outcome"), [(0, "failed"), (LAST, "failed"), (LAST + 1, "delivered")])
async def test_a_lost_file_delays_the_webhook_and_not_for_ever(tellings: int, outcome: str) -> None:
    parts: Any = Parts(tellings)
    noted = await Webhooks(parts, parts, parts, FakeClock(now_ms=NOW_MS)).deliver(RECORD.id)
    assert (noted.outcome, noted.host_answers) == (outcome, None if outcome == "failed" else True)
    assert (noted.delay_s is None) == (outcome == "delivered")
    sent = [(body["status"], body["output"], body["data_removed"]) for body in parts.bodies]
    assert sent == ([("succeeded", None, True)] if outcome == "delivered" else [])
