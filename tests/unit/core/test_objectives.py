import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.errors import SettingsError
from director.core.model_config import ModelConfig, over
from director.core.policy import Objective, decode_objectives, encode
from director.core.samples import WINDOWS, Sample, burn, burns, parse
from director.core.settings import DirectorSettings
from tests.unit.core.test_samples import NOW_MS, sample

TWENTIETH = Objective(share=0.95, within_s=10)


def rate(*samples: Sample, over_s: float = 300) -> float:
    return burn(samples, "normal", TWENTIETH, over_s=over_s, now_ms=NOW_MS).rate


def test_a_line_of_the_history_is_read_in_its_order() -> None:
    read = parse(b"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22")
    assert (read.at_ms, read.waiting, read.claimed) == (1, {"high": 2, "normal": 3, "low": 4}, 5)
    assert (read.delayed, read.oldest_ms, read.late["low"], read.accepted["high"]) == (6, 7, 10, 11)
    assert (read.started, read.ended, read.waited_ms) == (14, 15, 16)
    assert (read.met, read.missed) == ({"high": 17, "normal": 18, "low": 19}, {"high": 20, "normal": 21, "low": 22})


def test_missing_just_as_much_as_is_allowed_burns_at_one() -> None:
    assert rate(sample(20, met=95, missed=5)) == pytest.approx(1)
    assert rate(sample(20, met=50, missed=50)) == pytest.approx(10)


def test_nothing_missed_and_nothing_started_burn_nothing() -> None:
    assert rate(sample(20, met=10)) == 0
    assert rate() == 0


def test_a_window_holds_its_own_time_and_no_more() -> None:
    samples = [sample(400, missed=1), sample(299, met=1)]
    assert rate(*samples, over_s=300) == 0
    assert rate(*samples, over_s=3600) == pytest.approx(10)


def test_a_queue_in_which_nothing_starts_burns_for_what_waits_too_long() -> None:
    assert rate(sample(30, late=1), sample(20, late=3)) == pytest.approx(20)
    assert rate(sample(600, late=3), over_s=3600) == 0, "the last look is too old"


@given(met=st.integers(0, 100), missed=st.integers(0, 100))
def test_one_more_missed_burns_no_slower(met: int, missed: int) -> None:
    assert rate(sample(1, met=met, missed=missed + 1)) >= rate(sample(1, met=met, missed=missed))


def test_each_lane_with_an_objective_has_every_window() -> None:
    told = burns([sample(20, met=1)], {"normal": TWENTIETH, "high": TWENTIETH}, now_ms=NOW_MS)
    assert {lane: list(each) for lane, each in told.items()} == {"normal": list(WINDOWS), "high": list(WINDOWS)}


def test_what_is_written_of_a_model_reaches_the_policy_of_its_queue() -> None:
    config = msgspec.json.decode(b'{"objectives":{"high":{"share":0.99,"within_s":2}}}', type=ModelConfig)
    settings = DirectorSettings(objectives='{"low": {"within_s": 60}}')
    assert settings.policy.objectives == {"low": Objective(share=0.95, within_s=60)}
    assert over(config, settings).policy.objectives == {"high": Objective(share=0.99, within_s=2)}
    assert over(ModelConfig(objectives={}), settings).policy.objectives == {}


@pytest.mark.parametrize(
    "text",
    ['{"urgent":{"within_s":1}}', '{"low":{"share":1,"within_s":1}}', '{"low":{"within_s":0}}', '{"low":{}}', "10"],
    ids=["no such lane", "all of them", "no time", "no span", "no object"],
)
def test_invalid_objective_is_refused_in_words(text: str) -> None:
    with pytest.raises(SettingsError, match="like"):
        decode_objectives(text)
    with pytest.raises(SettingsError, match="DIRECTOR_OBJECTIVES"):
        _ = DirectorSettings(objectives=text).policy


def test_the_same_objectives_are_the_same_text() -> None:
    one = {"low": Objective(within_s=1), "high": Objective(within_s=2)}
    other = dict(reversed(one.items()))
    assert encode(one) == encode(other)
    assert decode_objectives(encode(one)) == one
    assert (encode({}), decode_objectives("")) == ("", {})
