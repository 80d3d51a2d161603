"""Every overlay renders, a cluster would take all that it holds, and all of it keeps to the rules."""

import re
from pathlib import Path

import pytest
import yaml

from tests.k8s.rules import complaints
from tests.k8s.schemas import VERSIONS, misfits
from tests.support.manifests import K8S, OVERLAYS, PAGE, applied, kept, manifests, overlay, pods

pytestmark = pytest.mark.kubectl


def test_these_are_all_overlays() -> None:
    assert sorted(path.name for path in (K8S / "overlays").iterdir()) == list(OVERLAYS)


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_follows_the_rules(name: str) -> None:
    assert complaints(overlay(name)) == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_supported_clusters_accept_every_object_of_an_overlay(name: str) -> None:
    assert {version: wrong for version in VERSIONS if (wrong := misfits(overlay(name), version))} == {}


@pytest.mark.parametrize("name", OVERLAYS)
def test_volume_claim_metadata_is_the_same_for_every_kubectl(name: str) -> None:
    claims = [claim for pod in pods(overlay(name)) for claim in pod.workload["spec"].get("volumeClaimTemplates", [])]
    assert [claim["metadata"] for claim in claims] == [{"name": "data"}]


CLUSTER_WIDE = ("Namespace", "PriorityClass", "StorageClass", "PersistentVolume")
OURS = {"app.kubernetes.io/part-of", "app.kubernetes.io/instance"}


def assert_uninstall_keeps_data(folder: Path, also: str = "") -> None:
    """`kubectl delete -k` deletes what it renders, and with a namespace all that is in it."""
    deleted, stays = applied(folder, also=also), kept(folder, also)
    kinds = {each["kind"] for each in deleted}
    assert kinds & {*CLUSTER_WIDE, "PersistentVolumeClaim"} == set()
    assert [each["metadata"]["name"] for each in stays if each["kind"] == "Namespace"] == ["director"]
    claims = {each["metadata"]["name"] for each in stays if each["kind"] == "PersistentVolumeClaim"}
    mounted = [volume for pod in pods(deleted) for volume in pod.spec.get("volumes", [])]
    assert {each["persistentVolumeClaim"]["claimName"] for each in mounted if "persistentVolumeClaim" in each} == claims
    [redis] = [each["spec"] for each in deleted if each["kind"] == "StatefulSet"]
    assert redis["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"


@pytest.mark.parametrize("name", OVERLAYS)
def test_uninstall_of_an_overlay_keeps_data(name: str) -> None:
    assert_uninstall_keeps_data(K8S / "overlays" / name)


@pytest.mark.parametrize("component", ["backup", "files-volume", "priority"])
def test_uninstall_with_a_component_keeps_data(component: str) -> None:
    assert_uninstall_keeps_data(K8S / "overlays/small", component)


@pytest.mark.parametrize("name", OVERLAYS)
def test_kept_has_what_the_components_of_an_overlay_keep(name: str) -> None:
    folder = K8S / "overlays" / name
    used = yaml.safe_load((folder / "kustomization.yaml").read_text()).get("components", [])
    files = [file for each in used if (file := folder / each / "kept.yaml").exists()]
    named = {(each["kind"], each["metadata"]["name"]) for each in kept(folder)}
    assert {(each["kind"], each["metadata"]["name"]) for file in files for each in manifests(file)} <= named


@pytest.mark.parametrize("name", OVERLAYS)
def test_labels_select_the_objects_of_one_installation(name: str) -> None:
    """`kubectl apply --prune -l` deletes objects with these labels that it does not render, in any namespace."""
    labels = {"app.kubernetes.io/part-of": "director", "app.kubernetes.io/instance": "director"}
    objects = applied(K8S / "overlays" / name)
    assert [each for each in objects if not labels.items() <= each["metadata"].get("labels", {}).items()] == []
    assert {each["metadata"]["namespace"] for each in objects} == {labels["app.kubernetes.io/instance"]}
    assert [each for each in kept(K8S / "overlays" / name) if OURS & each["metadata"].get("labels", {}).keys()] == []


def test_supported_clusters_accept_the_restore_pod() -> None:
    pod = yaml.safe_load((K8S / "restore-pod.yaml").read_text())
    assert {version: wrong for version in VERSIONS if (wrong := misfits([pod], version))} == {}
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data-redis-0"
    redis = next(each for each in pods(overlay("small")) if each.component == "redis")
    assert pod["spec"]["containers"][0]["image"] == redis.container("redis")["image"]
    assert pod["spec"]["containers"][0]["securityContext"] == redis.container("redis")["securityContext"]


def test_the_snapshot_is_of_the_disk_of_redis() -> None:
    snapshot = yaml.safe_load((K8S / "snapshot.yaml").read_text())
    assert snapshot["spec"] == {"source": {"persistentVolumeClaimName": "data-redis-0"}}
    redis = next(each for each in pods(overlay("small")) if each.component == "redis")
    [claim] = redis.workload["spec"]["volumeClaimTemplates"]
    assert f"{claim['metadata']['name']}-{redis.workload['metadata']['name']}-0" == "data-redis-0"


def test_the_readme_shows_the_pool_as_it_is() -> None:
    shown = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    folder = K8S / "overlays/small/pool"
    for text, name in zip(shown, ("kustomization.yaml", "pool.yaml"), strict=True):
        assert yaml.safe_load(text) == yaml.safe_load((folder / name).read_text())


@pytest.mark.parametrize(("name", "level"), [("kind", "restricted"), ("small", "baseline"), ("ha", "baseline")])
def test_each_apply_admits_the_pools_of_an_overlay(name: str, level: str) -> None:
    """Images of `cog build` run as root. A label that was put on the namespace by hand would be gone after an apply."""
    [space] = [each for each in overlay(name) if each["kind"] == "Namespace"]
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level
    has_root = {
        (pod.component, each["name"])
        for pod in pods(overlay(name))
        for each in pod.containers
        if each["securityContext"].get("runAsUser") == 0
    }
    assert has_root == ({("director", "model"), ("director", "director")} if level == "baseline" else set())
