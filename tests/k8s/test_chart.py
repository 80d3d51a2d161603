"""The Helm chart renders what kustomize renders, for each overlay and each component."""

import base64
import json
import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.make_chart import LABELS, OF_ALL, OF_POOLS, make, merge, plain_names
from tests.support.charts import asked, chart, helm, templated, values_of
from tests.support.manifests import K8S, OVERLAYS, Manifest, overlay, pods, rendered

pytestmark = pytest.mark.kubectl
# Components of no overlay, and the values that stand for each
CHOSEN: dict[str, dict[str, Any]] = {
    "backup": {"backup": {"enabled": True}},
    "priority": {"priorityClasses": True},
    "pull-secret": {"imagePullSecrets": [{"name": "registry"}]},
    "dns-elsewhere": {"network": {"dnsElsewhere": True}},
    "pod-identity": {"network": {"podIdentity": True}},
    "external-secrets": {"secrets": {"from": "store"}},
    "files-s3": {"files": {"kind": "s3"}},
    "sentinel": {"redis": {"mode": "sentinel"}},
}
CHOSEN_FOR_POOLS = {"weights": {"weights": "100Gi"}, "runtime-class": {"runtimeClass": "nvidia"}}
IN_ALL = {"uploads", "gpu-pool", "gpu-shared", "pull-secret", "runtime-class"}


def by_name(objects: list[Manifest]) -> dict[str, Manifest]:
    """Return all objects but the namespace, which Helm itself makes."""
    kept = [each for each in plain_names(objects) if each["kind"] != "Namespace"]
    return {f"{each['kind']}/{each['metadata']['name']}": bare(each) for each in kept}


def bare(node: Any) -> Any:
    """Return a node without checksums and without what is empty."""
    if isinstance(node, dict):
        kept = {key: bare(value) for key, value in node.items() if not key.startswith(("checksum/", "helm.sh/"))}
        return {key: value for key, value in kept.items() if value not in ({}, None)}
    if isinstance(node, list):
        return [bare(value) for value in node]
    return node


def decoded(objects: dict[str, Manifest]) -> dict[str, Manifest]:
    for each in objects.values():
        if each["kind"] == "Secret":
            each["data"] = {key: base64.b64decode(value).decode() for key, value in each.get("data", {}).items()}
    return objects


def env_of(objects: list[Manifest]) -> str:
    """Return the secrets.env of which kustomize made its Secrets."""
    lines = {
        f"{key}={base64.b64decode(value or '').decode()}"
        for each in objects
        if each["kind"] == "Secret"
        for key, value in (each.get("data") or {}).items()
    }
    return "\n".join(sorted(lines))


def assert_same(objects: list[Manifest], values: dict[str, Any]) -> None:
    by_kustomize, by_helm = decoded(by_name(objects)), decoded(by_name(templated(values, env_of(objects))))
    assert by_helm.keys() == by_kustomize.keys()
    assert {key: each for key, each in by_helm.items() if each != by_kustomize[key]} == {}


@pytest.mark.parametrize("name", OVERLAYS)
def test_helm_and_kustomize_render_the_same_objects(name: str) -> None:
    assert_same(overlay(name), values_of(name))


@pytest.mark.parametrize("component", [*CHOSEN, *CHOSEN_FOR_POOLS])
def test_helm_and_kustomize_render_the_same_component(component: str) -> None:
    into = "pool" if component in CHOSEN_FOR_POOLS else "."
    values = values_of("small")
    values["pools"]["painter"] |= CHOSEN_FOR_POOLS.get(component, {})
    objects = rendered(K8S / "overlays/small", also=component, into=into)
    if component == "external-secrets":  # an overlay that has it has no secretGenerator
        objects = [each for each in plain_names(objects) if each["kind"] != "Secret"]
    if component == "files-s3":
        metadata = {"name": "files-secrets", "namespace": "director", "labels": LABELS}
        objects = [*objects, {"kind": "Secret", "apiVersion": "v1", "type": "Opaque", "metadata": metadata}]
    assert_same(objects, values | CHOSEN.get(component, {}))


@pytest.mark.parametrize(
    ("component", "value"),
    [("files-volume", {"files": {"kind": "volume"}}), ("sentinel", {"redis": {"mode": "sentinel"}})],
)
def test_helm_and_kustomize_render_the_same_pod_with_several_models(component: str, value: dict[str, Any]) -> None:
    assert_same(rendered(K8S / "overlays/shared", also=component), values_of("shared") | value)


