"""Each seeded fault in a manifest is found, and the complaint names it."""

import re
from collections.abc import Callable
from functools import cache, reduce
from operator import getitem
from typing import Any

import pytest
from msgspec import Struct

from tests.k8s.rules import RULES, complaints
from tests.k8s.schemas import misfits
from tests.support.manifests import Manifest, overlay

pytestmark = pytest.mark.kubectl

Change = Callable[[list[Manifest]], Any]


class Fault(Struct, frozen=True):
    change: Change
    said: str
    overlay: str = "small"


def named(objects: list[Manifest], kind: str, name: str) -> Manifest:
    return next(each for each in objects if each["kind"] == kind and re.fullmatch(name, each["metadata"]["name"]))


def pod(objects: list[Manifest], name: str) -> Manifest:
    kind = "StatefulSet" if name == "redis" else "Deployment"
    return named(objects, kind, name)["spec"]["template"]["spec"]


def first(objects: list[Manifest], name: str) -> Manifest:
    return pod(objects, name)["containers"][0]


def first_wish(objects: list[Manifest], name: str) -> Manifest:
    wishes = pod(objects, name)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return wishes[0]["podAffinityTerm"]


def model(objects: list[Manifest]) -> Manifest:
    return pod(objects, "director-painter")["initContainers"][0]


def has(objects: list[Manifest], name: str, variable: str, value: str) -> None:
    first(objects, name)["env"].append({"name": variable, "value": value})


def config(objects: list[Manifest], name: str, key: str, change: Callable[[str], str]) -> None:
    data = named(objects, "ConfigMap", rf"{name}-[a-z0-9]+")["data"]
    data[key] = change(data.get(key, ""))


def setting(name: str, key: str, value: str) -> Change:
    return lambda objects: config(objects, name, key, lambda _: value)


def edited(file: str, old: str, new: str) -> Change:
    return lambda objects: config(objects, "redis-config", file, lambda text: text.replace(old, new))


def pool_file(old: str, new: str) -> Change:
    return lambda objects: config(objects, "models-shared", "pool.toml", lambda text: text.replace(old, new, 1))


def without(kind: str, name: str) -> Change:
    return lambda objects: objects.remove(named(objects, kind, name))


def part(objects: list[Manifest], kind: str, name: str, path: str) -> Manifest:
    steps = [int(step) if step.isdigit() else step for step in path.split(".") if step]
    return reduce(getitem, steps, named(objects, kind, name))


def put(kind: str, name: str, path: str, /, **values: Any) -> Change:
    return lambda objects: part(objects, kind, name, path).update(**values)


def drop(kind: str, name: str, path: str, key: str) -> Change:
    return lambda objects: part(objects, kind, name, path).pop(key)


DIRECTOR = "director-painter"
PAINTER = r"director-defaults-painter"
SCALED = ("ScaledObject", DIRECTOR)

