"""What must hold of every overlay: each rule looks at all of its objects and names what is wrong.

Looks at manifests and at the code that they start: its settings, its command line, its times. Asks no cluster.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from director.cli.main import made_parser
from director.core import keys
from director.core.errors import DirectorError
from director.core.ids import queue_name
from director.core.settings import ApiSettings, CommonSettings, DirectorSettings, KeeperSettings, described, load
from director.director import HAND_BACK_S, TELL_S, check_settings
from director.keeper.keeper import DRAIN_S
from tests.support.manifests import Manifest, Pod, environment, picks, pods

__all__ = ("RULES", "complaints")

Rule = Callable[[list[Manifest]], Iterator[str]]

COMPONENT: Final = "app.kubernetes.io/component"
SETTINGS: Final[dict[str, type[CommonSettings]]] = {
    "api": ApiSettings,
    "keeper": KeeperSettings,
    "run": DirectorSettings,
}
# What else a container of ours may be given: of itself, not read by it
BESIDE: Final = re.compile(r"REDIS_PASSWORD|SENTINEL_PASSWORD|UPLOAD_SECRET|AWS_\w+|OTEL_\w+")
LONGEST_WAIT_S: Final = 60  # Prefer: wait
MODEL_ENDS_S: Final = 30
SHUTDOWN_SAVES_S: Final = 120
MIB: Final = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024}
CLUSTER_WIDE: Final = ("Namespace", "StorageClass", "PersistentVolume")


def complaints(objects: list[Manifest]) -> list[str]:
    """All that is wrong; nothing, of what may be applied."""
    return [f"{rule.__name__}: {each}" for rule in RULES for each in rule(objects)]


def runs_without_rights(objects: list[Manifest]) -> Iterator[str]:
    """Nobody is root, nobody becomes it, nothing of the node is seen, and nobody may ask the cluster anything."""
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


def is_probed(objects: list[Manifest]) -> Iterator[str]:
    """Each process is, and none is killed for what another one lacks."""
    for pod in pods(objects):
        main = {each["name"] for each in pod.spec["containers"]}
        for container in pod.containers:
            wanted = (
                ("startupProbe", "readinessProbe", "livenessProbe") if container["name"] in main else ("startupProbe",)
            )
            where = f"{pod.name} {container['name']}"
            yield from (f"{where} has no {probe}" for probe in wanted if probe not in container)
            yield from (f"{where}: {said}" for said in _wrong_probes(container))


def _wrong_probes(container: Manifest) -> Iterator[str]:
    for name in ("startupProbe", "livenessProbe"):
        probe = container.get(name, {})
        path = probe.get("httpGet", {}).get("path", "/livez")
        if path == "/readyz" or (
            name == "livenessProbe" and re.search(r"redis|valkey|readyz", str(probe.get("exec", "")))
        ):
            yield f"its {name} asks what it needs: an outage of Redis would restart it"
        elif path == "/health-check":
            yield f"its {name} is passed at once: Cog answers 200 whatever its status"
        elif path != "/livez":
            yield f"its {name} asks {path}, which nothing answers"
    ready = container.get("readinessProbe", {})
    if ready.get("httpGet", {}).get("path", "/readyz") != "/readyz":
        yield "its readinessProbe asks nothing that it needs"
    if container["name"] in ("redis", "sentinel") and "PONG" not in str(ready.get("exec", "")):
        yield "its readinessProbe does not wait for PONG: it listens while it loads"


def ends_in_time(objects: list[Manifest]) -> Iterator[str]:
    """The kubelet waits longer than the longest thing that a process may be about."""
    for pod in pods(objects):
        needed = _needed_s(pod, objects)
        if pod.spec.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{pod.name} needs {needed:g} s to end"


def _needed_s(pod: Pod, objects: list[Manifest]) -> float:
    match pod.labels.get(COMPONENT):
        case "director":
            settings = _settings(pod, objects)
            return settings.drain_s + HAND_BACK_S + 2 * TELL_S + MODEL_ENDS_S if settings else 0
        case "api":
            return LONGEST_WAIT_S + _pre_stop_s(pod.container("api"))
        case "keeper":
            return DRAIN_S + 5
        case "redis":
            return SHUTDOWN_SAVES_S
        case _:
            return 0


def _settings(pod: Pod, objects: list[Manifest]) -> DirectorSettings | None:
    """None where it would not start: `is_given_what_it_reads` and `refers_to_what_there_is` say so."""
    try:
        return load(DirectorSettings, environment(pod.container("director"), objects))
    except (DirectorError, KeyError):
        return None


def _pre_stop_s(container: Manifest) -> float:
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    return float(command[1]) if command[:1] == ["sleep"] else 0


def leaves_proxies_time(objects: list[Manifest]) -> Iterator[str]:
    """What takes callers goes on answering until nobody sends it any."""
    for pod in pods(objects):
        if pod.labels.get(COMPONENT) == "api" and not _pre_stop_s(pod.container("api")):
            yield f"{pod.name} ends while proxies still send it callers"


def drains_its_gpus(objects: list[Manifest]) -> Iterator[str]:
    """A pool is rolled without a GPU to spare, and no run is cut off that may still end."""
    for pod in pods(objects):
        if pod.labels.get(COMPONENT) != "director":
            continue
        rolling = pod.workload["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxSurge") != 0 or not rolling.get("maxUnavailable"):
            yield f"{pod.name} wants a GPU more while it is rolled: maxSurge 0"
        settings = _settings(pod, objects)
        if settings is None:
            continue
        if settings.drain_s < settings.run_limit_s:
            yield f"{pod.name} cuts runs off: DIRECTOR_DRAIN_S is below DIRECTOR_RUN_LIMIT_S"
        sidecars = pod.spec.get("initContainers", [])
        yield from (
            f"{pod.name} {each['name']} is no sidecar: restartPolicy Always"
            for each in sidecars
            if each.get("restartPolicy") != "Always"
        )
        heeds_none = any("--await-explicit-shutdown" in str(each) for each in sidecars)
        if heeds_none != settings.end_servers:
            yield f"{pod.name}: DIRECTOR_END_SERVERS goes with --await-explicit-shutdown"


def is_given_what_it_reads(objects: list[Manifest]) -> Iterator[str]:
    """Each variable is one that its process knows, with a value that it takes; each command line is one."""
    everybody = {name for cls in SETTINGS.values() for name, _, _ in described(cls)}
    for pod in pods(objects):
        for container in pod.containers:
            if not _is_ours(container):
                continue
            where = f"{pod.name} {container['name']}"
            command = container.get("args", [])
            cls = SETTINGS.get(command[0] if command else "")
            if cls is None or not _parses(command):
                yield f"{where}: `director {shlex.join(command)}` is no command line"
                continue
            known = {name for name, _, _ in described(cls)}
            for each in container.get("env", []):
                if each["name"] not in known and not BESIDE.fullmatch(each["name"]):
                    yield f"{where}: {each['name']} is nothing that it reads"
            try:
                given = environment(container, objects)
                settings = load(cls, given)
                if isinstance(settings, DirectorSettings):
                    check_settings(settings)
                    _ = settings.policy
            except DirectorError as exc:
                yield f"{where}: {exc}"
            except KeyError:
                continue  # `refers_to_what_there_is` says it
            else:
                strange = {name for name in given if name.startswith("DIRECTOR_")} - everybody
                yield from (f"{where}: {name} is nothing that anybody reads" for name in sorted(strange))


def _is_ours(container: Manifest) -> bool:
    return bool(re.search(r"(^|/)director(:|@)", container["image"]))


def _parses(command: list[str]) -> bool:
    try:
        made_parser().parse_args(command)
    except SystemExit:
        return False
    return True


def trusts_no_model(objects: list[Manifest]) -> Iterator[str]:
    """A model's server sees nothing of ours but the secret under which it puts files to its director."""
    for pod in pods(objects):
        for container in pod.spec.get("initContainers", []):
            given = {str(each["valueFrom"]) for each in container.get("env", []) if "valueFrom" in each}
            if container.get("envFrom") or [each for each in given if "'key': 'UPLOAD_SECRET'" not in each]:
                yield f"{pod.name} {container['name']} is given what is ours"


