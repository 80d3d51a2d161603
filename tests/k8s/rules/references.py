"""Check that every name leads somewhere: ConfigMaps, Secrets, their keys, accounts, volumes, ports, services, pods."""

import re
from collections.abc import Iterator
from typing import Any

from tests.support.manifests import Manifest, Pod, picks, pods


def refers_to_what_there_is(objects: list[Manifest]) -> Iterator[str]:
    """Require every named ConfigMap, Secret, key, account and claim, and that a change of one restarts its pods."""
    known = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    for where, kind, name, key in _references(objects):
        found = known.get((kind, name))
        if found is None:
            yield f"{where}: there is no {kind} {name}"
        elif key and key not in found.get("data", {}):
            yield f"{where}: {kind} {name} has no {key}"
        elif kind in ("ConfigMap", "Secret") and not re.search(r"-[a-z0-9]{10}$", name):
            yield f"{where}: {kind} {name} has no hash in its name, so a change of it rolls nothing"


def _references(objects: list[Manifest]) -> Iterator[tuple[str, str, str, str]]:
    for pod in pods(objects):
        yield pod.name, "ServiceAccount", pod.spec.get("serviceAccountName", "default"), ""
        claimed = {each["metadata"]["name"] for each in pod.workload["spec"].get("volumeClaimTemplates", [])}
        for volume in pod.spec.get("volumes", []):
            if "configMap" in volume:
                yield pod.name, "ConfigMap", volume["configMap"]["name"], ""
            if "persistentVolumeClaim" in volume:
                yield pod.name, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], ""
        volumes = claimed | {each["name"] for each in pod.spec.get("volumes", [])}
        for container in pod.containers:
            where = f"{pod.name} {container['name']}"
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield where, "volume", mount["name"], ""
            for source in container.get("envFrom", []):
                yield where, "ConfigMap", source["configMapRef"]["name"], ""
            for each in container.get("env", []):
                ref = each.get("valueFrom", {}).get("secretKeyRef")
                if ref and not ref.get("optional"):
                    yield where, "Secret", ref["name"], ref["key"]
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        match each["kind"]:
            case "TriggerAuthentication":
                for ref in each["spec"]["secretTargetRef"]:
                    yield where, "Secret", ref["name"], ref["key"]
            case "ScaledObject":
                yield where, "Deployment", each["spec"]["scaleTargetRef"]["name"], ""
                for trigger in each["spec"]["triggers"]:
                    yield where, "TriggerAuthentication", trigger["authenticationRef"]["name"], ""
            case "HorizontalPodAutoscaler":
                yield where, each["spec"]["scaleTargetRef"]["kind"], each["spec"]["scaleTargetRef"]["name"], ""
            case "ServiceMonitor" | "PodMonitor":
                for endpoint in each["spec"].get("endpoints", []):
                    if "authorization" in endpoint:
                        ref = endpoint["authorization"]["credentials"]
                        yield where, "Secret", ref["name"], ref["key"]
            case "StatefulSet":
                yield where, "Service", each["spec"]["serviceName"], ""


def names_ports_that_there_are(objects: list[Manifest]) -> Iterator[str]:
    """Require that probes, services, monitors, policies and our settings name ports on which a process listens."""
    for pod in pods(objects):
        for container in pod.containers:
            where = f"{pod.name} {container['name']}"
            own = container.get("ports", [])
            named = {each.get("name") for each in own} | {each["containerPort"] for each in own}
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                for how in ("httpGet", "tcpSocket"):
                    port = container.get(name, {}).get(how, {}).get("port", None)
                    if port is not None and port not in named:
                        yield f"{where}: its {name} asks the port {port}, which it has not"
            given = {each["name"]: each.get("value") for each in container.get("env", [])}
            if "DIRECTOR_PORT" in given and int(given["DIRECTOR_PORT"]) not in named:
                yield f"{where}: it listens at {given['DIRECTOR_PORT']}, and says nothing of it"
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        for labels, port in _ports_meant(each):
            picked = [pod for pod in pods(objects) if labels.items() <= pod.labels.items()]
            if port not in {p for pod in picked for p in _ports_of(pod)}:
                yield f"{where}: {port} is no port of what it picks"


def _ports_of(pod: Pod) -> Iterator[Any]:
    for container in pod.containers:
        for port in container.get("ports", []):
            yield port["containerPort"]
            yield port.get("name")


