"""Devices that models share, as operators see them: one view of what the directors of a machine report."""

from typing import Any

from director.cli.predictions import story_lines
from director.cli.status import device_lines
from director.core.ids import QueueName
from director.operate.findings import swaps_of
from director.operate.story import Swapped, tell
from director.operate.views import devices_of
from director.store.directors import About, DirectorFound, HeartbeatFound, ShelfFound, SwapFound
from tests.unit.operate.test_findings import NOW
from tests.unit.operate.test_story import RUNS, known, s

GIB = 1 << 30


def shelf(model: str, *, silent_s: float = 0, queue: str = "", **facts: Any) -> DirectorFound:
    """A director of one model on a device of 4 GiB. Each model of a process has one of its own."""
    told = {
        "machine": "box",
        "state": "absent",
        "since_ms": NOW - 5_000,
        "place": {"gpu0": GIB},
        "room": {"gpu0": 4 * GIB},
    }
    name = QueueName(queue or f"acme/{model}:0123456789ab")
    about = About(shelf=ShelfFound(**told | facts))
    heartbeat = HeartbeatFound(queue=name, at_ms=NOW - int(silent_s * 1000), slots=0, state="starting", about=about)
    return DirectorFound(name=f"box-1-{model}", heartbeats=(heartbeat,), silent_ms=int(silent_s * 1000))


def test_models_of_one_device_are_shown_together() -> None:
    [device] = devices_of(
        [
            shelf("b", state="loaded", loads=3, lost_s=12.0),
            shelf("a", state="loading", loads=1, lost_s=5.0, behind=("acme/b",)),
            shelf("c", why="It waits for acme/a.", order="rest"),
            shelf("gone", silent_s=60, state="loaded"),
        ]
    )
    assert (device.name, device.machine, device.bytes, device.taken) == ("gpu0", "box", 4 * GIB, 2 * GIB)
    assert (device.swaps, device.lost_s) == (4, 17.0)
    assert [(one.queue[5], one.state) for one in device.models] == [("a", "loading"), ("b", "loaded"), ("c", "absent")]
    lines = device_lines([device], now_ms=NOW, width=None)
    assert lines[0] == "gpu0 on box: 2 GiB of 4 GiB taken, 4 loads and 17 s lost in 1 h"
    assert lines[-1].endswith("rest; It waits for acme/a.")


def test_same_name_on_another_machine_is_another_device() -> None:
    found = devices_of([shelf("a"), shelf("b", machine="barn")])
    assert [(one.machine, len(one.models)) for one in found] == [("barn", 1), ("box", 1)]


def test_story_tells_for_which_loads_a_prediction_waited() -> None:
    prediction = known(**RUNS)  # accepted at 0 s, claimed at 8 s
    swaps = (
        SwapFound(s(-9), s(-1), ("acme/z",)),
        SwapFound(s(-1), s(2)),
        SwapFound(s(3), None),
        SwapFound(s(5), s(8), ("acme/b",)),
        SwapFound(s(9), s(12)),
    )
    told = swaps_of(prediction, [shelf("a", queue=prediction.record.queue, swaps=swaps), shelf("b", swaps=swaps)])
    assert [(one.began_at[17:19], one.instead_of) for one in told] == [("59", ()), ("03", ()), ("05", ("acme/b",))]
    lines = list(story_lines(tell(prediction, swaps=told)))
    assert "2027-01-15T08:00:05.000Z  its model was loaded, instead of acme/b, until 2027-01-15T08:00:08.000Z" in lines
    assert any(line.endswith("its model was loaded, and failed") for line in lines)
    assert tell(prediction, swaps=[Swapped("a", None, ())]).swaps
