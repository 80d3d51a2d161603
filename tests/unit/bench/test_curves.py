import pytest

from tests.bench.benches.scale import BUSIEST, OF_ONE, RATE, named
from tests.bench.curves import CURVES, Point, beyond, points, scale_picture, scale_table
from tests.bench.picture import ticks
from tests.bench.results import Measured, Result
from tests.unit.bench.test_judgement import result

COUNTS = ("1", "2", "4")


def figure(name: str, curve: str, values: tuple[float, ...]) -> Measured:
    return Measured(name=named(name, curve), unit="", rounds={n: [v] for n, v in zip(COUNTS, values, strict=True)})


def measured() -> Result:
    figures = []
    for curve in CURVES:
        figures.append(figure(RATE, curve.by, (4_000, 5_000, 5_200)))
        figures += [
            figure(f"{OF_ONE}{part}", curve.by, (100, 110, 120)) for part in ("Redis", "the directors", "the API")
        ]
    return result(*figures, figure(BUSIEST, "masters", (1.0, 0.6, 0.4)), bench="scale")


def test_processor_time_bounds_a_rate_by_the_cores_and_by_the_first_full_process() -> None:
    point = Point(count=2, per_s=4_000, us={"Redis": 100, "the directors": 300})
    assert point.here(cores=2) == pytest.approx(2e6 / 400)
    assert point.estimate("the directors") == pytest.approx(2e6 / 300)
    assert Point(count=8, per_s=1, us=point.us).estimate("the directors") == pytest.approx(1e6 / 100)


def test_an_uneven_cluster_has_the_rate_of_its_busiest_master() -> None:
    point = Point(count=2, per_s=4_000, us={"Redis": 100, "the directors": 300}, share=0.6)
    assert point.estimate("Redis") == pytest.approx(1e6 / 100 / 0.6)
    masters = CURVES[-1]
    assert beyond(masters, point)[0].share == pytest.approx(0.6 * 2 / masters.beyond[0])


def test_the_table_has_measured_rows_and_estimated_ones() -> None:
    table = scale_table({"scale": measured()})
    assert len(points(measured(), CURVES[0])) == len(COUNTS)
    assert "| 4 | 5,200 | 5,556 | 8,333 | 1.87 |  | 120 | 120 | 120 |" in table
    assert "| 16 |  |  | 8,333 |  |  |  |  |  |" in table
    assert scale_table({}) == "Not measured yet."


def test_the_picture_is_the_same_for_the_same_figures() -> None:
    drawn = scale_picture(measured())
    assert drawn == scale_picture(measured())
    assert [curve.title for curve in CURVES if f">{curve.title}</text>" not in drawn] == []
    assert drawn.count("<polyline") == 3 * len(CURVES)


@pytest.mark.parametrize(
    ("most", "wanted"), [(1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (7_000, [0, 2_000, 4_000, 6_000]), (0, [0])]
)
def test_ticks_are_round(most: float, wanted: list[float]) -> None:
    assert ticks(most) == pytest.approx(wanted)
