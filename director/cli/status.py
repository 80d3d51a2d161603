"""Commands that show the state of the service: `director directors`, `scale` and `doctor`."""

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from director.broker import keys
from director.cli.arguments import JSON, MOST_LISTED, REDIS_OR_SERVICE, arg, command, flag
from director.cli.operators import (
    OPERATOR_COMMANDS,
    QUEUE,
    Backend,
    OperatorCommand,
    ask_or_read_redis,
    operator,
    unknown_queue,
)
from director.cli.output import printable
from director.cli.remote import ask
from director.cli.tables import Answer, fit, fold, line_width
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, UnknownQueue
from director.core.view import iso
from director.core.words import several, since, size, some, span

if TYPE_CHECKING:
    from director.operate.doctor import Finding
    from director.operate.views import DeviceView, DirectorView, ModelOnDevice, ServerView

MOST_FINDINGS: Final = 10
COLUMNS: Final = ("director", "state", "slots", "holds", "version", "up", "last sign", "queues")
WORDS: Final = ("director", "state", "version", "queues")
ON_DEVICE: Final = ("model", "state", "for", "memory", "loads", "why")
SILENT: Final = "silent"
WORST_FIRST: Final = ("fail", "warn", "ok")
ROLES: Final = {"api": "APIs", "keeper": "keepers"}
FACT: Final = 11  # columns of the name of a fact
HANG: Final = 4  # indent of continued lines: the reason why a server is not ready is at the end of a line


@operator("status", needs="view", examples=("", "--json"))
async def _status(backend: Backend, given: argparse.Namespace) -> Answer:
    """Say on one screen whether the service is healthy: what waits and runs, and what needs a person. The exit code is
    1 if something is bad.
    """
    found = await backend.overview.look()
    bad = sum(one.level == "bad" for one in found.findings)
    queues = {
        "count": len(found.queues) + found.more_queues,
        "waiting": sum(one.waiting.high + one.waiting.normal + one.waiting.low for one in found.queues),
        "running": sum(one.claimed for one in found.queues),
        "slots": sum(one.slots for one in found.queues),
        "delayed": sum(one.delayed for one in found.queues),
        "dead": sum(one.dead for one in found.queues),
    }
    silent = sum(not one.alive for one in found.directors)
    directors = {"count": len(found.directors) + found.more_directors, "silent": silent}
    body = {
        "healthy": not bad,
        "at": found.at,
        "queues": queues,
        "more_queues": found.more_queues,
        "directors": directors,
        "more_directors": found.more_directors,
        "processes": found.processes,
        "owed": found.owed,
        "findings": found.findings,
    }
    releases = {role: sorted({one.version for one in found.processes if one.role == role}) for role in ROLES}
    sums = f" (sums of the first {len(found.queues):,})" if found.more_queues else ""
    of_them = f"of the first {len(found.directors):,}" if found.more_directors else "of them"
    running = Counter[str](one.role for one in found.processes)
    facts = {
        "queues": f"{queues['count']}: {queues['waiting']} waiting, {queues['running']} running in "
        f"{several(queues['slots'], 'slot')}, {queues['delayed']} delayed, {queues['dead']} dead{sums}",
        "directors": f"{directors['count']}{f', {silent} {of_them} silent' if silent else ''}",
        **{
            ROLES[role]: f"{running[role]}{f' of release {some(names)}' if names else ''}"
            for role, names in releases.items()
        },
        "webhooks": f"{found.owed.count} owed{f', {found.owed.late} late' if found.owed.late else ''}",
    }

    def text() -> str:
        needs = f"{several(len(found.findings), 'finding')}, {bad} of them bad"
        lines = [("healthy" if not bad else "needs attention") + (f": {needs}" if found.findings else "")]
        lines += [f"{name:<{FACT}}{fact}" for name, fact in facts.items()]
        for one in found.findings[:MOST_FINDINGS]:
            lines.append(f"{'bad' if one.level == 'bad' else 'note'}  {one.title}: {one.detail}".replace("\n", " "))
            lines += [f"{'':{HANG}}→ {command}" for command in one.commands]
        if (more := len(found.findings) - MOST_FINDINGS) > 0:
            lines.append(f"and {several(more, 'finding')} more: `director top`, then f")
        return fold(map(printable, lines), hang=HANG, width=line_width())

    return Answer(body, text, code=int(bool(bad)))


