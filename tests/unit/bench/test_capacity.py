import pytest

from tests.bench.__main__ import CAPACITY, KEPT, pictures_of, tables_of
from tests.bench.capacity import INPUTS, Inputs, Plan, capacity, inputs_of, table
from tests.bench.results import Measured, latest, read
from tests.bench.tables import put_into
from tests.unit.bench.test_judgement import result

INPUT = Inputs(
    redis_us=200,
    api_us=400,
    director_us=700,
    waiting_bytes=1_000,
    ended_bytes=1_500,
    record_bytes=500,
    idle_director_us=100,
)
DAY_S = 86_400.0
TOLERANCE = 0.1  # of medians of different figures of one run


def test_a_rate_is_what_its_time_allows_and_another_node_doubles_it() -> None:
    one, two = capacity(INPUT, Plan()), capacity(INPUT, Plan(nodes=2))
    assert one.per_s == pytest.approx(0.7 * 1e6 / 200)
    assert (two.per_s, two.waiting, two.directors) == pytest.approx((2 * one.per_s, 2 * one.waiting, 2 * one.directors))


def test_longer_kept_records_lower_the_rate() -> None:
    week, day = capacity(INPUT, Plan()), capacity(INPUT, Plan(record_s=DAY_S))
    assert week.kept_per_s < day.kept_per_s < day.per_s
    kept = week.kept_per_s * (3_600 * (1_000 + 2_000) + 7 * DAY_S * 500)
    assert kept == pytest.approx(0.75 * 16 * (1 << 30))


def test_inputs_are_the_medians_of_what_was_measured() -> None:
    by_bench: dict[str, list[str]] = {}
    for bench, figure in INPUTS.values():
        by_bench.setdefault(bench, []).append(figure)
    values = {"ours": [90.0, 100.0, 120.0]}
    results = {
        bench: result(*(Measured(name=name, unit="", rounds=values) for name in names), bench=bench)
        for bench, names in by_bench.items()
    }
    assert inputs_of(results).redis_us == 100
    assert "| processor time of Redis, 64 connections | 100 µs | `e2e` |" in table(inputs_of(results))
    with pytest.raises(ValueError, match="run the bench memory"):
        inputs_of({bench: result for bench, result in results.items() if bench != "memory"})


def test_the_pages_have_the_tables_of_what_was_kept() -> None:
    kept = read(KEPT)
    for page, tables in tables_of(latest(kept), kept).items():
        text = page.read_text(encoding="utf-8")
        for name, made in tables.items():
            assert put_into(text, name, made) == text, f"{page.name}: make bench-keep puts the table {name!r} there"
    for path, drawn in pictures_of(latest(kept)).items():
        assert path.read_text(encoding="utf-8") == drawn, f"{path.name}: make bench-keep draws it"


def test_no_measured_process_was_busier_than_one_core() -> None:
    results = latest(read(KEPT))
    if not {bench for bench, _ in INPUTS.values()} <= set(results):
        assert "Not measured yet" in CAPACITY.read_text(encoding="utf-8")
        return
    found, pace = inputs_of(results), results["e2e"].figure("predictions a second, 64 connections")
    assert pace is not None
    busy = {name: pace.median() * getattr(found, name) / 1e6 for name in ("redis_us", "api_us")}
    assert [name for name, part in busy.items() if part > 1 + TOLERANCE] == []
