"""Commands on queues: `director queues`."""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
import msgspec
from msgspec import Raw, Struct

from director.broker.replies import Admission, QueueStats
from director.cli.arguments import MOST_LISTED, arg, flag, whole
from director.cli.client import Client, Service, read
from director.cli.operators import QUEUE, Backend, operator, typist, unknown_queue
from director.cli.remote import DIRECT, run
from director.cli.tables import Answer, fit, fold, line_width, progress
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.hours import show_opening
from director.core.ids import QueueName
from director.core.policy import MAX_STREAMS
from director.core.samples import Burns, burns
from director.core.schema import SetupRun
from director.core.words import several, share, span

if TYPE_CHECKING:
    from director.store.queues import Tenant

HANG: Final = 13  # column where the facts of a report begin
COLUMNS: Final = ("queue", "state", "high", "normal", "low", "running", "slots", "delayed", "dead", "mode", "oldest")
WORDS: Final = ("queue", "state", "mode")
ETA_ERROR: Final = "eta_error:"
BATCH: Final = "batch_"
LONGEST_LINE: Final = 300
MOST_TENANTS: Final = 10
LOOK_AGAIN_S: Final = 0.5
AT_ONCE: Final = 25  # queues read by one pipeline
STAYS: Final = {
    "claimed": "still running; they finish in the former queue. Repeat the command if some return to it",
    "held": "held here because their accounts are paused or suspended",
    "strange": "held here because the other server lacks their accounts: `director account create`",
    "elsewhere": "leaving for another server. Repeat that command, or use --put-back",
}
ACCOUNT: Final = arg("--account NAME", "only this account's predictions", default="")


