"""The entry of `director`: it parses the line, runs one command, and turns a fault into one line and an exit code.
Only the module of the typed command is imported. The exit codes are in arguments.py.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Final

import director
from director.cli.arguments import EXIT_CODES, CommandParser, arg, build, command
from director.cli.output import leave_stdout, printable
from director.core.errors import DirectorError

FAILED: Final = 1
INTERRUPTED: Final = 130
# title in the help: commands, or groups of commands, in the order of the help: the module of each, and its line
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "start here": {
        "up": ("serve", "start everything on this machine, until Ctrl-C"),
        "serve": ("serve", "serve a model of yours from its folder, or its server, until Ctrl-C"),
        "down": ("serve", "stop a `director up`, and processes that one left behind"),
        "schema": ("serve", "print the schema of a Cog model in a folder"),
    },
    "predictions": {
        "predict": ("predictions", "run a model, and print its output as it arrives"),
        "ps": ("predictions", "list predictions that wait or run"),
        "get": ("predictions", "show the state of a prediction"),
        "wait": ("predictions", "wait for the end of a prediction, and print its output"),
        "logs": ("predictions", "print what a prediction logged, or the servers of a model"),
        "cancel": ("predictions", "cancel a prediction"),
        "explain": ("predictions", "explain what happened to a prediction, why it waits and what comes next"),
        "batches": ("batches", "submit, list, show, cancel and download batches: files of requests"),
        "open": ("predictions", "open the page of the service, or of a prediction, in a browser"),
        "context": ("contexts", "name services by their address and token file, and choose one"),
    },
    "releases": {
        "deploy": ("deployments", "give a deployment a version, or a share of its calls to try one"),
        "promote": ("deployments", "give all calls of a deployment to the version that it tries"),
        "rollback": ("deployments", "withdraw the version that is tried, or release the one before"),
        "deployments": ("deployments", "list deployments; show both versions of one and how their runs end"),
    },
    "queues and their state": {
        "status": ("status", "say on one screen whether the service is healthy"),
        "queues": ("queues", "show what waits and runs; pause, drain, bound, resize or migrate a queue"),
        "directors": ("status", "show every director: its slots, its claims and its model servers"),
        "devices": ("status", "show devices that models share: what is loaded, its memory, and what swaps cost"),
        "scale": ("status", "show how many directors a queue needs, as the keeper tells an autoscaler"),
        "doctor": ("status", "check Redis and the service, and say how to repair what is wrong"),
        "top": ("top", "watch queues and directors live, in the whole terminal"),
        "tail": ("tail", "follow the steps of all predictions, or one prediction with its output"),
        "predictions": ("across", "list, cancel or retry predictions of all accounts, as an operator"),
        "dead": ("dead", "list, revive or drop dead letters: predictions without attempts left"),
        "webhooks": ("webhooks", "send the webhooks that a receiver is owed again"),
    },
    "accounts": {
        "token": ("accounts", "make, list, change and revoke tokens for callers of the API"),
        "login-link": ("accounts", "make a link that logs a person in at the page, once"),
        "account": ("accounts", "make and list accounts; show and set their limits"),
        "usage": ("usage", "show what accounts used: runs, seconds, tokens, and their cost"),
    },
    "models": {
        "model": ("models", "list models, show one; set what is shown of them, and to whom; load, rest or pin one"),
        "collection": ("models", "write collections of models"),
        "hardware": ("models", "write what GET /v1/hardware shows"),
    },
    "processes": {
        "api": ("serve", "serve the HTTP API"),
        "run": ("serve", "run predictions of one or more models on model servers"),
        "keeper": ("serve", "recover claims of lost directors, deliver webhooks, and keep all queues in order"),
        "audit": ("serve", "copy the steps of all predictions to a file or a receiver"),
    },
    "trials": {
        "simulate": ("trials", "replay recorded or made traffic with other slots and policies"),
        "chaos": ("trials", "break every part, and check that nothing is lost"),
        "prove": ("trials", "try every order of calls in small worlds, on the scripts as they are"),
        "bench": ("trials", "measure speed"),
    },
    "this command": {
        "completion": ("main", "print a script with which a shell completes these commands"),
        "version": ("main", "print the version"),
    },
}
COMMANDS: Final = {name: row for group in GROUPS.values() for name, row in group.items()}
ALIASES: Final = {"model": ("models",), "deployments": ("deployment",)}
FILES: Final = frozenset({"FILE", "FILE|URL", "PROGRAM"})
FOLDERS: Final = frozenset({"DIR", "FOLDER"})


def main(argv: Sequence[str] | None = None) -> int:
    if getattr(director, "DISTRIBUTION", "") != "director-queue":  # its files overwrote some of ours
        return _report_failure(
            f"another program is installed as `director` in {sys.prefix}. "
            "Install this one in an environment of its own: `pipx install` or `uv tool install` makes one."
        )
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except DirectorError as exc:
        return _report_failure(str(exc))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `director … | head`: the reader has closed the pipe
        leave_stdout()
        return FAILED
    except OSError as exc:  # for example a full disk behind stdout
        leave_stdout()
        return _report_failure(str(exc))


def _run(argv: Sequence[str]) -> int:
    try:
        if not argv:
            make_parser("").print_help()
            return 0
        given = make_parser(next((word for word in argv if not word.startswith("-")), "")).parse_args(argv)
        return int(given.run(given))
    finally:
        sys.stdout.flush()  # Python would flush at exit, and report a failure with its own words and code


def _report_failure(text: str) -> int:
    lines = "\n".join(printable(line) for line in text.splitlines())  # some advise a command, or show the end of a log
    print(f"director: {lines}", file=sys.stderr)
    return FAILED


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        _print_version()
        parser.exit()


class _InGroups(argparse.HelpFormatter):
    """Help that lists commands under the titles of GROUPS."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        rows = {each.dest: self._format_action(each) for each in _rows(action)}
        lines = [f"\n{title}:\n{''.join(rows[name] for name in group)}" for title, group in GROUPS.items()]
        return "".join(lines)