def test_each_component_is_a_choice_of_the_chart() -> None:
    chosen = OF_ALL.keys() | OF_POOLS.keys() | IN_ALL
    assert {path.name for path in (K8S / "components").iterdir()} == chosen
    assert CHOSEN.keys() | CHOSEN_FOR_POOLS.keys() <= chosen


def test_two_values_that_decide_the_same_are_refused() -> None:
    base = {"kind": "Service", "spec": {"type": "ClusterIP"}}
    changed = {"kind": "Service", "spec": {"type": "LoadBalancer"}}
    merged = merge(base, {"$.Values.a": changed, "$.Values.b": base})
    assert merged["spec"]["type"].cases == [("$.Values.a", "LoadBalancer"), ("", "ClusterIP")]
    with pytest.raises(ValueError, match="more than one value decides"):
        merge(base, {"$.Values.a": changed, "$.Values.b": {"kind": "Service", "spec": {"type": "NodePort"}}})


def test_only_a_chart_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(SystemExit, match="is no chart"):
        make(tmp_path)
    assert (tmp_path / "kept").exists()


def leaves(node: Any, path: str = "") -> list[str]:
    if not isinstance(node, dict) or not node or path.endswith(("resources", "nnotations", "labels", "store")):
        return [path]
    return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}")]


def test_templates_ask_for_each_value_and_for_no_other() -> None:
    values = yaml.safe_load((chart() / "values.yaml").read_text())
    text = "".join(path.read_text() for path in (chart() / "templates").iterdir())
    defined = {leaf.replace(".poolDefaults.", "$.pool.", 1) for leaf in leaves(values)}
    used = set(re.findall(r"\$(\.Values(?:\.\w+)+|\.pool\.\w+)", text.replace("$.Values.poolDefaults.", "$.pool.")))
    used = {f"${name}" if name.startswith(".pool.") else name.removeprefix(".Values") for name in used}
    assert used - {"$.pool.image", "$.pool.model", "$.pool.poolFile", ".poolDefaults"} == defined - {".pools"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_helm_finds_no_fault_in_the_chart(name: str) -> None:
    done = asked("lint", "--strict", "-f", K8S / f"overlays/{name}/values.yaml", "--set", "secrets.env=A=b")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("redis.mod=sentinel", "mod"),
        ("redis.mode=cluster", "mode"),
        ("pools.painter.image=null", "image"),
        ("pools.painter.slots=2", "slots"),
        ("pools.Painter.image=painter:1", "Painter"),
        ("secrets.env=", "No secrets. Make them with k8s/secrets.sh"),
        ("pools.painter.scaling=keda-live", "needs liveKey"),
        ("pools.painter.config.DIRECTOR_DRAIN_S=5", "name runLimitSeconds instead"),
        ("pools.painter.poolFile=a", "oneOf"),
        ("pools.two.image=two:1,pools.two.poolFile=a,pools.two.weights=1Gi", "neither scaling nor weights"),
    ],
)
def test_wrong_values_are_refused(setting: str, said: str) -> None:
    file = K8S / "overlays/small/values.yaml"
    done = asked("template", "-f", file, "--set", "secrets.env=A=b", "--set", setting)
    assert done.returncode != 0
    assert said in done.stderr


def rolled(before: list[Manifest], after: list[Manifest]) -> set[str]:
    """Return the workloads whose pods differ."""
    old = {pod.name: json.dumps(pod.workload, sort_keys=True) for pod in pods(before)}
    return {pod.name for pod in pods(after) if json.dumps(pod.workload, sort_keys=True) != old[pod.name]}


ALL = {"Deployment/api", "Deployment/keeper", "Deployment/director-painter", "StatefulSet/redis"}


@pytest.mark.parametrize(
    ("values", "env", "those"),
    [
        ({}, "METRICS_TOKEN=new", {"Deployment/api"}),
        ({}, "SCALE_TOKEN=new", {"Deployment/keeper"}),
        ({}, "RUN_REDIS_PASSWORD=new", {"Deployment/director-painter", "StatefulSet/redis"}),
        ({"api": {"config": {"DIRECTOR_MAX_WAIT_S": 30}}}, "", {"Deployment/api", "Deployment/keeper"}),
        ({"config": {"DIRECTOR_LOG_LEVEL": "debug"}}, "", ALL - {"StatefulSet/redis"}),
        ({"redis": {"maxmemory": "3gb"}}, "", {"StatefulSet/redis"}),
    ],
)
def test_a_change_rolls_those_that_read_it(values: dict[str, Any], env: str, those: set[str]) -> None:
    before, after = templated(values_of("small"), "A=b"), templated(values_of("small") | values, f"A=b\n{env}")
    assert rolled(before, after) == those


