"""Provide an operator who types commands for the test's server."""

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.typed import Typed, typed


class Operator:
    def __init__(self, server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._capsys = capsys

    async def tries(self, *line: str) -> Typed:
        return await to_thread.run_sync(typed, self._capsys, *line, "--redis", self._server.url)

    async def types(self, *line: str) -> str:
        ended = await self.tries(*line)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async def is_told(self, *line: str) -> str:
        ended = await self.tries(*line)
        assert ended.returncode == 1, ended.stdout
        return ended.stderr


@pytest.fixture
def operator(server: RedisServer, redis: Redis, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(server, capsys)
