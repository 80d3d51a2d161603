"""A second `kubectl apply` changes nothing, by the real kubectl: it compares what it sends with what a cluster answers.

No cluster: a small server keeps each object, and answers with what a cluster fills in where kubectl compares a value
as a whole. Elsewhere kubectl passes over what it has not sent.
"""

import base64
import copy
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec import Struct

from tests.support.manifests import OVERLAYS, Manifest, overlay

pytestmark = pytest.mark.kubectl


class Filled(Struct, frozen=True):
    """Values that a cluster fills in at a path of each object of a kind. `*` is each element. `why` kubectl notices."""

    kind: str
    path: str
    values: Manifest
    why: str


CLAIMS: Final = "spec.volumeClaimTemplates.*"
WHOLE: Final = "a list without keys is compared as a whole"
FILLED: Final = (
    Filled("Deployment", "spec.strategy", {"type": "RollingUpdate"}, "its patch names all keys to retain"),
    Filled("StatefulSet", CLAIMS, {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}, WHOLE),
    Filled("StatefulSet", CLAIMS, {"status": {"phase": "Pending"}}, WHOLE),
    Filled("StatefulSet", f"{CLAIMS}.spec", {"volumeMode": "Filesystem"}, WHOLE),
    Filled("HTTPRoute", "spec.parentRefs.*", {"group": "gateway.networking.k8s.io", "kind": "Gateway"}, WHOLE),
    Filled("HTTPRoute", "spec.rules.*.backendRefs.*", {"group": "", "kind": "Service", "weight": 1}, WHOLE),
    Filled("NetworkPolicy", "spec.ingress.*.ports.*", {"protocol": "TCP"}, WHOLE),
    Filled("NetworkPolicy", "spec.egress.*.ports.*", {"protocol": "TCP"}, WHOLE),
    Filled("Ingress", "spec.rules.*.http.paths.*", {"pathType": "ImplementationSpecific"}, WHOLE),
)
# kubectl has no other way: the selector of a budget is replaced as a whole, also by itself
ALWAYS: Final = {"PodDisruptionBudget"}
PLURALS: Final = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses", "PriorityClass": "priorityclasses"}
CLUSTER_WIDE: Final = ("Namespace", "PriorityClass")


def as_answered(each: Manifest) -> Manifest:
    """Return an object as a cluster answers with it. It encodes secrets itself, in one line."""
    answered = copy.deepcopy(each)
    for filled in FILLED:
        if filled.kind == each["kind"]:
            for node in nodes(answered, filled.path.split(".")):
                node.update({key: value for key, value in filled.values.items() if key not in node})
    if each["kind"] == "Secret":
        data = (each.get("data") or {}).items()
        answered["data"] = {key: base64.b64encode(base64.b64decode(value or "")).decode() for key, value in data}
    return answered


def nodes(node: Any, path: list[str]) -> Iterator[Manifest]:
    if not path:
        yield node
    elif path[0] == "*":
        for each in node:
            yield from nodes(each, path[1:])
    elif path[0] in node:
        yield from nodes(node[path[0]], path[1:])


def group_of(each: Manifest) -> str:
    return f"/apis/{each['apiVersion']}" if "/" in each["apiVersion"] else f"/api/{each['apiVersion']}"


def plural(kind: str) -> str:
    return PLURALS.get(kind, f"{kind.lower()}s")