def test_checksums_show_nothing_of_a_secret() -> None:
    found = {
        value
        for pod in pods(templated(values_of("ha")))
        for key, value in pod.workload["spec"].get("template", {}).get("metadata", {}).get("annotations", {}).items()
        if key.startswith("checksum/")
    }
    assert len(found) > 5
    assert [value for value in found if not re.fullmatch("[0-9a-f]{64}", value)] == []


def test_settings_of_values_win_and_are_texts() -> None:
    values = values_of("small") | {"config": {"DIRECTOR_LEASE_S": 20, "DIRECTOR_POLICY": {"a": 1.5}}}
    data = by_name(templated(values))["ConfigMap/director-config"]["data"]
    assert (data["DIRECTOR_LEASE_S"], data["DIRECTOR_POLICY"]) == ("20", '{"a":1.5}')


def test_a_pool_may_have_variables_of_its_own() -> None:
    values = values_of("small")
    values["pools"]["painter"]["env"] = [{"name": "COG_MAX_CONCURRENCY", "value": "2"}]
    [director] = [pod for pod in pods(templated(values)) if pod.component == "director"]
    assert director.container("model")["env"][-1] == values["pools"]["painter"]["env"][0]


def test_the_chart_may_be_in_another_namespace() -> None:
    for name in ("ha", "multi-pool"):
        objects = templated(values_of(name) | {"backup": {"enabled": True}}, namespace="elsewhere")
        spaces = {each["metadata"].get("namespace") for each in objects if each["kind"] != "PriorityClass"}
        assert spaces == {"elsewhere"}
        assert re.findall(r"\w+\.director\b|\"director\"\W+$|-n director", yaml.safe_dump(objects)) == []


def test_volumes_outlive_their_release() -> None:
    values = values_of("kind") | {"backup": {"enabled": True}}
    assert_kept([each for each in templated(values) if each["kind"] == "PersistentVolumeClaim"])


def test_priority_classes_outlive_their_release() -> None:
    """They belong to the cluster. Without them new pods of another installation are refused."""
    assert_kept([each for each in templated(values_of("ha")) if each["kind"] == "PriorityClass"])


def assert_kept(objects: list[Manifest]) -> None:
    assert len(objects) == 2
    assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in objects} == {"keep"}


HOW_TOS = K8S.parent / "docs/how-to"
TEXT = "\n".join((HOW_TOS / name).read_text() for name in ("kubernetes.md", "kubernetes-operations.md"))
PAGE = re.sub(r" *\\\n *", " ", TEXT)  # a command that goes on is one line


def test_commands_of_the_page_are_ones_that_helm_takes(tmp_path: Path) -> None:
    assert "sh k8s/secrets.sh k8s/overlays/small\n" in PAGE
    subprocess.run(["sh", K8S / "secrets.sh", tmp_path], check=True, timeout=30)
    lines = re.findall(
        r"^ *(helm [^|\n]*)", PAGE.replace("k8s/overlays/small/secrets.env", f"{tmp_path}/secrets.env"), re.M
    )
    commands = [shlex.split(line) for line in lines]
    assert {words[1] for words in commands} == {"upgrade", "template", "history", "rollback"}
    for _, verb, *words in commands:
        known = subprocess.run([helm(), verb, "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
        assert [word for word in words if word.startswith("-") and not re.search(rf"(?m)^ +.*{word}\b", known)] == []
        if verb in ("upgrade", "template"):
            at = words.index("build/chart/director")
            assert words[at - 1] == "director"
            done = asked("template", *words[at + 1 :])
            assert done.returncode == 0, done.stderr


def test_the_page_gives_the_namespace_the_labels_of_the_overlay() -> None:
    [given] = re.findall(r"kubectl label namespace director (.*)", PAGE)
    [space] = [each for each in overlay("small") if each["kind"] == "Namespace"]
    labels = {key: level for key, level in space["metadata"]["labels"].items() if "security" in key}
    assert dict(label.split("=") for label in given.split()) == labels


def test_the_page_shows_values_that_are_those_of_an_overlay() -> None:
    blocks = [yaml.safe_load(textwrap.dedent(each)) for each in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    [shown] = [each for each in blocks if "pools" in each]
    assert by_name(templated(shown)) == by_name(templated(values_of("small")))
