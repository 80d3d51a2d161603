"""Test the load of a bench: it counts only good answers, and it ends when told to."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from director.lab.bench.load import Crowd, Load, ask, kind_of
from tests.support.eventually import turns

GOOD = b'{"status":"succeeded"}'
Answer = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


async def well(_number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(http(201, GOOD))


@asynccontextmanager
async def server(answer: Answer) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Yield the address of a server, and the head of each request that arrived."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(len(b"{}"))
                await answer(len(heads), writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/some/path", heads


def asks(url: str, **how: object) -> Load:
    return Load(url=url, wanted='"succeeded"', **{"seconds": 30.0, **how})  # type: ignore[arg-type]


async def test_load_ends_after_its_requests_without_the_warm_up() -> None:
    async with server(well) as (url, heads):
        answered = await Crowd(asks(url, requests=20, connections=2, headers={"x-one": "1"})).ask()
    assert (answered.answered, answered.refused) == (answered.total - 11, 0)
    assert 30 <= answered.total == len(heads) <= 32
    assert heads[0].startswith(b"POST /some/path HTTP/1.1\r\n")
    assert b"\r\nx-one: 1\r\n" in heads[0]


async def test_load_keeps_its_rate() -> None:
    async with server(well) as (url, heads):
        answered = await Crowd(asks(url, rate=40, seconds=0.5, connections=4)).ask()
    assert 0 < answered.total == len(heads) <= 40 * 0.5 + 2 * 4


async def test_answer_in_pieces_is_one_answer() -> None:
    async def in_pieces(_number: int, writer: asyncio.StreamWriter) -> None:
        for byte in http(200, GOOD):
            writer.write(bytes([byte]))
            await turns()

    async with server(in_pieces) as (url, _):
        answered = await Crowd(asks(url, requests=3)).ask()
    assert (answered.total, answered.refused) == (13, 0)


async def test_bad_answers_are_counted_apart_and_shown() -> None:
    async def every_second_one(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(http(201, GOOD) if number % 2 else http(201, b'{"status":"failed"}'))

    async with server(every_second_one) as (url, heads):
        answered = await Crowd(asks(url, requests=5)).ask()
        assert answered.refused == len(heads) - answered.total > 0
        assert answered.said.endswith('{"status":"failed"}')
        assert {kind: len(times) for kind, times in answered.others.items()} == {"201 failed": answered.refused}
        with pytest.raises(ChildProcessError, match="not answered well"):
            await ask(asks(url, requests=5))


def test_bad_answer_is_named_by_its_status() -> None:
    assert kind_of(http(201, b'{"id":"1","status":"failed"}')) == "201 failed"
    assert kind_of(http(202, b'{"status":"starting"}')) == "202 starting"
    assert kind_of(http(500, b'{"status":500}')) == "500"
    assert kind_of(b"HTTP/1.1 503 X\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n") == "503 with Retry-After"


async def test_server_that_hangs_up_breaks_off_the_load() -> None:
    async def hang_up(_number: int, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(hang_up) as (url, _):
        with pytest.raises(ConnectionError):
            await Crowd(asks(url, requests=5)).ask()