def refers_to_what_there_is(objects: list[Manifest]) -> Iterator[str]:
    """Every ConfigMap, Secret, key, account and claim that is named is there, and a change of one rolls its pods."""
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
    """Probes, services, monitors, policies and our own settings mean ports that somebody listens at."""
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


def asks_services_that_there_are(objects: list[Manifest]) -> Iterator[str]:
    """What goes by way of a service names one, and a port of it."""
    services = [each for each in objects if each["kind"] == "Service"]
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        match each["kind"]:
            case "ServiceMonitor":
                wanted = each["spec"]["selector"]["matchLabels"].items()
                meant = [service for service in services if wanted <= service["metadata"].get("labels", {}).items()]
                asked = [(meant, endpoint["port"]) for endpoint in each["spec"]["endpoints"]]
            case "Ingress":
                backends = [
                    path["backend"]["service"] for rule in each["spec"]["rules"] for path in rule["http"]["paths"]
                ]
                asked = [
                    (
                        [service for service in services if service["metadata"]["name"] == backend["name"]],
                        backend["port"]["name"],
                    )
                    for backend in backends
                ]
            case _:
                continue
        for meant, port in asked:
            if port not in {own["name"] for service in meant for own in service["spec"]["ports"]}:
                yield f"{where}: no service has the port {port} that it asks"


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
                yield spec["selector"], port.get("targetPort", port["port"])
        case "PodMonitor":
            for endpoint in spec["podMetricsEndpoints"]:
                yield spec["selector"]["matchLabels"], endpoint["port"]
        case "NetworkPolicy" if "matchLabels" in spec["podSelector"]:
            for rule in spec.get("ingress", []):
                for port in rule.get("ports", []):
                    yield spec["podSelector"]["matchLabels"], port["port"]


