"""`director predict`, `get` and `cancel`: what any client of the API can do, from a shell."""

import argparse
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from director.cli.arguments import Commands, add_json, add_service, input_value, model_name
from director.cli.output import harmless, print_json
from director.core.errors import DirectorError

if TYPE_CHECKING:
    from msgspec import Raw

    from director.cli.client import Client, Seen
    from director.cli.printing import Printer


LOOK_S: Final = 0.15
AWAY_LOOK_S: Final = 0.5
AWAY_S: Final = 60.0  # an API that restarts is back long before
DONE: Final = 0
FAILED: Final = 1


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    predict = commands.add_parser(
        "predict",
        help="run a model, and print its output as it comes",
        description="Run a model and print its output as it comes. Ctrl-C cancels the prediction.",
    )
    predict.add_argument("model", type=model_name, metavar="OWNER/NAME[:VERSION]")
    predict.add_argument(
        "-i",
        "--input",
        type=input_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an input: JSON where it reads as JSON, else text; NAME=@FILE sends a file",
    )
    predict.add_argument("-o", "--output", metavar="FILE", help="save the file that the model makes")
    predict.set_defaults(run=_predict)
    add_json(predict)
    add_service(predict)
    for name, run, text in (
        ("get", _get, "show how a prediction stands"),
        ("cancel", _cancel, "cancel a prediction"),
    ):
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument("id", metavar="ID", help="id of the prediction")
        command.set_defaults(run=run)
        add_json(command)
        add_service(command)


def _predict(given: argparse.Namespace) -> int:
    from director.cli.client import Client, seen
    from director.cli.where import service
    from director.core.states import Status

    with Client(service(given)) as client:
        body = client.create(given.model, dict(given.input))
        prediction = seen(body)
        with _named(prediction.id):
            try:
                body = _follow(client, given, body)
            except KeyboardInterrupt:
                client.cancel(prediction.id)
                print(f"\ncanceled {prediction.id}", file=sys.stderr)
                raise
            prediction = seen(body)
            if given.json:
                print_json(body)
            if given.output and prediction.status is Status.SUCCEEDED:
                _save(prediction.output, given.output)
    return DONE if prediction.status is Status.SUCCEEDED else FAILED


@contextmanager
def _named(prediction_id: str) -> Generator[None]:
    """Whatever goes wrong with it, say which prediction it is: it goes on without us."""
    try:
        yield
    except DirectorError as exc:
        raise DirectorError(f"{exc} It is prediction {prediction_id}: see `director get {prediction_id}`.") from exc


def _follow(client: "Client", given: argparse.Namespace, body: "Raw") -> "Raw":
    """Look until it has ended, and show what is new each time; returns the last look."""
    from director.cli.client import seen
    from director.cli.printing import Printer

    with Printer(sys.stdout, sys.stderr, shows_output=not given.output) as printer:
        while True:
            prediction = seen(body)
            if not given.json:
                printer.show(prediction)
            if prediction.is_terminal:
                return body
            time.sleep(LOOK_S)
            body = _look(client, prediction.id, printer)


def _look(client: "Client", prediction_id: str, printer: "Printer") -> "Raw":
    """How it stands now. A service that is away is asked again for a while: what it accepted is not lost."""
    from director.cli.client import Away

    give_up = time.monotonic() + AWAY_S
    is_told = False
    while True:
        try:
            return client.get(prediction_id)
        except Away as exc:
            if time.monotonic() >= give_up:
                raise
            if not is_told:
                printer.tell(f"asking again: {exc}")
            is_told = True
            time.sleep(AWAY_LOOK_S)


def _save(output: Any, file: str) -> None:
    from director.cli.inputs import save

    save(output, file)
    print(f"» saved {file}", file=sys.stderr)


def _get(given: argparse.Namespace) -> int:
    from director.cli.client import Client
    from director.cli.where import service

    with Client(service(given)) as client:
        return _show(given, client.get(given.id))


def _cancel(given: argparse.Namespace) -> int:
    from director.cli.client import Client
    from director.cli.where import service

    with Client(service(given)) as client:
        return _show(given, client.cancel(given.id))


def _show(given: argparse.Namespace, body: "Raw") -> int:
    from director.cli.client import seen

    if given.json:
        print_json(body)
    else:
        _print_facts(seen(body))
    return DONE


def _print_facts(prediction: "Seen") -> None:
    from director.cli.printing import as_text

    facts = {
        "id": prediction.id,
        "model": prediction.model,
        "status": prediction.status,
        "created": prediction.created_at,
        "started": prediction.started_at,
        "completed": prediction.completed_at,
        "error": prediction.error,
        "output": None if prediction.output is None else as_text(prediction.output),
        "logs": (prediction.logs or "").rstrip() or None,
    }
    for name, value in facts.items():
        if value is not None:
            print(harmless(f"{name:<10} {value}", sys.stdout))
