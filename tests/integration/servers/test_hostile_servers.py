"""Test that whatever a model server sends ends the run within its limits, for each kind of runner."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio
import pytest

from director.lab.chaos.wire import BROKEN, Answer, Request, listening
from director.servers.runners.cog import MAX_BODY
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import Ended, Outcome
from tests.support.eventually import eventually
from tests.support.runner_conformance import MOST_BYTES, SUBJECTS, follow, opened, the_end

pytestmark = [pytest.mark.faults]

# "polled": a server of the kind polling that does it to polls only
KINDS: Final = ("cog", "http", "http batch", "openai", "polling", "polled")
# Cog's answers have a limit of their own, since they may hold files
LIMITS: Final = {"cog": MAX_BODY}
UNREAD: Final = 16 << 20  # the sockets on the way hold it: Linux lets one receive 6 MiB and another send 4 MiB
WITHIN_S: Final = 15
JSON: Final = b"content-type: application/json\r\n"
CHUNKED: Final = b"HTTP/1.1 200 OK\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\n"
Act = Callable[[Request], Awaitable[int]]


async def poured(request: Request, head: bytes, piece: bytes) -> int:
    """Send the head, and the piece again and again until the client leaves. Return the bytes that left."""
    sent = 0
    with suppress(ConnectionError):
        await request.write(head)
        while not request.gone.is_set():
            await request.write(piece)
            sent += len(piece)
    return sent


async def endless_body(request: Request) -> int:
    return await poured(request, CHUNKED, b"10000\r\n" + b"[" * 0x10000 + b"\r\n")


async def endless_unframed_body(request: Request) -> int:
    return await poured(request, b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\n", b"x" * 0x10000)


async def endless_stream(request: Request) -> int:
    head = CHUNKED.replace(b"application/json", b"text/event-stream")
    return await poured(request, head, b"10000\r\n" + b"data: x\n" * 0x2000 + b"\r\n")


async def huge_head(request: Request) -> int:
    return await poured(request, b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"x" * 60_000 + b"\r\n")


async def endless_hints(request: Request) -> int:
    return await poured(request, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


async def endless_refusal(request: Request) -> int:
    return await poured(request, CHUNKED.replace(b"200 OK", b"500 No"), b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


FLOODS: Final = (endless_body, endless_unframed_body, endless_stream, huge_head, endless_hints, endless_refusal)


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


BODIES: Final = {
    "a number": b"5",
    "a list": b"[[[]]]",
    "null": b"null",
    "all wrong": b'{"id": [], "status": {}, "output": 5, "logs": 5, "error": [], "metrics": [],'
    b' "result": 5, "problem": {"a": []}, "choices": {}, "job": [], "state": []}',
    "wrong inside": b'{"id": 5, "status": "succeeded", "choices": [5, {"delta": 5}], "job": {"id": {}}, "state": 5}',
    "no UTF-8": b'{"status": "\xff\xfe", "result": {"items": "\xff"}, "choices": [{"text": "\xff"}]}',
    "lone surrogate": b'{"status": "\\ud800", "job": {"id": "\\ud800"}, "state": "\\ud800", "error": "\\ud800"}',
    "huge number": b'{"status": ' + b"9" * 10_000 + b', "job": {"id": ' + b"9" * 10_000 + b"}}",
    "deep": b'{"result": {"items": ' + deep(100_000) + b'}, "job": {"id": ' + deep(500) + b"}}",
    "nothing": b"",
}


def serving(kind: str, act: Act, sent: list[int]) -> Callable[[Request], Awaitable[Answer]]:
    """Return a server that does this to each request, or only to polls for "polled"."""

    async def serve(request: Request) -> Answer:
        if kind == "polled" and request.method == "POST" and request.path == "/jobs":
            return Answer(200, b'{"job": {"id": "one"}}')
        sent.append(await act(request))
        return BROKEN

    return serve


async def end_at(kind: str, url: str) -> Ended:
    subject = SUBJECTS["polling" if kind == "polled" else kind]
    with anyio.fail_after(WITHIN_S):
        async with opened(subject.runner(url, Inbox(""))) as runner:
            return the_end(await follow(runner, subject.request()))


@pytest.mark.parametrize("act", FLOODS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("kind", KINDS)
async def test_flood_ends_the_run_and_is_not_read_on(kind: str, act: Act) -> None:
    sent: list[int] = []
    async with listening(serving(kind, act, sent)) as port:
        end = await end_at(kind, f"http://127.0.0.1:{port}")
        await eventually(lambda: sent, "the flood ended")
    assert end.outcome in (Outcome.FAILED, Outcome.LOST)
    assert max(sent) <= LIMITS.get(kind, MOST_BYTES) + UNREAD


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("kind", KINDS)
async def test_unexpected_json_ends_the_run_with_a_reason(kind: str, body: bytes) -> None:
    async def act(request: Request) -> int:
        head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        await request.write(head + body)
        return 0

    async with listening(serving(kind, act, [])) as port:
        end = await end_at(kind, f"http://127.0.0.1:{port}")
    assert end.outcome in (Outcome.FAILED, Outcome.LOST)
    assert end.error
    assert "Following the run failed" not in end.error


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", KINDS)
async def test_redirect_to_another_host_is_not_followed(kind: str, status: int) -> None:
    visits: list[str] = []

    async def elsewhere(request: Request) -> Answer:
        visits.append(request.path)
        return Answer()

    async with listening(elsewhere) as other:

        async def act(request: Request) -> int:
            place = (
                b"location: http://127.0.0.1:%d/taken?key=secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % other
            )
            await request.write(b"HTTP/1.1 %d Elsewhere\r\n" % status + place)
            return 0

        async with listening(serving(kind, act, [])) as port:
            end = await end_at(kind, f"http://127.0.0.1:{port}")
    assert end.outcome in (Outcome.FAILED, Outcome.LOST)
    assert f"points to http://127.0.0.1:{other}/taken, where redirects are not followed" in str(end.error)
    assert visits == []
