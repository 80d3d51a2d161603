"""Commands on queues: `director queues`. They read Redis, so they work while no API does."""

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from director.cli.arguments import CommandParser, Commands, add_action
from director.cli.backend import Backend, connected, on_backend, typist
from director.cli.output import fitted, print_json, progress
from director.core.words import share, span

if TYPE_CHECKING:
    from director.broker.replies import QueueStats
    from director.core.ids import QueueName
    from director.core.policy import Burns
    from director.core.schema import SetupRun
    from director.store.departure import Left
    from director.store.queues import Moved, Tenant


HANG: Final = 13  # column where the facts of a report begin
LANES: Final = ("high", "normal", "low")
COLUMNS: Final = ("queue", *LANES, "running", "slots", "delayed", "dead", "mode", "breaker", "oldest")
ETA_ERROR: Final = "eta_error:"
WORDS: Final = ("queue", "mode", "breaker")
BATCH: Final = "batch_"
LONGEST_LINE: Final = 300
MOST_TENANTS: Final = 10
LOOK_AGAIN_S: Final = 0.5
MOST_STREAMS: Final = 32  # that of core.shards, which is imported only when a command runs; a test compares both
AT_ONCE: Final = 25  # queues read by one pipeline
MODES: Final = ("absorb", "bounded", "reject")
STAYS: Final = {
    "claimed": "still running; they finish in the former queue. Repeat the command if some return to it",
    "held": "held here because their accounts are paused or suspended",
    "strange": "held here because the other server lacks their accounts: `director account create`",
    "elsewhere": "leaving for another server. Repeat that command, or use --put-back",
}

Done = TypeVar("Done")


def add(commands: Commands) -> None:
    queues = add_action(
        commands,
        "queues",
        "show what waits and runs; pause, drain, bound, resize or migrate a queue",
        _list,
        "director queues",
        "director queues --json",
        about="Show every queue.",
    )
    actions = queues.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    _add(actions, "show", "show one queue: its accounts, and the quality of its estimates", _show, "")
    resized = _add(actions, "resize", "change the number of streams of each lane", _resize, "8")
    resized.add_argument("streams", type=_number(MOST_STREAMS), metavar="STREAMS", help=f"from 1 to {MOST_STREAMS}")
    pause = _add(actions, "pause", "stop starting predictions; running ones continue", _pause, "", "--account team-a")
    resume = _add(actions, "resume", "start predictions again", _pause, "--account team-a")
    for parser in (pause, resume):
        parser.add_argument("--account", default="", metavar="NAME", help="only this account's predictions")
        parser.set_defaults(paused=parser is pause)
    drained = _add(actions, "drain", "pause a queue, and wait until nothing of it runs", _drain, "--timeout 600")
    drained.add_argument(
        "--timeout", type=_number(), metavar="SECONDS", help="wait at most this long, then exit with code 1"
    )
    migrated = _add(
        actions,
        "migrate",
        "move waiting predictions to the queue of another version, or to another server",
        _migrate,
    )
    migrated.examples = (
        "director queues migrate acme/painter:0123456789ab acme/painter:ba9876543210 --dry-run",
        "director queues migrate acme/painter --to-redis redis://10.0.0.2:6379",
    )
    migrated.add_argument("to", metavar="TO", nargs="?", default="", help="the other queue, of the same model")
    migrated.add_argument("--dry-run", action="store_true", help="only say how many would be moved")
    migrated.add_argument(
        "--to-redis", metavar="URL", help="move to this other server; TO is QUEUE there if it is left out"
    )
    migrated.add_argument(
        "--put-back", action="store_true", help="with --to-redis: return what is on its way there to this queue"
    )
    migrated.epilog = "The command may be interrupted and repeated at any time."
    bounded = _add(
        actions,
        "bound",
        "set what happens to more predictions than the queue can run",
        _bound,
        "bounded --max-queued 500",
        "absorb",
    )
    bounded.add_argument("mode", choices=MODES, help="accept all, up to N, or only what can start at once")
    bounded.add_argument("--max-queued", type=_number(), metavar="N", help="with bounded: how many may wait")


