"""Let the API run an operator's command, and print what it answers. So a command needs a log-in and no Redis."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from msgspec import Raw, Struct

from director.cli.arguments import Argument
from director.cli.client import Client, Refused, Service, read
from director.cli.output import harmless
from director.cli.tables import json_line, line_width
from director.core.errors import SettingsError

READS_STDIN: Final = "token revoke"  # without a name
DIRECT: Final = "two Redis servers are read directly: say with --redis where this one is."


class CommandResult(Struct, frozen=True):
    """The exit code of a command and its output, or one line of error. `needs`: the scope that the caller lacks."""

    code: int
    out: str = ""
    error: str = ""
    needs: str = ""


def ask(service: Service, path: str, arguments: Sequence[Argument], given: argparse.Namespace) -> int:
    """Run the command at the API. Raises Refused, with the command's own words."""
    if getattr(given, "to_redis", None):
        raise SettingsError(DIRECT)
    stdin = sys.stdin.readline() if path == READS_STDIN and not given.name else ""
    body = {
        "line": [*path.split(), *write_line(arguments, given)],
        "json": given.json,
        "width": line_width(),
        "input": stdin.strip(),
    }
    with Client(service) as client:
        ran = run(client, body)
    print(json_line(Raw(ran.out.encode())) if given.json else harmless(ran.out, sys.stdout))
    return ran.code


def run(client: Client, body: dict[str, Any]) -> CommandResult:
    ran = read(client.run_command(body), CommandResult)
    if ran.error:
        raise Refused(ran.error)
    return ran


def write_line(arguments: Sequence[Argument], given: argparse.Namespace) -> list[str]:
    """Return the words of a command line that give these arguments, so that the API reads and checks it again."""
    options, places = list[str](), list[str]()
    for each in arguments:
        value = getattr(given, each.dest)
        if value is None or value == each.settings.get("default"):
            continue
        if not each.names[0].startswith("-"):
            places += map(_write, value) if isinstance(value, list) else [_write(value)]
        else:
            options += _write_option(each, value)
    return [*options, *(["--", *places] if places else [])]


def _write_option(option: Argument, value: Any) -> Iterator[str]:
    name = option.names[-1]
    if isinstance(value, bool):
        yield from [name] if value else []
    elif option.settings.get("nargs") == "*":  # one option with all of them: of several, the last counts
        yield from [name, *map(_write, value)]
    else:
        for one in value if isinstance(value, list) else [value]:
            yield f"{name}={_write(one)}" if name.startswith("--") else f"{name}{_write(one)}"


def _write(value: Any) -> str:
    """Return a value as it can be typed. A float has no exponent, which some options refuse."""
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)
