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


def replicas_while_idle(spec: Manifest, *, age_s: float, active_s_ago: float | None) -> int:
    """Return whether a pool that nothing waits for keeps its last pod. `active_s_ago` is None before its first work."""
    if active_s_ago is None:
        return int(age_s <= spec.get("initialCooldownPeriod", 0))
    return int(active_s_ago <= spec["cooldownPeriod"])


def test_the_first_director_stays_after_the_longest_setup() -> None:
    """Without any work so far the age of the object counts, and the setup is a part of that."""
    for name in ("small", "multi-pool"):
        pools = [each for each in overlay(name) if each["metadata"]["name"].startswith("director-")]
        setup_s = max(each["spec"]["progressDeadlineSeconds"] for each in pools if each["kind"] == "Deployment")
        for each in (each["spec"] for each in pools if each["kind"] == "ScaledObject"):
            assert replicas_while_idle(each, age_s=setup_s + each["cooldownPeriod"], active_s_ago=None) == 1
            assert replicas_while_idle(each, age_s=1e9, active_s_ago=each["cooldownPeriod"]) == 1
            assert replicas_while_idle(each, age_s=1e9, active_s_ago=each["cooldownPeriod"] + 1) == 0


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
