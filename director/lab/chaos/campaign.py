"""Run several seeds, one after the other, and report on all of them. A campaign is a folder:

- `campaign.json`: its seeds, leases and number of predictions, written before the first run
- `runs/01` and so on: one run each, with its outcome, its journals, and its logs unless it kept every promise
- `report.json`: made again after each run, from the outcomes alone
- `run`: the home of the run in progress, which is removed once its journals are packed

A campaign that was interrupted goes on with the seeds that have no outcome. An interrupted run stays in the report.
"""

import fcntl
import gzip
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director import __version__
from director.lab.chaos.checker import Report, check, in_s, name_counts
from director.lab.chaos.evidence import Rules
from director.lab.chaos.journal import PACKED
from director.lab.chaos.plan import CLUSTER, MOVE_SLOT, SENTINEL, SINGLE, ServerKind
from director.lab.chaos.recovery import percentile
from director.lab.chaos.run import chaos
from director.lab.chaos.scene import Options
from director.lab.chaos.servers import MEMBERS
from director.local.launcher.processes import UpError
from director.local.server import find_binary

PLAN: Final = "campaign.json"
RUNS: Final = "runs"
RUN: Final = "run"
OUTCOME: Final = "outcome.json"
JOURNALS: Final = "journals"
LOGS: Final = "logs"
LEAST_S: Final = 60.0  # of a run, however quick the machine is
GB: Final = 1 << 30
RUN_GB: Final = 4.0  # what a run takes while it runs, most of it the log of its server: 250 MB a minute
MUST_BE_0: Final = (
    *("lost", "double", "stale", "webhooks_missing"),
    *("silent_streams", "leaked_slots", "batch_faults", "miscounted"),
)
# Counts of a run's report that are added up
SUMMED: Final = ("sent", "acked", "terminal", *MUST_BE_0, "duplicate_runs")
LOST: Final = ("failovers", "unmade", "lost_in_failovers")
SEEN: Final = ("followed", "resumed", "shared", "seen", "cancels_timed", "first_claims")


TOTALS: Final = {
    "acked": "predictions accepted",
    "terminal": "of them ended",
    "lost": "lost",
    "double": "ended twice",
    "stale": "written by a holder whose claim was lost",
    "webhooks_missing": "webhooks missed",
    "silent_streams": "streams that were silent, or ended without a word",
    "leaked_slots": "model servers that lost a slot",
    "batch_faults": "faults of batches: lines lost, written twice or wrong, or a batch that is stuck",
    "miscounted": "accounts and models whose runs or tokens were miscounted",
    "duplicate_runs": "runs that had to be done again",
    "followed": "followed by a reader of its events",
    "shared": "looked at by several clients at once",
    "seen": "answers that those clients saw",
}
FAILED_OVER: Final = {
    "failovers": "failovers",
    "unmade": "predictions whose last changes a failover lost",
    "lost_in_failovers": "of them lost whole",
}


