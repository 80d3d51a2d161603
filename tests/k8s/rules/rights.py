"""Rights of a pod: root only in pools that ask for it, limits of everything, named images, no trust in a model."""

import re
from collections.abc import Iterator
from typing import Final

from tests.support.manifests import Manifest, Pod, pods

ENFORCED: Final = "pod-security.kubernetes.io/enforce"
BYTES: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def runs_without_rights(objects: list[Manifest]) -> Iterator[str]:
    """No process sees anything of the node, or may ask the cluster anything. Only those of a pool may be root.

    Their namespace has to admit them: else the next pod after an apply is refused.
    """
    levels = {each["metadata"]["labels"].get(ENFORCED) for each in objects if each["kind"] == "Namespace"}
    for each in objects:
        if each["kind"] == "ServiceAccount" and each.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount/{each['metadata']['name']} mounts its token"
    for pod in pods(objects):
        asked = pod.spec.get("securityContext", {})
        if asked.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{pod.name} has no seccomp profile"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.name} mounts a token"
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.name} gets variables of services: one called director would set DIRECTOR_PORT"
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(name):
                yield f"{pod.name} has {name}"
        yield from (f"{pod.name} mounts the node's disk" for each in pod.spec.get("volumes", []) if "hostPath" in each)
        for container in pod.containers:
            yield from _rights_of(pod, container, may_be_root=pod.component == "director" and levels == {"baseline"})


def _rights_of(pod: Pod, container: Manifest, *, may_be_root: bool) -> Iterator[str]:
    where = f"{pod.name} {container['name']}"
    own = container.get("securityContext", {})
    asked = {**pod.spec.get("securityContext", {}), **own}
    is_root = asked.get("runAsNonRoot") is not True or not asked.get("runAsUser")
    if is_root and not may_be_root:
        yield f"{where} may be root"
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield f"{where} may get privileges"
    if own.get("readOnlyRootFilesystem") is not True and not (is_root and container["name"] == "model"):
        yield f"{where} may write to its image"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where} keeps capabilities"


def asks_for_what_it_takes(objects: list[Manifest]) -> Iterator[str]:
    """Requests and limits of everything. An emptyDir has an end, and its node is asked for the room up to there."""
    for pod in pods(objects):
        for container in pod.containers:
            for kind in ("requests", "limits"):
                given = container.get("resources", {}).get(kind, {})
                yield from (
                    f"{pod.name} {container['name']} has no {kind}.{what}"
                    for what in ("cpu", "memory")
                    if what not in given
                )
        for volume in pod.spec.get("volumes", []):
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{pod.name} volume {volume['name']} has no end"
        on_disk = [each["emptyDir"] for each in pod.spec.get("volumes", []) if "emptyDir" in each]
        taken = sum(_bytes(each.get("sizeLimit", "0Mi")) for each in on_disk if each.get("medium") != "Memory")
        asked = [each.get("resources", {}).get("requests", {}).get("ephemeral-storage") for each in pod.containers]
        if sum(_bytes(each) for each in asked if each) < taken * 0.99:  # but for the smallest
            yield f"{pod.name} may fill more of a node's disk than it requests"


def _bytes(quantity: str) -> float:
    return float(re.sub(r"\D", "", quantity)) * BYTES[quantity[-2:]]


def names_its_images(objects: list[Manifest]) -> Iterator[str]:
    """A tag that says something, or a digest."""
    for pod in pods(objects):
        for container in pod.containers:
            image = container["image"]
            _, _, tag = image.rpartition("/")[2].partition(":")
            if "@sha256:" not in image and tag in ("", "latest", "0.0.0"):
                yield f"{pod.name} {container['name']} has the image {image}"


def trusts_no_model(objects: list[Manifest]) -> Iterator[str]:
    """A model's server sees nothing of ours but the secret under which it puts files to its director."""
    for pod in pods(objects):
        for container in pod.spec.get("initContainers", []):
            given = {str(each["valueFrom"]) for each in container.get("env", []) if "valueFrom" in each}
            if container.get("envFrom") or [
                each for each in given if "'key': 'UPLOAD_SECRET'" not in each and "'name': 'model'" not in each
            ]:
                yield f"{pod.name} {container['name']} is given what is ours"
