"""Judge what the processes of the product use: no processor while nothing can happen, and no memory without end. Each
is sampled once a second, which only Linux has files for.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
from msgspec import Struct

from director.lab.chaos.evidence import Evidence, Findings, Stretch, group
from director.lab.chaos.journal import Journal, Sampled, now_ms
from director.lab.chaos.plan import AGAIN_MS, BLACK_HOLE, TO_REDIS

EACH_S: Final = 1.0
JUDGED: Final = ("api-", "director-", "keeper-")
# A process that can do nothing takes 0.01 of a core, and a loop 0.14 where ten others want the core
MOST_SHARE: Final = 0.1
MOST_GROWN_KB: Final = 64 * 1024  # while it can do nothing
MOST_KB: Final = 512 * 1024  # at any time: all parts together hold some tens of megabytes of large inputs and outputs
CALM_AFTER_MS: Final = 4_000  # what was under way ends, and calls are given up
YOUNG_MS: Final = 10_000  # a process that starts uses a core for some seconds
LEAST_MS: Final = 2_500
BUSY_MS: Final = 5_000
PAGE_KB: Final = os.sysconf("SC_PAGE_SIZE") // 1024
TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
IS_SAMPLED: Final = sys.platform == "linux"


async def watch(pids: Callable[[], dict[str, int]], journal: Journal) -> None:
    """Sample each process by its name. One that is gone is left out."""
    while IS_SAMPLED:
        for name, pid in pids().items():
            with suppress(OSError):
                busy_ms, kb = read_usage(pid)
                journal.write(Sampled(at=now_ms(), target=name, pid=pid, busy_ms=busy_ms, kb=kb))
        await anyio.sleep(EACH_S)


def read_usage(pid: int) -> tuple[int, int]:
    """Return the processor time and the memory of a process. Raises OSError if it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS, int(fields[21]) * PAGE_KB


class Use(Struct, frozen=True):
    """One process used this in a stretch of time in which it could do nothing."""

    target: str
    pid: int
    begin: int
    end: int
    share: float  # of a core, in the busiest seconds
    grown_kb: int


def uses(evidence: Evidence) -> list[Use]:
    found = []
    for (target, pid), samples in _by_process(evidence).items():
        born = samples[0].at
        for begin, end in _calm(evidence, target):
            first = max(begin + CALM_AFTER_MS, born + YOUNG_MS)
            within = [each for each in samples if first <= each.at <= end]
            if within and within[-1].at - within[0].at >= LEAST_MS:
                grown_kb = max(each.kb for each in within) - within[0].kb
                found.append(Use(target, pid, within[0].at, within[-1].at, _busiest(within), grown_kb))
    return found


def _busiest(samples: list[Sampled]) -> float:
    """Return the largest share of a core over BUSY_MS, or over all of a shorter time."""
    ends = (next((each for each in samples if each.at - first.at >= BUSY_MS), None) for first in samples)
    spans = [(first, last) for first, last in zip(samples, ends, strict=True) if last is not None]
    return max(
        (last.busy_ms - first.busy_ms) / (last.at - first.at) for first, last in spans or [(samples[0], samples[-1])]
    )


def nothing_spins_or_grows(evidence: Evidence) -> Findings:
    """I23: a process that can do nothing uses little of a core and takes no memory, and none takes much at any time. A
    director or keeper can do nothing while its way to Redis is a black hole, and no process can at rest.
    """
    for use in uses(evidence):
        if use.share > MOST_SHARE:
            yield (
                f"{use.target} {use.pid}",
                f"it used {use.share:.0%} of a core from {use.begin} to {use.end}, for nothing",
            )
        if use.grown_kb > MOST_GROWN_KB:
            grown = f"it grew by {use.grown_kb // 1024} MB"
            yield f"{use.target} {use.pid}", f"{grown} from {use.begin} to {use.end}, for nothing"
    for (target, pid), samples in _by_process(evidence).items():
        if (most_kb := max(each.kb for each in samples)) > MOST_KB:
            yield f"{target} {pid}", f"it had {most_kb // 1024} MB"


def largest_kb(evidence: Evidence) -> int:
    return max((each.kb for samples in _by_process(evidence).values() for each in samples), default=0)


def _by_process(evidence: Evidence) -> dict[tuple[str, int], list[Sampled]]:
    judged = (each for each in evidence.samples if each.target.startswith(JUDGED))
    return group(judged, lambda each: (each.target, each.pid))


def _calm(evidence: Evidence, target: str) -> Iterator[Stretch]:
    yield from ((rested.at - CALM_AFTER_MS, rested.until) for rested in evidence.rested)
    if not target.startswith("api-"):
        ways = (f"{target}{TO_REDIS}", f"all{TO_REDIS}")
        yield from (
            (each.begin, each.end - AGAIN_MS)
            for each in evidence.faults
            if each.kind == BLACK_HOLE and each.target in ways
        )
