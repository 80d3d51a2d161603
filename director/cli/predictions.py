"""Commands of any caller, through the API: `director predict`, `get`, `cancel` and `explain`."""

import argparse
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Raw

from director.cli.arguments import EXAMPLE_ID, JSON, SERVICE, arg, command, model_name
from director.cli.client import Away, Client, Seen, parse_input, read, save_output, seen, service
from director.cli.output import harmless, printable
from director.cli.printing import Printer, as_text
from director.cli.tables import Answer, folded, line_width, print_json
from director.core.errors import DirectorError
from director.core.schema import Eta
from director.core.states import Status
from director.core.words import span
from director.diagnosis.story import Ended, Holding, Owed, Story, Submitted

LOOK_S: Final = 0.15
AWAY_LOOK_S: Final = 0.5
AWAY_S: Final = 60.0  # an API restarts in much less
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
ID: Final = arg("id ID", "id of the prediction")


@command(
    "predict",
    JSON,
    *SERVICE,
    arg("model OWNER/NAME[:VERSION]", "the model, or one version of it", type=model_name),
    arg(
        "-i --input NAME=VALUE",
        "an input: JSON where VALUE parses as JSON, else text; NAME=@FILE sends a file",
        type=parse_input,
        action="append",
        default=[],
    ),
    arg("-o --output FILE", "save the file that the model makes"),
    examples=("example/hello -i text=hi -i n=3", "example/thumbnail -i image=@photo.png -o small.png"),
)
def _predict(given: argparse.Namespace) -> int:
    """Run a model and print its output as it arrives. Ctrl-C cancels the prediction."""
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
                save_output(prediction.output, given.output)
                print(f"» saved {given.output}", file=sys.stderr)
    return 0 if prediction.status is Status.SUCCEEDED else 1


@contextmanager
def _named(prediction_id: str) -> Generator[None]:
    """Add the id of the prediction to any error, because the prediction continues without this command."""
    try:
        yield
    except DirectorError as exc:
        raise DirectorError(f"{exc} It is prediction {prediction_id}: see `director get {prediction_id}`.") from exc


def _follow(client: Client, given: argparse.Namespace, body: Raw) -> Raw:
    with Printer(sys.stdout, sys.stderr, shows_output=not given.output) as printer:
        while True:
            prediction = seen(body)
            if not given.json:
                printer.show(prediction)
            if prediction.is_terminal:
                return body
            time.sleep(LOOK_S)
            body = _look(client, prediction.id, printer)


def _look(client: Client, prediction_id: str, printer: Printer) -> Raw:
    """Return the prediction. If the service is away, ask again for AWAY_S: accepted predictions are not lost."""
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


@command("get", JSON, *SERVICE, ID, examples=(EXAMPLE_ID,))
def _get(given: argparse.Namespace) -> int:
    with Client(service(given)) as client:
        body = client.get(given.id)
    return Answer(body, lambda: _facts(seen(body))).show(is_json=given.json)


@command("cancel", JSON, *SERVICE, ID, examples=(EXAMPLE_ID,))
def _cancel(given: argparse.Namespace) -> int:
    with Client(service(given)) as client:
        body = client.cancel(given.id)
    return Answer(body, lambda: _facts(seen(body))).show(is_json=given.json)


def _facts(prediction: Seen) -> str:
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
    return "\n".join(harmless(f"{name:<10} {value}", sys.stdout) for name, value in facts.items() if value is not None)


@command("explain", JSON, *SERVICE, ID, examples=(EXAMPLE_ID, f"{EXAMPLE_ID} --json"))
def _explain(given: argparse.Namespace) -> int:
    """Tell the whole story of a prediction. A token with the scope admin may ask about any account's."""
    with Client(service(given)) as client:
        body = client.explain(given.id)

    def text() -> str:
        return folded(map(printable, story_lines(read(body, Story))), hang=WIDTH + 2, width=line_width())

    return Answer(body, text).show(is_json=given.json)


def story_lines(story: Story) -> Iterator[str]:
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
    for cause in story.causes or ():
        yield _at("why", f"{cause.title}: {cause.detail}")
        yield _more(f"{cause.who} can act: `{cause.ask}`")
    if story.webhook is not None:
        yield from _told(story.webhook)
    if story.redis_ms:
        yield _more(f"Redis is slow: it took {story.redis_ms:.0f} ms for this. `director doctor` measures it")
    for coming in story.next:
        yield f"{coming.at or 'next':<{WIDTH}}  {'next: ' if coming.at else ''}{coming.detail}"


def _came(submitted: Submitted) -> Iterator[str]:
    yield _at(submitted.at, f"accepted from {submitted.account}, lane {submitted.lane}")
    if submitted.told is not None:
        told = submitted.told
        yield _more(f"the answer said: {_line(told.position, told.ahead, told.eta_s)}")
    if submitted.revivals and submitted.revived_at is None:
        yield _more(f"an operator revived it {submitted.revivals} times")
    elif submitted.revivals:
        yield _at(submitted.revived_at, "an operator revived it")


def _had(held: Holding, *, has_more: bool) -> Iterator[str]:
    waited = "" if held.waited_s is None else f" after waiting {span(held.waited_s)}"
    if held.claimed_at is not None:
        yield _at(held.claimed_at, f"claimed by {held.director}{waited}: attempt {held.number}")
    if held.started_at is not None:
        yield _at(held.started_at, "run began")
    if held.ended_at is not None and has_more:
        kept = "" if held.held_s is None else f" after {span(held.held_s)}"
        unspent = "" if held.is_spent else ", not counted as an attempt"
        yield _at(held.ended_at, f"claim of {held.director} ended{kept}: {held.how or 'no reason given'}{unspent}")


def _over(ended: Ended) -> Iterator[str]:
    ran = "its run never began" if ended.ran_s is None else f"{span(ended.ran_s)} of that in its last run"
    why = f" ({ended.code})" if ended.code else ""
    yield _at(ended.at, f"{ended.status}{why} {span(ended.total_s)} after it was accepted; {ran}")
    if ended.error:
        first, *_ = ended.error.splitlines()
        yield _more(first[:LONGEST])


def _told(webhook: Owed) -> Iterator[str]:
    last = f", the last one {webhook.last}" if webhook.last else ""
    for one in webhook.deliveries:
        answered = "" if one.status is None else f", status {one.status}"
        word = RULES.get(one.rule or "") or WORDS.get(one.outcome, one.outcome)
        yield _at(one.at, f"webhook attempt {one.attempt} to {one.host}: {word}{answered}")
    yield f"{'webhook':<{WIDTH}}  {webhook.host} wants {', '.join(webhook.events)}"
    if webhook.is_owed or webhook.attempts:
        yield _more(f"attempts to deliver the end: {webhook.attempts}{last}")


def _line(position: int, ahead: int, eta: Eta | None) -> str:
    when = "" if eta is None else f", about {span(eta.p50)} until it starts (9 of 10: {span(eta.p90)})"
    return f"place {position} in its account's line, {ahead} before it in total{when}"


def _at(moment: str | None, text: str) -> str:
    return f"{moment or '':<{WIDTH}}  {text}"


def _more(text: str) -> str:
    return _at(None, text)