@operator("queues", needs="view", examples=("", "--json"))
async def _list(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show every queue, and each model that has none yet because no server of it was ready."""
    from director.operate.views import stats_of_newcomers

    found, every = list[tuple[QueueName, QueueStats]](), await backend.queues.all()
    names = every[:MOST_LISTED]
    for start in range(0, len(names), AT_ONCE):
        found += await backend.queues.stats_of(names[start : start + AT_ONCE])
    found += stats_of_newcomers(await backend.directors.newcomers()).items()
    empty = "no queues yet: a director creates one for its model (`director run`)"
    more = len(every) - len(names)
    results = [{"queue": queue, **msgspec.to_builtins(stats)} for queue, stats in found]
    rest = [f"and {more} more: `director queues show NAME` shows one"] if more else []
    return Answer(
        {"results": results, **({"more": more} if more else {})},
        lambda: "\n".join([*table(found, width=line_width()), *rest]) if found else empty,
    )


@operator("queues show", QUEUE, needs="view", examples=("acme/painter",))
async def _show(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show one queue: its accounts, and the quality of its estimates."""
    if await backend.queues.find(given.queue) is None and (waits := await _newcomer(backend, given.queue)):
        return waits
    queue = await backend.queue(given.queue)
    tenants = await backend.queues.tenants(queue, most=MOST_TENANTS)
    stats, setup = await backend.scripts.stats(queue), await backend.catalog.setup_run_of(queue)
    samples = await backend.history.of(queue) if stats.objectives else []
    burnt = burns(samples, stats.objectives, now_ms=SystemClock().now_ms())
    more = {"tenants": tenants, "setup_run": setup, "burn": burnt}
    return Answer(
        {"queue": queue, **msgspec.to_builtins(stats), **msgspec.to_builtins(more)},
        lambda: fold(report(queue, stats, tenants, setup, burnt), hang=HANG, width=line_width()),
    )


async def _newcomer(backend: Backend, model: str) -> Answer | None:
    """Show a model that has no queue yet, with the servers that its directors wait for."""
    from director.cli.status import director_lines
    from director.operate.views import director_view

    found = [director_view(one) for one in await backend.directors.newcomers() if one.last.queue == model]
    if not found:
        return None
    head = f"{model} has no queue yet: none of its servers was ever ready."
    return Answer(
        {"queue": model, "directors": found},
        lambda: "\n".join([head, *director_lines(found, now_ms=SystemClock().now_ms(), width=line_width())]),
    )


@operator(
    "queues resize",
    QUEUE,
    arg("streams STREAMS", f"from 1 to {MAX_STREAMS}", type=whole(MAX_STREAMS)),
    needs="operate",
    examples=("acme/painter 8",),
)
async def _resize(backend: Backend, given: argparse.Namespace) -> Answer:
    """Change the number of streams of each lane."""
    queue = await backend.queue(given.queue)
    streams, read = await backend.queue_administration.resize(queue, streams=given.streams, by=typist())
    text = f"{queue}: {streams} streams in each lane"
    if read != streams:
        text = (
            f"{queue}: new predictions go to {streams} streams in each lane. Some later ones hold work, so {read} are "
            "read. Repeat the command once they are empty."
        )
    return Answer({"queue": queue, "streams": streams, "read": read}, text)


@operator("queues pause", QUEUE, ACCOUNT, needs="operate", examples=("acme/painter", "acme/painter --account team-a"))
async def _pause(backend: Backend, given: argparse.Namespace) -> Answer:
    """Stop starting predictions; running ones continue."""
    return await _set_paused(backend, given, is_paused=True)


@operator("queues resume", QUEUE, ACCOUNT, needs="operate", examples=("acme/painter --account team-a",))
async def _resume(backend: Backend, given: argparse.Namespace) -> Answer:
    """Start predictions again."""
    return await _set_paused(backend, given, is_paused=False)


async def _set_paused(backend: Backend, given: argparse.Namespace, *, is_paused: bool) -> Answer:
    queue, name, hand = await backend.queue(given.queue), given.account, backend.queue_administration
    if name:
        await backend.accounts.refuse_unknown(name)
    await (hand.pause if is_paused else hand.resume)(queue, account=name, by=typist())
    tenant = await backend.queues.tenant(queue, name) if name else None
    whose = f" for {tenant.name}, which has {tenant.waiting} waiting and {tenant.running} running" if tenant else ""
    body = {"queue": queue, "account": name or None, "paused": is_paused}
    return Answer(body, f"{queue} {'is paused' if is_paused else 'is resumed'}{whose}")


def _ask_to_drain(chosen: Service, given: argparse.Namespace) -> Answer:
    """Pause by the API once, and look until nothing runs: a second pause would undo an operator's resume."""
    until = math.inf if given.timeout is None else time.monotonic() + given.timeout
    with Client(chosen) as client, progress() as show:
        queue = _look(client, given.queue)["queue"]
        client.change_queue(queue, "drain", {})
        while (stats := _look(client, queue))["claimed"] and time.monotonic() < until:
            show(f"{stats['claimed']} running")
            time.sleep(LOOK_AGAIN_S)
    waiting = sum(stats[lane] for lane in ("high", "normal", "low"))
    return _answer_drained(queue, claimed=stats["claimed"], waiting=waiting)


def _look(client: Client, queue: str) -> dict[str, Any]:
    """Return the facts of a queue. Raises SettingsError for a model that has none yet."""
    ran = run(client, {"line": ["queues", "show", "--", queue], "json": True})
    shown = read(Raw(ran.out.encode()), dict[str, Any])
    if "claimed" not in shown:
        raise unknown_queue(queue)
    return shown


@operator(
    "queues drain",
    QUEUE,
    arg("--timeout SECONDS", "wait at most this long, then exit with code 1", type=whole()),
    needs="operate",
    ask_api=_ask_to_drain,
    examples=("acme/painter --timeout 600",),
)
async def _drain(backend: Backend, given: argparse.Namespace) -> Answer:
    """Pause a queue, and wait until nothing of it runs."""
    queue = await backend.queue(given.queue)
    stats = await backend.queue_administration.drain(queue, by=typist())
    with progress() as show, anyio.move_on_after(given.timeout):
        while stats.claimed:
            show(f"{stats.claimed} running")
            await anyio.sleep(LOOK_AGAIN_S)
            stats = await backend.scripts.stats(queue)
    return _answer_drained(queue, claimed=stats.claimed, waiting=stats.waiting)


def _answer_drained(queue: str, *, claimed: int, waiting: int) -> Answer:
    text = f"{queue} is drained: nothing runs. {waiting} waiting until `director queues resume {queue}`"
    if claimed:
        text = f"{queue} is paused, and {claimed} still running. Repeat the command to wait longer"
    body = {"queue": queue, "drained": not claimed, "claimed": claimed, "waiting": waiting}
    return Answer(body, text, code=1 if claimed else 0)


class _Step(Struct, frozen=True):
    to: str
    moved: int
    claimed: int
    held: int
    done: bool


def _ask_to_migrate(chosen: Service, given: argparse.Namespace) -> Answer:
    """Move by the API, which is asked again until all of the queue was looked through."""
    if given.to_redis:
        raise SettingsError(DIRECT)
    _refuse_half(given)
    with Client(chosen) as client, progress() as show:
        queue, moved = str(_look(client, given.queue)["queue"]), 0
        while True:
            step = read(client.change_queue(queue, "migrate", {"to": given.to, "dry_run": given.dry_run}), _Step)
            moved += step.moved
            show(f"{moved} moved")
            # a dry run begins again with each call, and so does one that found nothing to move in its time
            if step.done or given.dry_run or not step.moved:
                done = {"moved": moved, "claimed": step.claimed, "held": step.held}
                return _answer_moved(given, queue, step.to, done, is_whole=step.done)


def _refuse_half(given: argparse.Namespace) -> None:
    if given.put_back or not given.to:
        raise SettingsError("--put-back goes with --to-redis." if given.put_back else "TO or --to-redis is missing.")


def _answer_moved(
    given: argparse.Namespace, queue: str, to: str, done: Mapping[str, int], *, is_whole: bool = True
) -> Answer:
    """`is_whole`: whether all of the queue was looked through."""
    least, would = "" if is_whole else "at least ", "would be " if given.dry_run else ""
    lines = [f"{least}{done['moved']} {would}moved from {queue} to {to}"]
    if done["claimed"]:
        lines.append(f"{done['claimed']} {STAYS['claimed']}")
    if done["held"]:
        lines.append(f"{done['held']} held there because their accounts are paused: `director queues resume`")
    facts = {"queue": queue, "to": to, "dry_run": given.dry_run, **({} if is_whole else {"at_least": True})}
    return Answer({**facts, **done}, "\n".join(lines))


@operator(
    "queues migrate",
    QUEUE,
    arg("to TO", "the other queue, of the same model", nargs="?", default=""),
    flag("--dry-run", "only say how many would be moved"),
    arg("--to-redis URL", "move to this other server; TO is QUEUE there if it is left out"),
    flag("--put-back", "with --to-redis: return what is on its way there to this queue"),
    ask_api=_ask_to_migrate,
    needs="operate",
    examples=(
        "acme/painter:0123456789ab acme/painter:ba9876543210 --dry-run",
        "acme/painter --to-redis redis://10.0.0.2:6379",
    ),
    epilog="The command may be interrupted and repeated at any time.",
)
async def _migrate(backend: Backend, given: argparse.Namespace) -> Answer:
    """Move waiting predictions to the queue of another version, or to another server. With --to-redis both servers are
    read directly, so that needs --redis or DIRECTOR_REDIS_URL.
    """
    if given.to_redis:
        return await _depart(backend, given)
    _refuse_half(given)
    from director.store.queues import Moved

    queue, to, done = await backend.queue(given.queue), await backend.queue(given.to), Moved()
    with progress() as show:
        async for done in backend.queue_administration.migrate(queue, to, by=typist(), only_asks=given.dry_run):
            show(f"{done.moved} moved")
    return _answer_moved(given, queue, to, msgspec.to_builtins(done))


async def _depart(here: Backend, given: argparse.Namespace) -> Answer:
    """Move what waits to another Redis server, or put it back. Both servers are read directly."""
    # only here: no other command on queues needs them
    from director.broker.durability import check
    from director.broker.redis_client import describe
    from director.cli.backend import connect
    from director.core.settings import CommonSettings, load
    from director.store.changes import Note
    from director.store.departure import Departure, Left, Site

    if given.dry_run and given.put_back:
        raise SettingsError("--dry-run does not go with --put-back.")
    async with connect(given.to_redis) as there:
        queue, to = await here.queue(given.queue), await there.queues.find(given.to or given.queue)
        if to is None:
            raise SettingsError(f"there is no queue {given.to or given.queue} there. A director there creates it.")
        await check(there.redis, load(CommonSettings))
        one, other = (Site(each.redis, each.scripts_with_files, each.accounts) for each in (here, there))
        departure, done = Departure(one, other, queue, to), Left()
        steps = departure.put_back() if given.put_back else departure.steps(only_asks=given.dry_run)
        facts = {"to": to, "to_redis": describe(given.to_redis), "put_back": given.put_back}
        noted = here.changes.noting("queue_migrated", by=typist(), queue=queue, **facts)
        with progress() as show:
            async with nullcontext(Note()) if given.dry_run else noted as change:
                async for done in steps:
                    if done.moved + done.stayed:
                        change.begin()
                    show(f"{done.moved + done.stayed} moved")
    left = msgspec.to_builtins(done)
    lines = [
        f"{done.moved} {'would be ' if given.dry_run else ''}moved from {queue} to {to} there",
        *([f"{done.stayed} returned to the queue here"] if done.stayed else []),
        *(f"{left[name]} {why}" for name, why in STAYS.items() if left[name]),
    ]
    return Answer({"queue": queue, "to": to, "dry_run": given.dry_run, **left}, "\n".join(lines))


@operator(
    "queues bound",
    QUEUE,
    arg("mode", "accept all, up to N, or only what can start at once", choices=get_args(Admission)),
    arg("--max-queued N", "with bounded: how many may wait", type=whole()),
    needs="operate",
    examples=("acme/painter bounded --max-queued 500", "acme/painter absorb"),
)
async def _bound_queue(backend: Backend, given: argparse.Namespace) -> Answer:
    """Set what happens to more predictions than the queue can run."""
    if (given.mode == "bounded") != (given.max_queued is not None):
        raise SettingsError("--max-queued N goes with bounded only.")
    queue, most = await backend.queue(given.queue), given.max_queued
    await backend.queue_administration.set_bound(queue, mode=given.mode, max_queued=most, by=typist())
    text = f"{queue}: {given.mode}{f', at most {most} waiting' if most else ''}"
    return Answer({"queue": queue, "mode": given.mode, "max_queued": most}, text)


def table(found: Sequence[tuple[QueueName, QueueStats]], *, width: int | None = None) -> list[str]:
    return fit(COLUMNS, [_row(queue, stats) for queue, stats in found], width=width, words=WORDS)


def report(
    queue: str,
    stats: QueueStats,
    tenants: "Sequence[Tenant]",
    setup: SetupRun | None = None,
    burnt: Burns | None = None,
) -> list[str]:
    takes = f"; one run takes {span(stats.service_ms / 1000)}" if stats.service_ms else ""
    by = f", by {stats.paused_by}" if stats.paused_by else ""
    facts = {
        "waiting": f"high {stats.high}, normal {stats.normal}, low {stats.low}; oldest {_oldest(stats)}",
        "running": f"{stats.claimed} in {several(_slots(stats), 'slot')}; directors: {stats.directors}{takes}",
        "delayed": str(stats.delayed),
        "dead": str(stats.dead),
        "leaving": f"{stats.leaving} to another Redis server" if stats.leaving else "nothing",
        "paused": f"yes{by}" if stats.paused else "no",
        "hours": "open" if stats.opens_ms is None else f"closed until {show_opening(stats.opens_ms, stats.zone)}",
        "mode": _mode(stats),
        "breaker": stats.breaker or "closed",
        "objectives": _objectives(stats, burnt or {}) or "none",
        "streams": _streams(stats),
        "estimates": _estimates(stats.tally),
        "warm hits": share(stats.tally.get("warm", 0), stats.tally.get("cold", 0)),
        "batches": _show_counts(stats.tally, BATCH) or "none",
        "last setup": "none" if setup is None else _setup(setup),
    }
    lines = [queue, *(f"  {name:<10} {fact}" for name, fact in facts.items())]
    return [*lines, *(_line(tenant) for tenant in tenants)]


def _row(queue: str, stats: QueueStats) -> Sequence[str]:
    counts = (stats.high, stats.normal, stats.low, stats.claimed, _slots(stats), stats.delayed, stats.dead)
    from director.operate.views import words_of

    return (queue, words_of(stats)[0], *map(str, counts), _mode(stats), _oldest(stats))


def _slots(stats: QueueStats) -> int:
    """The stored number outlives the last director."""
    return stats.slots if stats.directors else 0


def _oldest(stats: QueueStats) -> str:
    return span(stats.oldest_ms / 1000) if stats.live else "-"


def _mode(stats: QueueStats) -> str:
    return stats.mode if stats.max_queued is None else f"{stats.mode} {stats.max_queued}"


def _streams(stats: QueueStats) -> str:
    left = stats.read - stats.streams
    return f"{stats.streams}, and {left} above them until they are empty" if left else str(stats.streams)


def _estimates(tally: Mapping[str, int]) -> str:
    kept = share(tally.get("eta_kept", 0), tally.get("eta_missed", 0))
    errors = _show_counts(dict(sorted(tally.items(), key=_bucket)), ETA_ERROR, unit=" s").replace("inf s", "more")
    return f"{kept} began within the p90; off by at most {errors}" if errors else kept


def _objectives(stats: QueueStats, burnt: Burns) -> str:
    return "; ".join(
        f"{lane}: {100 * each.share:.4g} % start within {span(each.within_s)}; burn rate "
        + ", ".join(f"{window.rate:.1f} over {name}" for name, window in burnt.get(lane, {}).items())
        for lane, each in stats.objectives.items()
    )


def _setup(setup: SetupRun) -> str:
    """Return the last setup run in one line. The last line of a traceback names the error."""
    last = setup.logs.rstrip().rpartition("\n")[2][:LONGEST_LINE]
    why = f": {last!r}" if setup.status == "failed" and last else ""
    return f"{setup.status} at {setup.completed_at or 'an unknown time'} on {setup.server}{why}"


def _bucket(pair: tuple[str, int]) -> float:
    name, _ = pair
    return float(name.removeprefix(ETA_ERROR)) if name.startswith(ETA_ERROR) else 0


def _show_counts(tally: Mapping[str, int], prefix: str, unit: str = "") -> str:
    found = {name.removeprefix(prefix): count for name, count in tally.items() if name.startswith(prefix)}
    return ", ".join(f"{name}{unit}: {count}" for name, count in found.items())


def _line(tenant: "Tenant") -> str:
    marks = [mark for mark, is_so in (("paused", tenant.is_paused), ("suspended", tenant.is_suspended)) if is_so]
    state = f" ({', '.join(marks)})" if marks else ""
    return f"  {'account':<10} {tenant.name}{state}: {tenant.waiting} waiting, {tenant.running} running"
