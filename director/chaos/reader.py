"""Follow a prediction by its event stream, and resume after the last event whenever the stream breaks.

A reader records every event and every visit, and accepts only `done` as the end. It leaves twice on its own, so that
each reader resumes even if nothing breaks.
"""

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import anyio
import msgspec
from msgspec import Struct

from director.chaos.journal import Followed, Heard, Journal, Listed, Visited, now_ms, read
from director.chaos.wire import Caller, Unanswered

TRY_S: Final = 5.0
SILENT_S: Final = 30.0  # three of the comments that keep a silent stream alive
PAUSE_S: Final = (0.1, 0.5)
LEAVES_AFTER: Final = (1, 3)  # number of events
RETRIED: Final = "retried"
READERS: Final = 8
PAGE: Final = 3  # number of events; few, so that most lists have several pages
PATIENCE_S: Final = 60.0

End = Literal["done", "broken", "whole", "left"]


class Shown(Struct, frozen=True):
    """The fields of a prediction that a reader uses."""

    urls: dict[str, str]


class Event(Struct, frozen=True):
    """The fields of a listed event that a reader uses."""

    seq: int
    type: str


class Page(Struct, frozen=True):
    """A page of listed events. `next` is the place to ask for the next page after."""

    events: list[Event]
    next: int


class Place(Struct, kw_only=True):
    """The progress of a reader: the last mark, and whether it received `done`."""

    tenant: int
    after: str = ""
    is_done: bool = False


class Reader:
    """One reader of one prediction. `token` is for all requests but the stream, which needs none."""

    def __init__(
        self,
        api: Caller,
        prediction_id: str,
        journal: Journal,
        *,
        token: str,
        after: str = "",
        leaves_after: Sequence[int] = LEAVES_AFTER,
    ) -> None:
        self._api = api
        self._id = prediction_id
        self._journal = journal
        self._headers = {"authorization": f"Bearer {token}"}
        self._after = after
        self._leaves_after = leaves_after
        self._heard = 0

    async def follow(self) -> None:
        """Visit again and again, until `done` arrives or the API refuses."""
        while True:
            status, end = await self._visit()
            if end == "done" or 400 <= status < 500:
                return
            if end != "left":
                await anyio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads visits, plans nothing

    async def list(self) -> None:
        """Record the prediction's events as the API lists them. Record nothing if it does not answer with 200."""
        found: list[tuple[int, str]] = []
        after = 0
        with suppress(Unanswered):
            while True:
                path = f"/v1/predictions/{self._id}/events?after={after}&limit={PAGE}"
                answer = await self._api.ask("GET", path, headers=self._headers, within_s=TRY_S)
                if answer.status != 200:
                    return
                page = msgspec.json.decode(answer.body, type=Page)
                if not page.events:
                    break
                found += [(event.seq, event.type) for event in page.events]
                after = page.next
            self._journal.write(Listed(at=now_ms(), id=self._id, events=found))

    async def _visit(self) -> tuple[int, End]:
        came, after, status = now_ms(), self._after, 0
        end: End = "left"
        try:
            status, path = await self._address()
            if status == 200:
                headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
                async with self._api.follow(path, headers=headers, within_s=TRY_S, silent_s=SILENT_S) as answer:
                    status, pieces = answer
                    end = await self._listen(pieces) if status == 200 else "broken"
            else:
                end = "broken"
        except Unanswered:
            end = "broken"
        finally:
            self._journal.write(Visited(at=came, id=self._id, after=after, status=status, end=end))
        return status, end

    async def _address(self) -> tuple[int, str]:
        """Return the status of the prediction's page, and the path of its stream."""
        answer = await self._api.ask("GET", f"/v1/predictions/{self._id}", headers=self._headers, within_s=TRY_S)
        if answer.status != 200:
            return answer.status, ""
        url = msgspec.json.decode(answer.body, type=Shown).urls["stream"]
        return 200, f"/{url.split('/', 3)[3]}"

    async def _listen(self, pieces: AsyncIterator[bytes]) -> End:
        """Record events until the stream is over, or it is time to leave."""
        rest = b""
        async for piece in pieces:
            *blocks, rest = (rest + piece).split(b"\n\n")
            for heard in _events_in(self._id, blocks):
                self._journal.write(heard)
                self._after = heard.mark or self._after
                self._heard += 1
                if heard.event == "done":
                    return "done"
                if self._heard in self._leaves_after:
                    return "left"
        return "whole"


async def come_back(url: str, tokens: Sequence[str], folder: Path) -> None:
    """Let every reader that missed the end resume once more, once all is at rest. Then list all events."""
    places = _places(folder / "client.jsonl")
    journal = Journal(folder / "readers.jsonl")
    api = Caller(url)

    async def several(upcoming: Iterator[tuple[str, Place]]) -> None:
        for prediction_id, place in upcoming:
            token = tokens[place.tenant]
            reader = Reader(api, prediction_id, journal, token=token, after=place.after, leaves_after=())
            if not place.is_done:
                await reader.follow()
            await reader.list()

    upcoming = iter(places.items())
    with anyio.move_on_after(PATIENCE_S):  # a reader that still waits has not received the end
        async with anyio.create_task_group() as tasks:
            for _ in range(READERS):
                tasks.start_soon(several, upcoming)
    api.close()
    journal.close()


def _places(journal: Path) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for line in read(journal):
        if isinstance(line, Followed):
            places[line.id] = Place(tenant=line.tenant)
        elif isinstance(line, Heard):
            place = places[line.id]
            place.after = line.mark or place.after
            place.is_done = line.event == "done"
    return places


def _events_in(prediction_id: str, blocks: Sequence[bytes]) -> Iterator[Heard]:
    """Yield the events in these blocks, and the one comment with a meaning."""
    for block in blocks:
        lines = [line.partition(": ") for line in block.decode().split("\n")]
        fields = {name: value for name, _, value in lines if name}
        if "event" in fields:
            data = "\n".join(value for name, _, value in lines if name == "data")
            yield Heard(at=now_ms(), id=prediction_id, event=fields["event"], mark=fields.get("id", ""), data=data)
        elif lines[0][2] == RETRIED:
            yield Heard(at=now_ms(), id=prediction_id, event=RETRIED)
