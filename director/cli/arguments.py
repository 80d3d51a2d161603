"""Declare a command beside its function: `@command("dead show", arg("id ID"), examples=("ID",))`. The function's
docstring is the command's description, and its first sentence is the line in the help of a group.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from director.core.errors import SettingsError
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
FEW: Final = 8  # names that an error lists
MOST_LISTED: Final = 1_000  # in one answer, which the API may have to hold
LISTED_AT_ONCE: Final = 100


class Caller(NamedTuple):
    """A caller of the API, for whom a command runs here. `width`: its terminal's. `stdin`: the first line of it."""

    by: str
    width: int | None
    stdin: str


CALLER: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with examples and, for a process, with the settings of this struct of core/settings."""

    def __init__(self, *given: Any, examples: Sequence[str] = (), settings: str = "", **named: Any) -> None:
        super().__init__(*given, **named)
        self.examples = examples
        self.settings = settings

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(one) for one in action.choices]
        listed = f"choose from {', '.join(known)}" if len(known) <= FEW else f"`{self.prog} --help` lists all"
        raise argparse.ArgumentError(action, f"{value!r} is unknown: {did_you_mean(str(value), known) or listed}")

    def error(self, message: str) -> NoReturn:
        if CALLER.get() is not None:  # of a caller of the API
            raise SettingsError(message)
        super().error(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if CALLER.get() is not None:
            raise SettingsError(message or "give a command, without --help")
        super().exit(status, message)

    def print_help(self, file: Any = None) -> None:
        if CALLER.get() is None:
            super().print_help(file)

    @property
    def arguments(self) -> "list[argparse.Action]":
        return self._actions

    @property
    def commands(self) -> "dict[str, CommandParser]":
        found: dict[str, CommandParser] = {}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, each in action.choices.items():
                    if each not in found.values():
                        found[name] = each
        return found

    def all_of_it(self) -> "Iterator[CommandParser]":
        yield self
        for each in self.commands.values():
            yield from each.all_of_it()

    def format_help(self) -> str:
        shown = ["examples:", *(f"  {line}" for line in self.examples), ""] if self.examples else []
        if not self.settings:
            return "\n".join([super().format_help(), *shown])
        from director.core import settings

        rows = settings.describe(getattr(settings, self.settings))
        lines = [f"  {name}{f' ({default})' if default else ''}\n      {text}" for name, default, text in rows]
        return "\n".join([super().format_help(), *shown, "environment (default):", *lines, ""])


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """Return a question that names the closest known word, or nothing if none is close."""
    close = get_close_matches(typed, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[CommandParser]
else:
    Commands = argparse._SubParsersAction

Run = Callable[[argparse.Namespace], int]
RunT = TypeVar("RunT", bound=Run)


class Argument(NamedTuple):
    """`section` is the title of its part of the help, or EITHER for options that exclude each other."""

    names: Sequence[str]
    settings: dict[str, Any]
    section: str

    @property
    def dest(self) -> str:
        return self.settings.get("dest") or self.names[0].lstrip("-").replace("-", "_")


class Command(NamedTuple):
    """A command, or a group of commands if `run` is None. `about` is empty if its help line says all."""

    run: Run | None
    about: str
    arguments: Sequence[Argument]
    examples: Sequence[str]
    settings: dict[str, Any]


EITHER: Final = "either"
DECLARED: Final[dict[str, Command]] = {}  # by its path, as in "dead show": filled by the modules of the groups


def arg(names: str, text: str = "", *, section: str = "", **settings: Any) -> Argument:
    """Return an argument. The last word of `names` is the name of its value: "-o --output FILE", "id ID"."""
    *words, last = names.split()
    if words and not last.startswith("-"):
        settings["metavar"] = last
    else:
        words.append(last)
    return Argument(words, {"help": text or None, **settings}, section)


def flag(names: str, text: str, **settings: Any) -> Argument:
    return arg(names, text, action="store_true", **settings)


def home_folder(text: str) -> str:
    return text or os.environ.get("DIRECTOR_HOME", "") or DEFAULT_HOME


HOME: Final = arg("--home DIR", f"folder of the `up` (DIRECTOR_HOME, or {DEFAULT_HOME})", default="", type=home_folder)
JSON: Final = flag("--json", "print JSON, for programs", default=False)
SERVICE: Final = (
    arg("--url", "address of the API (DIRECTOR_URL, or that of the context or the `up`)", default=""),
    arg("--token", "token for the API (DIRECTOR_TOKEN, or that of the context or the `up`)", default=""),
    arg(
        "--context NAME",
        "a service that `director context add` named (DIRECTOR_CONTEXT, or the one in use)",
        default="",
    ),
    HOME,
)

# of an operator's command: it asks the API, or reads Redis itself
REDIS_OR_SERVICE: Final = (
    arg("--redis URL", "read this Redis server instead of asking the API (DIRECTOR_REDIS_URL)", default=""),
    *SERVICE,
)


def command(
    path: str, *arguments: Argument, examples: Sequence[str] = (), about: str = "", **settings: Any
) -> Callable[[RunT], RunT]:
    """Declare a command. An example is the part after the path; `settings` are for its parser."""

    def declare_run(run: RunT) -> RunT:
        declare(path, run, about or run.__doc__ or "", arguments, examples, settings)
        return run

    return declare_run


def group(name: str, *examples: str, about: str = "") -> None:
    declare(name, None, about, (), examples, {})


def declare(
    path: str,
    run: Run | None,
    about: str,
    arguments: Sequence[Argument],
    examples: Sequence[str],
    settings: dict[str, Any],
) -> None:
    lines = [f"director {path} {rest}".rstrip() for rest in examples]
    DECLARED[path] = Command(run, about, arguments, lines, settings)


def build(commands: Commands, name: str, text: str, aliases: Sequence[str]) -> None:
    """Add a declared command and all below it. `text` is its help line."""
    top = DECLARED[name]
    parser = _add(commands, name, top, help_line=text, aliases=aliases)
    below = {path: each for path, each in DECLARED.items() if path.startswith(f"{name} ")}
    if not below:
        return
    actions = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=top.run is None, parser_class=CommandParser
    )
    above = [each.names for each in top.arguments]
    for path, each in below.items():
        first = " ".join(each.about.split()).partition(". ")[0].rstrip(".")
        _add(actions, path.removeprefix(f"{name} "), each, help_line=first[0].lower() + first[1:], above=above)


def _add(
    commands: Commands,
    name: str,
    declared: Command,
    *,
    help_line: str,
    aliases: Sequence[str] = (),
    above: Sequence[Sequence[str]] = (),
) -> CommandParser:
    """Add one command. An option that the command above has too keeps what was given there."""
    about = declared.about or f"{help_line[0].upper()}{help_line[1:]}."
    parser = commands.add_parser(
        name,
        aliases=aliases,
        help=help_line,
        **{"description": about, "examples": declared.examples, **declared.settings},
    )
    sections: dict[str, argparse._ActionsContainer] = {"": parser}
    for each in declared.arguments:
        if each.section == EITHER and EITHER not in sections:
            sections[EITHER] = parser.add_mutually_exclusive_group()
        elif each.section not in sections:
            sections[each.section] = parser.add_argument_group(each.section)
        more = {"default": argparse.SUPPRESS} if each.names in above else {}
        sections[each.section].add_argument(*each.names, **{**each.settings, **more})
    if declared.run is not None:
        parser.set_defaults(run=declared.run)
    return parser


def whole(most: int | None = None, *, least: int = 1) -> Callable[[str], int]:
    to = f" to {most}" if most else ""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not valid: give a whole number from {least}{to}")
        return int(text)

    return number


def port_number(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to {MOST_PORT}")
    return int(text)


def hours(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or float(text) > MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: give hours from 0 to {MOST_HOURS}")
    return float(text)


def owner_and_name(text: str) -> str:
    if not re.fullmatch(MODEL_NAME, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a model: give owner/name in lower case, such as acme/painter"
        )
    return text


def model_name(text: str) -> str:
    model, pinned, version = text.partition(":")
    if not re.fullmatch(MODEL_NAME, model) or (pinned and not re.fullmatch(VERSION_ID, version)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a model: give owner/name in lower case, or owner/name:version with its 64 hex digits"
        )
    return text


CURSOR: Final = arg("--cursor", "continue where an earlier list ended", default="")
LISTED: Final = (  # of a list of which an answer has a part
    arg("-n N", f"list at most N ({LISTED_AT_ONCE})", type=whole(MOST_LISTED), default=LISTED_AT_ONCE),
    CURSOR,
)
