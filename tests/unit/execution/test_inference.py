import msgspec
from msgspec.structs import replace

from director.execution.metering import metrics_of, with_metrics
from director.execution.tracker import Limits, Tracker
from director.servers.runners.runner import Began, Ended, Outcome, Produced, Restarted
from tests.unit.execution.test_tracker import RECORD as FIRST

RECORD = replace(FIRST, created=1_000, claimed=3_500)


def produced(tracker: Tracker, *times: float) -> None:
    for index, at in enumerate(times):
        tracker.apply(Produced(item=msgspec.Raw(b"1"), index=index), at)


def test_metrics_have_times_from_the_claim_and_the_start() -> None:
    tracker = Tracker(RECORD, Limits())
    tracker.apply(Began(), 10.0)
    produced(tracker, 10.5, 11.0, 11.5)
    tracker.apply(Produced(item=msgspec.Raw(b"1"), index=0), 11.9)  # told twice
    tracker.apply(Ended(outcome=Outcome.SUCCEEDED), 12.0)
    assert metrics_of(RECORD, tracker, setup_wait_s=1.25) == {
        "queue_time": 2.5,
        "setup_wait_time": 1.25,
        "run_time": 2.0,
        "time_to_first_output": 0.5,
        "output_count": 3,
        "outputs_per_second": 2.0,
    }


def test_wait_for_a_slot_counts_as_queue_time() -> None:
    found = metrics_of(RECORD, Tracker(RECORD, Limits()), setup_wait_s=0, ahead_s=0.25)
    assert found["queue_time"] == 2.75


def test_restarted_run_counts_from_its_last_start() -> None:
    tracker = Tracker(RECORD, Limits())
    tracker.apply(Began(), 10.0)
    produced(tracker, 10.5, 11.0, 11.5)
    tracker.apply(Restarted("stream_lagged"), 12.0)
    produced(tracker, 13.0, 15.0)
    found = metrics_of(RECORD, tracker, setup_wait_s=0)
    assert (found["output_count"], found["time_to_first_output"], found["outputs_per_second"]) == (2, 3.0, 0.5)


def test_run_that_never_began_has_only_queue_time() -> None:
    assert metrics_of(RECORD, Tracker(RECORD, Limits()), setup_wait_s=0) == {"queue_time": 2.5, "setup_wait_time": 0}


def test_a_rate_needs_two_outputs_that_are_apart() -> None:
    tracker = Tracker(RECORD, Limits())
    produced(tracker, 10.0, 10.0)
    assert "outputs_per_second" not in metrics_of(RECORD, tracker, setup_wait_s=0)


def test_a_burst_of_outputs_has_no_rate() -> None:
    tracker = Tracker(RECORD, Limits())
    produced(tracker, *(10.0 + 0.00002 * index for index in range(20)))
    found = metrics_of(RECORD, tracker, setup_wait_s=0)
    assert (found["output_count"], "outputs_per_second" in found) == (20, False)


def test_times_of_hours_with_those_of_cog_fit_into_64_bytes() -> None:
    record, tracker = replace(FIRST, created=1_000, claimed=9_877_543), Tracker(FIRST, Limits())
    tracker.apply(Began(), 10.0)
    tracker.apply(Ended(outcome=Outcome.SUCCEEDED), 9_886.54321)
    ours = metrics_of(record, tracker, setup_wait_s=123.456789)
    assert ours == {"queue_time": 9876.5, "setup_wait_time": 123.46, "run_time": 9876.5}
    assert len(with_metrics(b'{"predict_time":9876.543210987}', ours)) <= 64


def test_predict_time_of_a_run_that_never_began_stays() -> None:
    told = b'{"predict_time":1}'
    assert msgspec.json.decode(with_metrics(told, {"queue_time": 1.0})) == {"queue_time": 1.0, "predict_time": 1}


def test_a_figure_of_the_models_own_stays() -> None:
    told = b'{"queue_time":"mine","n":12345678901234567890}'
    assert msgspec.json.decode(with_metrics(told, {"queue_time": 1.0, "run_time": 2.0})) == {
        "queue_time": "mine",
        "run_time": 2.0,
        "n": 12345678901234567890,
    }
