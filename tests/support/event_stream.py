"""Read server-sent events as the strictest official client does: an unknown line is an error."""

from collections.abc import AsyncGenerator, Mapping

import httpx
from msgspec import Struct


class Told(Struct, frozen=True):
    event: str
    id: str
    data: str

    @property
    def place(self) -> tuple[int, ...]:
        words = {"error": 1, "done": 2}
        return tuple(words[part] if part in words else int(part) for part in self.id.split(":"))


class Comment(Struct, frozen=True):
    text: str


def take_apart(block: str) -> Told | Comment:
    if block.startswith(": "):
        assert "\n" not in block
        return Comment(block[2:])
    fields: dict[str, list[str]] = {"event": [], "id": [], "data": []}
    for line in block.split("\n"):
        name, _, value = line.partition(": ")
        fields[name].append(value)
    [event], [event_id] = fields["event"], fields["id"]
    assert fields["data"], "an event needs data"
    return Told(event, event_id, "\n".join(fields["data"]))


async def read_events(
    client: httpx.AsyncClient, url: str, *, after: str = "", headers: Mapping[str, str] | None = None
) -> AsyncGenerator[Told | Comment]:
    """The events and comments of a stream as they come, until it ends. Raises what httpx raises when it breaks."""
    asked = {**(headers or {}), **({"last-event-id": after} if after else {})}
    async with client.stream("GET", url, headers=asked) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        rest = b""
        async for chunk in response.aiter_raw():
            *blocks, rest = (rest + chunk).split(b"\n\n")
            for block in blocks:
                assert b"\r" not in block
                yield take_apart(block.decode())
        assert rest == b"", "it ends with a whole event"
