"""Declare a command of operators: it reads Redis, so it works while no API does."""

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from director.cli.arguments import JSON, REDIS, Argument, arg, declare
from director.cli.backend import Backend, on_backend
from director.cli.tables import Answer
from director.core.errors import SettingsError
from director.core.ids import PredictionId, is_prediction_id

Act = Callable[[Backend, argparse.Namespace], Awaitable[Answer]]
ActT = TypeVar("ActT", bound=Act)

QUEUE: Final = arg("queue QUEUE", "its name, or owner/name for the queue of the latest version")


def operator(path: str, *arguments: Argument, examples: Sequence[str] = (), **settings: Any) -> Callable[[ActT], ActT]:
    """Declare a command whose function gets the stores on the chosen Redis server. For the rest see `command`."""

    def declared(act: ActT) -> ActT:
        def run(given: argparse.Namespace) -> int:
            return on_backend(given, lambda backend: act(backend, given)).show(is_json=given.json)

        declare(path, run, act.__doc__ or "", (JSON, *REDIS, *arguments), examples, settings)
        return act

    return declared


def prediction_id(text: str, hint: str = "") -> PredictionId:
    """Return an id that was typed. Raises SettingsError with a hint after it."""
    if not is_prediction_id(text):
        raise SettingsError(f"{text!r} is not the id of a prediction{hint}.")
    return PredictionId(text)


def unknown_queue(name: str) -> SettingsError:
    return SettingsError(f"there is no queue {name}: `director queues` shows them.")