class Campaign(Struct, frozen=True, kw_only=True):
    """`predictions` are those of all runs together. Runs have these leases in turn."""

    seeds: tuple[int, ...]
    predictions: int
    leases: tuple[float, ...]
    kind: ServerKind = SINGLE

    @property
    def runs(self) -> list[tuple[int, float]]:
        return list(zip(self.seeds, cycle(self.leases), strict=False))

    @property
    def each(self) -> int:
        return -(-self.predictions // len(self.seeds))


class Machine(Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    kernel: str
    python: str
    server: str
    version: str
    commit: str


class Outcome(Struct, frozen=True, kw_only=True):
    """A run. It counts as interrupted until it has another end; `why` says what broke it off."""

    number: int
    seed: int
    lease_s: float
    began: str
    machine: Machine
    ended: str = ""
    what: Literal["judged", "broke off", "interrupted"] = "interrupted"
    why: str = ""
    report: Report | None = None


class Recovered(Struct, frozen=True, kw_only=True):
    """Recoveries of all runs with one lease. `most_ms` is promised."""

    lease_s: float
    count: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    slowest_ms: int | None
    most_ms: int


class CampaignReport(Struct, frozen=True, kw_only=True):
    """`lacks` says why it is not ok. It is over once each seed has an end that is not an interruption. `totals` are
    sums over all runs that were judged.
    """

    ok: bool
    is_over: bool
    lacks: list[str]
    campaign: Campaign
    at: str
    machine: Machine | None
    totals: dict[str, int]
    faults: dict[str, int]
    left_out: list[str]
    recoveries: list[Recovered]
    breaches: dict[str, int]
    failed_over: dict[str, int] = {}  # the breaches that failovers explain: they are not in `breaches`
    outcomes: list[Outcome]


def campaign(
    wanted: Campaign, out: Path, *, disk_gb: float, faketime: str, say: Callable[[str], None]
) -> Iterator[CampaignReport]:
    """Yield a report after each run. Raises UpError if the campaign cannot go on now, KeyboardInterrupt on a signal."""
    with _lock(out, wanted):
        if (out / RUN).exists():
            _pack(out / RUN, out / RUNS / f"{len(outcomes(out)):02}")
        ended = {each.seed for each in outcomes(out) if each.what != "interrupted"}
        yield report_on(wanted, outcomes(out))
        for seed, lease_s in wanted.runs:
            if seed in ended:
                continue
            # a replica's log is as long as its master's
            _require_room(out, disk_gb, needed_gb=RUN_GB * (len(MEMBERS) if wanted.kind == SENTINEL else 1))
            options = Options(
                seed=seed,
                seconds=LEAST_S,
                lease_s=lease_s,
                predictions=wanted.each,
                home=out / RUN,
                faketime=faketime,
                kind=wanted.kind,
            )
            _carry_out(options, out / RUNS, len(outcomes(out)) + 1, say)
            yield report_on(wanted, outcomes(out))


def outcomes(out: Path) -> list[Outcome]:
    paths = sorted((out / RUNS).glob(f"*/{OUTCOME}"))
    return [msgspec.json.decode(path.read_bytes(), type=Outcome) for path in paths]


def report_on(wanted: Campaign, runs: Sequence[Outcome]) -> CampaignReport:
    reports = [each.report for each in runs if each.report is not None]
    totals = {name: sum(getattr(each, name) for each in reports) for name in (*SUMMED, *SEEN, *LOST)}
    judged = {each.seed for each in runs if each.what == "judged"}
    lacks = [f"seed {each.seed} broke off: {each.why}" for each in runs if each.what == "broke off"]
    lacks += [f"seed {each.seed} broke {', '.join(each.breaches)}" for each in reports if not each.ok]
    lacks += [
        f"run {each.number} was of seed {each.seed}, lease {each.lease_s:g} s, and its journals are of seed"
        f" {each.report.seed}, lease {each.report.lease:g} s"
        for each in runs
        if each.report is not None and (each.report.seed, each.report.lease) != (each.seed, each.lease_s)
    ]
    builds = {f"{each.machine.version} {each.machine.commit}".rstrip() for each in runs if each.what == "judged"}
    if len(builds) > 1:
        lacks.append(f"runs of several builds: {', '.join(sorted(builds))}")
    if left := [f"{seed}" for seed in wanted.seeds if seed not in judged]:
        lacks.append(f"not judged: {', '.join(left)}")
    if totals["acked"] < wanted.predictions:
        lacks.append(f"{totals['acked']:,} predictions of {wanted.predictions:,}")
    faults = sum((Counter(each.faults) for each in reports), Counter[str]())
    if wanted.kind == SENTINEL and not totals["failovers"]:
        lacks.append("no failover")
    if wanted.kind == CLUSTER and not faults[MOVE_SLOT]:
        lacks.append("no slot moved")
    return CampaignReport(
        ok=not lacks,
        is_over={each.seed for each in runs if each.what != "interrupted"} >= set(wanted.seeds),
        lacks=lacks,
        campaign=wanted,
        at=max((each.ended for each in runs), default=""),
        machine=runs[-1].machine if runs else None,
        totals=totals,
        faults=dict(sorted(faults.items())),
        left_out=sorted({each.left_out for each in reports} - {""}),
        recoveries=[_judge_recovery(lease_s, reports) for lease_s in sorted(set(wanted.leases))],
        breaches=dict(+sum((Counter(each.counts) for each in reports), Counter[str]())),
        failed_over=dict(sorted(sum((Counter(each.failed_over) for each in reports), Counter[str]()).items())),
        outcomes=list(runs),
    )


def _judge_recovery(lease_s: float, reports: Sequence[Report]) -> Recovered:
    times = sorted(ms for each in reports if each.lease == lease_s for ms in each.recovery_ms)
    most_ms = round(Rules(lease_s=lease_s).recovery_s * 1000)
    return Recovered(
        lease_s=lease_s,
        count=len(times),
        p50_ms=percentile(times, 0.5),
        p90_ms=percentile(times, 0.9),
        p99_ms=percentile(times, 0.99),
        slowest_ms=max(times, default=None),
        most_ms=most_ms,
    )


def check_again(out: Path, say: Callable[[str], None]) -> CampaignReport:
    """Judge the journals of a campaign again. What its runs reported is only compared with that: a difference fails."""
    if not (out / PLAN).exists():
        raise UpError(f"There is no campaign in {out}: {PLAN} is missing.")
    again, differ = [], []
    for each in outcomes(out):
        if each.what == "judged":
            report = check(out / RUNS / f"{each.number:02}" / JOURNALS)
            found = f"broke {', '.join(report.breaches)}" if report.breaches else "kept every promise"
            same = "as the run said" if report == each.report else "THE RUN SAID SOMETHING ELSE"
            if report != each.report:
                differ.append(f"run {each.number} reported something else than its journals show")
            say(f"run {each.number}, seed {each.seed}: {found}, {same}")
            each = replace(each, report=report)
        again.append(each)
    judged = report_on(msgspec.json.decode((out / PLAN).read_bytes(), type=Campaign), again)
    return replace(judged, ok=judged.ok and not differ, lacks=[*judged.lacks, *differ])


@contextmanager
def _lock(out: Path, wanted: Campaign) -> Generator[None]:
    """Write down what is wanted, once, and keep other campaigns out of this folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / PLAN
    if not path.exists():
        write(path, wanted)
    if msgspec.json.decode(path.read_bytes(), type=Campaign) != wanted:
        raise UpError(f"{path} has other seeds, leases or predictions. Give the same again, or another --out.")
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise UpError(f"Another campaign runs in {out}. Wait for its end, or choose another --out.") from exc
        yield


def _require_room(out: Path, disk_gb: float, *, needed_gb: float) -> None:
    used = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / GB
    free = shutil.disk_usage(out).free / GB
    if used + needed_gb > disk_gb or free < needed_gb:
        raise UpError(
            f"A run may take {needed_gb:g} GB. {out} has {used:.1f} of {disk_gb:g} GB (--disk), and its disk has "
            f"{free:.1f} GB free. Make room, and give the same command again."
        )


def _carry_out(options: Options, runs: Path, number: int, say: Callable[[str], None]) -> None:
    folder = runs / f"{number:02}"
    folder.mkdir(parents=True, exist_ok=True)  # a campaign that was killed may have left it empty
    outcome = Outcome(number=number, seed=options.seed, lease_s=options.lease_s, began=_now(), machine=machine())
    write(folder / OUTCOME, outcome)
    try:
        outcome = replace(outcome, what="judged", report=chaos(replace(options, kept_in=folder), say))
    except Exception as exc:  # noqa: BLE001 - whatever broke a run off is its outcome, and the next one can be made
        outcome = replace(outcome, what="broke off", why=str(exc) or repr(exc))
        say(f"seed {options.seed} broke off: {outcome.why}")
    finally:
        write(folder / OUTCOME, replace(outcome, ended=_now()))
        if options.home is not None and options.home.exists():
            _pack(options.home, folder)


def _pack(home: Path, folder: Path) -> None:
    """Keep what judges need of a run, compressed, and remove the rest. It may be repeated."""
    outcome = msgspec.json.decode((folder / OUTCOME).read_bytes(), type=Outcome)
    is_kept = outcome.report is not None and outcome.report.ok
    for name in (JOURNALS,) if is_kept else (JOURNALS, LOGS):
        (folder / name).mkdir(exist_ok=True)
        for path in sorted((home / name).glob("*")):
            if path.suffix == ".json":
                shutil.copy(path, folder / name)
                continue
            with path.open("rb") as whole, gzip.open(folder / name / f"{path.name}{PACKED}", "wb", 6) as packed:
                shutil.copyfileobj(whole, packed)
    shutil.rmtree(home)


def machine() -> Machine:
    return Machine(
        cpu=_ask_program("sh", "-c", "sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1") or platform.processor(),
        cores=os.cpu_count() or 1,
        kernel=platform.release(),
        python=platform.python_version(),
        server=_ask_program(str(find_binary()), "--version"),
        version=__version__,
        commit=_ask_program(
            "git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*"
        ),
    )


def _ask_program(*command: str) -> str:
    """Return what a program prints, or '' where it cannot."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def write(path: Path, content: Any) -> None:
    """Replace a file in one step, so that a reader never sees half of it."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    draft.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def keep(report: CampaignReport, out: Path) -> None:
    write(out / "report.json", report)


def text(report: CampaignReport) -> str:
    totals = report.totals
    counts = "  ".join(f"{name.replace('_', ' ')} {totals[name]:,}" for name in ("acked", "terminal", *MUST_BE_0))
    lines = [
        f"{runs(report)}, {sum(report.faults.values()):,} faults of {len(report.faults)} kinds",
        counts,
        *(
            f"lease {each.lease_s:g} s: {each.count} recoveries, p50 {in_s(each.p50_ms)}, p99 {in_s(each.p99_ms)},"
            f" slowest {in_s(each.slowest_ms)}; at most {in_s(each.most_ms)} is promised"
            for each in report.recoveries
        ),
        *_show_failovers(report),
        *report.left_out,
        _verdict(report),
        *(f"  {why}" for why in report.lacks),
        *(
            f"  run {each.number}, {name}: {breach.id or '(the run)'}: {breach.what}"
            for each in report.outcomes
            for name, breaches in (each.report.breaches.items() if each.report else ())
            for breach in breaches
        ),
    ]
    return "\n".join(lines)


def _show_failovers(report: CampaignReport) -> list[str]:
    if report.campaign.kind != SENTINEL:
        return []
    counts = "  ".join(f"{name.replace('_', ' ')} {report.totals[name]:,}" for name in FAILED_OVER)
    return [f"{counts}  this explains {name_counts(report.failed_over)}"]


def runs(report: CampaignReport) -> str:
    interrupted = sum(each.what == "interrupted" for each in report.outcomes)
    return f"{len(report.outcomes)} runs{f', {interrupted} of them interrupted and not judged' if interrupted else ''}"


def _verdict(report: CampaignReport) -> str:
    if report.ok:
        return "No accepted prediction was lost, and every promise held."
    is_broken = report.breaches or any(each.what == "broke off" for each in report.outcomes)
    return "The campaign did not pass." if report.is_over or is_broken else "The campaign is not over."
