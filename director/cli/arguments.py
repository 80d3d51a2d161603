"""Arguments that several commands have, and how their text is read."""

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from director.core.ids import MODEL_NAME, VERSION_ID
from director.local import DEFAULT_HOME

# Lines that show how each command is used: the end of its help, and of the table in this room's README. Pure.

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "it is done",
    1: "it failed, or what was looked at is not well; the line on stderr, or what was printed, says what to do",
    2: "the command line is wrong, and nothing was done",
    130: "Ctrl-C",
}

ID: Final = "06gzx0rcvbz008pmq2tvpfvnvc"

# by the words before the options
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "director up": ("director up", "director up --port 9000 --home /srv/director"),
    "director down": ("director down",),
    "director predict": (
        "director predict example/hello -i text=hi -i n=3",
        "director predict example/thumbnail -i image=@photo.png -o small.png",
    ),
    "director get": (f"director get {ID}",),
    "director cancel": (f"director cancel {ID}",),
    "director explain": (f"director explain {ID}", f"director explain {ID} --json"),
    "director queues": ("director queues", "director queues --json"),
    "director queues show": ("director queues show acme/painter",),
    "director queues pause": (
        "director queues pause acme/painter",
        "director queues pause acme/painter --account team-a",
    ),
    "director queues resume": ("director queues resume acme/painter --account team-a",),
    "director queues drain": ("director queues drain acme/painter --timeout 600",),
    "director queues resize": ("director queues resize acme/painter 8",),
    "director queues bound": (
        "director queues bound acme/painter bounded --max-queued 500",
        "director queues bound acme/painter absorb",
    ),
    "director queues migrate": (
        "director queues migrate acme/painter:0123456789ab acme/painter:ba9876543210 --dry-run",
        "director queues migrate acme/painter --to-redis redis://10.0.0.2:6379",
    ),
    "director scale": ("director scale acme/painter", "director scale acme/painter --json"),
    "director directors": ("director directors", "director directors --queue acme/painter"),
    "director top": ("director top", "director top --once"),
    "director tail": (
        "director tail --queue acme/painter --kind retried --kind ended",
        f"director tail {ID}",
        "director tail --json",
    ),
    "director dead": ("director dead list",),
    "director dead list": ("director dead list --queue acme/painter:0123456789ab -n 100",),
    "director dead show": (f"director dead show {ID}",),
    "director dead revive": (f"director dead revive {ID}", "director dead revive --all --rate 5"),
    "director dead drop": ("director dead drop --all --queue acme/painter:0123456789ab",),
    "director doctor": ("director doctor", "director doctor --json"),
    "director token": ("director token list",),
    "director token create": (
        "director token create --account team-a",
        "director token create --account ops --scopes admin --expires-hours 12",
    ),
    "director token list": ("director token list --account team-a",),
    "director token revoke": ("director token revoke --account team-a ci", "director token revoke < token.txt"),
    "director account": ("director account list",),
    "director account create": ("director account create team-a",),
    "director account list": ("director account list",),
    "director account show": ("director account show team-a",),
    "director account set": ("director account set team-a --rate 10 --max-running 4",),
    "director account suspend": ("director account suspend team-a --policy hold",),
    "director account resume": ("director account resume team-a",),
    "director account rotate-secret": ("director account rotate-secret team-a --keep-hours 24",),
    "director model": ("director models",),
    "director model list": ("director model list",),
    "director model set": ("director model set acme/painter --visibility private --description 'Paints.'",),
    "director model config": (
        "director model config acme/painter",
        "director model config acme/painter --set attempts=5 --unset slots",
    ),
    "director model example": (f"director model example acme/painter {ID} --default",),
    "director collection": ("director collection set best --name 'The best' --models acme/painter",),
    "director collection set": ("director collection set best --name 'The best' --models acme/painter acme/echo",),
    "director collection remove": ("director collection remove best",),
    "director hardware": ("director hardware set gpu-t4 'Nvidia T4'",),
    "director hardware set": ("director hardware set gpu-t4 'Nvidia T4'",),
    "director hardware remove": ("director hardware remove gpu-t4",),
    "director api": ("director api --port 8080",),
    "director run": (
        "director run --model acme/painter --server http://127.0.0.1:5000",
        "director run --config pool.toml",
    ),
    "director keeper": ("director keeper --port 9090",),
    "director audit": ("director audit --to /var/log/director/audit.jsonl",),
    "director bench": ("director bench latency",),
    "director bench latency": ("director bench latency -n 500",),
    "director bench throughput": ("director bench throughput --connections 64",),
    "director simulate": (
        "director simulate audit.jsonl --queue acme/painter:0123456789ab --slots 4,8,16",
        "director simulate trace.jsonl --policy fair --policy fifo --plot waits.svg",
        "director simulate --made heavy-light --minutes 30 --slots 4 --policy weights.toml",
    ),
    "director chaos": ("director chaos --seconds 60 --seed 7",),
    "director completion": (
        "director completion bash > ~/.local/share/bash-completion/completions/director",
        "director completion zsh > ~/.zfunc/_director",
        "director completion fish > ~/.config/fish/completions/director.fish",
    ),
}

