"""Every overlay renders, a cluster would take all that it holds, and all of it keeps to the rules."""

import pytest

from tests.k8s.rules import complaints
from tests.k8s.schemas import VERSIONS, misfits
from tests.support.manifests import K8S, OVERLAYS, overlay

pytestmark = pytest.mark.kubectl


def test_these_are_all_overlays() -> None:
    assert sorted(path.name for path in (K8S / "overlays").iterdir()) == list(OVERLAYS)


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_keeps_to_the_rules(name: str) -> None:
    assert complaints(overlay(name)) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_clusters_take_all_of_an_overlay(name: str) -> None:
    assert {version: wrong for version in VERSIONS if (wrong := misfits(overlay(name), version))} == {}