def _add(
    actions: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int], *examples: str
) -> CommandParser:
    """Add a command on one queue. An example is the part after the queue's name."""
    lines = [f"director queues {name} acme/painter {rest}".rstrip() for rest in examples]
    parser = add_action(actions, name, text, run, *lines, again=True)
    parser.add_argument("queue", metavar="QUEUE", help="its name, or owner/name for the queue of the latest version")
    return parser


def _number(most: int | None = None) -> Callable[[str], int]:
    to = f" to {most}" if most else ""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < 1 or (most and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not valid: give a whole number from 1{to}")
        return int(text)

    return read


def _list(given: argparse.Namespace) -> int:
    import msgspec

    from director.cli.output import line_width

    async def read(backend: Backend) -> "list[tuple[QueueName, QueueStats]]":
        found, names = list["tuple[QueueName, QueueStats]"](), await backend.queues.all()
        for start in range(0, len(names), AT_ONCE):
            found += await backend.queues.stats_of(names[start : start + AT_ONCE])
        return found

    found = on_backend(given, read)
    if given.json:
        print_json([{"queue": queue, **msgspec.to_builtins(stats)} for queue, stats in found])
    elif found:
        print("\n".join(table(found, width=line_width())))
    else:
        print("no queues yet: a director creates one for its model (`director run`)")
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.cli.output import folded, line_width
    from director.core.clock import SystemClock
    from director.core.policy import burns

    async def read(
        backend: Backend, queue: "QueueName"
    ) -> "tuple[str, QueueStats, list[Tenant], SetupRun | None, Burns]":
        tenants = await backend.queues.tenants(queue, most=MOST_TENANTS)
        stats, setup = await backend.scripts.stats(queue), await backend.catalog.setup_run_of(queue)
        samples = await backend.history.of(queue) if stats.objectives else []
        return queue, stats, tenants, setup, burns(samples, stats.objectives, now_ms=SystemClock().now_ms())

    queue, stats, tenants, setup, burnt = _on_one(given, read)
    if given.json:
        more = {"tenants": tenants, "setup_run": setup, "burn": burnt}
        print_json({"queue": queue, **msgspec.to_builtins(stats), **msgspec.to_builtins(more)})
    else:
        print(folded(report(queue, stats, tenants, setup, burnt), hang=HANG, width=line_width()))
    return 0


def _resize(given: argparse.Namespace) -> int:
    async def act(backend: Backend, queue: "QueueName") -> tuple[str, int, int]:
        return (queue, *await backend.queue_administration.resize(queue, streams=given.streams, by=typist()))

    queue, streams, read = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "streams": streams, "read": read})
    elif read == streams:
        print(f"{queue}: {streams} streams in each lane")
    else:
        print(
            f"{queue}: new predictions go to {streams} streams in each lane. Some later ones hold work, so {read} are "
            "read. Repeat the command once they are empty."
        )
    return 0


def _pause(given: argparse.Namespace) -> int:
    async def act(backend: Backend, queue: "QueueName") -> "tuple[str, Tenant | None]":
        if given.account:
            await backend.accounts.refuse_unknown(given.account)
        hand = backend.queue_administration
        await (hand.pause if given.paused else hand.resume)(queue, account=given.account, by=typist())
        return queue, await backend.queues.tenant(queue, given.account) if given.account else None

    queue, tenant = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "account": given.account or None, "paused": given.paused})
        return 0
    whose = f" for {tenant.name}, which has {tenant.waiting} waiting and {tenant.running} running" if tenant else ""
    print(f"{queue} {'is paused' if given.paused else 'is resumed'}{whose}")
    return 0


def _drain(given: argparse.Namespace) -> int:
    import anyio

    async def act(backend: Backend, queue: "QueueName") -> "tuple[str, QueueStats]":
        stats = await backend.queue_administration.drain(queue, by=typist())
        with progress() as show, anyio.move_on_after(given.timeout):
            while stats.claimed:
                show(f"{stats.claimed} running")
                await anyio.sleep(LOOK_AGAIN_S)
                stats = await backend.scripts.stats(queue)
        return queue, stats

    queue, stats = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "drained": not stats.claimed, "claimed": stats.claimed, "waiting": stats.waiting})
    elif stats.claimed:
        print(f"{queue} is paused, and {stats.claimed} still running. Repeat the command to wait longer")
    else:
        print(f"{queue} is drained: nothing runs. {stats.waiting} waiting until `director queues resume {queue}`")
    return 1 if stats.claimed else 0


