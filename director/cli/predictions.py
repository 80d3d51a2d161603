"""Commands of any caller, through the API: `director predict`, `ps`, `get`, `cancel`, `explain` and others."""

import argparse
import math
import sys
import time
import webbrowser
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec import Raw

from director.cli.arguments import (
    EXAMPLE_ID,
    JSON,
    SERVICE,
    arg,
    command,
    did_you_mean,
    flag,
    model_name,
    whole,
)
from director.cli.batches import HOURS, predict_rows
from director.cli.client import Client, PredictionAnswer, ask_again, read, read_prediction, service
from director.cli.inputs import Described, check_output, parse_input, read_inputs, save_output
from director.cli.output import harmless, printable
from director.cli.printing import Printer, as_text, place_words, waiting_words, why_words
from director.cli.tables import Answer, fold, line_width, print_json, tabulate
from director.core.errors import DirectorError, SettingsError
from director.core.ids import ALL_LANES, VERSION_DIGITS
from director.core.states import Status
from director.core.words import since, span
from director.operate.story import Ended, Holding, Owed, Story, Submitted

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
MOST_LISTED: Final = 20
ID: Final = arg("id ID", "id of the prediction")
STREAM: Final = flag("--stream", "print output as it arrives, also in a pipe")
TIMEOUT: Final = arg("--timeout SECONDS", "wait for the end at most this long", type=float)


@command(
    "predict",
    JSON,
    *SERVICE,
    arg("model OWNER/NAME[:VERSION]", "the model, or one version of it", type=model_name),
    arg(
        "-i --input NAME=VALUE",
        "an input: text or JSON, as the model's schema has it; NAME=@FILE sends a file, NAME=@FOLDER a list of them",
        type=parse_input,
        action="append",
        default=[],
    ),
    arg("-o --output FILE", "save the file that the model makes; of a list FILE-0, FILE-1 …; or a folder"),
    arg("--batch FILE", "run each row of a CSV: a column is an input, and -i is one of all rows", type=Path),
    flag("--detach", "print the id at once, and do not wait for the end"),
    STREAM,
    TIMEOUT,
    arg("--priority", "the lane: high, normal, low or idle", choices=ALL_LANES),
    HOURS,
    arg("--webhook URL", "the address that gets a POST at the end", default=""),
    arg("--idempotency-key KEY", "with the same key and input, the same prediction is answered again"),
    examples=(
        "example/hello -i text=hi -i n=3",
        "example/thumbnail -i image=@photo.png -o small.png",
        "example/hello -i text=hi --detach --priority low",
        "example/hello --batch texts.csv -i n=2",
    ),
)
def _predict(given: argparse.Namespace) -> int:
    """Run a model and print its output as it arrives. Ctrl-C cancels the prediction. After --timeout it goes on
    without this command. With --batch the rows run as a batch in the lane low, and Ctrl-C leaves it running: the
    results come into a CSV beside the file, or into --output.
    """
    if given.batch:
        return predict_rows(given)
    if given.hours:
        raise SettingsError("--hours goes with --batch: one prediction has no hours of its own.")
    asked = {"X-Priority": given.priority, "Idempotency-Key": given.idempotency_key}
    with Client(service(given)) as client:
        known = client.describe(given.model) if given.input or given.output else None
        if given.output:
            check_output(given.output, known)
        inputs = read_inputs(given.input, known)
        _warn_of_unknown(inputs, known, given.model)
        headers = {name: value for name, value in asked.items() if value}
        body = client.create(given.model, inputs, webhook=given.webhook, headers=headers)
        prediction = read_prediction(body)
        if given.detach:
            return Answer(body, prediction.id).show(is_json=given.json)
        try:
            return _await(client, given, body)
        except KeyboardInterrupt:
            with _name_in_errors(prediction.id):
                client.cancel(prediction.id)
            print(f"\ncanceled {prediction.id}", file=sys.stderr)
            raise


def _warn_of_unknown(given: Iterable[str], known: Described | None, model: str) -> None:
    names = None if known is None else list(known.inputs)
    for name in given if names is not None else ():
        if name not in (names or ()):
            hint = did_you_mean(name, names or ()) or f"it has {', '.join(names or ()) or 'none'}."
            print(f"» {model} has no input {name}: {hint}", file=sys.stderr)


def _await(client: Client, given: argparse.Namespace, body: Raw) -> int:
    """Print a prediction until its end. Returns the exit code."""
    prediction = read_prediction(body)
    with _name_in_errors(prediction.id):
        body = _follow(client, given, body)
        prediction = read_prediction(body)
        if given.json:
            print_json(body)
        if given.output and prediction.status is Status.SUCCEEDED:
            print(f"» saved {', '.join(save_output(prediction.output, given.output))}", file=sys.stderr)
    return 0 if prediction.status is Status.SUCCEEDED else 1


