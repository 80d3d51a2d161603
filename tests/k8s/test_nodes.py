"""Pods find nodes: each part on several, all on few, and the requests of an overlay fit a small cluster."""

import math
import re
from collections.abc import Iterator, Mapping

import pytest
from msgspec import Struct

from tests.support.manifests import PAGE, Manifest, Pod, overlay, picks, pods

pytestmark = pytest.mark.kubectl
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
# Other scores of the scheduler (resources, their balance, images) differ by this at most
OTHERS = 300


class Node(Struct, frozen=True):
    """A node. `liked`: what other scores give it."""

    name: str
    zone: str = ""
    liked: int = 0

    @property
    def labels(self) -> dict[str, str]:
        return {HOSTNAME: self.name} | ({ZONE: self.zone} if self.zone else {})


class Placed(Struct, frozen=True):
    node: Node
    labels: Mapping[str, str]


def chosen(pod: Pod, labels: Mapping[str, str], nodes: list[Node], placed: list[Placed]) -> Node:
    """Return the node with the best score, as the plugins InterPodAffinity and PodTopologySpread count it."""
    scores = {node.name: float(node.liked) for node in nodes}
    affinity = pod.spec.get("affinity", {}).get("podAntiAffinity", {})
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    apart = {
        node.name: -sum(
            wish["weight"]
            for wish in wishes
            for other in placed
            if picks(wish["podAffinityTerm"]["labelSelector"], other.labels)
            and (key := wish["podAffinityTerm"]["topologyKey"]) in node.labels
            and node.labels[key] == other.node.labels.get(key)
        )
        for node in nodes
    }
    least, most = min(apart.values()), max(apart.values())
    for node in nodes:
        scores[node.name] += 2 * 100 * (apart[node.name] - least) / ((most - least) or 1)
    constraints = pod.spec.get("topologySpreadConstraints", [])
    judged = [node for node in nodes if all(each["topologyKey"] in node.labels for each in constraints)]
    crowds = {node.name: sum(crowd(each, labels, node, judged, placed) for each in constraints) for node in judged}
    for node in judged:
        low, high = min(crowds.values()), max(crowds.values())
        scores[node.name] += 2 * (100 * (high + low - crowds[node.name]) / high if high else 100)
    return max(nodes, key=lambda node: scores[node.name])


def crowd(each: Manifest, labels: Mapping[str, str], node: Node, judged: list[Node], placed: list[Placed]) -> float:
    key = each["topologyKey"]
    same = {name: labels[name] for name in each.get("matchLabelKeys", [])}
    counted = [
        other
        for other in placed
        if other.node.labels.get(key) == node.labels[key]
        and picks(each["labelSelector"], other.labels)
        and same.items() <= other.labels.items()
    ]
    return len(counted) * math.log(len({one.labels[key] for one in judged}) + 2) + each["maxSkew"] - 1


def part(name: str) -> Pod:
    return next(pod for pod in pods(overlay("small")) if pod.component == name)


def hashed(pod: Pod, version: str) -> dict[str, str]:
    return {**pod.labels, "pod-template-hash": version}


BARE = [Node("a", liked=OTHERS - 1), Node("b")]
ZONES = [Node("a", "x", OTHERS - 1), Node("b", "x", OTHERS - 1), Node("c", "y")]


@pytest.mark.parametrize("name", ["api", "keeper"])
@pytest.mark.parametrize("nodes", [BARE, ZONES], ids=["bare", "zones"])
def test_two_pods_of_a_part_are_on_two_nodes(name: str, nodes: list[Node]) -> None:
    pod, placed = part(name), list[Placed]()
    for _ in range(2):
        placed.append(Placed(chosen(pod, hashed(pod, "1"), nodes, placed), hashed(pod, "1")))
    assert len({each.node.name for each in placed}) == 2


