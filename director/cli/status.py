"""Commands that show the state of the service: `director directors`, `scale`, `doctor` and `top`.

They read Redis, so they work while no API does.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from director.cli.arguments import Commands, add_action
from director.cli.backend import Backend, on_backend, redis_url
from director.cli.output import fitted, folded, line_width, print_json, printable
from director.core.words import since

if TYPE_CHECKING:
    from director.core.ids import QueueName
    from director.core.settings import CommonSettings
    from director.diagnosis.doctor import Finding
    from director.diagnosis.overview import Snapshot
    from director.diagnosis.scaling import Scale
    from director.diagnosis.views import DirectorView, ServerView

COLUMNS: Final = ("director", "state", "slots", "holds", "version", "up", "last sign", "queues")
WORDS: Final = ("director", "state", "version", "queues")
SILENT: Final = "silent"
HANG: Final = 4  # indent of continued lines: the reason why a server is not ready is at the end of a line


def add(commands: Commands) -> None:
    directors = add_action(
        commands,
        "directors",
        "show every director: its slots, its claims and its model servers",
        _directors,
        "director directors",
        "director directors --queue acme/painter",
        about="Show every director with its model servers. A silent one is shown until a keeper removes it.",
    )
    directors.add_argument("--queue", default="", metavar="QUEUE", help="show only directors of this queue")
    scale = add_action(
        commands,
        "scale",
        "show how many directors a queue needs, as the keeper tells an autoscaler",
        _scale,
        "director scale acme/painter",
        "director scale acme/painter --json",
        about="Show how many directors a queue needs, how many predictions could run, and how many run.",
    )
    scale.add_argument("queue", metavar="QUEUE", help="its name, or owner/name for the queue of the latest version")
    scale.add_argument(
        "--key", action="store_true", help="print the Redis key whose ZCARD counts what waits, is delayed or runs"
    )
    doctor = add_action(
        commands,
        "doctor",
        "check Redis and the service, and say how to repair what is wrong",
        _doctor,
        "director doctor",
        "director doctor --json",
        about="Check Redis and the service around it. The exit code is 1 if any check fails.",
    )
    doctor.settings = "CommonSettings"
    top = add_action(
        commands,
        "top",
        "watch queues and directors live, in the whole terminal",
        _top,
        "director top",
        "director top --once",
        about="Watch queues and directors live. Without a terminal: print one screen, as with --once.",
    )
    top.add_argument("--once", action="store_true", help="print one screen with all queues, and end")


def _directors(given: argparse.Namespace) -> int:
    pass
    from director.core.clock import SystemClock

    async def read(backend: Backend) -> "list[DirectorView]":
        from director.diagnosis.views import director_view

        queues = [await backend.queue(given.queue)] if given.queue else await backend.queues.all()
        return [director_view(one) for one in await backend.directors.of(queues)]

    found = on_backend(given, read)
    if given.json:
        print_json(found)
    elif found:
        print("\n".join(director_lines(found, now_ms=SystemClock().now_ms(), width=line_width())))
    else:
        print("no directors: `director run` starts one")
    return 0


def director_lines(found: "Sequence[DirectorView]", *, now_ms: int, width: int | None) -> list[str]:
    """Return a line for each director and, below that table, a line for each of their model servers."""
    table = fitted(COLUMNS, [_row(one, now_ms) for one in found], width=width, words=WORDS)
    servers = [
        f"  {one.name}  {line}"
        for one in found
        for line in [*(_server(each, now_ms) for each in one.servers), *_more(one.more_servers)]
    ]
    if servers:
        table += ["", "servers", *folded(map(printable, servers), hang=HANG, width=width).splitlines()]
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
        ", ".join(beat.queue for beat in one.queues),
    ]


def _server(server: "ServerView", now_ms: int) -> str:
    why = f": {server.detail}" if server.detail else ""
    return f"{server.url}  {server.state} for {since(server.since, now_ms)}, {server.slots} slots{why}"


def _more(count: int) -> list[str]:
    return [f"and {count} more"] if count else []


def _scale(given: argparse.Namespace) -> int:
    import msgspec

    from director.broker import keys
    from director.core.errors import SettingsError, UnknownQueue

    async def asked(backend: Backend) -> "tuple[QueueName, Scale]":
        queue = await backend.scaling.named(given.queue)
        return queue, await backend.scaling.of(queue)

    try:
        queue, scale = on_backend(given, asked)
    except UnknownQueue as exc:
        raise SettingsError(f"there is no queue {given.queue}: `director queues` shows them.") from exc
    told = {"key": keys.live(queue)} if given.key else msgspec.to_builtins(scale)
    if given.json:
        print_json(told)
    else:
        print(told["key"] if given.key else "  ".join(f"{name} {value}" for name, value in told.items()))
    return 0


def _doctor(given: argparse.Namespace) -> int:
    import anyio

    from director.core.settings import CommonSettings, load
    from director.diagnosis.doctor import has_failed

    settings = load(CommonSettings, redis_url=redis_url(given))
    findings = anyio.run(_examine, settings)
    if given.json:
        print_json({"ok": not has_failed(findings), "checks": findings})
    else:
        width = max(len(finding.check) for finding in findings)
        lines = []
        for finding in findings:
            lines.append(f"{finding.verdict:4}  {finding.check:{width}}  {finding.found}")
            if finding.fix:
                lines.append(f"{'':{width + 8}}→ {finding.fix}")
        print(folded(lines, hang=width + 8, width=line_width()))
    return int(has_failed(findings))


async def _examine(settings: "CommonSettings") -> "list[Finding]":
    from director.broker.redis_client import client, describe
    from director.core.clock import SystemClock
    from director.core.errors import BackendUnavailable
    from director.diagnosis.doctor import Finding, examine, look

    redis = client(settings.redis_url, name="director-doctor")
    try:
        return examine(await look(redis, settings, SystemClock()))
    except BackendUnavailable as exc:
        found = f"no answer from Redis at {describe(settings.redis_url)}: {exc}"
        fix = "start the server, or correct --redis or DIRECTOR_REDIS_URL, its user and its password"
        return [Finding(check="reachable", verdict="fail", found=found, fix=fix)]
    finally:
        await redis.aclose()


def _top(given: argparse.Namespace) -> int:
    from director.cli.top import is_interactive, once, watch

    async def look(backend: Backend) -> "Snapshot":
        return await backend.overview.look()

    if given.json:
        print_json(on_backend(given, look))
    elif given.once or not is_interactive():
        print("\n".join(on_backend(given, lambda backend: once(backend, width=line_width()))))
    else:
        on_backend(given, watch)
    return 0
