"""The parser of commands, and the arguments that several commands share."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from director.core.ids import MODEL_NAME, VERSION_ID
from director.local import DEFAULT_HOME

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "done",
    1: "failed, or a check found a fault; stderr or the output says what to do",
    2: "wrong command line; nothing was done",
    130: "interrupted by Ctrl-C",
}

EXAMPLE_ID: Final = "06gzx0rcvbz008pmq2tvpfvnvc"

MOST_PORT: Final = 65535
MOST_HOURS: Final = 24 * 366


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with examples and, for a process, with its settings.

    `settings` is the name of their struct in core/settings.
    """

    def __init__(self, *given: Any, examples: Sequence[str] = (), settings: str = "", **named: Any) -> None:
        super().__init__(*given, **named)
        self.examples = examples
        self.settings = settings

    @property
    def arguments(self) -> "list[argparse.Action]":
        return self._actions

    @property
    def commands(self) -> "dict[str, CommandParser]":
        """Return the commands below this one by name. An alias is left out."""
        found: dict[str, CommandParser] = {}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, each in action.choices.items():
                    if each not in found.values():
                        found[name] = each
        return found

    def all_of_it(self) -> "Iterator[CommandParser]":
        """Yield this parser and all parsers below it, in the order of the help."""
        yield self
        for each in self.commands.values():
            yield from each.all_of_it()

    def format_help(self) -> str:
        """Return the usual help, the examples and the settings. The settings are imported only here."""
        shown = ["examples:", *(f"  {line}" for line in self.examples), ""] if self.examples else []
        if not self.settings:
            return "\n".join([super().format_help(), *shown])
        from director.core import settings

        rows = settings.described(getattr(settings, self.settings))
        lines = [f"  {name}{f' ({default})' if default else ''}\n      {text}" for name, default, text in rows]
        return "\n".join([super().format_help(), *shown, "environment (default):", *lines, ""])


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[CommandParser]
else:
    Commands = argparse._SubParsersAction


def sentence(text: str) -> str:
    """Return the help of a command as the first sentence of its description."""
    return f"{text[0].upper()}{text[1:]}."


def add_group(commands: Commands, name: str, text: str, *examples: str) -> Commands:
    """Add a command that only groups others. Return the object that takes those."""
    group = commands.add_parser(name, help=text, description=sentence(text), examples=examples)
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)


def add_action(
    commands: Commands,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
    *examples: str,
    about: str = "",
    again: bool = False,
) -> CommandParser:
    """Add an operator's command, which reads Redis and has --json.

    `about` replaces the description that is made from `text`. Give `again` if the command above has the same options:
    what was given there then holds.
    """
    parser = commands.add_parser(name, help=text, description=about or sentence(text), examples=examples)
    add_json(parser, again=again)
    add_redis(parser, again=again)
    parser.set_defaults(run=run)
    return parser


def add_home(parser: CommandParser, *, again: bool = False) -> None:
    """Add the folder of the `up`. For `again` see add_action."""
    default = argparse.SUPPRESS if again else DEFAULT_HOME
    parser.add_argument("--home", default=default, metavar="DIR", help=f"folder of the `up` ({DEFAULT_HOME})")


def add_service(parser: CommandParser) -> None:
    """Add the options that choose the API."""
    parser.add_argument("--url", default="", help="address of the API (DIRECTOR_URL, or that of the `up`)")
    parser.add_argument("--token", default="", help="token for the API (DIRECTOR_TOKEN, or that of the `up`)")
    add_home(parser)


def add_redis(parser: CommandParser, *, again: bool = False) -> None:
    """Add the options that choose the Redis server."""
    default = argparse.SUPPRESS if again else ""
    parser.add_argument(
        "--redis", metavar="URL", default=default, help="address of Redis (DIRECTOR_REDIS_URL, or that of the `up`)"
    )
    add_home(parser, again=again)


def add_json(parser: CommandParser, *, again: bool = False) -> None:
    default = argparse.SUPPRESS if again else False
    parser.add_argument("--json", action="store_true", default=default, help="print JSON, for programs")


def port_number(text: str) -> int:
    """Read a port; 0 means any free one."""
    if not text.isdecimal() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to {MOST_PORT}")
    return int(text)


def hours(text: str) -> float:
    """Read a number of hours, at most a leap year's."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or float(text) > MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: give hours from 0 to {MOST_HOURS}")
    return float(text)


def model_name(text: str) -> str:
    """Read owner/name or owner/name:version by the rules of the service."""
    model, pinned, version = text.partition(":")
    if not re.fullmatch(MODEL_NAME, model) or (pinned and not re.fullmatch(VERSION_ID, version)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a model: give owner/name in lower case, or owner/name:version with its 64 hex digits"
        )
    return text


def input_value(text: str) -> tuple[str, Any]:
    """Read name=value or name=@file."""
    from director.cli.client import parse_input

    try:
        return parse_input(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
