import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from director.runtime.metric_table import METRICS
from tests.support.rules import series, strangers

BOARD: dict[str, Any] = json.loads((Path(__file__).parents[3] / "k8s/monitoring/grafana-dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
ASKED = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize(("title", "target"), ASKED, ids=lambda each: each if isinstance(each, str) else each["refId"])
def test_a_panel_asks_for_what_there_is(title: str, target: dict[str, Any]) -> None:
    expression = target["expr"].replace("$__rate_interval", "5m")
    assert strangers(expression) == set()
    named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    if "by (" in expression:
        kept = {label.strip() for some in re.findall(r"by \(([^)]*)\)", expression) for label in some.split(",")}
        assert named <= kept | {"job", "instance"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_on_it(metric: Any) -> None:
    shown = " ".join(target["expr"] for _, target in ASKED)
    assert any(re.search(rf"\b{name}\b", shown) for name in series(metric))


def test_panels_lie_beside_each_other() -> None:
    taken = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in BOARD["panels"])
    ]
    assert all(not one & other for one, other in itertools.combinations(taken, 2))
    assert max(x for some in taken for x, _ in some) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_it_asks_for_a_data_source_and_names_none() -> None:
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert [each["name"] for each in BOARD["templating"]["list"]] == ["datasource", "queue"]
