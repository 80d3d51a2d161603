"""Show the report of a campaign: as one page that loads nothing from elsewhere, and as a few lines for a terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from director.lab.chaos.campaign import BINS, CampaignReport, Outcome, Recovered, write
from director.lab.chaos.checker import JUDGED, Breach, in_s, named
from director.lab.chaos.plan import SENTINEL

STYLE: Final = """
:root { color-scheme: light dark; --line: #8885; --bar: #4a6fd0; --bad: #c62828; --good: #2e7d32; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; } td, th { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; display: block; overflow-x: auto; } td.n, th.n { text-align: right; }
td.n { font-variant-numeric: tabular-nums; } .bad { color: var(--bad); } .good { color: var(--good); }
.verdict { font-size: 1.3rem; font-weight: 600; } .bar { background: var(--bar); height: .8em; min-width: 1px; }
pre { overflow-x: auto; background: #8881; padding: .7rem; font-size: 13px; } svg text { fill: currentColor; }
@media (prefers-color-scheme: dark) { :root { --bar: #8aa6f0; --bad: #ff8a80; --good: #81c784; } }
"""
TOTALS: Final = {
    "acked": "predictions accepted",
    "terminal": "of them ended",
    "lost": "lost",
    "double": "ended twice",
    "stale": "written by a holder whose claim was lost",
    "webhooks_missing": "webhooks missed",
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
TAG: Final = re.compile(r"<[^>]*>")
MUST_BE_0: Final = ("lost", "double", "stale", "webhooks_missing")
WIDE: Final = 720
HIGH: Final = 160
LEFT: Final = 40


def keep(report: CampaignReport, out: Path) -> None:
    write(out / "report.json", report)
    (out / "report.html").write_text(page(report), encoding="utf-8")


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
        *_failed_over(report),
        *report.left_out,
        _verdict(report),
        *(f"  {why}" for why in report.lacks),
    ]
    return "\n".join(lines)


def _failed_over(report: CampaignReport) -> list[str]:
    if report.campaign.kind != SENTINEL:
        return []
    counts = "  ".join(f"{name.replace('_', ' ')} {report.totals[name]:,}" for name in FAILED_OVER)
    return [f"{counts}  this explains {named(report.failed_over)}"]


def runs(report: CampaignReport) -> str:
    interrupted = sum(each.what == "interrupted" for each in report.outcomes)
    return f"{len(report.outcomes)} runs{f', {interrupted} of them interrupted and not judged' if interrupted else ''}"


def page(report: CampaignReport) -> str:
    parts = [
        f'<p class="verdict {"good" if report.ok else "bad"}">{escape(_verdict(report))}</p>',
        _list(report.lacks),
        f"<p>{escape(_about(report))}</p>",
        "<h2>In all runs</h2>",
        _table(("", "number"), _totals(report)),
        f"<p>Failovers explain these breaches: {named(report.failed_over)}.</p>" if report.failed_over else "",
        f"<h2>Faults</h2><p>{sum(report.faults.values()):,} faults of {len(report.faults)} kinds.</p>",
        _list(report.left_out),
        _bars(report.faults),
        "<h2>Recoveries</h2><p>From the death of a holder to the next start of its prediction. Time in which it could"
        " not start, because the queue had no free slot, is left out.</p>",
        _table(("lease", "recoveries", "p50", "p90", "p99", "slowest", "promised"), map(_recovered, report.recoveries)),
        *(_histogram(each) for each in report.recoveries if each.count),
        "<h2>Beside bad neighbours</h2><p>The 90th percentiles of a bystander, alone and beside neighbours that take"
        " all they can, and how long each may take.</p>",
        _table(("seed", "request", "alone", "beside", "bound"), _neighbours(report.outcomes)),
        "<h2>Runs</h2>",
        _table(
            ("run", "seed", "lease", "began", "faults for", "accepted", "faults", "recoveries", "outcome"),
            map(_row, report.outcomes),
        ),
        "<h2>Promises</h2>",
        _table(("", "promise", "breaches"), _promises(report)),
        *_evidence(report.outcomes),
        "<h2>Check it yourself</h2><p>The checker reads the journals in <code>runs/</code> and nothing else:</p>"
        "<pre>director chaos check DIR</pre><p>The same seed, lease and length give the same faults at the same"
        f" times:</p><pre>director chaos --kind {report.campaign.kind} --seed N --lease S --seconds S</pre>",
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Chaos campaign</title><style>{STYLE}</style><h1>Chaos campaign</h1>{''.join(parts)}</html>\n"
    )


def _verdict(report: CampaignReport) -> str:
    if report.ok:
        return "No accepted prediction was lost, and every promise held."
    is_broken = report.breaches or any(each.what == "broke off" for each in report.outcomes)
    return "The campaign did not pass." if report.is_over or is_broken else "The campaign is not over."


def _about(report: CampaignReport) -> str:
    wanted, machine = report.campaign, report.machine
    leases = " and ".join(f"{each:g}" for each in wanted.leases)
    asked = (
        f"Asked for: {wanted.predictions:,} predictions, servers of the kind {wanted.kind},"
        f" seeds {', '.join(map(str, wanted.seeds))}, leases {leases} s."
    )
    if machine is None:
        return asked
    where = f"{machine.cores} × {machine.cpu}, Linux {machine.kernel}, Python {machine.python}, {machine.server}"
    what = f"Director {machine.version}, commit {machine.commit or 'unknown'}"
    return f"{asked} {what}. {where}. Last run: {_minute(report.at)}."


def _totals(report: CampaignReport) -> Iterable[Sequence[str]]:
    for name, what in TOTALS.items():
        number = f"{report.totals[name]:,}"
        yield what, _judged(number, is_good=not report.totals[name]) if name in MUST_BE_0 else number
    if report.campaign.kind == SENTINEL:
        yield from ((what, f"{report.totals[name]:,}") for name, what in FAILED_OVER.items())


def _recovered(each: Recovered) -> Sequence[str]:
    slowest = _judged(in_s(each.slowest_ms), is_good=(each.slowest_ms or 0) <= each.most_ms)
    times = map(in_s, (each.p50_ms, each.p90_ms, each.p99_ms))
    return f"{each.lease_s:g} s", f"{each.count:,}", *times, slowest, in_s(each.most_ms)


def _promises(report: CampaignReport) -> Iterable[Sequence[str]]:
    for name, (sentence, _) in JUDGED.items():
        count = _judged(f"{report.breaches.get(name, 0)}", is_good=name not in report.breaches)
        yield name, escape(sentence), count


def _row(each: Outcome) -> Sequence[str]:
    if each.report is None:
        outcome = _judged(each.what, is_good=False)
        return (f"{each.number}", f"{each.seed}", f"{each.lease_s:g} s", _minute(each.began), *[""] * 4, outcome)
    broken = ", ".join(name for name, count in each.report.counts.items() if count)
    return (
        f"{each.number}",
        f"{each.seed}",
        f"{each.lease_s:g} s",
        _minute(each.began),
        f"{each.report.seconds:,.0f} s",
        f"{each.report.acked:,}",
        f"{sum(each.report.faults.values()):,}",
        f"{each.report.recoveries:,}",
        _judged(f"broke {broken}" if broken else "kept every promise", is_good=not broken),
    )


def _neighbours(outcomes: Sequence[Outcome]) -> Iterable[Sequence[str]]:
    for outcome in outcomes:
        for kind, each in outcome.report.bystander.items() if outcome.report else ():
            beside = _judged(in_s(each.beside_ms), is_good=each.beside_ms <= each.most_ms)
            yield f"{outcome.seed}", kind, in_s(each.alone_ms), beside, in_s(each.most_ms)


def _evidence(outcomes: Sequence[Outcome]) -> Iterable[str]:
    broken = [each for each in outcomes if each.why or (each.report and not each.report.ok)]
    if broken:
        yield "<h2>Breaches and their evidence</h2>"
    for each in broken:
        yield f"<h3>Run {each.number}, seed {each.seed}</h3>"
        if each.why:
            yield f"<pre>{escape(each.why)}</pre>"
        for name, breaches in each.report.breaches.items() if each.report else ():
            count = each.report.counts[name] if each.report else 0
            yield f"<p>{name}: {escape(JUDGED[name][0])} {count} breaches; the first are shown.</p>"
            yield from map(_breach, breaches)


def _breach(breach: Breach) -> str:
    said = f"{breach.id or 'the run'}: {breach.what}"
    if not breach.evidence:
        return f"<p>{escape(said)}</p>"
    return f"<details><summary>{escape(said)}</summary><pre>{escape(chr(10).join(breach.evidence))}</pre></details>"


def _histogram(each: Recovered) -> str:
    """Draw one bar for each bin, with the promised most as a line."""
    bins = max(len(each.histogram), BINS + 1)
    wide, most = (WIDE - LEFT) / bins, max(each.histogram)
    bars = "".join(
        f'<rect x="{LEFT + place * wide + 1:.1f}" y="{HIGH - HIGH * count / most:.1f}" width="{max(1, wide - 2):.1f}"'
        f' height="{HIGH * count / most:.1f}" fill="var(--bar)"><title>{count} from {in_s(place * each.bin_ms)}'
        f" to {in_s((place + 1) * each.bin_ms)}</title></rect>"
        for place, count in enumerate(each.histogram)
        if count
    )
    marks = "".join(
        f'<text x="{LEFT + place * wide:.1f}" y="{HIGH + 16}" font-size="12" text-anchor="middle">'
        f"{place * each.bin_ms / 1000:g}</text>"
        for place in range(0, bins + 1, max(1, bins // 10))
    )
    bound = LEFT + each.most_ms / each.bin_ms * wide
    return (
        f"<h3>Lease {each.lease_s:g} s</h3>"
        f'<svg viewBox="0 -20 {WIDE + 20} {HIGH + 60}" width="{WIDE + 20}" style="max-width: 100%" role="img"'
        f' aria-label="Recoveries by seconds, lease {each.lease_s:g} s">{bars}{marks}'
        f'<line x1="{LEFT}" x2="{WIDE}" y1="{HIGH}" y2="{HIGH}" stroke="currentColor"/>'
        f'<line x1="{bound:.1f}" x2="{bound:.1f}" y1="-4" y2="{HIGH}" stroke="var(--bad)" stroke-dasharray="4 3"/>'
        f'<text x="{bound:.1f}" y="-8" font-size="12" text-anchor="middle">promised</text>'
        f'<text x="{LEFT - 6}" y="10" font-size="12" text-anchor="end">{most}</text>'
        f'<text x="{(LEFT + WIDE) / 2}" y="{HIGH + 34}" font-size="12" text-anchor="middle">seconds</text></svg>'
    )


def _bars(counts: Mapping[str, int]) -> str:
    most = max(counts.values(), default=1)
    rows = [
        (name.replace("_", " "), f"{count:,}", f'<div class="bar" style="width: {20 * count / most:.2f}rem"></div>')
        for name, count in sorted(counts.items(), key=lambda each: -each[1])
    ]
    return _table(("kind", "faults", ""), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML. A column of figures is set to the right."""
    rows = list(rows)
    if not rows:
        return "<p>None.</p>"
    plain = [[TAG.sub("", cell) for cell in row] for row in rows]
    figures = [all(row[place][:1].isdigit() or row[place] in ("", "–") for row in plain) for place in range(len(head))]
    marks = [' class="n"' if is_figure else "" for is_figure in figures]
    top = "".join(f"<th{mark}>{escape(cell)}</th>" for mark, cell in zip(marks, head, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{mark}>{cell}</td>' for mark, cell in zip(marks, row, strict=True))}</tr>" for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def _judged(shown: str, *, is_good: bool) -> str:
    return f'<span class="{"good" if is_good else "bad"}">{escape(shown)}</span>'


def _minute(moment: str) -> str:
    return moment[:16].replace("T", " ")
