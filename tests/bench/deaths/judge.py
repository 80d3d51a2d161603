"""Judge a trial by its journal alone: what the caller was told, and what the model server saw. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from director.core.figures import percentile

What = Literal["accepted", "refused", "began", "ended", "cut off", "told", "held", "fault", "exited"]


LOAD: Final = "job-"  # other jobs are filed before and after it, and are not judged


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a journal. `at`: seconds since the load began. `run`: the model server's name of one run.

    `told` names the run whose output is the answer. It names no run for a failure: `text` has the reason. `text` of a
    run is its worker, of a fault its kind and target. `held`: without an answer at the end, but the queue still has it.
    """

    at: float
    what: What
    job: str = ""
    run: str = ""
    text: str = ""


class Spread(Struct, frozen=True):
    p50: float
    p99: float
    longest: float


class Verdict(Struct, frozen=True, kw_only=True):
    """Counts of accepted jobs, but for `refused` and the runs `cut_off`.

    Without an answer when the trial ended are `late`, which the queue still had, and `lost`. `changed`: its answer was
    replaced by another one. `unfounded`: its answer is of no run that had ended. `begun_again_s`: from the time a
    run was cut off until its job began again. `rest_s`: from the last acceptance until every job had its answer.
    """

    accepted: int
    refused: int
    lost: int
    late: int
    told_failed: int
    changed: int
    unfounded: int
    begun_twice: int
    ended_twice: int
    cut_off: int
    not_begun_again: int
    begun_again_s: Spread | None
    answered_s: Spread | None
    rest_s: float | None
    faults: dict[str, int]
    exits: int


def judged(journal: Sequence[Event]) -> Verdict:
    """Judge a journal, whose lines are in order."""
    by_job: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in journal:
        by_job[event.job][event.what].append(event)
    load = [seen for name, seen in by_job.items() if name.startswith(LOAD)]
    jobs = [seen for seen in load if seen["accepted"]]
    answers = [{(told.run, told.text) for told in seen["told"]} for seen in jobs]
    cuts = [(cut, seen) for seen in jobs for cut in seen["cut off"]]
    again = [(_begun_again_s(cut, seen), seen) for cut, seen in cuts]
    answered = [seen["told"][0].at - seen["accepted"][0].at for seen in jobs if seen["told"]]
    waiting = [seen for seen in jobs if not seen["told"]]
    return Verdict(
        accepted=len(jobs),
        refused=sum(bool(seen["refused"]) for seen in load),
        lost=sum(not seen["held"] for seen in waiting),
        late=sum(bool(seen["held"]) for seen in waiting),
        told_failed=sum(any(not run for run, _ in given) for given in answers),
        changed=sum(len(given) > 1 for given in answers),
        unfounded=sum(not _is_founded(seen) for seen in jobs),
        begun_twice=sum(len(seen["began"]) > 1 for seen in jobs),
        ended_twice=sum(len(seen["ended"]) > 1 for seen in jobs),
        cut_off=len(cuts),
        not_begun_again=sum(late_s is None and not seen["ended"] for late_s, seen in again),
        begun_again_s=_spread([late_s for late_s, _ in again if late_s is not None]),
        answered_s=_spread(answered),
        rest_s=None if waiting else _rest_s(jobs),
        faults=dict(Counter(event.text.partition(" ")[0] for event in journal if event.what == "fault")),
        exits=sum(event.what == "exited" for event in journal),
    )


def _begun_again_s(cut: Event, seen: dict[str, list[Event]]) -> float | None:
    return next((began.at - cut.at for began in seen["began"] if began.at >= cut.at), None)


def _is_founded(seen: dict[str, list[Event]]) -> bool:
    """Return False if an answer names a run that had not ended by then."""
    ended = {event.run: event.at for event in seen["ended"]}
    return all(not told.run or (told.run in ended and ended[told.run] <= told.at) for told in seen["told"])


def _rest_s(jobs: Sequence[dict[str, list[Event]]]) -> float:
    accepted = max((seen["accepted"][0].at for seen in jobs), default=0.0)
    return max((seen["told"][0].at for seen in jobs), default=0.0) - accepted


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(*(round(value, 2) for value in (percentile(values, 0.5), percentile(values, 0.99), max(values))))


def write(path: Path, events: Iterable[Event]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def read(path: Path) -> list[Event]:
    return [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]