@contextmanager
def _name_in_errors(prediction_id: str) -> Generator[None]:
    """Add the id of the prediction to any error, because the prediction continues without this command."""
    try:
        yield
    except DirectorError as exc:
        raise DirectorError(f"{exc} It is prediction {prediction_id}: see `director get {prediction_id}`.") from exc


def _follow(client: Client, given: argparse.Namespace, body: Raw) -> Raw:
    give_up = math.inf if given.timeout is None else time.monotonic() + given.timeout
    with Printer(sys.stdout, sys.stderr, shows_output=not given.output, streams=given.stream) as printer:
        while True:
            prediction = read_prediction(body)
            if not given.json:
                printer.show(prediction)
            if prediction.is_terminal:
                return body
            if time.monotonic() >= give_up:
                raise DirectorError(f"it has not ended in {given.timeout} s, and goes on.")
            time.sleep(LOOK_S)
            body = _look(client, prediction.id, printer)


def _look(client: Client, prediction_id: str, printer: Printer) -> Raw:
    """Return the prediction. If the service is away, ask again for AWAY_S: accepted predictions are not lost."""
    return ask_again(lambda: client.get(prediction_id), printer.tell, away_s=AWAY_S, pause_s=AWAY_LOOK_S)


@command("wait", JSON, *SERVICE, ID, STREAM, TIMEOUT, examples=(EXAMPLE_ID, f"{EXAMPLE_ID} --timeout 60"))
def _wait(given: argparse.Namespace) -> int:
    """Wait for the end of a prediction and print its output as it arrives. The code is 1 if it does not succeed."""
    with Client(service(given)) as client:
        return _await(client, argparse.Namespace(**{**vars(given), "output": ""}), client.get(given.id))


@command(
    "logs",
    JSON,
    *SERVICE,
    arg("id ID|MODEL", "id of the prediction, or a model, owner/name"),
    flag("-f --follow", "print what comes until the prediction ends"),
    examples=(EXAMPLE_ID, f"-f {EXAMPLE_ID}", "acme/painter"),
)
def _logs(given: argparse.Namespace) -> int:
    """Print what a prediction logged. Of a model: the end of its servers' logs, as `director model logs` does."""
    if "/" in given.id:
        if given.follow:
            raise SettingsError("-f follows a prediction. The log of a model server is followed where it runs.")
        # only here: no other command on predictions needs it
        from director.cli.models import print_logs

        return print_logs(argparse.Namespace(**vars(given), of=given.id, redis=""))
    shown = ""
    with Client(service(given)) as client:
        while True:
            prediction = read_prediction(client.get(given.id))
            logs = prediction.logs or ""
            if not given.json:  # another attempt begins with logs of its own
                new = logs.removeprefix(shown) if logs.startswith(shown) else logs
                sys.stdout.write(harmless(new, sys.stdout))
                sys.stdout.flush()
                shown = logs
            if prediction.is_terminal or not given.follow:
                break
            time.sleep(LOOK_S)
    if given.json:
        print_json({"id": prediction.id, "logs": logs})
    return 0


@command(
    "ps",
    JSON,
    *SERVICE,
    flag("-a --all", "also those that have ended"),
    arg("--model OWNER/NAME", "only of this model", default=""),
    arg("--status", "only with this status", choices=[str(one) for one in Status], default=""),
    arg("-n COUNT", f"list at most this many ({MOST_LISTED})", type=whole(1000), default=MOST_LISTED, dest="n"),
    examples=("", "--all --model example/hello", "--status failed"),
)
def _ps(given: argparse.Namespace) -> int:
    """List predictions of this token's account, newest first: those that wait or run."""
    asked = [given.status] if given.status else [""] if given.all else [Status.PROCESSING, Status.STARTING]
    with Client(service(given)) as client:
        found = [
            body
            for status in asked
            for body in islice(
                client.list({name: value for name, value in (("status", status), ("model", given.model)) if value}),
                given.n,
            )
        ]
    found = sorted(found, key=lambda body: read_prediction(body).id, reverse=True)[: given.n]

    def text() -> str:
        now_ms = int(time.time() * 1000)
        rows = [
            [one.id, one.model, one.status, since(one.created_at, now_ms) if one.created_at else "-", one.error or ""]
            for one in map(read_prediction, found)
        ]
        names = ("id", "model", "status", "age", "error")
        empty = "no predictions" if given.all else "no predictions wait or run: --all shows those that ended"
        return tabulate(names, rows, words=("id", "model", "status", "error"), empty=empty)

    return Answer(found, text).show(is_json=given.json)


