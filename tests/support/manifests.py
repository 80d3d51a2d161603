"""Render the manifests as a cluster would receive them, with secrets of their own. Asks no cluster."""

import base64
import copy
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec import Struct

ROOT: Final = Path(__file__).parents[2]
K8S: Final = ROOT / "k8s"
PAGE: Final = ROOT / "docs/reference/internals/manifests.md"
OVERLAYS: Final = ("ha", "kind", "multi-pool", "shared", "small")
WORKLOADS: Final = ("Deployment", "StatefulSet", "Job", "CronJob", "DaemonSet")

Manifest = dict[str, Any]
Files = tuple[tuple[str, str], ...]  # names below a folder, and texts


class Pod(Struct, frozen=True, kw_only=True):
    """The pod of a workload. `containers`: all of them, sidecars included."""

    workload: Manifest
    spec: Manifest
    labels: Mapping[str, str]
    containers: tuple[Manifest, ...]

    @property
    def name(self) -> str:
        return f"{self.workload['kind']}/{self.workload['metadata']['name']}"

    @property
    def component(self) -> str:
        return self.labels.get("app.kubernetes.io/component", "")

    def container(self, name: str) -> Manifest:
        return next(each for each in self.containers if each["name"] == name)


def overlay(name: str) -> list[Manifest]:
    return copy.deepcopy(rendered(K8S / "overlays" / name))


@cache
def rendered(folder: Path, *, also: str = "", into: str = ".", files: Files = ()) -> list[Manifest]:
    """Render a folder below k8s/, with what is kept of it. The result is cached: do not change it.

    `also`: one more component, of the folder, or of the folder `into` below it. `files` replace those of the folder.
    """
    return [*kept(folder, also), *applied(folder, also=also, into=into, files=files)]


def kept(folder: Path, also: str = "") -> list[Manifest]:
    """Return what is applied before an overlay, and stays when that is deleted."""
    files = (folder / "kept.yaml", K8S / "components" / also / "kept.yaml")
    known = {each["metadata"]["name"]: each for file in reversed(files) if file.exists() for each in manifests(file)}
    return list(known.values())


def manifests(file: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(file.read_text()))


@cache
def applied(folder: Path, *, also: str = "", into: str = ".", files: Files = ()) -> list[Manifest]:
    """Render what `kubectl apply -k` applies, and `kubectl delete -k` deletes."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl in PATH: nothing here renders the manifests")
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(temporary) / "k8s"
        shutil.copytree(K8S, copied, ignore=shutil.ignore_patterns("secrets.env", "secrets"))
        place = copied / folder.relative_to(K8S)
        for name, text in files:
            (place / name).write_text(text)
        if also:
            file = place / into / "kustomization.yaml"
            told = yaml.safe_load(file.read_text())
            told.setdefault("components", []).append(os.path.relpath(copied / "components" / also, place / into))
            file.write_text(yaml.safe_dump(told))
        subprocess.run(["sh", copied / "secrets.sh", place], check=True, timeout=60)
        done = subprocess.run(
            [kubectl, "kustomize", place],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={"HOME": temporary},
        )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods(objects: list[Manifest]) -> Iterator[Pod]:
    for each in objects:
        if each["kind"] in WORKLOADS:
            template = each["spec"].get("jobTemplate", each)["spec"]["template"]
            spec = template["spec"]
            containers = (*spec.get("initContainers", []), *spec["containers"])
            yield Pod(
                workload=each, spec=spec, labels=template["metadata"].get("labels", {}), containers=tuple(containers)
            )


def picks(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Return True if a selector matches these labels. An empty selector matches everything."""
    exact = selector.get("matchLabels") or {}
    return exact.items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


def environment(container: Manifest, objects: list[Manifest]) -> dict[str, str]:
    """Return a container's variables as the kubelet does. Raises KeyError for a missing reference."""
    known = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    given: dict[str, str] = {}
    for each in container.get("env", []):
        if "value" in each:
            value = str(each["value"])
            for name, text in given.items():
                value = value.replace(f"$({name})", text)
            given[each["name"]] = value
        elif "secretKeyRef" in each["valueFrom"]:
            ref = each["valueFrom"]["secretKeyRef"]
            secret = known["Secret", ref["name"]]["data"]
            if ref["key"] in secret or not ref.get("optional"):
                given[each["name"]] = base64.b64decode(secret[ref["key"]] or "").decode()
        else:  # of the pod itself: a name, an address
            given[each["name"]] = "given-by-the-kubelet"
    from_maps: dict[str, str] = {}
    for source in container.get("envFrom", []):
        from_maps |= known["ConfigMap", source["configMapRef"]["name"]].get("data", {})
    return from_maps | given
