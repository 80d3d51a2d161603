"""Declare a command of operators: it asks the API, or reads Redis itself with --redis, while no API is up."""

import argparse
import getpass
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from director.cli.arguments import CALLER, JSON, REDIS_OR_SERVICE, Argument, arg, declare
from director.cli.tables import Answer
from director.core.errors import SettingsError
from director.core.ids import PredictionId, is_prediction_id
from director.runtime.logs import JsonLines, PeopleLines

if TYPE_CHECKING:
    from director.cli.backend import Backend as Backend
    from director.cli.client import Service
else:
    Backend = Any  # its import takes 170 ms of CPU, which no help needs

Act = Callable[[Backend, argparse.Namespace], Awaitable[Answer]]
Needs = Literal["view", "operate", "admin"]
ActT = TypeVar("ActT", bound=Act)

QUEUE: Final = arg("queue QUEUE", "its name, or owner/name for the queue of the latest version")


AskApi = Callable[["Service", argparse.Namespace], Answer]


class OperatorCommand(NamedTuple):
    """A command that the API runs for its callers too. `needs`: the scope that it takes."""

    act: Act
    arguments: Sequence[Argument]
    needs: Needs


OPERATOR_COMMANDS: Final[dict[str, OperatorCommand]] = {}  # by the path of the command


def operator(
    path: str,
    *arguments: Argument,
    examples: Sequence[str] = (),
    needs: Needs | None = "admin",
    ask_api: AskApi | None = None,
    ask_own: AskApi | None = None,
    **settings: Any,
) -> Callable[[ActT], ActT]:
    """Declare a command whose function gets the stores of a Redis server. The API runs it for a caller with the scope
    `needs`, or this process with --redis; None: this process alone. `ask_api`: how the API is asked for what may take
    longer than one answer, or is of every site. `ask_own`: what it is asked for with a token without that scope. For
    the rest see `command`.
    """

    def declare_act(act: ActT) -> ActT:
        def run(given: argparse.Namespace) -> int:
            def run_here() -> int:
                from director.cli.backend import on_backend

                return on_backend(given, lambda backend: act(backend, given)).show(is_json=given.json)

            def run_there(chosen: "Service") -> int:
                from director.cli.client import Forbidden, name_service
                from director.cli.remote import ask

                if needs != "view":
                    name_service(chosen)
                if ask_api is not None:
                    return ask_api(chosen, given).show(is_json=given.json)
                try:
                    return ask(chosen, path, arguments, given)
                except Forbidden:
                    if ask_own is None:
                        raise
                    return ask_own(chosen, given).show(is_json=given.json)

            return ask_or_read_redis(given, run_there, run_here)

        if ask_api is None and needs is not None:
            OPERATOR_COMMANDS[path] = OperatorCommand(act, arguments, needs)
        declare(path, run, act.__doc__ or "", (JSON, *REDIS_OR_SERVICE, *arguments), examples, settings)
        return act

    return declare_act


def choose_service(given: argparse.Namespace) -> "Service | None":
    """Return the API to ask, or None if the command reads Redis itself: with --redis, for two servers, or if only its
    address is known. An address or a token of an API that is given wins over DIRECTOR_REDIS_URL.
    """
    from director.cli.client import service

    is_named = given.url or given.token or given.context
    if given.redis or getattr(given, "to_redis", None) or (not is_named and os.environ.get("DIRECTOR_REDIS_URL", "")):
        return None
    return service(given)


def ask_or_read_redis(given: argparse.Namespace, there: "Callable[[Service], int]", here: Callable[[], int]) -> int:
    """Run at the API, or here without one. Of an `up` whose API is not there, the Redis is known and is read. An API
    that got the request may have done it, and a token that was named may do less than Redis lets this process do.
    """
    import httpx

    from director.cli.client import Away
    from director.cli.contexts import choose
    from director.local.home import Home

    if (chosen := choose_service(given)) is None:
        return here()
    try:
        return there(chosen)
    except Away as exc:
        named = (given.url, given.token, given.context, *map(os.environ.get, ("DIRECTOR_URL", "DIRECTOR_TOKEN")))
        is_absent = isinstance(exc.__cause__, httpx.ConnectError)
        if is_absent and not any(named) and not choose("") and Home(Path(given.home)).read().redis_url:
            return here()
        raise Away(f"{exc} While no API answers, --redis URL reads Redis itself.") from exc


def read_line() -> str:
    """Return the first line of standard input, which may be a caller's of the API."""
    caller = CALLER.get()
    return (sys.stdin.readline() if caller is None else caller.stdin).strip()


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
    if CALLER.get() is not None:
        yield typist()
        return
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
    if (caller := CALLER.get()) is not None:
        return caller.by
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # in a container the user may have a number without a name
        return "cli:unknown"
