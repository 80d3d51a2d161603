"""Test that the end of a connection is raised as what it is, whatever number the kernel ends it with."""

import asyncio
import errno
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio.connection import Connection

from director.broker.connections import NO_RETRIES, Tcp

ENDS = [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET]
LONG_S = 60.0


def ended(kind: type[Connection], number: int) -> Any:
    """Return a connection whose kernel has given its socket up with this error."""
    connection: Any = kind(retry=NO_RETRIES, protocol=2)
    connection._reader = asyncio.StreamReader()
    connection._reader.set_exception(OSError(number, "the kernel gave up"))
    connection._parser.on_connect(connection)
    return connection


async def test_redis_py_still_takes_etimedout_for_the_limit_of_the_call() -> None:
    """If this fails, redis-py is mended, and `connections._Reading` need not correct it any more."""
    connection = ended(Connection, errno.ETIMEDOUT)
    async with asyncio.timeout(LONG_S / 2):
        assert [await connection.read_response(timeout=LONG_S) for _ in range(3)] == [None, None, None]
        assert await connection.read_response(timeout=float("inf")) is None, "even where there is no limit"
    assert not await connection.can_read(), "and the pool takes it for a good one"


@pytest.mark.parametrize("timeout", [None, LONG_S, float("inf")])
@pytest.mark.parametrize("number", ENDS)
async def test_end_of_a_connection_is_an_error_and_never_an_answer(number: int, timeout: float | None) -> None:
    connection = ended(Tcp, number)
    with pytest.raises(exceptions.ConnectionError):
        await connection.read_response(timeout=timeout, disconnect_on_error=False)
    assert await connection.can_read(), "the pool makes another one"


async def test_limit_of_a_call_still_returns_nothing() -> None:
    connection: Any = Tcp(retry=NO_RETRIES, protocol=2)
    connection._reader = asyncio.StreamReader()
    connection._parser.on_connect(connection)
    assert await connection.read_response(timeout=0.01, disconnect_on_error=False) is None