def _rows(action: argparse.Action) -> Iterable[argparse.Action]:
    return action._choices_actions  # type: ignore[attr-defined, no-any-return]


def make_parser(typed: str | None = None) -> CommandParser:
    """Return the parser of all commands. With `typed`, the others have only their names and help lines."""
    parser = CommandParser(
        prog="director",
        description="A self-hosted, Replicate-compatible prediction queue. Start with `director up`.",
        epilog="exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()),
        formatter_class=_InGroups,
    )
    parser.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, (module, text) in COMMANDS.items():
        aliases = ALIASES.get(name, ())
        if typed is None or typed in (name, *aliases):
            import_module(f"director.cli.{module}")
            build(commands, name, text, aliases)
        else:
            commands.add_parser(name, aliases=aliases, help=text)
    return parser


def _print_version() -> None:
    from director import __version__

    print(__version__)


@command("version", examples=("",))
def _version(_: argparse.Namespace) -> int:
    _print_version()
    return 0


@command(
    "completion",
    arg("shell", "the shell", choices=("bash", "zsh", "fish")),
    examples=(
        "bash > ~/.local/share/bash-completion/completions/director",
        "zsh > ~/.zfunc/_director",
        "fish > ~/.config/fish/completions/director.fish",
    ),
)
def _completion(given: argparse.Namespace) -> int:
    """Print a script with which a shell completes commands and options. The examples show its place."""
    import shtab

    parser = make_parser()
    for each in parser.all_of_it():
        for action in each.arguments:
            if action.metavar in FILES | FOLDERS:
                place = shtab.FILE if action.metavar in FILES else shtab.DIRECTORY
                action.complete = place  # type: ignore[attr-defined]  # as shtab wants it
    sys.stdout.write(shtab.complete(parser, shell=given.shell))
    return 0
