from collections.abc import Callable

import pytest
from redis import exceptions
from redis._parsers.base import BaseParser
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError

from director.broker.redis_client import ask, blocking_client, client, describe, has_password, unavailable
from director.core.errors import BackendUnavailable, SettingsError

# As the server writes them, so that it is redis-py's own parser that makes the error
ANSWERS = {
    "loading": "LOADING Redis is loading the dataset in memory",
    "a replica": "READONLY You can't write against a read only replica.",
    "too few replicas": "NOREPLICAS Not enough good replicas to write.",
    "full": "OOM command not allowed when used memory > 'maxmemory'.",
    "full, in a script": "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
    "disk full": "MISCONF Errors writing to the AOF file: No space left on device",
    "its master is away": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "a slow script": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "cluster down": "CLUSTERDOWN The cluster is down",
    "moving slots": "TRYAGAIN Multiple keys request during rehashing of slot",
    "too many clients": "ERR max number of clients reached",
    "password changed": "WRONGPASS invalid username-password pair or user is disabled.",
    "password needed": "NOAUTH Authentication required.",
}
FAULTS = {
    "connection lost": exceptions.ConnectionError("Connection closed by server."),
    "connection refused": exceptions.ConnectionError("Error 111 connecting to 127.0.0.1:1."),
    "time-out": exceptions.TimeoutError("Timeout reading from socket"),
    "no master": MasterNotFoundError("No master found for 'mymaster'"),
    "pool exhausted": exceptions.MaxConnectionsError("Too many connections"),
    "no connection free": exceptions.ConnectionError("No connection available."),
}
OURS = {
    "a wrong type": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "a group that is there": "BUSYGROUP Consumer Group name already exists",
    "no group": "NOGROUP No such key 'x' or consumer group",
    "forbidden": "NOPERM this user has no permissions to run the 'config|get' command",
    "unknown script": "NOSCRIPT No matching script.",
    "a word in the middle": "ERR something about OOM and READONLY",
}


def parsed(answer: str) -> Exception:
    error: Exception = BaseParser.parse_error(answer)
    return error


def in_pipeline(error: Exception) -> Exception:
    Redis().pipeline().annotate_exception(error, 1, ["XADD", "OOM", "x"])
    return error


@pytest.mark.parametrize("wrapped", [lambda error: error, in_pipeline], ids=["alone", "in a pipeline"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_an_answer_that_passes_is_unavailability(answer: str, wrapped: Callable[[Exception], Exception]) -> None:
    away = unavailable(wrapped(parsed(answer)))
    assert away is not None
    assert away.retry_after_s >= 1


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_that_passes_is_unavailability(fault: Exception) -> None:
    assert unavailable(fault) is not None


@pytest.mark.parametrize("wrapped", [lambda error: error, in_pipeline], ids=["alone", "in a pipeline"])
@pytest.mark.parametrize("answer", OURS.values(), ids=list(OURS))
def test_a_fault_of_ours_is_not_taken_for_an_outage(answer: str, wrapped: Callable[[Exception], Exception]) -> None:
    assert unavailable(wrapped(parsed(answer))) is None


@pytest.mark.parametrize("url", ["redis://:secret@127.0.0.1:1/0", "unix:///nowhere/s"])
async def test_an_outage_says_why_there_is_no_connection(url: str) -> None:
    redis = client(url)
    with pytest.raises(BackendUnavailable) as away:
        await ask(redis.ping)
    await redis.aclose()
    why = "No such file or directory" if url.startswith("unix") else "Connection refused"
    assert str(away.value) == f"Redis is away: {why}"


def test_a_password_that_is_refused_says_so() -> None:
    assert "password" in str(unavailable(parsed(ANSWERS["password changed"])))


GOOD = {
    "redis://h:1/2": "redis://h:1/2",
    "rediss://user:secret@h": "rediss://h",
    "unix://:secret@/run/redis.sock?db=1": "unix:///run/redis.sock",
    "redis+sentinel://a:1,b,[::1]:3/mymaster/2": "redis+sentinel://a:1,b,[::1]:3/mymaster/2",
    "rediss+sentinel://user:secret@a,b/mymaster?sentinel_password=secret": "rediss+sentinel://a,b/mymaster",
    "redis+cluster://a:1,b,[::1]:3": "redis+cluster://a:1,b,[::1]:3",
    "rediss+cluster://user:secret@a,b/?ssl_check_hostname=false": "rediss+cluster://a,b/",
}
BAD = (
    "",
    "h:6379",
    "http://h",
    "redis://h:port",
    "redis://h/0?no_such_option=1",
    "redis://:se/cret@h:1",
    "redis+sentinel://a:1",
    "redis+sentinel://a:1/",
    "redis+sentinel://a:1,,b/m",
    "redis+sentinel://a:port/m",
    "redis+sentinel://a/m/db",
    "redis+sentinel://:secret@a/m?no_such_option=1",
    "redis+cluster://",
    "redis+cluster://a:port",
    "redis+cluster://a,,b",
    "redis+cluster://a/1",
    "redis+cluster://a?db=1",
    "redis+cluster://:secret@a/?no_such_option=1",
)


@pytest.mark.parametrize(("url", "shown"), GOOD.items(), ids=list(GOOD))
def test_a_url_is_told_without_its_secrets(url: str, shown: str) -> None:
    client(url)
    blocking_client(url, block_s=5)
    assert describe(url) == shown
    assert has_password(url) == ("secret@" in url)


@pytest.mark.parametrize("url", BAD)
def test_malformed_url_is_one_error_without_its_secret(url: str) -> None:
    with pytest.raises(SettingsError, match="is malformed") as refused:
        client(url)
    assert "cret" not in str(refused.value)


def test_both_kinds_of_client_bound_every_wait() -> None:
    for url in GOOD:
        for made, least in ((client(url), 0), (blocking_client(url, block_s=10), 10)):
            options = made.connection_pool.connection_kwargs
            assert least < options["socket_timeout"] <= least + 5
            assert options["socket_connect_timeout"] <= 2
            assert options["retry"].get_retries() == 0
            assert options["protocol"] == 2


def test_a_url_cannot_loosen_the_time_outs() -> None:
    assert client("redis://h?socket_timeout=900").connection_pool.connection_kwargs["socket_timeout"] <= 5


def test_users_databases_and_names_reach_the_connections() -> None:
    pool = client("redis+sentinel://me:p%40ss@a:1,b/mymaster/2?sentinel_password=q").connection_pool
    assert (pool.service_name, pool.connection_kwargs["db"]) == ("mymaster", 2)
    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == ("me", "p@ss")
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"], one["password"]) for one in asked] == [("a", 1, "q"), ("b", 26379, "q")]
    assert all(one["retry"].get_retries() == 0 and one["socket_timeout"] <= 1 for one in asked)
