"""Queues in the words and tables that a person reads. Asks nobody."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from director.cli.tables import fitted
from director.cli.words import share
from director.core.words import span

if TYPE_CHECKING:
    from director.broker.scripts import QueueStats
    from director.core.ids import QueueName
    from director.core.objectives import Burns
    from director.core.setup_run import SetupRun
    from director.store.queues import Tenant

__all__ = ("HANG", "report", "table")

HANG: Final = 13  # where the facts of a report begin
LANES: Final = ("high", "normal", "low")
COLUMNS: Final = ("queue", *LANES, "running", "slots", "delayed", "dead", "mode", "breaker", "oldest")
ETA_ERROR: Final = "eta_error:"
WORDS: Final = ("queue", "mode", "breaker")
BATCH: Final = "batch_"
LONGEST_LINE: Final = 300


def table(found: "Sequence[tuple[QueueName, QueueStats]]", *, width: int | None = None) -> list[str]:
    """One line for each queue, below the names of the columns."""
    return fitted(COLUMNS, [_row(queue, stats) for queue, stats in found], width=width, words=WORDS)


def report(
    queue: str,
    stats: "QueueStats",
    tenants: "Sequence[Tenant]",
    setup: "SetupRun | None" = None,
    burnt: "Burns | None" = None,
) -> list[str]:
    """All that is known of one queue."""
    takes = f"; one takes {span(stats.service_ms / 1000)}" if stats.service_ms else ""
    facts = {
        "waiting": f"high {stats.high}, normal {stats.normal}, low {stats.low}; oldest {_oldest(stats)}",
        "running": f"{stats.claimed} in {_slots(stats)} slots; directors: {stats.directors}{takes}",
        "delayed": str(stats.delayed),
        "dead": str(stats.dead),
        "leaving": f"{stats.leaving} for another Redis server" if stats.leaving else "nothing",
        "paused": "yes" if stats.paused else "no",
        "mode": _mode(stats),
        "breaker": stats.breaker or "closed",
        "objectives": _objectives(stats, burnt or {}) or "none",
        "streams": _streams(stats),
        "estimates": _estimates(stats.tally),
        "warm hits": share(stats.tally.get("warm", 0), stats.tally.get("cold", 0)),
        "batches": _counted(stats.tally, BATCH) or "none",
        "last setup": "none was told of" if setup is None else _setup(setup),
    }
    lines = [queue, *(f"  {name:<10} {fact}" for name, fact in facts.items())]
    return [*lines, *(_line(tenant) for tenant in tenants)]


def _row(queue: str, stats: "QueueStats") -> Sequence[str]:
    counts = (stats.high, stats.normal, stats.low, stats.claimed, _slots(stats), stats.delayed, stats.dead)
    state = f"{queue} (paused)" if stats.paused else queue
    return (state, *map(str, counts), _mode(stats), stats.breaker or "closed", _oldest(stats))


def _slots(stats: "QueueStats") -> int:
    """Directors count them as long as they live, so what the last one counted outlives it."""
    return stats.slots if stats.directors else 0


def _oldest(stats: "QueueStats") -> str:
    return span(stats.oldest_ms / 1000) if stats.live else "-"


def _mode(stats: "QueueStats") -> str:
    return stats.mode if stats.max_queued is None else f"{stats.mode} {stats.max_queued}"


def _streams(stats: "QueueStats") -> str:
    left = stats.read - stats.streams
    return f"{stats.streams}, and {left} above them until they are empty" if left else str(stats.streams)


def _estimates(tally: Mapping[str, int]) -> str:
    kept = share(tally.get("eta_kept", 0), tally.get("eta_missed", 0))
    errors = _counted(dict(sorted(tally.items(), key=_bucket)), ETA_ERROR, unit=" s").replace("inf s", "more")
    return f"{kept} began within the p90; off by at most {errors}" if errors else kept


def _objectives(stats: "QueueStats", burnt: "Burns") -> str:
    """What is promised of each lane, and how many times as much is missed as may be."""
    return "; ".join(
        f"{lane}: {100 * each.share:.4g} % start within {span(each.within_s)}; burn rate "
        + ", ".join(f"{window.rate:.1f} over {name}" for name, window in burnt.get(lane, {}).items())
        for lane, each in stats.objectives.items()
    )


def _setup(setup: "SetupRun") -> str:
    """One line: of a traceback the last one names the error. A server's own words are printed as such."""
    last = setup.logs.rstrip().rpartition("\n")[2][:LONGEST_LINE]
    why = f": {last!r}" if setup.status == "failed" and last else ""
    return f"{setup.status} at {setup.completed_at or 'an unknown time'} on {setup.server}{why}"


def _bucket(pair: tuple[str, int]) -> float:
    name, _ = pair
    return float(name.removeprefix(ETA_ERROR)) if name.startswith(ETA_ERROR) else 0


def _counted(tally: Mapping[str, int], prefix: str, unit: str = "") -> str:
    """The counters of one kind: name and number of each."""
    found = {name.removeprefix(prefix): count for name, count in tally.items() if name.startswith(prefix)}
    return ", ".join(f"{name}{unit}: {count}" for name, count in found.items())


def _line(tenant: "Tenant") -> str:
    marks = [mark for mark, is_so in (("paused", tenant.is_paused), ("suspended", tenant.is_suspended)) if is_so]
    state = f" ({', '.join(marks)})" if marks else ""
    return f"  {'account':<10} {tenant.name}{state}: {tenant.waiting} waiting, {tenant.running} running"
