"""Check that neighbours which get more than their share show in a fault-injection run: a whole service is started from
a copy of the product with one bound taken out.
"""

import socket
from pathlib import Path
from typing import Final

import pytest
from msgspec import Struct

from director.lab.chaos.checker import Report, text
from director.lab.chaos.neighbours import NOTHING, dead_receivers, open_sockets, peek
from director.lab.chaos.run import chaos
from director.lab.chaos.scene import Options
from tests.support.release import sabotaged, with_fault


class Fault(Struct, frozen=True):
    """A bound that is taken out: file, pattern, replacement, and what shows it. Other bounds have tests of their own:
    without them a quick machine still serves the bystander within its two seconds.
    """

    file: str
    old: str
    new: str
    shown: str


FAULTS: Final = {
    "one account may have all deliveries to a host": Fault(
        "director/webhooks/sender.py",
        "AT_ONCE_PER_ACCOUNT: Final = 8",
        "AT_ONCE_PER_ACCOUNT: Final = 32",
        "its webhooks",
    ),
    "one address may have all connections": Fault(
        "director/runtime/bounded_http.py",
        "if peer and self._by_peer[peer] >= self.per_peer:",
        "if self.per_peer < 0:",
        "its ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_missing_bound_changes_one_place_of_the_product(fault: Fault) -> None:
    assert with_fault(fault.file, fault.old, fault.new)


@pytest.mark.heavy  # a machine may be quick enough to serve the bystander in time all the same
@pytest.mark.parametrize("broken", FAULTS)
def test_a_bystander_shows_a_missing_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    fault = FAULTS[broken]
    monkeypatch.setenv("PYTHONPATH", str(sabotaged(tmp_path, fault.file, fault.old, fault.new)))
    report = chaos(
        Options(seed=1, seconds=1, lease_s=3, calibration_s=1, home=tmp_path / "run", has_faults=False), print
    )
    assert any(fault.shown in what for what in _shown(report)), text(report)


def _shown(report: Report) -> list[str]:
    return [breach.what for breach in report.breaches.get("I19", [])]


def test_one_dead_receiver_accepts_and_the_other_one_refuses() -> None:
    with dead_receivers() as [hanging, refusing], open_sockets() as sockets:
        assert _connected(hanging, sockets)
        assert peek(sockets[0]) == NOTHING
        assert not _connected(refusing, sockets)
        assert peek(sockets[1]) == b""


def _connected(url: str, sockets: list[socket.socket]) -> bool:
    sockets.append(one := socket.socket())
    one.settimeout(5)
    try:
        one.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    except ConnectionRefusedError:
        return False
    one.setblocking(False)
    return True
