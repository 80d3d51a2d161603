"""Commands of any caller, through the API: `director predict`, `get`, `cancel` and `explain`."""

import argparse
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from director.cli.arguments import (
    EXAMPLE_ID,
    CommandParser,
    Commands,
    add_json,
    add_service,
    input_value,
    model_name,
    sentence,
)
from director.cli.output import harmless, print_json, printable
from director.core.errors import DirectorError
from director.core.words import span

if TYPE_CHECKING:
    from msgspec import Raw

    from director.cli.client import Client, Seen
    from director.cli.printing import Printer
    from director.core.schema import Eta
    from director.diagnosis.story import Ended, Holding, Owed, Story, Submitted


LOOK_S: Final = 0.15
AWAY_LOOK_S: Final = 0.5
AWAY_S: Final = 60.0  # an API restarts in much less
DONE: Final = 0
FAILED: Final = 1
WIDTH: Final = len("2026-01-01T00:00:00.000Z")
WORDS: Final = {
    "gone": "the receiver wants no more",
    "refused": "its address is not allowed",
    "given_up": "failed, and given up",
}
RULES: Final = {
    "bad_url": "its URL is invalid",
    "private_address": "its address is not public: DIRECTOR_WEBHOOK_ALLOW may name it",
    "http_not_allowed": "http:// is not allowed: use https://",
    "port_not_allowed": "its port must be 443 or 8443",
}
LONGEST: Final = 200  # characters of a model's error; `director get` shows all of it


def add(commands: Commands) -> None:
    predict = _add(
        commands,
        "predict",
        "run a model, and print its output as it arrives",
        _predict,
        "director predict example/hello -i text=hi -i n=3",
        "director predict example/thumbnail -i image=@photo.png -o small.png",
        about="Run a model and print its output as it arrives. Ctrl-C cancels the prediction.",
    )
    predict.add_argument("model", type=model_name, metavar="OWNER/NAME[:VERSION]")
    predict.add_argument(
        "-i",
        "--input",
        type=input_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an input: JSON where VALUE parses as JSON, else text; NAME=@FILE sends a file",
    )
    predict.add_argument("-o", "--output", metavar="FILE", help="save the file that the model makes")
    get = _add(commands, "get", "show the state of a prediction", _get, f"director get {EXAMPLE_ID}")
    cancel = _add(commands, "cancel", "cancel a prediction", _cancel, f"director cancel {EXAMPLE_ID}")
    explain = _add(
        commands,
        "explain",
        "explain what happened to a prediction, why it waits and what comes next",
        _explain,
        f"director explain {EXAMPLE_ID}",
        f"director explain {EXAMPLE_ID} --json",
        about="Tell the whole story of a prediction. A token with the scope admin may ask about any account's.",
    )
    for each in (get, cancel, explain):
        each.add_argument("id", metavar="ID", help="id of the prediction")


def _add(
    commands: Commands,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
    *examples: str,
    about: str = "",
) -> CommandParser:
    parser = commands.add_parser(name, help=text, description=about or sentence(text), examples=examples)
    add_json(parser)
    add_service(parser)
    parser.set_defaults(run=run)
    return parser


def _predict(given: argparse.Namespace) -> int:
    from director.cli.client import Client, seen, service
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
    """Add the id of the prediction to any error, because the prediction continues without this command."""
    try:
        yield
    except DirectorError as exc:
        raise DirectorError(f"{exc} It is prediction {prediction_id}: see `director get {prediction_id}`.") from exc


def _follow(client: "Client", given: argparse.Namespace, body: "Raw") -> "Raw":
    """Poll until the prediction is terminal, and show what is new each time. Return the last response."""
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
    """Return the prediction. If the service is away, ask again for AWAY_S: accepted predictions are not lost."""
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
    from director.cli.client import save_output

    save_output(output, file)
    print(f"» saved {file}", file=sys.stderr)


def _get(given: argparse.Namespace) -> int:
    from director.cli.client import Client, service

    with Client(service(given)) as client:
        return _show(given, client.get(given.id))


def _cancel(given: argparse.Namespace) -> int:
    from director.cli.client import Client, service

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


