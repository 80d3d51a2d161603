"""When an owed webhook is tried again, and when never again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.ids import new_prediction_id
from director.core.signing import headers, new_secret
from director.webhooks.messages import message_id
from director.webhooks.schedule import SCHEDULE_S, Noted, noted
from director.webhooks.sender import Delivery

FAILED = Delivery(ok=False, status=500)
MIDDLE = 0.5
LAST = len(SCHEDULE_S) - 1


def test_the_waits_are_those_that_are_promised() -> None:
    waits = [noted(FAILED, tellings=tellings, jitter=MIDDLE).delay_s for tellings in range(len(SCHEDULE_S))]
    minutes = [120, 300, 1800]
    hours = [hours * 3600 for hours in (2, 5, 10, 14, 20, 24)]
    assert waits == pytest.approx([2, 5, 15, 30, 60, *minutes, *hours])


def test_after_the_last_wait_it_is_given_up() -> None:
    assert noted(FAILED, tellings=LAST, jitter=MIDDLE).outcome == "failed"
    assert noted(FAILED, tellings=LAST + 1, jitter=MIDDLE) == Noted("given_up")
    assert noted(FAILED, tellings=LAST + 9, jitter=MIDDLE) == Noted("given_up")


@pytest.mark.parametrize(
    ("delivery", "outcome"),
    [
        (Delivery(ok=True, status=200), "delivered"),
        (Delivery(ok=False, status=410, gone=True), "gone"),
        (Delivery(ok=False, refused=True), "refused"),
    ],
)
@pytest.mark.parametrize("tellings", [0, LAST, LAST + 1])
def test_what_needs_no_other_attempt_has_none(delivery: Delivery, outcome: str, tellings: int) -> None:
    result = noted(delivery, tellings=tellings, jitter=MIDDLE)
    assert (result.outcome, result.delay_s, result.is_last) == (outcome, None, True)


def test_a_receiver_that_asks_for_patience_gets_it() -> None:
    patient = Delivery(ok=False, status=503, retry_after_s=600.0)
    assert noted(patient, tellings=0, jitter=MIDDLE) == Noted("failed", 600.0)


def test_a_receiver_cannot_ask_for_more_haste_than_the_schedule_has() -> None:
    hasty = Delivery(ok=False, status=503, retry_after_s=0.0)
    assert noted(hasty, tellings=3, jitter=MIDDLE) == Noted("failed", pytest.approx(30.0))


def test_patience_does_not_prolong_the_schedule() -> None:
    patient = Delivery(ok=False, status=503, retry_after_s=600.0)
    assert noted(patient, tellings=LAST + 1, jitter=MIDDLE) == Noted("given_up")


@given(st.integers(0, LAST), st.floats(0, 1))
def test_jitter_moves_a_wait_by_a_tenth_at_most_and_keeps_the_order(tellings: int, jitter: float) -> None:
    delay_s = noted(FAILED, tellings=tellings, jitter=jitter).delay_s
    assert delay_s is not None
    assert abs(delay_s - SCHEDULE_S[tellings]) <= SCHEDULE_S[tellings] * 0.1 + 1e-6


def test_jitter_spreads() -> None:
    assert noted(FAILED, tellings=4, jitter=0.0).delay_s == pytest.approx(54.0)
    assert noted(FAILED, tellings=4, jitter=1.0).delay_s == pytest.approx(66.0)


def test_a_first_attempt_that_failed_is_tried_again_after_about_two_seconds() -> None:
    first = noted(FAILED, tellings=0, jitter=0.5)
    assert (first.outcome, first.delay_s) == ("failed", 2.0)
    assert noted(Delivery(ok=True, status=204), tellings=0, jitter=0.5).is_last


def test_the_id_of_a_message_is_its_predictions_and_can_be_signed() -> None:
    prediction_id = new_prediction_id(model="acme/echo", now_ms=1)
    assert message_id(prediction_id, "completed") == f"msg_{prediction_id}_completed"
    named = message_id(prediction_id, "output_1_3")
    assert headers([new_secret()], message_id=named, timestamp_s=1, body=b"")["webhook-id"] == named
