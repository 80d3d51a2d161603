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
from director.core.webhooks import new_secret, signed_headers
from director.files.data_files import DataAway
from director.webhooks.delivery import LONGEST_S, SCHEDULE, Noted, Schedule, Webhooks, message_id
from director.webhooks.sender import Delivery
from tests.support.clock import FakeClock
from tests.unit.execution.test_tracker import RECORD

FAILED = Delivery(ok=False, status=500)
MIDDLE = 0.5
LAST = len(SCHEDULE.waits_s) - 1
HOUR_S = 3600.0


def noted(delivery: Delivery, *, tellings: int = 0, owed_s: float = 0.0, jitter: float = MIDDLE) -> Noted:
    return SCHEDULE.noted(delivery, tellings=tellings, owed_s=owed_s, jitter=jitter)


def failed(delay_s: float, *, is_asked: bool = False) -> Noted:
    return Noted("failed", pytest.approx(delay_s), is_asked=is_asked, host_answers=False)


def test_waits_follow_the_schedule() -> None:
    waits = [noted(FAILED, tellings=tellings).delay_s for tellings in range(len(SCHEDULE.waits_s))]
    minutes = [120, 300, 1800]
    hours = [hours * 3600 for hours in (2, 5, 10, 14, 20, 24)]
    assert waits == pytest.approx([2, 5, 15, 30, 60, *minutes, *hours])


def test_webhook_is_given_up_after_the_last_wait() -> None:
    assert noted(FAILED, tellings=LAST).outcome == "failed"
    assert noted(FAILED, tellings=LAST + 1) == Noted("given_up", host_answers=False)
    assert noted(FAILED, tellings=LAST + 9) == Noted("given_up", host_answers=False)


def test_webhook_is_given_up_before_its_data_goes() -> None:
    assert noted(FAILED, tellings=1, owed_s=LONGEST_S - 1).delay_s == pytest.approx(1)
    assert noted(FAILED, tellings=1, owed_s=LONGEST_S).outcome == "given_up"
    patient = Delivery(ok=False, status=503, retry_after_s=24 * HOUR_S)
    assert noted(patient, tellings=1, owed_s=LONGEST_S - HOUR_S).delay_s == pytest.approx(HOUR_S)


@pytest.mark.parametrize(
    ("delivery", "outcome"),
    [
        (Delivery(ok=True, status=200), "delivered"),
        (Delivery(ok=False, status=410, gone=True), "gone"),
        (Delivery(ok=False, rule="private_address"), "refused"),
    ],
)
@pytest.mark.parametrize("tellings", [0, LAST, LAST + 1])
def test_final_outcomes_have_no_next_attempt(delivery: Delivery, outcome: str, tellings: int) -> None:
    result = noted(delivery, tellings=tellings, owed_s=LONGEST_S)
    assert (result.outcome, result.delay_s) == (outcome, None)


@pytest.mark.parametrize(
    ("asked_s", "tellings", "expected"),
    [
        (600.0, 0, failed(600, is_asked=True)),
        (0.0, 3, failed(30)),
        (600.0, LAST + 1, Noted("given_up", host_answers=False)),
    ],
    ids=["longer", "shorter", "after the last wait"],
)
def test_requested_delay_only_lengthens_a_wait_of_the_schedule(asked_s: float, tellings: int, expected: Noted) -> None:
    assert noted(Delivery(ok=False, status=503, retry_after_s=asked_s), tellings=tellings) == expected


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
    assert noted(delivery, tellings=LAST + 1).host_answers is answers


@given(st.integers(0, LAST), st.floats(0, 1))
def test_jitter_is_at_most_a_tenth_and_keeps_order(tellings: int, jitter: float) -> None:
    delay_s = noted(FAILED, tellings=tellings, jitter=jitter).delay_s
    assert delay_s is not None
    assert abs(delay_s - SCHEDULE.waits_s[tellings]) <= SCHEDULE.waits_s[tellings] * 0.1 + 1e-6


def test_jitter_spreads() -> None:
    assert noted(FAILED, tellings=4, jitter=0.0) == failed(54)
    assert noted(FAILED, tellings=4, jitter=1.0) == failed(66)


def test_schedule_is_read_from_one_setting() -> None:
    assert Schedule.parse("0.2s, 30s,5m , 1.5h").waits_s == (0.2, 30.0, 300.0, 5400.0)
    assert Schedule.parse("1s").noted(FAILED, tellings=1, owed_s=1.0, jitter=0.5).outcome == "given_up"


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
    assert signed_headers([new_secret()], message_id=named, timestamp_s=1, body=b"")["webhook-id"] == named


class Parts:
    """Stands in for the scripts, the accounts and the sender. The file of the prediction is lost."""

    def __init__(self, tellings: int) -> None:
        ended = replace(RECORD, status=Status.SUCCEEDED, completed=1, tellings=tellings, webhook="http://receiver/")
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
    noted = await Webhooks(parts, parts, parts, FakeClock(now_ms=1)).deliver(RECORD.id)
    assert (noted.outcome, noted.host_answers) == (outcome, None if outcome == "failed" else True)
    assert (noted.delay_s is None) == (outcome == "delivered")
    sent = [(body["status"], body["output"], body["data_removed"]) for body in parts.bodies]
    assert sent == ([("succeeded", None, True)] if outcome == "delivered" else [])
