"""Make the tables of docs/reference/internals/measurements.md: the last campaign that was kept, the figures of every
bench, and what is missing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from director.lab.chaos.campaign import FAILED_OVER, TOTALS, CampaignReport, Recovered, runs
from director.lab.chaos.plan import SENTINEL, SINGLE, ServerKind
from director.lab.prove.explore import Explored
from director.lab.prove.worlds import WORLDS
from tests.bench.machine import commit, machine, now
from tests.bench.results import OURS, Machine, Measured, Result
from tests.bench.tables import about, lined
from tests.integration.lab.prove.mutants import Hunted

KEPT: Final = Path(__file__).parent
COMMAND: Final = "director chaos campaign{kind} --seeds {seeds} --predictions {predictions} --leases {leases} --out DIR"
LARGE: Final = 100  # digits behind the point say nothing then


class Bench(Struct, frozen=True):
    """A bench of the page. `why` is the reason for a missing figure."""

    name: str
    title: str
    command: str = ""
    why: str = "no result was kept"
    picture: str = ""

    @property
    def line(self) -> str:
        return self.command or f'make bench ARGS="--only {self.name}"'


PAGE: Final = (
    Bench("latency", "One request"),
    Bench("e2e", "Requests that wait for their prediction"),
    Bench("accept", "Requests that do not wait"),
    Bench("drain", "Waiting work, beside other queues"),
    Bench("batches", "Commands of a prediction"),
    Bench("streaming", "Tokens to a reader"),
    Bench("first_token", "The first token of a call of OpenAI's API"),
    Bench("gateway", "Calls and streams of OpenAI's API, as gateways are compared"),
    Bench("slots", "A slot between two runs"),
    Bench("memory", "Bytes and memory"),
    Bench("recovery", "A killed director"),
    Bench("depth", "100,000 waiting"),
    Bench("fairness", "What accounts cost each other"),
    Bench("idle", "Without requests"),
    Bench("limits", "The limits of the machine"),
    Bench("scale", "More directors, API processes, models, Cluster masters", picture="scale.svg"),
    Bench("crowds", "10,000 held responses, 10,000 readers"),
    Bench("queues", "10,000 queues"),
    Bench("heartbeats", "1,000 directors"),
    Bench("million", "1,000,000 waiting"),
    Bench("soak", "Half of the load, with restarts", "make soak", picture="soak.svg"),
)
# A reader may look for these. The reason says why they are not here
MISSING: Final[Mapping[str, str]] = {
    "the memory of the API over days": "by the rule of the hour above it grows. The rule takes the slope within a life,"
    " and the API is started again every ten minutes there: each life took 3 MB in its first five minutes and at most"
    " 0.6 MB in the next five, and those that saw a restart of Redis ended at 66.5, 66.1, 66.1, 66.5 and 66.5 MB. In"
    " two trials of four minutes with 160 restarts of Redis and none of the API it rose from 66 MB to 69 and 70 MB, in"
    " the last 60 restarts by less than 1 MB",
    "a long campaign on Sentinel and on a Cluster": "two seeds of each ran, for little more than a minute each",
    "throughput with more than two cores": "the machine has two. [The curves beyond](curves.md) are"
    " estimates from processor time",
    "disks, networks and machines that fail together": "all parts run on one machine. A power cut is played: the log is"
    " cut at its last sync",
    "a GPU": "the model servers are scripted, so that all time is Director's own",
}


def keep_campaign(report: Path) -> None:
    """Let this report be the one of its kind of Redis."""
    found = msgspec.json.decode(report.read_bytes(), type=CampaignReport)
    _kept(found.campaign.kind).write_bytes(msgspec.json.encode(found) + b"\n")


def read_campaign(kind: ServerKind) -> CampaignReport | None:
    path = _kept(kind)
    return msgspec.json.decode(path.read_bytes(), type=CampaignReport) if path.exists() else None


def _kept(kind: ServerKind) -> Path:
    return KEPT / f"campaign-{kind}.json"


class Proof(Struct, frozen=True):
    """The worlds that `make prove` explored, and the mutants that it found."""

    at: str
    commit: str
    machine: Machine
    worlds: list[Explored]
    mutants: list[Hunted]


def keep_proof(folder: Path) -> None:
    """Let the reports that `make prove` wrote into this folder be those of the page."""
    found = {name: (folder / f"{name}.json").read_bytes() for name in ("prove", "mutants")}
    worlds = msgspec.json.decode(found["prove"], type=list[Explored])
    mutants = msgspec.json.decode(found["mutants"], type=list[Hunted])
    kept = Proof(now(), commit(), machine(""), worlds, mutants)
    (KEPT / "prove.json").write_bytes(msgspec.json.encode(kept) + b"\n")


def read_proof() -> Proof:
    return msgspec.json.decode((KEPT / "prove.json").read_bytes(), type=Proof)


def proof_tables(proof: Proof) -> str:
    rows = [
        (
            each.world,
            WORLDS[each.world].about,
            f"{each.states:,}",
            f"{each.transitions:,}",
            str(each.depth),
            _extent(each),
        )
        for each in proof.worlds
        if each.world in WORLDS
    ]
    states, transitions = (sum(getattr(each, name) for each in proof.worlds) for name in ("states", "transitions"))
    rows.append(("all", "", f"{states:,}", f"{transitions:,}", "", ""))
    found = [each for each in proof.mutants if each.calls]
    named = [each for each in proof.mutants if each.why]
    longest = max((len(each.calls) for each in found), default=0)
    return "\n".join(
        [
            *lined(("world", "what may happen", "states", "transitions", "depth", "explored"), rows),
            "",
            f"{proof.at[:10]}, commit {proof.commit}, {proof.machine.cores} × {proof.machine.cpu}.",
            "",
            f"Of {len(proof.mutants)} mutants {len(found)} were found, each after at most {longest} calls."
            + "".join(f" Not found: {each.mutant}, because {each.why}." for each in named),
        ]
    )


def _extent(each: Explored) -> str:
    if each.breach is not None:
        return f"**breach:** {each.breach.what}"
    return f"whole, {each.seconds:.0f} s" if each.is_whole else f"to this depth, {each.seconds:.0f} s"


def campaign_tables(report: CampaignReport | None, kind: ServerKind = SINGLE) -> str:
    if report is None:
        command = f"director chaos campaign{_option(kind)} --out DIR"
        return f"**Not measured yet:** no campaign was kept. Its command is `{command}`."
    wanted, machine, totals = report.campaign, report.machine, report.totals
    command = COMMAND.format(
        kind=_option(wanted.kind),
        seeds=len(wanted.seeds),
        predictions=wanted.predictions,
        leases=",".join(f"{each:g}" for each in wanted.leases),
    )
    rows = {
        "seeds": f"{len(wanted.seeds)}, in {runs(report)}",
        "faults": f"{sum(report.faults.values()):,}",
        **{what: f"{totals[name]:,}" for name, what in TOTALS.items() if name in totals},
        **({what: f"{totals[name]:,}" for name, what in FAILED_OVER.items()} if wanted.kind == SENTINEL else {}),
        "promises broken": ", ".join(f"{name} × {count}" for name, count in report.breaches.items()) or "0",
        **{f"recovery, lease {each.lease_s:g} s": _recovery(each) for each in report.recoveries},
    }
    facts = [f"{report.at[:10]}", f"commit {machine.commit}", f"{machine.cores} × {machine.cpu}"] if machine else []
    facts += [machine.server.partition(" sha")[0], f"python {machine.python}"] if machine else []
    kinds = ", ".join(f"{name.replace('_', ' ')} × {count}" for name, count in report.faults.items())
    return "\n".join(
        [
            f"    {command}",
            "",
            *lined(("", "found"), list(rows.items())),
            "",
            f"{', '.join(facts)}.",
            "",
            f"Faults: {kinds}.",
            *([] if report.ok else ["", f"**The campaign did not pass:** {'; '.join(report.lacks)}."]),
            *(["", f"{'; '.join(report.left_out)}."] if report.left_out else []),
        ]
    )


def _option(kind: ServerKind) -> str:
    return "" if kind == SINGLE else f" --kind {kind}"


def _recovery(each: Recovered) -> str:
    shown = ("–" if ms is None else f"{ms / 1000:.2f} s" for ms in (each.p50_ms, each.p99_ms, each.slowest_ms))
    return "{:,} recoveries: p50 {}, p99 {}, slowest {}; promised {:g} s".format(
        each.count, *shown, each.most_ms / 1000
    )


def figures_tables(results: Mapping[str, Result]) -> str:
    parts = []
    for bench in PAGE:
        result = results.get(bench.name)
        if result is not None:
            rows = [row for figure in result.figures for row in _rows(figure)]
            parts += [
                f"### {bench.title}",
                "",
                f"{result.what[0].upper()}{result.what[1:]}.",
                "",
                f"    {bench.line}",
                "",
            ]
            if bench.picture:
                parts += [f"![{bench.title}](../../assets/{bench.picture})", ""]
            parts += [*lined(("", "side", "median", "from round to round", "ours is"), rows), "", about(result), ""]
    return "\n".join(parts).rstrip()


def missing_table(results: Mapping[str, Result]) -> str:
    rows = [(f"{bench.title} (`{bench.line}`)", bench.why) for bench in PAGE if bench.name not in results]
    return "\n".join(lined(("not measured", "because"), [*rows, *MISSING.items()]))


def _rows(figure: Measured) -> list[Sequence[str]]:
    name = f"{figure.name}{f', {figure.unit}' if figure.unit else ''}"
    found: list[Sequence[str]] = []
    for side, values in figure.rounds.items():
        beside = f"{figure.beside(side)} ×" if side in figure.references and OURS in figure.rounds else ""
        found.append((name, side, _shown(figure.median(side)), f"{_shown(min(values))}–{_shown(max(values))}", beside))
        name = ""
    return found


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.3g}"