@command("open", JSON, *SERVICE, arg("id ID", "id of a prediction", nargs="?"), examples=("", EXAMPLE_ID))
def _open(given: argparse.Namespace) -> int:
    """Open the page of the service, or of a prediction, in a browser, and print its address."""
    page = f"{service(given).url}/" + (f"#/predictions/{quote(given.id, safe='')}" if given.id else "")
    if not given.json and sys.stdout.isatty():
        webbrowser.open(page)
    return Answer({"url": page}, page).show(is_json=given.json)


@command("get", JSON, *SERVICE, ID, examples=(EXAMPLE_ID,))
def _get(given: argparse.Namespace) -> int:
    with Client(service(given)) as client:
        body = client.get(given.id)
    return Answer(body, lambda: _facts(read_prediction(body))).show(is_json=given.json)


@command("cancel", JSON, *SERVICE, ID, examples=(EXAMPLE_ID,))
def _cancel(given: argparse.Namespace) -> int:
    with Client(service(given)) as client:
        body = client.cancel(given.id)
    return Answer(body, lambda: _facts(read_prediction(body))).show(is_json=given.json)


def _facts(prediction: PredictionAnswer) -> str:
    facts = {
        "id": prediction.id,
        "model": prediction.model,
        "status": prediction.status,
        "created": prediction.created_at,
        "started": prediction.started_at,
        "completed": prediction.completed_at,
        "waits": prediction.queue and waiting_words(prediction.queue),
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
        return fold(map(printable, story_lines(read(body, Story))), hang=WIDTH + 2, width=line_width())

    return Answer(body, text).show(is_json=given.json)


def story_lines(story: Story) -> Iterator[str]:
    ended = story.ended
    yield f"{story.id} of {story.model}: {story.status}"
    yield from _came(story.submitted)
    if story.version_because:
        yield _more(f"version {story.version[:VERSION_DIGITS]}, {story.version_because}")
    for swap in story.swaps or ():
        room = f", instead of {', '.join(swap.instead_of)}" if swap.instead_of else ""
        loaded = f"until {swap.ready_at}" if swap.ready_at else "and failed"
        yield _at(swap.began_at, f"its model was loaded{room}, {loaded}")
    for held in story.held:
        yield from _had(held, has_more=ended is None or held.ended_at != ended.at)
    if ended is not None:
        yield from _over(ended)
    if not story.has_events:
        yield _more("its events were removed: releases without a run are no longer known")
    if story.queue:
        place = story.queue
        yield _at(story.now, f"waits, {place_words(place.position, place.ahead, place.eta_s)}. {why_words(place)}")
    for cause in story.causes or ():
        yield _at("why", f"{cause.title}: {cause.detail}")
        yield _more(f"→ `{cause.ask}` (who acts: {cause.who})")
    if story.webhook is not None:
        yield from _show_webhook(story.webhook)
    if story.redis_ms:
        yield _more(f"Redis took {story.redis_ms:.0f} ms for this. `director doctor` measures whether it is slow")
    for coming in story.next:
        yield f"{coming.at or 'next':<{WIDTH}}  {'next: ' if coming.at else ''}{coming.detail}"


def _came(submitted: Submitted) -> Iterator[str]:
    yield _at(submitted.at, f"accepted from {submitted.account}, lane {submitted.lane}")
    if submitted.told is not None:
        told = submitted.told
        yield _more(f"the answer said: {place_words(told.position, told.ahead, told.eta_s)}")
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


def _show_webhook(webhook: Owed) -> Iterator[str]:
    last = f", the last one {webhook.last}" if webhook.last else ""
    for one in webhook.deliveries:
        silent = ", no answer" if one.outcome == "failed" else ""
        answered = silent if one.status is None else f", status {one.status}"
        word = RULES.get(one.rule or "") or WORDS.get(one.outcome, one.outcome)
        yield _at(one.at, f"webhook attempt {one.attempt} to {one.host}: {word}{answered}")
    yield f"{'webhook':<{WIDTH}}  {webhook.host} wants {', '.join(webhook.events)}"
    if webhook.is_owed or webhook.attempts:
        yield _more(f"attempts to deliver the end: {webhook.attempts}{last}")


def _at(moment: str | None, text: str) -> str:
    return f"{moment or '':<{WIDTH}}  {text}"


def _more(text: str) -> str:
    return _at(None, text)
