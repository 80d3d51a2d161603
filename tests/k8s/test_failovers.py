"""One round of each loss of members of `ha`, whose pods have addresses of their own. `failovers.py` repeats them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.failovers import SCENARIOS, measure
from tests.k8s.played_cluster import NAMES, Cluster, cluster, service
from tests.support.manifests import K8S

pytestmark = [pytest.mark.faults, pytest.mark.long]

HANDED_OVER = ("deleted", "rolled")
SERVICES = {service(name) for name in NAMES}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster") / "ha") as found:
        found.start()
        found.until(found.is_whole, "there is one master, and all know each other")
        yield found


@pytest.mark.parametrize("scenario", list(SCENARIOS)[:-1])
def test_writes_go_on_within_half_a_minute_of_a_loss(played: Cluster, scenario: str) -> None:
    outcome = measure(played, scenario, 0)
    # a failover without a hand-over may lose the last moments before it
    assert (outcome.lost if scenario in HANDED_OVER else outcome.lost_early) == 0, outcome
    # on a quiet machine it takes at most 10 s; a Sentinel that gets no processor for 2 s waits for 30 s
    assert outcome.longest_s < 30, outcome


def test_members_announce_the_addresses_of_their_services(played: Cluster) -> None:
    """A pod's own address, which the kubelet writes into /etc/hosts, ends with the pod."""
    played.until(played.is_whole, "all know each other")
    played.restart("redis-1")
    played.until(played.is_whole, "all know each other")
    assert played.announced() == SERVICES


def test_an_upgrade_forgets_addresses_of_pods(tmp_path: Path) -> None:
    sources = tmp_path / "k8s"
    for part in ("base/redis", "components/sentinel"):
        shutil.copytree(K8S / part, sources / part)
    script = sources / "components/sentinel/members.sh"
    script.write_text(script.read_text().replace("getent -s dns hosts", "getent hosts"))  # as 0.3.0 did
    with cluster(tmp_path / "ha", sources) as played:
        played.start()
        played.until(lambda: not played.announced() <= SERVICES, "members announce their pods' addresses")
        outcome = measure(played, "upgraded", 0)
        assert played.announced() == SERVICES
    assert outcome.lost == 0, outcome
    assert outcome.longest_s < 15, outcome