def _migrate(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.errors import SettingsError
    from director.store.queues import Moved

    if given.to_redis:
        return _depart(given)
    if given.put_back or not given.to:
        raise SettingsError("--put-back goes with --to-redis." if given.put_back else "TO or --to-redis is missing.")

    async def act(backend: Backend, queue: "QueueName") -> "tuple[QueueName, QueueName, Moved]":
        to, done = await backend.queue(given.to), Moved()
        with progress() as show:
            async for done in backend.queue_administration.migrate(queue, to, by=typist(), only_asks=given.dry_run):
                show(f"{done.moved} moved")
        return queue, to, done

    queue, to, done = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "to": to, "dry_run": given.dry_run, **msgspec.to_builtins(done)})
        return 0
    print(f"{done.moved} {'would be ' if given.dry_run else ''}moved from {queue} to {to}")
    if done.claimed:
        print(f"{done.claimed} still running; they finish in the former queue. Repeat the command if some return to it")
    if done.held:
        print(f"{done.held} held there because their accounts are paused: `director queues resume`")
    return 0


def _bound(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    if (given.mode == "bounded") != (given.max_queued is not None):
        raise SettingsError("--max-queued N goes with bounded only.")

    async def act(backend: Backend, queue: "QueueName") -> str:
        await backend.queue_administration.bound(queue, mode=given.mode, max_queued=given.max_queued, by=typist())
        return queue

    queue = _on_one(given, act)
    if given.json:
        print_json({"queue": queue, "mode": given.mode, "max_queued": given.max_queued})
    else:
        print(f"{queue}: {given.mode}{f', at most {given.max_queued} waiting' if given.max_queued else ''}")
    return 0


def _on_one(given: argparse.Namespace, act: "Callable[[Backend, QueueName], Awaitable[Done]]") -> Done:
    """Call `act` with the queue that the command line names. Raises SettingsError for an unknown queue."""

    async def named(backend: Backend) -> Done:
        return await act(backend, await backend.queue(given.queue))

    return on_backend(given, named)


def _depart(given: argparse.Namespace) -> int:
    """Move what waits to another Redis server, or put it back. Both servers are read directly."""
    import msgspec

    async def act(here: Backend) -> "tuple[QueueName, QueueName, Left]":
        async with connected(given.to_redis) as there:
            with progress() as show:
                return await _moved(here, there, given, show)

    queue, to, done = on_backend(given, act)
    facts = msgspec.to_builtins(done)
    if given.json:
        print_json({"queue": queue, "to": to, "dry_run": given.dry_run, **facts})
        return 0
    print(f"{done.moved} {'would be ' if given.dry_run else ''}moved from {queue} to {to} there")
    if done.stayed:
        print(f"{done.stayed} returned to the queue here")
    for name, why in STAYS.items():
        if facts[name]:
            print(f"{facts[name]} {why}")
    return 0


async def _moved(
    here: Backend, there: Backend, given: argparse.Namespace, show: Callable[[str], None]
) -> "tuple[QueueName, QueueName, Left]":
    from director.broker.durability import check
    from director.broker.redis_client import describe
    from director.core.errors import SettingsError
    from director.core.settings import CommonSettings, load
    from director.store.departure import Departure, Left, Site

    queue, to = await here.queues.named(given.queue), await there.queues.named(given.to or given.queue)
    if given.dry_run and given.put_back:
        raise SettingsError("--dry-run does not go with --put-back.")
    if queue is None:
        raise SettingsError(f"there is no queue {given.queue}: `director queues` shows them.")
    if to is None:
        raise SettingsError(f"there is no queue {given.to or given.queue} there. A director there creates it.")
    await check(there.redis, load(CommonSettings))
    one, other = (Site(each.redis, each.scripts, each.accounts) for each in (here, there))
    departure, done = Departure(one, other, queue, to), Left()
    steps = departure.put_back() if given.put_back else departure.steps(only_asks=given.dry_run)
    if given.dry_run:
        async for done in steps:
            show(f"{done.moved} moved")
        return queue, to, done
    facts = {"to": to, "to_redis": describe(given.to_redis), "put_back": given.put_back}
    async with here.changes.noting("queue_migrated", by=typist(), queue=queue, **facts):
        async for done in steps:
            show(f"{done.moved + done.stayed} moved")
    return queue, to, done


def table(found: "Sequence[tuple[QueueName, QueueStats]]", *, width: int | None = None) -> list[str]:
    """Return one line for each queue, below the names of the columns."""
    return fitted(COLUMNS, [_row(queue, stats) for queue, stats in found], width=width, words=WORDS)


def report(
    queue: str,
    stats: "QueueStats",
    tenants: "Sequence[Tenant]",
    setup: "SetupRun | None" = None,
    burnt: "Burns | None" = None,
) -> list[str]:
    """Return all that is known of one queue."""
    takes = f"; one run takes {span(stats.service_ms / 1000)}" if stats.service_ms else ""
    facts = {
        "waiting": f"high {stats.high}, normal {stats.normal}, low {stats.low}; oldest {_oldest(stats)}",
        "running": f"{stats.claimed} in {_slots(stats)} slots; directors: {stats.directors}{takes}",
        "delayed": str(stats.delayed),
        "dead": str(stats.dead),
        "leaving": f"{stats.leaving} to another Redis server" if stats.leaving else "nothing",
        "paused": "yes" if stats.paused else "no",
        "mode": _mode(stats),
        "breaker": stats.breaker or "closed",
        "objectives": _objectives(stats, burnt or {}) or "none",
        "streams": _streams(stats),
        "estimates": _estimates(stats.tally),
        "warm hits": share(stats.tally.get("warm", 0), stats.tally.get("cold", 0)),
        "batches": _counted(stats.tally, BATCH) or "none",
        "last setup": "none" if setup is None else _setup(setup),
    }
    lines = [queue, *(f"  {name:<10} {fact}" for name, fact in facts.items())]
    return [*lines, *(_line(tenant) for tenant in tenants)]


def _row(queue: str, stats: "QueueStats") -> Sequence[str]:
    counts = (stats.high, stats.normal, stats.low, stats.claimed, _slots(stats), stats.delayed, stats.dead)
    state = f"{queue} (paused)" if stats.paused else queue
    return (state, *map(str, counts), _mode(stats), stats.breaker or "closed", _oldest(stats))


def _slots(stats: "QueueStats") -> int:
    """Return the slots of live directors. The stored number outlives the last director."""
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
    """Return each lane's objective, and how fast its error budget is used."""
    return "; ".join(
        f"{lane}: {100 * each.share:.4g} % start within {span(each.within_s)}; burn rate "
        + ", ".join(f"{window.rate:.1f} over {name}" for name, window in burnt.get(lane, {}).items())
        for lane, each in stats.objectives.items()
    )


def _setup(setup: "SetupRun") -> str:
    """Return the last setup run in one line. The last line of a traceback names the error."""
    last = setup.logs.rstrip().rpartition("\n")[2][:LONGEST_LINE]
    why = f": {last!r}" if setup.status == "failed" and last else ""
    return f"{setup.status} at {setup.completed_at or 'an unknown time'} on {setup.server}{why}"


def _bucket(pair: tuple[str, int]) -> float:
    name, _ = pair
    return float(name.removeprefix(ETA_ERROR)) if name.startswith(ETA_ERROR) else 0


def _counted(tally: Mapping[str, int], prefix: str, unit: str = "") -> str:
    """Return the counters with this prefix, each with its number."""
    found = {name.removeprefix(prefix): count for name, count in tally.items() if name.startswith(prefix)}
    return ", ".join(f"{name}{unit}: {count}" for name, count in found.items())


def _line(tenant: "Tenant") -> str:
    marks = [mark for mark, is_so in (("paused", tenant.is_paused), ("suspended", tenant.is_suspended)) if is_so]
    state = f" ({', '.join(marks)})" if marks else ""
    return f"  {'account':<10} {tenant.name}{state}: {tenant.waiting} waiting, {tenant.running} running"