MOST_PORT: Final = 65535
MOST_HOURS: Final = 24 * 366


class CommandParser(argparse.ArgumentParser):
    """A parser whose help ends with lines that show its use, and with the settings of its process, where it has some:
    `settings` is the name of their struct.
    """

    settings = ""

    @property
    def examples(self) -> tuple[str, ...]:
        """Lines that show its use."""
        return EXAMPLES.get(self.prog, ())

    @property
    def arguments(self) -> "list[argparse.Action]":
        """All that it takes itself."""
        return self._actions

    @property
    def commands(self) -> "dict[str, CommandParser]":
        """The commands below it by their names; one that has two names is there under the first alone."""
        found: dict[str, CommandParser] = {}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, each in action.choices.items():
                    if each not in found.values():
                        found[name] = each
        return found

    def all_of_it(self) -> "Iterator[CommandParser]":
        """Itself, and all that is below it, in the order of the help."""
        yield self
        for each in self.commands.values():
            yield from each.all_of_it()

    def format_help(self) -> str:
        """The usual help; lines to copy; and the table of variables, which is made only when somebody asks for it."""
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


def add_home(parser: CommandParser, *, again: bool = False) -> None:
    """Where an `up` keeps its data. `again`, here and below: the command above has it too, and what it got holds."""
    default = argparse.SUPPRESS if again else DEFAULT_HOME
    parser.add_argument("--home", default=default, metavar="DIR", help=f"folder of the `up` ({DEFAULT_HOME})")


def add_service(parser: CommandParser) -> None:
    """Which API a client's command asks."""
    parser.add_argument("--url", default="", help="of the API, else DIRECTOR_URL, else that of the `up`")
    parser.add_argument("--token", default="", help="else DIRECTOR_TOKEN, else that of the `up`")
    add_home(parser)


def add_redis(parser: CommandParser, *, again: bool = False) -> None:
    """Which server an operator's command looks at."""
    default = argparse.SUPPRESS if again else ""
    parser.add_argument(
        "--redis", metavar="URL", default=default, help="else DIRECTOR_REDIS_URL, else that of the `up`"
    )
    add_home(parser, again=again)


def add_json(parser: CommandParser, *, again: bool = False) -> None:
    """For machines."""
    default = argparse.SUPPRESS if again else False
    parser.add_argument("--json", action="store_true", default=default, help="print JSON, for machines")


def port_number(text: str) -> int:
    """A port, 0 for any free one."""
    if not text.isdecimal() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to {MOST_PORT}")
    return int(text)


def hours(text: str) -> float:
    """A span in hours, from none at all to a year."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", text) or float(text) > MOST_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is no span: give hours, from 0 to {MOST_HOURS}")
    return float(text)


def model_name(text: str) -> str:
    """owner/name or owner/name:version, as the service itself reads them."""
    model, pinned, version = text.partition(":")
    if not re.fullmatch(MODEL_NAME, model) or (pinned and not re.fullmatch(VERSION_ID, version)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no model: give owner/name in lower case, or owner/name:version with its 64 hex digits"
        )
    return text


def input_value(text: str) -> tuple[str, Any]:
    """name=value or name=@file."""
    from director.cli.inputs import parse

    try:
        return parse(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