def picks_somebody(objects: list[Manifest]) -> Iterator[str]:
    """A selector means pods that there are, and a workload's own ones alone."""
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
        picked = [pod for pod in everybody if picks(selector or {}, pod.labels)]
        if not picked:
            yield f"{where} picks nobody"
        if each["kind"] in ("Deployment", "StatefulSet") and [pod.workload for pod in picked] != [each]:
            yield f"{where} picks what is another one's"


def keeps_what_was_accepted(objects: list[Manifest]) -> Iterator[str]:
    """Redis writes before it answers, never evicts, has room for a rewrite of its log, and its disk outlives it."""
    for pod in pods(objects):
        if pod.labels.get(COMPONENT) != "redis":
            continue
        volume = next(each for each in pod.spec["volumes"] if each["name"] == "config")
        texts = next((each["data"] for each in objects if each["metadata"]["name"] == volume["configMap"]["name"]), {})
        config = dict(line.partition(" ")[::2] for line in texts.get("redis.conf", "").splitlines() if line[:1] != "#")
        wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "dir": "/data"}
        yield from (f"{pod.name}: {name} is not {value}" for name, value in wanted.items() if config.get(name) != value)
        limit = _mib(pod.container("redis")["resources"]["limits"]["memory"])
        if not 0.6 * limit <= float(config.get("maxmemory", "0mb").removesuffix("mb")) <= 0.75 * limit:
            yield f"{pod.name}: maxmemory is not about 70 % of its limit"
        if "user default off" not in texts.get("users.acl", ""):
            yield f"{pod.name}: anybody may log in"
        spec = pod.workload["spec"]
        if spec.get("persistentVolumeClaimRetentionPolicy", {}).get("whenDeleted") != "Retain":
            yield f"{pod.name}: its disk goes with it"
        if not any(each["mountPath"] == "/data" for each in pod.container("redis")["volumeMounts"]):
            yield f"{pod.name}: it keeps nothing"


def _mib(quantity: str) -> float:
    return float(quantity[:-2]) * MIB[quantity[-2:]]


def scales_by_what_is_counted(objects: list[Manifest]) -> Iterator[str]:
    """A pool is scaled by its own model's queue, by a number that is never a nought that nobody counted."""
    services = {
        (each["metadata"]["name"], each["metadata"]["namespace"]): each for each in objects if each["kind"] == "Service"
    }
    models = {pod.workload["metadata"]["name"]: pod for pod in pods(objects)}
    for each in objects:
        if each["kind"] != "ScaledObject":
            continue
        where = f"ScaledObject/{each['metadata']['name']}"
        pod = models.get(each["spec"]["scaleTargetRef"]["name"])
        if pod is None:
            continue  # `refers_to_what_there_is` says it
        if "replicas" in pod.workload["spec"]:
            yield f"{where}: its Deployment has replicas, which an apply would put back"
        settings = _settings(pod, objects)
        if settings is None:
            continue
        model, version = settings.model, settings.version or "0" * 64
        for trigger in each["spec"]["triggers"]:
            told = trigger["metadata"]
            match trigger["type"]:
                case "metrics-api":
                    url = urlsplit(told["url"])
                    service = services.get(tuple((url.hostname or "").split(".")[:2]))  # type: ignore[arg-type]
                    if service is None or url.port not in {port["port"] for port in service["spec"]["ports"]}:
                        yield f"{where}: nothing answers at {told['url']}"
                    if url.path != f"/scale/{model}":
                        yield f"{where}: {url.path} is not the queue of {model}"
                case "redis":
                    if told["listName"] != keys.live(queue_name(model, version)):
                        yield f"{where}: {told['listName']} is not what `director scale --key {model}` prints"
                case other:
                    yield f"{where}: a trigger of the type {other} counts what is not the queue"


def is_walled(objects: list[Manifest]) -> Iterator[str]:
    """In one namespace, where nothing is allowed that is not written down."""
    spaces = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Namespace"}
    for each in objects:
        space = each["metadata"].get("namespace", "")
        if each["kind"] not in CLUSTER_WIDE and space not in spaces:
            yield f"{each['kind']}/{each['metadata']['name']} is in no namespace of ours"
    if not any(
        each["kind"] == "NetworkPolicy"
        and each["spec"]["podSelector"] == {}
        and set(each["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not each["spec"].get("ingress")
        and not each["spec"].get("egress")
        for each in objects
    ):
        yield "all traffic is allowed that nothing forbids"


RULES: Final[tuple[Rule, ...]] = (
    runs_without_rights,
    asks_for_what_it_takes,
    names_its_images,
    is_probed,
    ends_in_time,
    leaves_proxies_time,
    drains_its_gpus,
    is_given_what_it_reads,
    trusts_no_model,
    refers_to_what_there_is,
    names_ports_that_there_are,
    asks_services_that_there_are,
    picks_somebody,
    keeps_what_was_accepted,
    scales_by_what_is_counted,
    is_walled,
)
