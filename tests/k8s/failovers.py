"""Measure how long nothing is written while members of `ha` are lost: python -m tests.k8s.failovers --rounds 10.

Needs root. Each round begins and ends with one master, two replicas and three Sentinels that know exactly these.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.k8s.played_cluster import ENDPOINT_S, NAMES, START_S, URL, Cluster, Pod, cluster
from tests.support.manifests import K8S, ROOT

PAUSE_S: Final = 1.0  # a shorter time between two accepted writes is no pause
RESTART_S: Final = 1.0  # until the kubelet has seen that a container ended
BACK_OFF_S: Final = 20.0  # it waits for 10 s, then 20 s, before it starts one that ended again
CHECK_AT_ONCE: Final = 500


class Outcome(Struct, frozen=True):
    """`pause_s`: in all, without an accepted write. `longest_s`: the longest of the pauses. `whole_s`: until all was
    as before. `lost`: accepted writes that the master does not have in the end. `lost_early`: those of them that were
    accepted more than a second before the loss, so that a replica had them.
    """

    scenario: str
    pause_s: float
    longest_s: float
    whole_s: float
    written: int
    lost: int
    lost_early: int
    why: str


def killed(played: Cluster) -> None:
    """kill -9 of the master's server. The kubelet starts the container again at once."""
    crash(played, RESTART_S)


def killed_again(played: Cluster) -> None:
    """kill -9 of the master's server, whose container is started again after a back-off."""
    crash(played, BACK_OFF_S)


def crash(played: Cluster, away_s: float) -> None:
    pod = played.pods[played.master()]
    pod.crash("redis")
    time.sleep(away_s)  # the length of the fault
    pod.start_again("redis")


def deleted(played: Cluster) -> None:
    """kubectl delete --force: the next pod starts on the same disk while the former one still hands over."""
    name = played.master()
    former = played.pods[name]
    played.lead(name, None)
    ending = former.stopping()
    began = time.monotonic()
    pod = Pod(played, name)
    steps = [(START_S, pod.start), (START_S + ENDPOINT_S, lambda: played.lead(name, pod))]
    for _ in ending:
        while steps and time.monotonic() - began > steps[0][0]:
            steps.pop(0)[1]()
        time.sleep(0.05)  # between two looks at its output
    for after_s, step in steps:
        time.sleep(max(0.0, began + after_s - time.monotonic()))  # the plan says when
        step()
    played.pods[name] = pod


def rolled(played: Cluster) -> None:
    """A rolling update of all three."""
    played.roll()


def restarted(played: Cluster) -> None:
    """All three pods are lost at once, and start again."""
    for pod in played.pods.values():
        pod.kill()
    for name in NAMES:
        played.lead(name, None)
    played.start()


def cut_off(played: Cluster) -> None:
    """The master's node drops every packet, and so does one of two resolvers. It comes back after 30 s."""
    played.cut(played.pods[played.master()], resolvers=True)
    time.sleep(30)  # the length of the fault
    played.mend()


def upgraded(played: Cluster) -> None:
    """A rolling update from the manifests that the cluster began with to these."""
    played.change_sources(K8S)
    played.roll()


SCENARIOS: Final[dict[str, Callable[[Cluster], None]]] = {
    "killed": killed,
    "killed-again": killed_again,
    "deleted": deleted,
    "rolled": rolled,
    "restarted": restarted,
    "cut-off": cut_off,
    "upgraded": upgraded,
}


@contextmanager
def writing(played: Cluster, path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Let a pod of the API write to a file what was accepted when."""
    pod = Pod(played, f"api-{path.stem}")
    command = [sys.executable, "-m", "tests.k8s.failover_writer", URL]
    binds = "; ".join(f"mount --bind {pod.folder}/{file} /etc/{file}" for file in ("hosts", "resolv.conf"))
    inside = pod.network.inside("unshare", "-m", "--", "sh", "-ec", f'{binds}; exec "$@"', "sh", *command)
    with path.open("w") as out:
        process = subprocess.Popen(inside, cwd=ROOT, stdout=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            pod.kill()


def accepted(path: Path) -> dict[int, float]:
    """Return when each accepted write was answered."""
    lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {int(line[1]): float(line[0]) for line in lines if line[1] != "-"}


def measure(played: Cluster, scenario: str, number: int, *, is_loose: bool = False, limit_s: float = 240) -> Outcome:
    is_whole = played.serves if is_loose else played.is_whole
    played.until(played.serves if scenario == "upgraded" else is_whole, f"it is whole before {scenario}", limit_s)
    path = played.folder / f"{number}-{scenario}"
    with writing(played, path) as writer:
        played.until(lambda: len(accepted(path)) > 20, "something is written", 30)
        assert writer.poll() is None
        began = time.monotonic()
        SCENARIOS[scenario](played)
        played.until(is_whole, f"it is whole after {scenario}", limit_s)
        whole_s = time.monotonic() - began
        at_end = len(accepted(path))
        played.until(lambda: len(accepted(path)) > at_end + 20, f"something is written after {scenario}", 60)
    answers = accepted(path)
    times = sorted(each for each in answers.values() if each > began - 1)
    pauses = [after - before for before, after in pairwise(times) if after - before > PAUSE_S]
    refusals = [line.split(maxsplit=2)[2] for line in path.read_text().splitlines() if " - " in line]
    why = ", ".join(f"{refusals.count(each)} x {each}" for each in sorted(set(refusals)))
    lost = missing(played, list(answers))
    early = sum(answers[number] < began - 1 for number in lost)
    return Outcome(scenario, sum(pauses), max(pauses, default=0.0), whole_s, len(answers), len(lost), early, why)


def missing(played: Cluster, numbers: list[int]) -> list[int]:
    """Return the numbers of writes that the master does not have."""
    pod, found = played.pods[played.master()], []
    for at in range(0, len(numbers), CHECK_AT_ONCE):
        batch = numbers[at : at + CHECK_AT_ONCE]
        values = pod.ask("mget", *(f"model:written:{number}" for number in batch))
        found += [number for number, value in zip(batch, values, strict=True) if value != "1"]
    return found


def table(outcomes: list[Outcome]) -> str:
    lines = ["| what | rounds | s without a write: p50 | worst | longest pause | lost |", "|---|---|---|---|---|---|"]
    for scenario, does in SCENARIOS.items():
        found = [each for each in outcomes if each.scenario == scenario]
        if found:
            pauses, lost = [each.pause_s for each in found], sum(each.lost for each in found)
            longest_s = max(each.longest_s for each in found)
            figures = f"{statistics.median(pauses):.1f} | {max(pauses):.1f} | {longest_s:.1f} | {lost}"
            lines.append(f"| {(does.__doc__ or '').strip()} | {len(found)} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--only", default=",".join(list(SCENARIOS)[:-1]), help="names of scenarios, separated by commas"
    )
    parser.add_argument("--manifests", type=Path, default=K8S, help="the folder k8s of another checkout")
    parser.add_argument("--folder", type=Path, default=None, help="where disks and logs stay")
    parser.add_argument("--loose", action="store_true", help="whatever the Sentinels know: for manifests of before")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="failovers-"))
    outcomes: list[Outcome] = []
    with cluster(folder, args.manifests) as played:
        played.start()
        for number in range(args.rounds):
            for scenario in args.only.split(","):
                try:
                    outcome = measure(played, scenario, number, is_loose=args.loose)
                except AssertionError as exc:
                    print(f"{scenario}: {exc}", flush=True)
                    continue
                outcomes.append(outcome)
                print(outcome, flush=True)
    print(table(outcomes))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
