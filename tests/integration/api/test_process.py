"""Test `python -m api`: it starts or says why not, ends when asked to, and refuses request heads beyond 64 KB."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from anyio import to_thread

from director.runtime.bounded_http import MAX_HEAD_BYTES
from tests.support.api import LiveApi, live_api
from tests.support.eventually import eventually
from tests.support.queue_driver import MODEL
from tests.support.servers import RedisServer, redis_server

BEGIN = b"GET /livez HTTP/1.1\r\nHost: director.test\r\n"
TOO_MUCH = 2 * MAX_HEAD_BYTES
BODY = b'{"input":{"text":"%b"}}' % (b"x" * 30_000)


@pytest.fixture(scope="module")
async def live(server: RedisServer) -> AsyncIterator[LiveApi]:
    async with live_api(server.url) as started:
        yield started


def exchange(url: str, request: bytes) -> bytes:
    """Send the bytes and read until the other side closes. A connection that stays open for 20 s is an error."""
    address, answer = urlsplit(url), b""
    with (
        suppress(ConnectionError),  # the API may close before it has read everything
        socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection,
    ):
        connection.sendall(request)
        while piece := connection.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"GET /v1/account HTTP/1.1\r\n", 400, id="none"),
        pytest.param(b"GET /v1/account HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400, id="two"),
        pytest.param(b"GET /v1/account HTTP/1.0\r\nHost: a\r\nHost: b\r\n", 400, id="two of an old client"),
        pytest.param(b"GET /v1/account HTTP/1.0\r\n", 401, id="none of an old client"),
        pytest.param(b"GET /v1/account HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\n", 401, id="one, and two of another"),
        pytest.param(b"GET /livez HTTP/1.1\r\n", 200, id="none of a probe"),
        pytest.param(b"GET /readyz HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 200, id="two of a probe"),
    ],
)
async def test_request_names_one_host(live: LiveApi, request_: bytes, status: int) -> None:
    answer = await to_thread.run_sync(exchange, live.url, request_ + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("env", "is_warned"),
    [
        ({"DIRECTOR_HOST": "0.0.0.0"}, True),
        ({"DIRECTOR_HOST": "0.0.0.0", "DIRECTOR_PUBLIC_URL": "https://api.example"}, False),
        ({}, False),
    ],
)
async def test_open_address_without_a_public_url_is_warned_of(
    server: RedisServer, tmp_path: Path, env: dict[str, str], is_warned: bool
) -> None:
    with (tmp_path / "log").open("wb") as log:
        async with live_api(server.url, env=env, log=log):
            pass
    assert ("set DIRECTOR_PUBLIC_URL" in (tmp_path / "log").read_text()) is is_warned


def create(token: str, framing: bytes) -> bytes:
    address = f"POST /v1/models/{MODEL}/predictions HTTP/1.1\r\nHost: director.test\r\nConnection: close\r\n"
    return address.encode() + b"Authorization: Bearer %b\r\n%b\r\n" % (token.encode(), framing)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(BEGIN + b"X: " + b"a" * TOO_MUCH, id="one header that does not end"),
        pytest.param(BEGIN + b"X: a\r\n" * (TOO_MUCH // 6), id="headers without end"),
        pytest.param(b"GET /" + b"a" * TOO_MUCH, id="an address that does not end"),
    ],
)
async def test_endless_head_is_refused_and_its_connection_closed(live: LiveApi, request_: bytes) -> None:
    answer = await to_thread.run_sync(exchange, live.url, request_)
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    head, _, body = last.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"content-type: application/problem+json" in head
    assert (json.loads(body)["code"], json.loads(body)["limit"]) == ("too_large", MAX_HEAD_BYTES)


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"POST /openai/v1/completions HTTP/1.1\r\nX: " + b"a" * TOO_MUCH, id="a header"),
        pytest.param(b"GET /openai/v1/models?" + b"a" * TOO_MUCH, id="an address"),
    ],
)
async def test_endless_head_of_openais_api_is_refused_in_its_shape(live: LiveApi, request_: bytes) -> None:
    answer = await to_thread.run_sync(exchange, live.url, request_)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert (json.loads(body)["error"]["type"], json.loads(body)["error"]["code"]) == (
        "invalid_request_error",
        "too_large",
    )


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"1;" + b"x" * TOO_MUCH, id="a chunk that does not begin"),
        pytest.param(b"2\r\n{}\r\n0\r\n" + b"X: a\r\n" * (TOO_MUCH // 6), id="trailers without end"),
    ],
)
@pytest.mark.usefixtures("queue")
async def test_framing_of_a_body_is_bounded(live: LiveApi, token: str, rest: bytes) -> None:
    """The request is already running, so the only answer is the end of the connection."""
    request = create(token, b"Transfer-Encoding: chunked\r\n") + rest
    assert await to_thread.run_sync(exchange, live.url, request) == b""


async def test_large_headers_below_the_limit_are_accepted(live: LiveApi) -> None:
    request = BEGIN + b"Connection: close\r\n" + b"X: %b\r\n" % (b"a" * 7_500) * 8 + b"\r\n"
    assert (await to_thread.run_sync(exchange, live.url, request)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: %d\r\n" % (len(BODY) + 200_000), BODY + b" " * 200_000),
        # the frames have twelve times the limit
        (b"Transfer-Encoding: chunked\r\n", chunked(BODY + b" " * 100_000, 1) + b"0\r\n\r\n"),
    ],
    ids=["at once", "byte by byte"],
)
@pytest.mark.usefixtures("queue")
async def test_body_does_not_count_as_head(live: LiveApi, token: str, framing: bytes, body: bytes) -> None:
    answer = await to_thread.run_sync(exchange, live.url, create(token, framing) + body)
    assert answer.startswith(b"HTTP/1.1 201 ")


async def test_each_request_of_a_connection_has_its_own_head(live: LiveApi) -> None:
    one = BEGIN + b"X: %b\r\n" % (b"a" * 30_000)
    request = (one + b"\r\n") * 5 + one + b"Connection: close\r\n\r\n"
    assert (await to_thread.run_sync(exchange, live.url, request)).count(b"HTTP/1.1 200 ") == 6


def pieces(url: str, request: bytes) -> list[bytes]:
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=20) as connection:
        connection.sendall(request)
        return list(iter(lambda: connection.recv(1 << 20), b""))


async def test_answer_of_known_length_is_sent_in_one_write(live: LiveApi) -> None:
    request = BEGIN + b"Connection: close\r\n\r\n"
    for _ in range(5):
        (whole,) = await to_thread.run_sync(pieces, live.url, request)
        assert whole.startswith(b"HTTP/1.1 200 ")
        assert whole.endswith(b"}")


async def test_answer_to_a_head_request_has_no_body(live: LiveApi) -> None:
    request = BEGIN.replace(b"GET", b"HEAD") + b"\r\n" + BEGIN + b"Connection: close\r\n\r\n"
    answer = await to_thread.run_sync(exchange, live.url, request)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"}") == 1


def run(**env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "api"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_taken_port_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(DIRECTOR_PORT=str(port))
    assert ended.returncode == 1
    assert ended.stderr == (
        f"director api: Cannot listen on 127.0.0.1:{port} (Address already in use). Choose another: DIRECTOR_PORT=…\n"
    )


@pytest.mark.parametrize(
    ("port", "url", "says"),
    [("eighty", "redis://127.0.0.1", "DIRECTOR_PORT: ")]
    + [("0", url, "The Redis URL is malformed ") for url in ("localhost:6379", "redis://host:port/0", "http://h:1")],
)
def test_invalid_setting_is_reported_in_one_line(port: str, url: str, says: str) -> None:
    ended = run(DIRECTOR_PORT=port, DIRECTOR_REDIS_URL=url)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith(f"director api: {says}")


def test_unsafe_server_stops_the_start_with_advice() -> None:
    with redis_server(config={"appendonly": "no"}) as weak:
        ended = run(DIRECTOR_PORT="0", DIRECTOR_REDIS_URL=weak.url)
    assert ended.returncode == 1
    assert "appendonly yes" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


async def test_process_shuts_down_cleanly(server: RedisServer) -> None:
    async with live_api(server.url) as live:
        live.process.terminate()
        assert await live.process.wait() in (0, -15)


async def test_idle_connection_gets_a_last_answer_that_says_so(server: RedisServer) -> None:
    """Without it a request that crosses the end of the connection is cut."""
    async with live_api(server.url) as live:
        address = urlsplit(live.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)

        async def answer() -> bytes:
            writer.write(BEGIN + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b'{"status":"ok"}'))
            return head.lower()

        assert b"connection: close" not in await answer()
        live.process.terminate()
        head = await eventually(answer, "an answer says that it is the last", until=lambda it: b"close" in it)
        assert head.startswith(b"http/1.1 200 ")
        assert await reader.read() == b""
        writer.close()
        assert await live.process.wait() in (0, -15)
