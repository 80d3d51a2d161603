"""Play the fallback of each release of KEDA, as its sources have it, while a trigger fails."""

import pytest

from tests.support.manifests import Manifest, overlay

pytestmark = pytest.mark.kubectl
SUPPORTED = (2, 19)


def replicas_while_it_fails(fallback: Manifest, release: tuple[int, int], *, current: int, failures: int) -> int:
    """Return the replicas after this number of failures in a row.

    Up to 2.16 there is no `behavior`: the number of the fallback is taken as it is. Before 2.19 a pool at 0 is not
    active while its trigger fails, and an inactive one is not scaled.
    """
    if failures <= fallback["failureThreshold"]:
        return current
    if release < (2, 17):
        return int(fallback["replicas"])
    if release < (2, 19) and current == 0:
        return 0
    assert fallback["behavior"] == "currentReplicasIfHigher"
    return max(current, fallback["replicas"])


def scaled() -> list[Manifest]:
    return [each for name in ("small", "multi-pool") for each in overlay(name) if each["kind"] == "ScaledObject"]


@pytest.mark.parametrize("current", [0, 1, 8])
def test_a_restart_of_redis_changes_no_pool(current: int) -> None:
    for each in scaled():
        failures = 120 // each["spec"]["pollingInterval"]
        fallback = each["spec"]["fallback"]
        assert replicas_while_it_fails(fallback, SUPPORTED, current=current, failures=failures) == current


@pytest.mark.parametrize(
    ("release", "current", "wanted"),
    [
        ((2, 16), 8, 1),  # so it takes a busy pool down
        ((2, 18), 0, 0),  # so nothing registers a model for the first time
        (SUPPORTED, 0, 1),
        (SUPPORTED, 8, 8),
    ],
)
def test_a_long_outage_leaves_a_pool_at_least_one_director(release: tuple[int, int], current: int, wanted: int) -> None:
    for each in scaled():
        fallback = each["spec"]["fallback"]
        assert replicas_while_it_fails(fallback, release, current=current, failures=1000) == wanted
