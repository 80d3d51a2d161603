"""`python -m api`: what stops it from starting is one clear line, and it ends when it is told to."""

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


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(DIRECTOR_PORT=str(port))
    assert ended.returncode == 1
    assert ended.stderr == (
        f"director api: Cannot listen on 127.0.0.1:{port} (Address already in use). Choose another: DIRECTOR_PORT=…\n"
    )


def test_a_setting_that_is_wrong_is_one_line() -> None:
    ended = run(DIRECTOR_PORT="eighty")
    assert ended.returncode == 2
    assert ended.stderr.startswith("director api: DIRECTOR_PORT: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["localhost:6379", "redis://host:port/0", "http://127.0.0.1:6379"])
def test_a_redis_url_that_is_none_is_one_line(url: str) -> None:
    ended = run(DIRECTOR_PORT="0", DIRECTOR_REDIS_URL=url)
    assert ended.returncode == 2
    assert ended.stderr.startswith("director api: The Redis URL is malformed ")
    assert ended.stderr.count("\n") == 1


def test_a_server_that_would_lose_work_ends_it_with_the_mend() -> None:
    with redis_server(config={"appendonly": "no"}) as weak:
        ended = run(DIRECTOR_PORT="0", DIRECTOR_REDIS_URL=weak.url)
    assert ended.returncode == 1
    assert "appendonly yes" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


async def test_it_ends_in_good_order(server: RedisServer) -> None:
    async with live_api(server.url) as live:
        live.process.terminate()
        assert await live.process.wait() in (0, -15)
