"""Declare a command of operators: it reads Redis, so it works while no API does."""

import argparse
import getpass
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from director.cli.arguments import JSON, REDIS, Argument, arg, declare
from director.cli.tables import Answer
from director.core.errors import SettingsError
from director.core.ids import PredictionId, is_prediction_id
from director.runtime.logs import JsonLines, PeopleLines

if TYPE_CHECKING:
    from director.cli.backend import Backend as Backend
else:
    Backend = Any  # its import takes 170 ms of CPU, which no help needs

Act = Callable[[Backend, argparse.Namespace], Awaitable[Answer]]
ActT = TypeVar("ActT", bound=Act)

QUEUE: Final = arg("queue QUEUE", "its name, or owner/name for the queue of the latest version")


def operator(path: str, *arguments: Argument, examples: Sequence[str] = (), **settings: Any) -> Callable[[ActT], ActT]:
    """Declare a command whose function gets the stores on the chosen Redis server. For the rest see `command`."""

    def declare_act(act: ActT) -> ActT:
        def run(given: argparse.Namespace) -> int:
            from director.cli.backend import on_backend

            return on_backend(given, lambda backend: act(backend, given)).show(is_json=given.json)

        declare(path, run, act.__doc__ or "", (JSON, *REDIS, *arguments), examples, settings)
        return act

    return declare_act


def prediction_id(text: str, hint: str = "") -> PredictionId:
    """Return an id that was typed. Raises SettingsError with a hint after it."""
    if not is_prediction_id(text):
        raise SettingsError(f"{text!r} is not the id of a prediction{hint}.")
    return PredictionId(text)


def unknown_queue(name: str) -> SettingsError:
    return SettingsError(f"there is no queue {name}: `director queues` shows them.")


@contextmanager
def audit() -> Iterator[str]:
    """Yield the operator's name, and write each change in the block on stderr too: as JSON, or for a person at one."""
    log, handler = logging.getLogger("director.store.changes"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(PeopleLines() if sys.stderr.isatty() else JsonLines(process="cli"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield typist()
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


def typist() -> str:
    """Return the operator's name as the log of changes has it. Only the user's name is read."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # in a container the user may have a number without a name
        return "cli:unknown"
