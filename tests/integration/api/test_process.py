"""Test `python -m api`: a failed start is reported in one clear line, and the process ends when asked to."""

import os
import socket
import subprocess
import sys

import pytest

from tests.support.api import live_api
from tests.support.servers import RedisServer, redis_server

pytestmark = pytest.mark.anyio


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


def test_invalid_setting_is_reported_in_one_line() -> None:
    ended = run(DIRECTOR_PORT="eighty")
    assert ended.returncode == 2
    assert ended.stderr.startswith("director api: DIRECTOR_PORT: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["localhost:6379", "redis://host:port/0", "http://127.0.0.1:6379"])
def test_invalid_redis_url_is_reported_in_one_line(url: str) -> None:
    ended = run(DIRECTOR_PORT="0", DIRECTOR_REDIS_URL=url)
    assert ended.returncode == 2
    assert ended.stderr.startswith("director api: The Redis URL is malformed ")
    assert ended.stderr.count("\n") == 1


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