def _explain(given: argparse.Namespace) -> int:
    from director.cli.client import Client, read, service
    from director.cli.output import folded, line_width
    from director.diagnosis.story import Story

    with Client(service(given)) as client:
        body = client.explain(given.id)
    if given.json:
        print_json(body)
    else:
        print(folded(map(printable, story_lines(read(body, Story))), hang=WIDTH + 2, width=line_width()))
    return 0


def story_lines(story: "Story") -> Iterator[str]:
    """Yield the story for a person: what happened and when, the state now, and what is next."""
    ended = story.ended
    yield f"{story.id} of {story.model}: {story.status}"
    yield from _came(story.submitted)
    for held in story.held:
        yield from _had(held, has_more=ended is None or held.ended_at != ended.at)
    if ended is not None:
        yield from _over(ended)
    if not story.has_events:
        yield _more("its events were removed: releases without a run are no longer known")
    if story.queue:
        place = story.queue
        yield _at(story.now, f"waits, {_line(place.position, place.ahead, place.eta_s)}. {place.detail}")
    if story.webhook is not None:
        yield from _told(story.webhook)
    if story.redis_ms:
        yield _more(f"Redis is slow: it took {story.redis_ms:.0f} ms for this. `director doctor` measures it")
    for coming in story.next:
        yield f"{coming.at or 'next':<{WIDTH}}  {'next: ' if coming.at else ''}{coming.detail}"


def _came(submitted: "Submitted") -> Iterator[str]:
    yield _at(submitted.at, f"accepted from {submitted.account}, lane {submitted.lane}")
    if submitted.told is not None:
        told = submitted.told
        yield _more(f"the answer said: {_line(told.position, told.ahead, told.eta_s)}")
    if submitted.revivals and submitted.revived_at is None:
        yield _more(f"an operator revived it {submitted.revivals} times")
    elif submitted.revivals:
        yield _at(submitted.revived_at, "an operator revived it")


def _had(held: "Holding", *, has_more: bool) -> Iterator[str]:
    waited = "" if held.waited_s is None else f" after waiting {span(held.waited_s)}"
    if held.claimed_at is not None:
        yield _at(held.claimed_at, f"claimed by {held.director}{waited}: attempt {held.number}")
    if held.started_at is not None:
        yield _at(held.started_at, "run began")
    if held.ended_at is not None and has_more:
        kept = "" if held.held_s is None else f" after {span(held.held_s)}"
        unspent = "" if held.is_spent else ", not counted as an attempt"
        yield _at(held.ended_at, f"claim of {held.director} ended{kept}: {held.how or 'no reason given'}{unspent}")


def _over(ended: "Ended") -> Iterator[str]:
    ran = "its run never began" if ended.ran_s is None else f"{span(ended.ran_s)} of that in its last run"
    why = f" ({ended.code})" if ended.code else ""
    yield _at(ended.at, f"{ended.status}{why} {span(ended.total_s)} after it was accepted; {ran}")
    if ended.error:
        first, *_ = ended.error.splitlines()
        yield _more(first[:LONGEST])


def _told(webhook: "Owed") -> Iterator[str]:
    last = f", the last one {webhook.last}" if webhook.last else ""
    for one in webhook.deliveries:
        answered = "" if one.status is None else f", status {one.status}"
        word = RULES.get(one.rule or "") or WORDS.get(one.outcome, one.outcome)
        yield _at(one.at, f"webhook attempt {one.attempt} to {one.host}: {word}{answered}")
    yield f"{'webhook':<{WIDTH}}  {webhook.host} wants {', '.join(webhook.events)}"
    if webhook.is_owed or webhook.attempts:
        yield _more(f"attempts to deliver the end: {webhook.attempts}{last}")


def _line(position: int, ahead: int, eta: "Eta | None") -> str:
    when = "" if eta is None else f", about {span(eta.p50)} until it starts (9 of 10: {span(eta.p90)})"
    return f"place {position} in its account's line, {ahead} before it in total{when}"


def _at(moment: str | None, text: str) -> str:
    return f"{moment or '':<{WIDTH}}  {text}"


def _more(text: str) -> str:
    return _at(None, text)