FAULTS: dict[str, Fault] = {
    # rights
    "root": Fault(lambda o: pod(o, "api")["securityContext"].update(runAsUser=0), "Deployment/api api may be root"),
    "root in a container": Fault(
        lambda o: pod(o, "director-hello")["initContainers"][0]["securityContext"].update(runAsNonRoot=False),
        "director-hello model may be root",
        "kind",
    ),
    "a root pool that its namespace refuses": Fault(
        put("Namespace", "director", "metadata.labels", **{"pod-security.kubernetes.io/enforce": "restricted"}),
        "director-painter model may be root",
    ),
    "a part that writes to its image as root": Fault(
        lambda o: first(o, DIRECTOR)["securityContext"].update(readOnlyRootFilesystem=False), "may write to its image"
    ),
    "no user": Fault(lambda o: pod(o, "keeper").pop("securityContext"), "Deployment/keeper keeper may be root"),
    "privileged": Fault(lambda o: first(o, "api")["securityContext"].update(privileged=True), "api may get privileges"),
    "escalation": Fault(
        lambda o: first(o, "redis")["securityContext"].pop("allowPrivilegeEscalation"), "redis may get privileges"
    ),
    "a root that can be written": Fault(
        lambda o: first(o, "api")["securityContext"].update(readOnlyRootFilesystem=False), "may write to its image"
    ),
    "capabilities": Fault(
        lambda o: first(o, "api")["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        "api keeps capabilities",
    ),
    "no seccomp": Fault(lambda o: pod(o, "redis")["securityContext"].pop("seccompProfile"), "has no seccomp profile"),
    "a token": Fault(lambda o: pod(o, "api").update(automountServiceAccountToken=True), "api mounts a token"),
    "a token of the account": Fault(
        drop("ServiceAccount", "api", "", "automountServiceAccountToken"), "mounts its token"
    ),
    "service links": Fault(lambda o: pod(o, DIRECTOR).pop("enableServiceLinks"), "would set DIRECTOR_PORT"),
    "the node's network": Fault(lambda o: pod(o, "api").update(hostNetwork=True), "api has hostNetwork"),
    "the node's disk": Fault(
        lambda o: pod(o, "api")["volumes"].append({"name": "etc", "hostPath": {"path": "/etc"}}), "the node's disk"
    ),
    # resources and images
    "no limit": Fault(lambda o: first(o, "api")["resources"]["limits"].pop("memory"), "api api has no limits.memory"),
    "no request": Fault(lambda o: model(o)["resources"].pop("requests"), "model has no requests.cpu"),
    "an endless emptyDir": Fault(lambda o: pod(o, "api")["volumes"][0].update(emptyDir={}), "volume tmp has no end"),
    "latest": Fault(lambda o: first(o, "api").update(image="registry.example/director:latest"), "has the image"),
    "no tag": Fault(lambda o: first(o, "keeper").update(image="registry.example:5000/director"), "has the image"),
    "a pool that names no image": Fault(lambda o: model(o).update(image="model:0.0.0"), "has the image model:0.0.0"),
    # probes
    "no liveness": Fault(lambda o: first(o, "keeper").pop("livenessProbe"), "keeper has no livenessProbe"),
    "no startup of a model": Fault(lambda o: model(o).pop("startupProbe"), "model has no startupProbe"),
    "liveness asks readiness": Fault(
        lambda o: first(o, "api")["livenessProbe"]["httpGet"].update(path="/readyz"), "outage of Redis would restart"
    ),
    "liveness asks Redis": Fault(
        lambda o: first(o, "api").update(livenessProbe={"exec": {"command": ["valkey-cli", "-h", "redis", "ping"]}}),
        "an outage of Redis would restart it",
    ),
    "Redis dies of its log": Fault(
        lambda o: first(o, "redis").update(livenessProbe=first(o, "redis")["readinessProbe"]), "livenessProbe asks"
    ),
    "readiness asks nothing": Fault(
        lambda o: first(o, "api")["readinessProbe"]["httpGet"].update(path="/livez"), "asks nothing that it needs"
    ),
    "Redis is ready as it listens": Fault(
        lambda o: first(o, "redis").update(readinessProbe={"tcpSocket": {"port": "redis"}}), "does not wait for PONG"
    ),
    "200 of Cog": Fault(
        lambda o: model(o).update(startupProbe={"httpGet": {"path": "/health-check", "port": "model"}}),
        "Cog listens on the loopback alone",
    ),
    "a probe of nothing": Fault(
        lambda o: first(o, "api")["startupProbe"]["httpGet"].update(path="/healthz"), "which nothing answers"
    ),
    "a probe of no port": Fault(
        lambda o: first(o, "api")["livenessProbe"]["httpGet"].update(port="web"), "asks the port web, which it has not"
    ),
    "a hang for as long as a drain": Fault(
        lambda o: first(o, DIRECTOR)["livenessProbe"].pop("terminationGracePeriodSeconds"),
        "director: it may hang for longer than 120 s by its livenessProbe",
    ),
    "a start that hangs": Fault(
        lambda o: model(o)["startupProbe"].pop("terminationGracePeriodSeconds"), "it may hang for longer than 120 s"
    ),
    # nodes
    "a pool that is moved": Fault(
        lambda o: named(o, "Deployment", DIRECTOR)["spec"]["template"]["metadata"].pop("annotations"),
        "an autoscaler cuts its runs off",
    ),
    "a node that stays": Fault(
        lambda o: named(o, "Deployment", "api")["spec"]["template"]["metadata"].pop("annotations"),
        "its emptyDir keeps its node",
    ),
    "a drain that ill pods stop": Fault(
        drop("PodDisruptionBudget", "keeper", "spec", "unhealthyPodEvictionPolicy"), "pods that are ill keep their node"
    ),
    "a node without room": Fault(
        lambda o: model(o)["resources"]["requests"].pop("ephemeral-storage"), "may fill more of a node's disk"
    ),
    "a node that is lost": Fault(
        lambda o: pod(o, "keeper")["tolerations"].pop(), "keeper: it stays on a node that is not-ready for 300 s"
    ),
    "a pool on a node that is lost": Fault(
        lambda o: pod(o, DIRECTOR)["tolerations"][1].update(tolerationSeconds=300),
        "stays on a node that is unreachable",
    ),
    "all on one node": Fault(lambda o: pod(o, "api").pop("affinity"), "api: all of its pods may be on one node"),
    "apart from another part": Fault(
        lambda o: first_wish(o, "api")["labelSelector"]["matchLabels"].update({"app.kubernetes.io/component": "web"}),
        "api: all of its pods may be on one node",
    ),
    "a surge without a node": Fault(
        lambda o: pod(o, "api")["affinity"]["podAntiAffinity"].update(
            requiredDuringSchedulingIgnoredDuringExecution=[first_wish(o, "api")]
        ),
        "the new pod of a rolling update finds no node",
    ),
    "a zone that nodes lack": Fault(
        lambda o: pod(o, "keeper")["topologySpreadConstraints"].append(
            pod(o, "keeper")["topologySpreadConstraints"][0] | {"topologyKey": "topology.kubernetes.io/zone"}
        ),
        "keeper: nodes without a zone are not told apart",
    ),
    "a spread over pods that go": Fault(
        lambda o: pod(o, "api")["topologySpreadConstraints"][0].pop("matchLabelKeys"), "takes away count"
    ),
    # ends
    "a short grace": Fault(lambda o: pod(o, DIRECTOR).update(terminationGracePeriodSeconds=600), "needs 644 s to end"),
    "no grace of Redis": Fault(lambda o: pod(o, "redis").pop("terminationGracePeriodSeconds"), "needs 120 s to end"),
    "a wait cut off": Fault(lambda o: pod(o, "api").update(terminationGracePeriodSeconds=30), "needs 65 s to end"),
    "no preStop": Fault(lambda o: first(o, "api").pop("lifecycle"), "while proxies still send it callers"),
    "runs cut off": Fault(setting(PAINTER, "DIRECTOR_RUN_LIMIT_S", "1800"), "DIRECTOR_DRAIN_S is below"),
    "a surge": Fault(put("Deployment", DIRECTOR, "spec.strategy.rollingUpdate", maxSurge=1), "maxSurge 0"),
    "no sidecar": Fault(lambda o: model(o).pop("restartPolicy"), "model is no sidecar"),
    "a GPU held": Fault(setting(PAINTER, "DIRECTOR_END_SERVERS", "false"), "goes with --await-explicit-shutdown"),
    # a director that starts servers
    "a model that fits no GPU": Fault(pool_file("60GiB", "90GiB"), "acme/painter never fits", "shared"),
    "runs of one model cut off": Fault(
        pool_file("[[model]]", "[[model]]\nrun_limit_s = 1800"), "DIRECTOR_DRAIN_S is below", "shared"
    ),
    "a model that ends slowly": Fault(
        pool_file("[[model]]", "[[model]]\ngrace_s = 60"), "Deployment/director-shared needs 679 s to end", "shared"
    ),
    "orphans": Fault(
        lambda o: pod(o, "director-shared").pop("shareProcessNamespace"), "nothing reaps what a killed guard", "shared"
    ),
    "records that go with the container": Fault(
        setting("director-defaults-shared", "DIRECTOR_DEVICES_DIR", "/var/director"), "not below a volume", "shared"
    ),
    "a folder that the director refuses": Fault(
        setting("director-defaults-shared", "DIRECTOR_DEVICES_DIR", "/run/director"), "not below a volume", "shared"
    ),
    # settings, command lines, references
    "an unknown variable": Fault(lambda o: has(o, "api", "DIRECTOR_LEASES_S", "15"), "DIRECTOR_LEASES_S is nothing"),
    "another process's": Fault(
        lambda o: has(o, "keeper", "DIRECTOR_MODEL", "a/b"), "DIRECTOR_MODEL is nothing that it"
    ),
    "an unknown setting": Fault(setting("director-config", "DIRECTOR_DURABLE", "yes"), "DIRECTOR_DURABLE is nothing"),
    "a value that is missing": Fault(
        setting("director-config", "DIRECTOR_DURABILITY", "sometimes"), "DIRECTOR_DURABILITY: "
    ),
    "a setting that rolls pools for nothing": Fault(
        setting("director-config", "DIRECTOR_PUBLIC_URL", "https://director.example.com"),
        "DIRECTOR_PUBLIC_URL is not read, and rolls it",
    ),
    "a secret that rolls Redis for nothing": Fault(
        lambda o: [
            named(o, "Secret", r"redis-secrets-\w+")["data"].update(METRICS_TOKEN="eA=="),
            [
                each["valueFrom"]["secretKeyRef"].update(
                    name=named(o, "Secret", r"redis-secrets-\w+")["metadata"]["name"]
                )
                for each in first(o, "api")["env"]
                if each["name"] == "DIRECTOR_METRICS_TOKEN"
            ],
        ],
        "redis is rolled by METRICS_TOKEN",
    ),
    "no model": Fault(setting("pool-painter", "DIRECTOR_MODEL", ""), "needs --model"),
    "an objective that is missing": Fault(
        setting("pool-painter", "DIRECTOR_OBJECTIVES", '{"normal": {"share": 2}}'), "DIRECTOR_OBJECTIVES: "
    ),
    "our secrets in a model": Fault(
        lambda o: model(o)["env"].append(first(o, DIRECTOR)["env"][0]), "model is given what is ours"
    ),
    "our settings in a model": Fault(
        lambda o: model(o).update(envFrom=first(o, DIRECTOR)["envFrom"]), "model is given what is ours"
    ),
    "a password that is named too early": Fault(
        lambda o: first(o, "api")["env"].reverse(), "DIRECTOR_REDIS_URL names a variable that does not stand above it"
    ),
    "a command that is missing": Fault(
        lambda o: first(o, "api").update(args=["serve"]), "`director serve` is no command"
    ),
    "an option that is missing": Fault(
        lambda o: first(o, "keeper").update(args=["keeper", "--leader"]),
        "`director keeper --leader` is no command line",
    ),
    "no user for batches": Fault(
        lambda o: first(o, "keeper").update(
            env=[each for each in first(o, "keeper")["env"] if each["name"] != "DIRECTOR_BATCHES_REDIS_URL"]
        ),
        "DIRECTOR_BATCHES_REDIS_URL is missing",
    ),
    "a key that is missing": Fault(drop("Secret", r"keeper-secrets-\w+", "data", "SCALE_TOKEN"), "has no SCALE_TOKEN"),
    "a ConfigMap that is missing": Fault(
        lambda o: first(o, "api")["envFrom"][0]["configMapRef"].update(name="director"),
        "there is no ConfigMap director",
    ),
    "an account that is missing": Fault(
        lambda o: pod(o, "api").update(serviceAccountName="web"), "there is no ServiceAccount web"
    ),
    "a change that rolls nothing": Fault(
        lambda o: (
            named(o, "ConfigMap", r"director-config-\w+")["metadata"].update(name="director-config"),
            [
                each["configMapRef"].update(name="director-config")
                for name in ("api", "keeper", DIRECTOR)
                for each in first(o, name)["envFrom"]
                if each["configMapRef"]["name"].startswith("director-config")
            ],
        ),
        "a change of it rolls nothing",
    ),
    "a volume that is missing": Fault(
        lambda o: first(o, "api")["volumeMounts"].append({"name": "files", "mountPath": "/files"}),
        "there is no volume files",
    ),
    "a port of a service": Fault(put("Service", "api", "spec.ports.0", targetPort="web"), "web is no port of"),
    "a port of a policy": Fault(put("NetworkPolicy", "api", "spec.ingress.0.ports.0", port=80), "80 is no port of"),
    "a port of a monitor": Fault(
        put("ServiceMonitor", "director-api", "spec.endpoints.0", port="metrics"),
        "no service has the port metrics",
        "ha",
    ),
    "a service of an ingress": Fault(
        put("Ingress", "api", "spec.rules.0.http.paths.0.backend.service", name="web"),
        "Ingress/api: no service has the port http",
        "multi-pool",
    ),
    "a port of a route": Fault(
        put("HTTPRoute", "api", "spec.rules.1.backendRefs.0", port=80),
        "HTTPRoute/api: no service has the port 80",
        "ha",
    ),
    "a proxy without patience": Fault(
        lambda o: named(o, "Ingress", "api")["metadata"]["annotations"].update(
            {"nginx.ingress.kubernetes.io/proxy-read-timeout": "30"}
        ),
        "cuts held answers off",
        "multi-pool",
    ),
    "a proxy that holds streams back": Fault(
        drop("Ingress", "api", "metadata.annotations", "nginx.ingress.kubernetes.io/proxy-buffering"),
        "proxy-buffering is not off",
        "multi-pool",
    ),
    "a gateway that ends streams": Fault(
        put("HTTPRoute", "api", "spec.rules.1", timeouts={"request": "15s"}), "cuts event streams off", "ha"
    ),
    "a way in for directors' files": Fault(
        lambda o: named(o, "HTTPRoute", "api")["spec"]["rules"].pop(0), "it passes /internal on", "ha"
    ),
    "another way in for them": Fault(without("Ingress", "internal"), "it passes /internal on", "multi-pool"),
    "an open way in for them": Fault(
        drop("Ingress", "internal", "metadata", "annotations"), "it passes /internal on", "multi-pool"
    ),
    "a service without pods": Fault(
        lambda o: named(o, "Service", "redis")["spec"]["selector"].update({"director/pool": "painter"}),
        "Service/redis selects no pod",
    ),
    "a pool that picks another": Fault(
        lambda o: named(o, "Deployment", "director-writer")["spec"].update(
            selector={"matchLabels": {"app.kubernetes.io/component": "director"}}
        ),
        "Deployment/director-writer picks what is another one's",
        "multi-pool",
    ),
    # Redis
    "everysec": Fault(edited("redis.conf", "appendfsync always", "appendfsync everysec"), "appendfsync is not always"),
    "eviction": Fault(edited("redis.conf", "noeviction", "allkeys-lru"), "maxmemory-policy is not noeviction"),
    "records as tables": Fault(edited("redis.conf", "value 256", "value 64"), "hash-max-listpack-value is not 256"),
    "no room for a rewrite": Fault(edited("redis.conf", "1433mb", "2048mb"), "about 70 %"),
    "an open door": Fault(edited("users.acl", "user default off", ""), "may log in"),
    "a disk that goes": Fault(
        drop("StatefulSet", "redis", "spec", "persistentVolumeClaimRetentionPolicy"), "its disk goes"
    ),
    # walls
    "no wall": Fault(without("NetworkPolicy", "default-deny"), "all traffic is allowed that nothing forbids"),
    "a wall with a gate": Fault(put("NetworkPolicy", "default-deny", "spec", egress=[{}]), "all traffic is allowed"),
    "elsewhere": Fault(put("Service", "api", "metadata", namespace="default"), "is in no namespace of ours"),
    # autoscaling
    "another model's queue": Fault(
        setting("pool-painter", "DIRECTOR_MODEL", "acme/writer"), "is not the queue of acme/writer"
    ),
    "another port": Fault(
        put(*SCALED, "spec.triggers.0.metadata", url="http://keeper.director:8080/scale/acme/painter"),
        "nothing answers at",
    ),
    "another version's queue": Fault(
        setting("pool-writer", "DIRECTOR_VERSION", "6e" * 32), "`director scale --key", "multi-pool"
    ),
    "no time for the first director": Fault(
        drop("ScaledObject", "director-writer", "spec", "initialCooldownPeriod"),
        "takes the first director away",
        "multi-pool",
    ),
    "a Redis that is missing": Fault(
        without("Service", "redis"), "nothing answers at redis.director:6379", "multi-pool"
    ),
    "a GPU of every pool for a restart": Fault(
        put(*SCALED, "spec.fallback", failureThreshold=3), "a restart of Redis wakes a GPU of every pool"
    ),
    "streams": Fault(put(*SCALED, "spec.triggers.0", type="redis-streams"), "counts what is not the queue"),
    "replicas that come back": Fault(put("Deployment", DIRECTOR, "spec", replicas=1), "which an apply would put back"),
}

STRANGE: dict[str, Fault] = {
    "a typo in a Deployment": Fault(
        lambda o: first(o, "api").update(readinesProbe={}), "'readinesProbe' was unexpected"
    ),
    "a typo in a policy": Fault(put("NetworkPolicy", "api", "spec", policyType=[]), "'policyType' was unexpected"),
    "a number as text": Fault(lambda o: first(o, "api")["ports"][0].update(containerPort="8080"), "is not of type"),
    "a typo in a ScaledObject": Fault(put(*SCALED, "spec", minReplicas=0), "minReplicas"),
    "a number that KEDA wants as text": Fault(put(*SCALED, "spec.triggers.0.metadata", targetValue=1), "triggers.0"),
    "a typo in a trigger": Fault(put(*SCALED, "spec.triggers.0.metadata", valuelocation="wanted"), "triggers.0"),
    "a typo in an authentication": Fault(
        put("TriggerAuthentication", ".*", "spec.secretTargetRef.0", param="x"), "param"
    ),
    "a typo in a monitor": Fault(
        put("ServiceMonitor", "director-api", "spec.endpoints.0", intervall="15s"), "intervall", "multi-pool"
    ),
    "a typo in a PodMonitor": Fault(put("PodMonitor", "director", "spec", endpoints=[]), "endpoints", "multi-pool"),
    "a typo in a rule": Fault(
        lambda o: named(o, "PrometheusRule", "director")["spec"]["groups"][0]["rules"][0].update({"fore": "5m"}),
        "fore",
        "multi-pool",
    ),
    "a typo in a route": Fault(put("HTTPRoute", "api", "spec", hostname="x"), "hostname", "ha"),
    "an old version's kind": Fault(
        put("PodDisruptionBudget", "api", "", apiVersion="policy/v1beta1"), "Couldn't find schema"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_seeded_fault_breaks_a_rule(name: str) -> None:
    assert [line for line in found(name) if FAULTS[name].said in line], found(name)


@pytest.mark.parametrize("name", STRANGE)
def test_an_object_that_a_cluster_would_refuse_is_found(name: str) -> None:
    fault = STRANGE[name]
    objects = overlay(fault.overlay)
    fault.change(objects)
    assert [line for line in misfits(objects, "1.33") if fault.said in line], misfits(objects, "1.33")


def test_a_cluster_too_old_for_sidecars_is_reported() -> None:
    assert [line for line in misfits(overlay("small"), "1.27") if "restartPolicy" in line]


def test_each_rule_is_broken_by_some_fault() -> None:
    broken = {line.partition(":")[0] for name, fault in FAULTS.items() for line in found(name) if fault.said in line}
    assert broken == {rule.__name__ for rule in RULES}


@cache
def found(name: str) -> list[str]:
    objects = overlay(FAULTS[name].overlay)
    FAULTS[name].change(objects)
    return complaints(objects)
