"""How a pod begins, is asked how it is, and ends: by what its processes do, and how long that may take."""

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from api.predictions.bodies import LONGEST_WAIT_S
from director.execution.director import HAND_BACK_S, TELL_S
from director.gpus.host import END_LIMIT_S
from director.keeper.keeper import DRAIN_S
from tests.k8s.rules.settings import director_settings, director_tables
from tests.support.manifests import Manifest, Pod, picks, pods

MODEL_ENDS_S: Final = 30
SHUTDOWN_SAVES_S: Final = 120
HANGS_AT_MOST_S: Final = 120
GONE_S: Final = 60
HOSTNAME: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
AUTOSCALER: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def is_probed(objects: list[Manifest]) -> Iterator[str]:
    """Each process is, and none is killed for what another one lacks."""
    for pod in pods(objects):
        if pod.workload["kind"] == "CronJob":
            continue
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
            yield f"its {name} asks the address of the pod: Cog listens on the loopback alone"
        elif path != "/livez":
            yield f"its {name} asks {path}, which nothing answers"
    ready = container.get("readinessProbe", {})
    if ready.get("httpGet", {}).get("path", "/readyz") != "/readyz":
        yield "its readinessProbe asks nothing that it needs"
    if container["name"] in ("redis", "sentinel") and "PONG" not in str(ready.get("exec", "")):
        yield "its readinessProbe does not wait for PONG: it listens while it loads"


def restarts_what_hangs(objects: list[Manifest]) -> Iterator[str]:
    """A process that hangs is killed in time: SIGTERM does not end it, so the probe needs a grace time of its own."""
    for pod in pods(objects):
        for container in pod.containers:
            for name in ("livenessProbe", "startupProbe"):
                probe = container.get(name)
                if probe is None:
                    continue
                grace = pod.spec.get("terminationGracePeriodSeconds", 30)
                seen_s = (
                    probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3) if name == "livenessProbe" else 0
                )
                if seen_s + probe.get("terminationGracePeriodSeconds", grace) > HANGS_AT_MOST_S:
                    where = f"{pod.name} {container['name']}"
                    yield f"{where}: it may hang for longer than {HANGS_AT_MOST_S} s by its {name}"


