"""`director explain`: the whole story of one prediction, as the API tells it."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from director.cli.arguments import Commands, add_json, add_service
from director.cli.output import print_json, printable
from director.core.words import span

if TYPE_CHECKING:
    from director.core.schema import Eta
    from director.diagnosis.story import Ended, Holding, Owed, Story, Submitted


WIDTH: Final = len("2026-01-01T00:00:00.000Z")
WORDS: Final = {"gone": "it wants no more", "refused": "a rule forbids its address", "given_up": "failed, and given up"}
RULES: Final = {
    "bad_url": "its URL is none",
    "private_address": "its address is not public: DIRECTOR_WEBHOOK_ALLOW may name it",
    "http_not_allowed": "it would be told over http://: use https://",
    "port_not_allowed": "its port is none of 443 and 8443",
}
LONGEST: Final = 200  # of an error that is shown: it is the model's, and the whole of it is in the prediction


def add(commands: Commands) -> None:
    """Add the command of this file."""
    explain = commands.add_parser(
        "explain",
        help="tell what became of a prediction, why it waits and what is next",
        description="Tell the whole story of a prediction. With a token of the scope admin, of any account's.",
    )
    explain.add_argument("id", metavar="ID", help="id of the prediction")
    explain.set_defaults(run=_explain)
    add_json(explain)
    add_service(explain)


def _explain(given: argparse.Namespace) -> int:
    from director.cli.client import Client, read
    from director.cli.output import folded, line_width
    from director.cli.where import service
    from director.diagnosis.story import Story

    with Client(service(given)) as client:
        body = client.explain(given.id)
    if given.json:
        print_json(body)
    else:
        print(folded(map(printable, lines(read(body, Story))), hang=WIDTH + 2, width=line_width()))
    return 0


def lines(story: "Story") -> Iterator[str]:
    """The story for a person: what happened, each with its moment; how it stands; what is next."""
    ended = story.ended
    yield f"{story.id} of {story.model}: {story.status}"
    yield from _came(story.submitted)
    for held in story.held:
        yield from _had(held, has_more=ended is None or held.ended_at != ended.at)
    if ended is not None:
        yield from _over(ended)
    if not story.has_events:
        yield _more("its events were removed: who gave it back without a run is not known any more")
    if story.queue:
        place = story.queue
        yield _at(story.now, f"waits, {_line(place.position, place.ahead, place.eta_s)}. {place.detail}")
    if story.webhook is not None:
        yield from _told(story.webhook)
    if story.redis_ms:
        yield _more(f"Redis is slow: it took {story.redis_ms:.0f} ms to tell this. `director doctor` measures it")
    for coming in story.next:
        yield f"{coming.at or 'next':<{WIDTH}}  {'next: ' if coming.at else ''}{coming.detail}"


def _came(submitted: "Submitted") -> Iterator[str]:
    yield _at(submitted.at, f"accepted from {submitted.account}, into the lane {submitted.lane}")
    if submitted.told is not None:
        told = submitted.told
        yield _more(f"it was told: {_line(told.position, told.ahead, told.eta_s)}")
    if submitted.revivals and submitted.revived_at is None:
        yield _more(f"an operator revived it {submitted.revivals} times")
    elif submitted.revivals:
        yield _at(submitted.revived_at, "an operator revived it")


def _had(held: "Holding", *, has_more: bool) -> Iterator[str]:
    waited = "" if held.waited_s is None else f" after it had waited {span(held.waited_s)}"
    if held.claimed_at is not None:
        yield _at(held.claimed_at, f"claimed by {held.director}{waited}: attempt {held.number}")
    if held.started_at is not None:
        yield _at(held.started_at, "began to run")
    if held.ended_at is not None and has_more:
        kept = "" if held.held_s is None else f" after {span(held.held_s)}"
        unspent = "" if held.is_spent else ", which was no attempt"
        yield _at(held.ended_at, f"taken back from {held.director}{kept}: {held.how or 'it gave no reason'}{unspent}")


def _over(ended: "Ended") -> Iterator[str]:
    ran = "it never began" if ended.ran_s is None else f"{span(ended.ran_s)} of that in its last run"
    why = f" ({ended.code})" if ended.code else ""
    yield _at(ended.at, f"{ended.status}{why} {span(ended.total_s)} after it was accepted; {ran}")
    if ended.error:
        first, *_ = ended.error.splitlines()
        yield _more(first[:LONGEST])


def _told(webhook: "Owed") -> Iterator[str]:
    last = f", the last one {webhook.last}" if webhook.last else ""
    for one in webhook.deliveries:
        answered = "" if one.status is None else f", it answered {one.status}"
        word = RULES.get(one.rule or "") or WORDS.get(one.outcome, one.outcome)
        yield _at(one.at, f"attempt {one.attempt} to tell {one.host} its end: {word}{answered}")
    yield f"{'webhook':<{WIDTH}}  {webhook.host} wants {', '.join(webhook.events)}"
    if webhook.is_owed or webhook.attempts:
        yield _more(f"attempts to tell its end: {webhook.attempts}{last}")


def _line(position: int, ahead: int, eta: "Eta | None") -> str:
    when = "" if eta is None else f", about {span(eta.p50)} to its start (nine of ten: {span(eta.p90)})"
    return f"place {position} of its account's, {ahead} before it in all{when}"


def _at(moment: str | None, text: str) -> str:
    return f"{moment or '':<{WIDTH}}  {text}"


def _more(text: str) -> str:
    return _at(None, text)
