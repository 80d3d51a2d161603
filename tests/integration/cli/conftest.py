"""Provide an operator who types commands for the test's server."""

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.typed import Typed, typed


class Operator:
    """Types commands. `where`: the options that say where the service is."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *where: str) -> None:
        self._capsys = capsys
        self._where = where

    async def tries(self, *line: str) -> Typed:
        return await to_thread.run_sync(typed, self._capsys, *line, *self._where)

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
    return Operator(capsys, "--redis", server.url)