def lets_nodes_be_emptied(objects: list[Manifest]) -> Iterator[str]:
    """An autoscaler may move pods, but none that drains for long. Pods that are ill keep no node."""
    for pod in pods(objects):
        told = pod.workload["spec"].get("template", {}).get("metadata", {}).get("annotations", {})
        if pod.component == "director":
            if (told.get(AUTOSCALER), told.get("karpenter.sh/do-not-disrupt")) != ("false", "true"):
                yield f"{pod.name}: an autoscaler cuts its runs off"
            continue
        local = {each["name"] for each in pod.spec.get("volumes", []) if "emptyDir" in each}
        if local - set(told.get(f"{AUTOSCALER}-local-volumes", "").split(",")):
            yield f"{pod.name}: its emptyDir keeps its node from being removed"
    for each in objects:
        # of three Redis a second one must not go while one is ill
        is_ours = each["kind"] == "PodDisruptionBudget" and each["metadata"]["name"] != "redis"
        if is_ours and each["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"PodDisruptionBudget/{each['metadata']['name']}: pods that are ill keep their node"


def survives_a_node(objects: list[Manifest]) -> Iterator[str]:
    """Pods of one part are on several nodes where there are any, and are soon replaced when theirs is lost."""
    for pod in pods(objects):
        if pod.workload["kind"] != "Deployment":
            continue  # the disk of a StatefulSet's pod is released by an operator alone: an earlier end frees nothing
        for key in ("unreachable", "not-ready"):
            waits = [each for each in pod.spec.get("tolerations", []) if each.get("key") == f"node.kubernetes.io/{key}"]
            if [each.get("tolerationSeconds") for each in waits] != [GONE_S]:
                yield f"{pod.name}: it stays on a node that is {key} for 300 s"
        spread = pod.spec.get("topologySpreadConstraints", [])
        # of nodes that lack one of the keys the scheduler scores none, by none of the constraints
        if {each["topologyKey"] for each in spread if each["whenUnsatisfiable"] == "ScheduleAnyway"} - {HOSTNAME}:
            yield f"{pod.name}: nodes without a zone are not told apart"
        if pod.component == "director":
            continue  # one GPU each: where they fit is not ours to say
        if [each.get("matchLabelKeys") for each in spread] != [["pod-template-hash"]]:
            yield f"{pod.name}: pods that a rolling update takes away count"
        kept_apart = pod.spec.get("affinity", {}).get("podAntiAffinity", {})
        if any(each["topologyKey"] == HOSTNAME for each in kept_apart.get(REQUIRED, [])):
            yield f"{pod.name}: the new pod of a rolling update finds no node"
        wishes = [each["podAffinityTerm"] for each in kept_apart.get(PREFERRED, [])]
        if not any(each["topologyKey"] == HOSTNAME and picks(each["labelSelector"], pod.labels) for each in wishes):
            yield f"{pod.name}: all of its pods may be on one node"


def ends_in_time(objects: list[Manifest]) -> Iterator[str]:
    """The kubelet waits longer than the longest thing that a process may be about."""
    for pod in pods(objects):
        needed = _needed_s(pod, objects)
        if pod.spec.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{pod.name} needs {needed:g} s to end"


def _needed_s(pod: Pod, objects: list[Manifest]) -> float:
    match pod.component:
        case "director":
            return max(
                (
                    each.settings.drain_s
                    + HAND_BACK_S
                    + 2 * TELL_S
                    + (each.hosted.launch.grace_s + END_LIMIT_S if each.hosted else MODEL_ENDS_S)
                    for each in director_tables(pod, objects)
                ),
                default=0,
            )
        case "api":
            return LONGEST_WAIT_S + _pre_stop_s(pod.container("api"))
        case "keeper":
            return DRAIN_S + 5
        case "redis":
            return SHUTDOWN_SAVES_S
        case _:
            return 0


def leaves_proxies_time(objects: list[Manifest]) -> Iterator[str]:
    """A process that takes callers answers until no more of them are sent to it."""
    for pod in pods(objects):
        if pod.component == "api" and not _pre_stop_s(pod.container("api")):
            yield f"{pod.name} ends while proxies still send it callers"


def _pre_stop_s(container: Manifest) -> float:
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    return float(command[1]) if command[:1] == ["sleep"] else 0


def drains_its_gpus(objects: list[Manifest]) -> Iterator[str]:
    """A pool is rolled without a GPU to spare, and no run is cut off that may still end."""
    for pod in pods(objects):
        if pod.component != "director":
            continue
        rolling = pod.workload["spec"].get("strategy", {}).get("rollingUpdate", {})
        if rolling.get("maxSurge") != 0 or not rolling.get("maxUnavailable"):
            yield f"{pod.name} wants a GPU more while it is rolled: maxSurge 0"
        settings = director_settings(pod, objects)
        if settings is None:
            continue
        if any(each.settings.drain_s < each.settings.run_limit_s for each in director_tables(pod, objects)):
            yield f"{pod.name} cuts runs off: DIRECTOR_DRAIN_S is below DIRECTOR_RUN_LIMIT_S"
        sidecars = pod.spec.get("initContainers", [])
        yield from (
            f"{pod.name} {each['name']} is no sidecar: restartPolicy Always"
            for each in sidecars
            if each.get("restartPolicy") != "Always"
        )
        waits_for_word = any("--await-explicit-shutdown" in str(each) for each in sidecars)
        if waits_for_word != settings.end_servers:
            yield f"{pod.name}: DIRECTOR_END_SERVERS goes with --await-explicit-shutdown"


def keeps_servers_that_it_starts(objects: list[Manifest]) -> Iterator[str]:
    """A director that starts servers finds what an earlier one left, and something reaps its orphans."""
    for pod in pods(objects):
        if pod.component != "director" or not any(each.hosted for each in director_tables(pod, objects)):
            continue
        if not pod.spec.get("shareProcessNamespace"):
            yield f"{pod.name}: nothing reaps what a killed guard leaves: shareProcessNamespace"
        kept = {each["name"] for each in pod.spec["volumes"] if "emptyDir" in each}
        mounts = pod.container("director")["volumeMounts"]
        settings = director_settings(pod, objects)
        folders = PurePath(settings.devices_dir).parents if settings else ()
        if not {PurePath(each["mountPath"]) for each in mounts if each["name"] in kept} & set(folders):
            yield f"{pod.name}: DIRECTOR_DEVICES_DIR is not below a volume: the next container knows of no server"