@contextmanager
def served(objects: list[Manifest], folder: Path) -> Iterator[Path]:
    """Serve an API that knows these kinds, and holds nothing yet. Yield the kubeconfig for it."""
    held: dict[str, Manifest] = {}
    groups: dict[str, set[tuple[str, bool]]] = {}
    for each in objects:
        groups.setdefault(group_of(each), set()).add((each["kind"], each["kind"] not in CLUSTER_WIDE))

    def looked_up(path: str) -> Manifest | None:
        if path == "/version":
            return {"major": "1", "minor": "32", "gitVersion": "v1.32.4"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            names = [group.split("/")[2:] for group in groups if group.startswith("/apis/")]
            versions = {name: {"groupVersion": f"{name}/{version}", "version": version} for name, version in names}
            found = [{"name": name, "versions": [one], "preferredVersion": one} for name, one in versions.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        if path in groups:
            resources = [
                {"name": plural(kind), "kind": kind, "namespaced": is_in_one, "verbs": ["get", "patch", "create"]}
                for kind, is_in_one in groups[path]
            ]
            named = {"groupVersion": path.removeprefix("/apis/").removeprefix("/api/")}
            return {"kind": "APIResourceList", "apiVersion": "v1", "resources": resources, **named}
        return as_answered(held[path]) if path in held else None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = looked_up(self.path.partition("?")[0])
            self.answer(200 if found else 404, found or {"kind": "Status", "reason": "NotFound", "code": 404})

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            held[f"{self.path.partition('?')[0]}/{sent['metadata']['name']}"] = sent
            self.answer(201, sent)

        def do_PATCH(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, as_answered(held[self.path.partition("?")[0]]))

        def answer(self, status: int, body: Manifest) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = folder / "kubeconfig"
        address = f"http://127.0.0.1:{server.server_address[1]}"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "one",
                    "clusters": [{"name": "one", "cluster": {"server": address}}],
                    "contexts": [{"name": "one", "context": {"cluster": "one", "user": ""}}],
                }
            )
        )
        try:
            yield config
        finally:
            server.shutdown()


def said_by_applies(objects: list[Manifest], folder: Path) -> tuple[list[str], list[str]]:
    """Apply these objects twice. Return what kubectl says of each of them."""
    kubectl = shutil.which("kubectl")
    assert kubectl
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    with served(objects, folder) as config:
        command = [kubectl, "--kubeconfig", config, "apply", "--validate=false", "-f", file]
        env = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
        done = [
            subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False) for _ in range(2)
        ]
    assert [each.stderr for each in done] == ["", ""]
    return done[0].stdout.splitlines(), done[1].stdout.splitlines()


def changed_again(objects: list[Manifest], folder: Path) -> set[str]:
    """Return the objects of which a second apply does not say `unchanged`."""
    first, second = said_by_applies(objects, folder)
    assert len(first) == len(second) == len(objects)
    assert [line for line in first if not line.endswith(" created")] == []
    return {line.partition(" ")[0] for line in second if not line.endswith(" unchanged")}


@pytest.mark.parametrize("name", OVERLAYS)
def test_second_apply_of_an_overlay_changes_nothing(name: str, tmp_path: Path) -> None:
    objects = [each for each in overlay(name) if each["kind"] not in ALWAYS]
    assert changed_again(objects, tmp_path) == set()


def test_kubectl_calls_each_budget_configured(tmp_path: Path) -> None:
    budgets = [each for each in overlay("ha") if each["kind"] in ALWAYS]
    assert len(changed_again(budgets, tmp_path)) == len(budgets) > 0


@pytest.mark.parametrize("filled", FILLED, ids=lambda filled: f"{filled.kind} {filled.path} {[*filled.values]}")
def test_a_value_left_to_the_cluster_is_configured_each_time(filled: Filled, tmp_path: Path) -> None:
    name = "multi-pool" if filled.kind == "Ingress" else "ha"
    objects = [each for each in overlay(name) if each["kind"] == filled.kind]
    left_out = [node for each in objects for node in nodes(each, filled.path.split("."))]
    assert left_out
    for node in left_out:
        for key in filled.values:
            del node[key]
    assert changed_again(objects, tmp_path), filled.why


def test_a_long_secret_is_configured_each_time(tmp_path: Path) -> None:
    """kustomize breaks the line of its base64 after 70 letters."""
    wrapped = re.sub("(.{70})", r"\1\n", base64.b64encode(b"a" * 64).decode())
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "long", "namespace": "director"}}
    assert changed_again([secret | {"data": {"A": wrapped}}], tmp_path) == {"secret/long"}