def _ports_meant(each: Manifest) -> Iterator[tuple[dict[str, str], Any]]:
    spec = each.get("spec", {})
    match each["kind"]:
        case "Service":
            for port in spec["ports"]:
                # a Service of one member: its name is no label of the template
                labels = {name: value for name, value in spec["selector"].items() if not name.endswith("/pod-name")}
                yield labels, port.get("targetPort", port["port"])
        case "PodMonitor":
            for endpoint in spec["podMetricsEndpoints"]:
                yield spec["selector"]["matchLabels"], endpoint["port"]
        case "NetworkPolicy" if "matchLabels" in spec["podSelector"]:
            for rule in spec.get("ingress", []):
                for port in rule.get("ports", []):
                    yield spec["podSelector"]["matchLabels"], port["port"]


def asks_services_that_there_are(objects: list[Manifest]) -> Iterator[str]:
    """Require that each address of a service names an existing service and port."""
    services = [each for each in objects if each["kind"] == "Service"]

    def named(name: str) -> list[Manifest]:
        return [service for service in services if service["metadata"]["name"] == name]

    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        match each["kind"]:
            case "ServiceMonitor":
                wanted = each["spec"]["selector"]["matchLabels"].items()
                meant = [service for service in services if wanted <= service["metadata"].get("labels", {}).items()]
                asked = [(meant, endpoint["port"]) for endpoint in each["spec"]["endpoints"]]
            case "Ingress":
                paths = [path for rule in each["spec"]["rules"] for path in rule["http"]["paths"]]
                backends = [path["backend"]["service"] for path in paths]
                asked = [(named(backend["name"]), backend["port"]["name"]) for backend in backends]
            case "HTTPRoute":
                refs = [ref for rule in each["spec"]["rules"] for ref in rule.get("backendRefs", [])]
                asked = [(named(ref["name"]), ref["port"]) for ref in refs]
            case _:
                continue
        for meant, port in asked:
            if port not in {
                own[how] for service in meant for own in service["spec"]["ports"] for how in ("name", "port")
            }:
                yield f"{where}: no service has the port {port} that it asks"


def _labels(pod: Pod) -> Iterator[dict[str, str]]:
    """Yield the labels of each pod of a workload. Those of a StatefulSet have their names among them."""
    if pod.workload["kind"] != "StatefulSet":
        yield dict(pod.labels)
    for number in range(pod.workload["spec"].get("replicas", 0)):
        name = f"{pod.workload['metadata']['name']}-{number}"
        yield {**pod.labels, "statefulset.kubernetes.io/pod-name": name}


def is_rolled_only_by_what_it_reads(objects: list[Manifest]) -> Iterator[str]:
    """A pod is rolled by each key of a Secret that it names, so the keys that others read are in another one."""
    secrets = {each["metadata"]["name"]: set(each.get("data") or {}) for each in objects if each["kind"] == "Secret"}
    read: dict[str, dict[str, set[str]]] = {}
    for pod in pods(objects):
        if pod.workload["kind"] == "CronJob":
            continue  # nothing of it runs that could be rolled
        for container in pod.containers:
            for each in container.get("env", []):
                if ref := each.get("valueFrom", {}).get("secretKeyRef"):
                    read.setdefault(ref["name"], {}).setdefault(pod.component, set()).add(ref["key"])
    for name, readers in read.items():
        by_others = {key for keys in readers.values() for key in keys} & secrets.get(name, set())
        for component, keys in readers.items():
            yield from (f"{component} is rolled by {key} of {name}" for key in sorted(by_others - keys))


def selects_a_pod(objects: list[Manifest]) -> Iterator[str]:
    """Require that each selector matches existing pods, and a workload's selector its own pods only."""
    everybody = list(pods(objects))
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        spec = each.get("spec", {})
        selector = spec.get("podSelector") if each["kind"] == "NetworkPolicy" else spec.get("selector")
        if each["kind"] == "Service":
            selector = {"matchLabels": selector}
        if each["kind"] not in (
            "NetworkPolicy",
            "PodDisruptionBudget",
            "PodMonitor",
            "Deployment",
            "StatefulSet",
            "Service",
        ):
            continue
        picked = [pod for pod in everybody if any(picks(selector or {}, labels) for labels in _labels(pod))]
        if not picked:
            yield f"{where} selects no pod"
        if each["kind"] in ("Deployment", "StatefulSet") and [pod.workload for pod in picked] != [each]:
            yield f"{where} picks what is another one's"
