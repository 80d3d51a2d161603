from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.bench.deaths.faults import CUT_S, FREEZE_S, KINDS, planned
from tests.bench.deaths.judge import Event, Verdict, judged
from tests.bench.deaths.page import Report, Tried, deaths_table
from tests.bench.deaths.trial import RATE, Trial
from tests.bench.results import Load
from tests.unit.bench.test_judgement import MACHINE

# One job that went well, and one whose run was cut off 2 s after it was accepted and began again 15 s later
HONEST = [
    Event(at=0, what="accepted", job="job-0"),
    Event(at=0.1, what="began", job="job-0", run="run-0", text="0"),
    Event(at=1, what="accepted", job="job-1"),
    Event(at=1.1, what="ended", job="job-0", run="run-0", text="0"),
    Event(at=1.1, what="began", job="job-1", run="run-1", text="1"),
    Event(at=1.5, what="told", job="job-0", run="run-0"),
    Event(at=3, what="fault", text="kill worker-1"),
    Event(at=3, what="cut off", job="job-1", run="run-1", text="1"),
    Event(at=3, what="exited", text="worker-1 -9"),
    Event(at=18, what="began", job="job-1", run="run-2", text="0"),
    Event(at=19, what="ended", job="job-1", run="run-2", text="0"),
    Event(at=19.5, what="told", job="job-1", run="run-2"),
]
BAD = ("lost", "late", "told_failed", "changed", "unfounded", "ended_twice", "not_begun_again")


def without(what: str, run: str) -> list[Event]:
    return [event for event in HONEST if (event.what, event.run) != (what, run)]


def bad_of(verdict: Verdict) -> dict[str, int]:
    return {name: count for name in BAD if (count := getattr(verdict, name))}


def test_an_honest_journal_has_no_fault_of_the_queue() -> None:
    verdict = judged(HONEST)
    assert bad_of(verdict) == {}
    assert (verdict.accepted, verdict.refused, verdict.begun_twice, verdict.cut_off, verdict.exits) == (2, 0, 1, 1, 1)
    assert verdict.begun_again_s is not None
    assert verdict.begun_again_s.longest == 15
    assert verdict.answered_s is not None
    assert (verdict.answered_s.p50, verdict.answered_s.longest) == (1.5, 18.5)
    assert verdict.rest_s == 18.5
    assert verdict.faults == {"kill": 1}


SABOTAGED: dict[str, tuple[list[Event], dict[str, int]]] = {
    "an answer is missing": (without("told", "run-2"), {"lost": 1}),
    "an answer is missing, and the queue has the job": (
        [*without("told", "run-2"), Event(at=20, what="held", job="job-1")],
        {"late": 1},
    ),
    "a job never began again": (
        [event for event in HONEST if event.run != "run-2"],
        {"lost": 1, "not_begun_again": 1},
    ),
    "an answer names a run that did not end": (without("ended", "run-2"), {"unfounded": 1, "not_begun_again": 0}),
    "an answer names a run of another job": (
        [*without("told", "run-2"), Event(at=19.5, what="told", job="job-1", run="run-0")],
        {"unfounded": 1},
    ),
    "an answer came before the end of its run": (
        [*without("told", "run-2"), Event(at=18.5, what="told", job="job-1", run="run-2")],
        {"unfounded": 1},
    ),
    "a late worker replaced the answer": (
        [
            *HONEST,
            Event(at=20, what="began", job="job-0", run="run-3"),
            Event(at=21, what="ended", job="job-0", run="run-3"),
            Event(at=22, what="told", job="job-0", run="run-3"),
        ],
        {"changed": 1, "ended_twice": 1},
    ),
    "a job ran to its end twice, and its answer stayed": (
        [*HONEST, Event(at=20, what="ended", job="job-0", run="run-3")],
        {"ended_twice": 1},
    ),
    "a caller was told of a failure": (
        [*without("told", "run-2"), Event(at=19.5, what="told", job="job-1", text="stalled")],
        {"told_failed": 1},
    ),
}


@pytest.mark.parametrize("what", SABOTAGED)
def test_each_sabotaged_journal_is_caught(what: str) -> None:
    journal, expected = SABOTAGED[what]
    assert bad_of(judged(journal)) == {name: count for name, count in expected.items() if count}


def test_a_job_that_was_refused_is_not_counted_as_lost() -> None:
    refused = Event(at=2, what="refused", job="job-2", text="503")
    began = Event(at=2.1, what="began", job="job-2", run="run-9")
    probes = [Event(at=2, what=what, job="probe-1") for what in ("accepted", "refused")]
    verdict = judged([*HONEST, refused, began, *probes])
    assert (verdict.accepted, verdict.refused, verdict.lost) == (2, 1, 0)


def test_a_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert planned(1) == planned(1)
    assert planned(1) != planned(2)
    for seed in range(20):
        faults = planned(seed)
        assert sorted(fault.kind for fault in faults) == sorted([*KINDS, "freeze"])
        assert faults[-1].kind == "freeze"
        assert all(later.at_s - sooner.at_s > CUT_S for sooner, later in pairwise(faults))
        assert all(later.worker != sooner.worker for sooner, later in pairwise(faults))
        trial = Trial()
        assert faults[-1].at_s < trial.jobs / RATE, "jobs come while the worker is frozen"
        assert faults[-1].at_s + FREEZE_S < trial.limit_s - 20, "what it held can run again before the trial ends"


def test_the_page_shows_what_each_queue_lost_with_its_settings() -> None:
    quiet, busy = Load(average=0.1, busy=0), Load(average=9, busy=1.5)
    report = Report(trial=Trial(kinds=("kill",)), at="2026-01-01", commit="abc", machine=MACHINE, load=(quiet, quiet))
    assert "**Not measured yet:**" in deaths_table(None)
    sides: list[tuple[str, Callable[[], list[Event]]]] = [
        ("ours", lambda: [*HONEST, Event(at=20, what="fault", text="freeze worker-0")]),
        ("other", lambda: without("told", "run-2")),
    ]
    for name, journal in sides:
        verdict = judged(journal())
        report.sides.append(Tried(name=name, versions=f"{name} 1", settings="as shipped", pages=(), verdict=verdict))
    shown = deaths_table(report)
    assert "|  | ours | other |" in shown
    assert "the queue does not have it** | 0 | 1 |" in shown
    assert "| last job accepted until all are answered | 18.5 s | not within 145 s |" in shown
    assert "- **not all of these under other**" in shown
    assert "not all of these under ours" not in shown
    assert "- other (other 1): as shipped." in shown
    assert "busy with something else" not in shown
    assert "busy with something else" in deaths_table(replace(report, load=(quiet, busy)))
