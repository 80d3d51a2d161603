"""Rights of a pod: no process is root, everything has a limit, images are named, and no model is trusted."""

from collections.abc import Iterator

from tests.support.manifests import Manifest, Pod, pods


def runs_without_rights(objects: list[Manifest]) -> Iterator[str]:
    """No process is root or becomes it, sees anything of the node, or may ask the cluster anything."""
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
            yield from _rights_of(pod, container)


def _rights_of(pod: Pod, container: Manifest) -> Iterator[str]:
    where = f"{pod.name} {container['name']}"
    own = container.get("securityContext", {})
    asked = {**pod.spec.get("securityContext", {}), **own}
    if asked.get("runAsNonRoot") is not True or not asked.get("runAsUser"):
        yield f"{where} may be root"
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield f"{where} may get privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{where} may write to its image"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{where} keeps capabilities"


def asks_for_what_it_takes(objects: list[Manifest]) -> Iterator[str]:
    """Requests and limits of everything; an emptyDir has an end."""
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
            if container.get("envFrom") or [each for each in given if "'key': 'UPLOAD_SECRET'" not in each]:
                yield f"{pod.name} {container['name']} is given what is ours"
