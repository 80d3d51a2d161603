import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.ids import (
    PredictionId,
    created_ms_of,
    is_file_id,
    is_prediction_id,
    lowest_id_at,
    new_file_id,
    new_prediction_id,
    partition_of,
    partition_of_model,
    queue_name,
    site_of,
)

MOMENTS = st.integers(0, 2**48 - 1)
NAMES = st.text(string.ascii_lowercase + string.digits + "/-._", min_size=1, max_size=40)

# These outlive releases: every id and every key that exists was made by them.
PARTITIONS_OF_MODELS = {
    "acme/echo": 721,
    "acme/llm": 319,
    "stability-ai/sdxl": 673,
    "a/b": 448,
    "team.one/model_2": 865,
    "x/y-z": 726,
    "meta/meta-llama-3-70b-instruct": 590,
    "owner/name": 397,
}


@given(model=NAMES, now_ms=MOMENTS, site=st.integers(0, 63))
def test_an_id_tells_its_time_partition_and_site(model: str, now_ms: int, site: int) -> None:
    prediction_id = new_prediction_id(model=model, now_ms=now_ms, site=site)
    assert created_ms_of(prediction_id) == now_ms
    assert partition_of(prediction_id) == partition_of_model(model)
    assert site_of(prediction_id) == site


@given(now_ms=MOMENTS)
def test_id_has_26_lower_case_letters_and_digits(now_ms: int) -> None:
    prediction_id = new_prediction_id(model="acme/echo", now_ms=now_ms)
    assert len(prediction_id) == 26
    assert set(prediction_id) <= set(string.ascii_lowercase + string.digits) - set("ilou")
    assert is_prediction_id(prediction_id)


@given(earlier=MOMENTS, later=MOMENTS)
def test_ids_sort_by_time_as_bytes(earlier: int, later: int) -> None:
    if earlier > later:
        earlier, later = later, earlier
    first = new_prediction_id(model="acme/one", now_ms=earlier)
    assert lowest_id_at(earlier) <= first
    if earlier < later:
        assert (
            first.encode() < lowest_id_at(later).encode() <= new_prediction_id(model="acme/two", now_ms=later).encode()
        )


@pytest.mark.parametrize(
    "text",
    ["", "0" * 25, "0" * 27, "O" * 26, "0" * 25 + "i", "0" * 25 + "é", "0" * 25 + "\n", "../" + "0" * 23],
)
def test_what_cannot_be_an_id_is_known_without_asking_redis(text: str) -> None:
    assert not is_prediction_id(text)


def test_an_id_of_a_format_to_come_is_not_one_of_ours() -> None:
    first_of_next_format = "0" * 12 + "1" + "0" * 13  # 13 letters hold the random bits and the lower bit of the format
    assert is_prediction_id("0" * 26)
    assert not is_prediction_id(first_of_next_format)


def test_neither_a_file_nor_a_prediction_is_taken_for_the_other() -> None:
    for _ in range(100):
        made, file_id = new_prediction_id(model="acme/echo", now_ms=7), new_file_id(7)
        assert (is_prediction_id(made), is_file_id(made)) == (True, False)
        assert (is_prediction_id(file_id), is_file_id(file_id)) == (False, True)
        assert created_ms_of(file_id) == 7


def test_two_ids_of_one_moment_differ() -> None:
    assert len({new_prediction_id(model="acme/echo", now_ms=1) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize(("model", "partition"), PARTITIONS_OF_MODELS.items())
def test_the_partition_of_a_model_never_changes(model: str, partition: int) -> None:
    assert partition_of_model(model) == partition


def test_an_id_made_long_ago_is_still_read_the_same() -> None:
    prediction_id = PredictionId("06hhgq2g02t4a028t5cy4tqkff")
    assert is_prediction_id(prediction_id)
    assert created_ms_of(prediction_id) == 1_800_000_000_000
    assert partition_of(prediction_id) == 721
    assert site_of(prediction_id) == 5
    assert lowest_id_at(1_800_000_000_000) == "06hhgq2g000000000000000000"


def test_a_queue_is_named_after_model_and_version() -> None:
    assert queue_name("acme/echo", "a1" * 32) == "acme/echo:a1a1a1a1a1a1"
