"""The policies of an overlay allow every connection that our processes need, and no other."""

import ipaddress

import pytest
from msgspec import Struct

from tests.support.manifests import Manifest, Pod, overlay, picks, pods

pytestmark = pytest.mark.kubectl

Peer = Pod | str  # a pod of ours, an address, or the name of another namespace
API, KEEPER, REDIS, DIRECTOR = "api", "keeper", "redis", "director"
WORLD, METADATA, NEIGHBOUR = "93.184.216.34", "169.254.169.254", "10.1.2.3"


class Way(Struct, frozen=True):
    source: str
    target: str
    port: int


NEEDED = (
    *(Way(each, REDIS, 6379) for each in (API, KEEPER, DIRECTOR)),
    *(Way(each, "kube-system", 53) for each in (API, KEEPER, REDIS, DIRECTOR)),
    Way(DIRECTOR, API, 8080),  # files of callers, for the model's server
    Way(WORLD, API, 8080),
    Way("ingress-nginx", API, 8080),
    Way("keda", KEEPER, 9200),
    *(Way(each, WORLD, 443) for each in (KEEPER, DIRECTOR)),  # webhooks, and inputs by address
)
REFUSED = (
    Way(API, DIRECTOR, 9100),
    Way(DIRECTOR, DIRECTOR, 9100),  # the inbox of another pod
    Way(DIRECTOR, KEEPER, 9200),
    Way(WORLD, REDIS, 6379),
    Way("default", REDIS, 6379),
    Way("default", KEEPER, 9200),
    Way("default", DIRECTOR, 9100),
    Way(REDIS, WORLD, 443),
    Way(REDIS, API, 8080),
    *(Way(each, METADATA, 80) for each in (API, KEEPER, DIRECTOR)),
    *(Way(each, METADATA, 443) for each in (API, KEEPER, DIRECTOR)),
    *(Way(each, NEIGHBOUR, 443) for each in (KEEPER, DIRECTOR)),
    Way(DIRECTOR, WORLD, 80),
    Way(API, WORLD, 6379),
)
BESIDE = {
    "small": (
        (),
        (
            *(Way("monitoring", KEEPER, 9200), Way("monitoring", DIRECTOR, 9100), Way("keda", REDIS, 6379)),
            *(Way(API, WORLD, 443), Way(REDIS, REDIS, 6379)),
        ),
    ),
    "multi-pool": (
        (Way("monitoring", KEEPER, 9200), Way("monitoring", DIRECTOR, 9100), Way("keda", REDIS, 6379)),
        (),
    ),
    "ha": (
        (
            *(Way(each, REDIS, 26379) for each in (API, KEEPER, DIRECTOR, REDIS)),
            *(Way(REDIS, REDIS, 6379), Way("monitoring", DIRECTOR, 9100), Way(API, WORLD, 443)),
        ),
        (Way("default", REDIS, 26379), Way("keda", REDIS, 6379)),
    ),
    "kind": ((), (Way("monitoring", DIRECTOR, 9100),)),
    "shared": ((), (Way("monitoring", DIRECTOR, 9100),)),
}


@pytest.mark.parametrize("name", BESIDE)
def test_policies_allow_what_is_needed_and_nothing_else(name: str) -> None:
    objects = overlay(name)
    needed, refused = BESIDE[name]
    assert [way for way in (*NEEDED, *needed) if not is_open(way, objects)] == []
    assert [way for way in (*REFUSED, *refused) if is_open(way, objects)] == []


def test_a_missing_policy_blocks_a_needed_connection() -> None:
    for policy in ("dns", "redis", "to-redis", "to-api", "to-the-world", "api", "keda-to-keeper"):
        objects = [
            each for each in overlay("small") if (each["kind"], each["metadata"]["name"]) != ("NetworkPolicy", policy)
        ]
        assert [way for way in NEEDED if not is_open(way, objects)], policy


def is_open(way: Way, objects: list[Manifest]) -> bool:
    """Return True if both ends allow it. A pod that no policy picks allows all."""
    return all(
        _says("Egress", source, target, way.port, objects) and _says("Ingress", target, source, way.port, objects)
        for source in _peers(way.source, objects)
        for target in _peers(way.target, objects)
    )


def _peers(name: str, objects: list[Manifest]) -> list[Peer]:
    found: list[Peer] = [pod for pod in pods(objects) if pod.component == name]
    return found or [name]


def _says(kind: str, whose: Peer, other: Peer, port: int, objects: list[Manifest]) -> bool:
    if isinstance(whose, str):
        return True
    specs = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    picking = [spec for spec in specs if kind in spec["policyTypes"] and picks(spec["podSelector"], whose.labels)]
    side, ends = kind.lower(), "to" if kind == "Egress" else "from"
    rules = [rule for spec in picking for rule in spec.get(side, [])]
    return not picking or any(_allows(rule, ends, other, port) for rule in rules)


def _allows(rule: Manifest, ends: str, other: Peer, port: int) -> bool:
    if "ports" in rule and port not in [each["port"] for each in rule["ports"]]:
        return False
    return ends not in rule or any(_is(each, other) for each in rule[ends])


def _is(selector: Manifest, other: Peer) -> bool:
    if isinstance(other, Pod):
        return "podSelector" in selector and picks(selector["podSelector"], other.labels)
    if other[0].isdigit():
        block = selector.get("ipBlock", {"cidr": "0.0.0.0/32"})
        address = ipaddress.ip_address(other)
        return address in ipaddress.ip_network(block["cidr"]) and not any(
            address in ipaddress.ip_network(each) for each in block.get("except", [])
        )
    wanted = selector.get("namespaceSelector", {}).get("matchLabels", {})
    return bool(wanted == {"kubernetes.io/metadata.name": other})
