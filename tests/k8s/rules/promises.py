"""Promises of an installation: nothing accepted is lost, streams last, pools go by their queues, walls stand."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from api.predictions.bodies import LONGEST_WAIT_S
from director.broker import keys
from director.core.ids import queue_name
from tests.k8s.rules.settings import director_settings
from tests.support.manifests import Manifest, Pod, pods

FALLBACK_S: Final = 300
INTERNAL: Final = "/internal"
MIB: Final = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024}
CLUSTER_WIDE: Final = ("Namespace", "PriorityClass", "StorageClass", "PersistentVolume")


def keeps_what_was_accepted(objects: list[Manifest]) -> Iterator[str]:
    """Redis writes before it answers, never evicts, packs records, has room for a rewrite, and its disk outlives it."""
    for pod in pods(objects):
        if pod.component != "redis":
            continue
        volume = next(each for each in pod.spec["volumes"] if each["name"] == "config")
        texts = next((each["data"] for each in objects if each["metadata"]["name"] == volume["configMap"]["name"]), {})
        config = dict(line.partition(" ")[::2] for line in texts.get("redis.conf", "").splitlines() if line[:1] != "#")
        wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "dir": "/data"}
        wanted["hash-max-listpack-value"] = "256"
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


def lets_streams_last(objects: list[Manifest]) -> Iterator[str]:
    """Whatever stands in front waits longer than `Prefer: wait`, holds no stream back, and sends nothing twice."""
    wanted = {"proxy-buffering": "off", "proxy-next-upstream": "off", "proxy-request-buffering": "off"}
    for each, path in _fronts(objects):
        where = f"{each['kind']}/{each['metadata']['name']}"
        if path == INTERNAL:
            continue
        if each["kind"] == "Ingress":
            told = _annotations(each)
            yield from (f"{where}: {name} is not {value}" for name, value in wanted.items() if told.get(name) != value)
            if int(told.get("proxy-read-timeout", 60)) < LONGEST_WAIT_S + 5:
                yield f"{where}: proxy-read-timeout cuts held answers off"
        elif any(rule.get("timeouts", {}).get("request") != "0s" for rule in _leading(each)):
            yield f"{where}: timeouts.request cuts event streams off"


def keeps_inside_what_is_for_directors(objects: list[Manifest]) -> Iterator[str]:
    """Nothing that stands in front passes on where directors put files."""
    fronts = list(_fronts(objects))
    for kind in ("Ingress", "HTTPRoute"):
        ours = [(each, path) for each, path in fronts if each["kind"] == kind]
        refused = [
            _annotations(each).get("whitelist-source-range") == "127.0.0.1/32"
            if kind == "Ingress"
            else all(_path(rule) != INTERNAL for rule in _leading(each))
            for each, path in ours
            if path == INTERNAL
        ]
        if ours and (not refused or not all(refused)):
            yield f"{kind}: it passes {INTERNAL} on"


def _fronts(objects: list[Manifest]) -> Iterator[tuple[Manifest, str]]:
    """Yield everything that brings callers in, with each of its paths."""
    for each in objects:
        if each["kind"] == "Ingress":
            yield from ((each, path["path"]) for rule in each["spec"]["rules"] for path in rule["http"]["paths"])
        elif each["kind"] == "HTTPRoute":
            yield from ((each, _path(rule)) for rule in each["spec"]["rules"])


def _annotations(each: Manifest) -> dict[str, str]:
    return {name.partition("/")[2]: value for name, value in each["metadata"].get("annotations", {}).items()}


def _leading(route: Manifest) -> list[Manifest]:
    return [rule for rule in route["spec"]["rules"] if rule.get("backendRefs")]


def _path(rule: Manifest) -> str:
    return str(rule["matches"][0]["path"]["value"])


def scales_by_what_is_counted(objects: list[Manifest]) -> Iterator[str]:
    """A pool is scaled by its own model's queue, by a number that is counted even when it is 0."""
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
        settings = director_settings(pod, objects)
        if settings is None:
            continue
        fallback = each["spec"].get("fallback", {})
        if each["spec"].get("pollingInterval", 30) * fallback.get("failureThreshold", 0) < FALLBACK_S:
            yield f"{where}: a restart of Redis wakes a GPU of every pool"
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
                    service = services.get(tuple(told["address"].partition(":")[0].split(".")[:2]))  # type: ignore[arg-type]
                    if service is None:
                        yield f"{where}: nothing answers at {told['address']}"
                    if each["spec"].get("initialCooldownPeriod", 0) < _starts_s(pod):
                        yield f"{where}: it takes the first director away before anybody knows its version"
                    if told["listName"] != keys.live(queue_name(model, version)):
                        yield f"{where}: {told['listName']} is not what `director scale --key {model}` prints"
                case other:
                    yield f"{where}: a trigger of the type {other} counts what is not the queue"


def _starts_s(pod: Pod) -> float:
    """How long a run, and then a setup, may take."""
    return float(pod.workload["spec"]["progressDeadlineSeconds"])


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