@pytest.mark.parametrize("name", ["api", "keeper"])
def test_a_rolling_update_leaves_pods_on_two_nodes(name: str) -> None:
    """One new pod comes, then a former one goes. Which one goes first is not known. Former pods keep new ones away from
    both nodes alike, so the spread alone decides. Its 200 are more than other scores usually differ by.
    """
    pod, nodes = part(name), [Node("a", liked=199), Node("b")]
    for first in (0, 1):
        former = [Placed(node, hashed(pod, "1")) for node in nodes]
        placed = [*former]
        for gone in (former[first], former[1 - first]):
            placed.append(Placed(chosen(pod, hashed(pod, "2"), nodes, placed), hashed(pod, "2")))
            placed.remove(gone)
        assert len({each.node.name for each in placed}) == 2


@pytest.mark.parametrize("name", ["api", "keeper"])
def test_one_node_takes_all_pods_of_a_part(name: str) -> None:
    spec = part(name).spec
    hard = "requiredDuringSchedulingIgnoredDuringExecution"
    assert hard not in spec["affinity"]["podAntiAffinity"]
    assert {each["whenUnsatisfiable"] for each in spec["topologySpreadConstraints"]} == {"ScheduleAnyway"}


# Sizes

CORES, NODES = 4.0, 3
SYSTEM = 0.5  # of each node: kubelet, network plugin, DNS
UNITS = {"": 1.0, "m": 0.001, "Mi": 1 / 1024, "Gi": 1.0}


def amount(quantity: str) -> float:
    found = re.fullmatch(r"([\d.]+)(m|Mi|Gi|)", quantity)
    assert found, quantity
    return float(found[1]) * UNITS[found[2]]


def requested(pod: Pod, what: str) -> float:
    return sum(amount(each["resources"]["requests"][what]) for each in pod.containers)


def counted(objects: list[Manifest], *, at_most: bool) -> Iterator[tuple[Pod, int]]:
    """Yield each pod and how many there are while all Deployments are rolled at once. A pool has its first director."""
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]["maxReplicas" if at_most else "minReplicas"]
        for each in objects
        if each["kind"] == "HorizontalPodAutoscaler"
    }
    for pod in pods(objects):
        spec = pod.workload["spec"]
        surge = spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 0)
        yield pod, scaled.get(pod.workload["metadata"]["name"], spec.get("replicas", 1)) + surge


def total(name: str, what: str, *, at_most: bool) -> float:
    return sum(count * requested(pod, what) for pod, count in counted(overlay(name), at_most=at_most))


@pytest.mark.parametrize("name", ["small", "ha"])
def test_three_nodes_of_four_cores_hold_an_overlay(name: str) -> None:
    """With as many API pods as the autoscaler may start, and one more of each Deployment: the largest pod first."""
    free = [CORES - SYSTEM] * NODES
    members = set[int]()
    sizes = [(requested(pod, "cpu"), pod) for pod, count in counted(overlay(name), at_most=True) for _ in range(count)]
    for size, pod in sorted(sizes, key=lambda each: (each[1].component != "redis", -each[0])):
        fits = [node for node in range(NODES) if free[node] >= size - 1e-9]
        if pod.component == "redis":  # each on a node of its own
            fits = [node for node in fits if node not in members]
        assert fits, f"no node for {pod.name}: {free} cores are free"
        # a least one that holds it: what is larger finds room elsewhere
        node = min(fits, key=lambda one: free[one])
        free[node] -= size
        members |= {node} if pod.component == "redis" else set()


@pytest.mark.parametrize("name", ["small", "ha"])
def test_the_page_says_how_much_an_overlay_requests(name: str) -> None:
    page = PAGE.read_text()
    [row] = re.findall(rf"^\| `{name}` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    figures = [total(name, what, at_most=most) for what in ("cpu", "memory") for most in (False, True)]
    assert [float(each) for each in row] == [round(each, 1) for each in figures]


def test_redis_is_scheduled_before_all_others_in_ha() -> None:
    objects = overlay("ha")
    values = {each["metadata"]["name"]: each["value"] for each in objects if each["kind"] == "PriorityClass"}
    ranks = {pod.component: values.get(pod.spec.get("priorityClassName", ""), 0) for pod in pods(objects)}
    assert ranks["redis"] > ranks["api"] == ranks["keeper"] > ranks["director"] == 0