@operator(
    "directors",
    arg("--queue QUEUE", "show only directors of this queue", default=""),
    needs="view",
    examples=("", "--queue acme/painter"),
)
async def _directors(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show every director with its model servers. A silent one is shown until a keeper removes it."""
    from director.operate.views import director_view

    newcomers = [one for one in await backend.directors.newcomers() if given.queue in ("", one.last.queue)]
    is_new = bool(given.queue and newcomers)  # the model has no queue yet, or its next version has none
    queues = [] if is_new else [await backend.queue(given.queue)] if given.queue else await backend.queues.all()
    all_found = [*newcomers, *await backend.directors.of(queues)]
    found = [director_view(one) for one in all_found[:MOST_LISTED]]
    more = len(all_found) - len(found)

    def text() -> str:
        lines = director_lines(found, now_ms=SystemClock().now_ms(), width=line_width())
        return "\n".join([*lines, *([f"and {more} more: --queue shows those of one queue"] if more else [])])

    body = {"results": found, **({"more": more} if more else {})}
    return Answer(body, text if found else "no directors: `director run` starts one")


@operator("devices", needs="view", examples=("",))
async def _devices(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show the devices that models share: what is loaded, its memory, and what the swaps of the last hour took."""
    from director.operate.views import devices_of

    found = devices_of(await backend.directors.of(await backend.queues.all()))
    empty = "no devices: `director run --config` with a [[device]] shares one among models"
    return Answer(
        found,
        lambda: "\n".join(device_lines(found, now_ms=SystemClock().now_ms(), width=line_width())) if found else empty,
    )


def device_lines(found: "Sequence[DeviceView]", *, now_ms: int, width: int | None) -> list[str]:
    """Return a line for each device, and one for each of its models."""
    lines = list[str]()
    for one in found:
        taken = f"{size(one.taken)} of {size(one.bytes)} taken"
        lines.append(
            f"{one.name} on {one.machine}: {taken}, {several(one.swaps, 'load')} and {span(one.lost_s)} lost in 1 h"
        )
        rows = [
            (each.queue, each.state, since(each.since, now_ms), size(each.bytes), str(each.loads), _why(each))
            for each in one.models
        ]
        lines += fit(ON_DEVICE, rows, width=width, words=("model", "state", "why"))
    return [printable(line) for line in lines]


def _why(one: "ModelOnDevice") -> str:
    failed = f"{several(one.failed, 'load')} failed: " if one.failed else ""
    return "; ".join(part for part in (one.order, failed + one.why.replace("\n", " ")) if part)


def director_lines(found: "Sequence[DirectorView]", *, now_ms: int, width: int | None) -> list[str]:
    table = fit(COLUMNS, [_row(one, now_ms) for one in found], width=width, words=WORDS)
    servers = [
        f"  {one.name}  {line}"
        for one in found
        for line in [
            *(each_line for each in one.servers for each_line in _server(each, now_ms, is_alive=one.alive)),
            *([f"and {one.more_servers} more"] if one.more_servers else []),
        ]
    ]
    if servers:
        table += ["", "servers", *fold(map(printable, servers), hang=HANG, width=width).splitlines()]
    return table


def _row(one: "DirectorView", now_ms: int) -> list[str]:
    return [
        one.name,
        one.state if one.alive else SILENT,
        str(one.slots),
        "-" if one.held is None else str(one.held),
        one.version or "-",
        "-" if one.since is None else since(one.since, now_ms),
        since(one.seen_at, now_ms),
        ", ".join(heartbeat.queue for heartbeat in one.queues),
    ]


def _server(server: "ServerView", now_ms: int, *, is_alive: bool) -> list[str]:
    why = f": {server.detail}" if server.detail else ""
    if not is_alive:  # nothing is known of it now
        return [f"{server.url}  was {server.state}, {several(server.slots, 'slot')}{why}"]
    head = f"{server.url}  {server.state} for {since(server.since, now_ms)}, {several(server.slots, 'slot')}{why}"
    return [head, *(f"  | {line}" for line in server.log.splitlines())]


@operator(
    "scale",
    QUEUE,
    flag("--key", "print the Redis key whose ZCARD counts what waits, is delayed or runs"),
    needs="view",
    examples=("acme/painter", "acme/painter --json"),
)
async def _scale(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show how many directors a queue needs, how many predictions could run, and how many run."""
    try:
        queue = await backend.scaling.find(given.queue)
        scale = await backend.scaling.of(queue)
    except UnknownQueue as exc:
        raise unknown_queue(given.queue) from exc
    if given.key:
        return Answer({"key": keys.live(queue)}, keys.live(queue))
    facts = msgspec.to_builtins(scale)
    return Answer(facts, "  ".join(f"{name} {value}" for name, value in facts.items()))


async def _examine_here(backend: Backend, given: argparse.Namespace) -> Answer:
    """Examine for a caller of the API, with the settings that the API runs with."""
    # only here: the checks take 50 ms to import
    from director.operate.doctor import examine, look

    return _show_findings(examine(await look(backend.redis, backend.settings, backend.clock)))


OPERATOR_COMMANDS["doctor"] = OperatorCommand(_examine_here, (), "view")


@command("doctor", JSON, *REDIS_OR_SERVICE, settings="CommonSettings", examples=("", "--json"))
def _doctor(given: argparse.Namespace) -> int:
    """Check Redis and the service around it. The exit code is 1 if any check fails.

    While no API answers, --redis says where Redis is.
    """
    return ask_or_read_redis(given, lambda chosen: ask(chosen, "doctor", (), given), lambda: _examine(given))


def _examine(given: argparse.Namespace) -> int:
    # only here: the checks take 50 ms to import
    from director.broker.redis_client import client, describe
    from director.cli.backend import redis_url
    from director.core.settings import CommonSettings, load
    from director.operate.doctor import Finding, examine, look

    settings = load(CommonSettings, redis_url=redis_url(given))

    async def examine_all() -> list[Finding]:
        redis = client(settings.redis_url, name="director-doctor")
        try:
            return examine(await look(redis, settings, SystemClock()))
        except BackendUnavailable as exc:
            found = f"no answer from Redis at {describe(settings.redis_url)}: {exc}"
            fix = (
                "start the server: its log says why it ended, such as a full disk. Or correct --redis or "
                "DIRECTOR_REDIS_URL, its user and its password"
            )
            return [Finding(check="reachable", verdict="fail", found=found, fix=fix)]
        finally:
            await redis.aclose()

    return _show_findings(anyio.run(examine_all)).show(is_json=given.json)


def _show_findings(findings: "Sequence[Finding]") -> Answer:
    from director.operate.doctor import has_failed

    width = max(len(finding.check) for finding in findings)
    counts = Counter(finding.verdict for finding in findings)
    counted = f"{several(counts['fail'], 'failure')}, {several(counts['warn'], 'warning')}"
    lines = [f"{iso(SystemClock().now_ms())}  {counted}"]
    for finding in sorted(findings, key=lambda finding: WORST_FIRST.index(finding.verdict)):
        lines.append(f"{finding.verdict:4}  {finding.check:{width}}  {finding.found}")
        if finding.fix:
            lines.append(f"{'':{width + 8}}→ {finding.fix}")
    failed = has_failed([*findings])
    return Answer(
        {"ok": not failed, "checks": findings},
        lambda: fold(map(printable, lines), hang=width + 8, width=line_width()),
        code=int(failed),
    )
