"""Give every test anyio on asyncio, and one real server for the run, of the kind that `--redis-kind` names."""

import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest
import sniffio
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.rights import PARTS
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.policy import Policy
from director.local.launcher import processes
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.eventually import eventually
from tests.support.keyspace import leaks
from tests.support.kinds import KINDS, Started, started, whole
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.release import Release, former_release
from tests.support.servers import RedisServer, redis_server
from tests.support.sink import Sink, sink

TESTS = Path(__file__).parent
# each worker of pytest has ports of its own: two could choose the same one before either listens there
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
vars(processes)["PORTS"] = processes.PORTS[WORKER % 8 :: 8]

NOT_RUN: dict[str, list[str]] = {}
TRIED_AGAIN: dict[str, str] = {}

hypothesis.settings.register_profile("here", deadline=None)  # a busy machine is not a fault of the code
hypothesis.settings.load_profile("here")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Return the asyncio backend: Redis's client supports no other."""
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(autouse=True)
def its_own_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a synchronous test run a loop of its own while a module's fixture holds another one open."""
    if inspect.iscoroutinefunction(request.function):
        yield
        return
    token = sniffio.current_async_library_cvar.set(None)
    yield
    sniffio.current_async_library_cvar.reset(token)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-kind", choices=sorted(KINDS), default="valkey", help="what the tests' server is")
    parser.addoption("--update-pages", action="store_true", help="write what is seen into the pages")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Started]:
    """Start one durable server with the users that we ship. A test that kills or fills its server starts its own.

    The last test fails if the server refused a command to a part of the product.
    """
    with started(request.config.getoption("redis_kind")) as server:
        yield server
        if isinstance(server, RedisServer):
            with SyncRedis.from_url(server.admin_url) as admin:
                refused = [entry for entry in admin.acl_log() if entry["username"] in PARTS]
            assert refused == []


@pytest.fixture
def mortal() -> Iterator[RedisServer]:
    """Start a server that the test may kill or fill."""
    with redis_server(loopback=True) as server:
        yield server


@pytest.fixture
async def receiver() -> AsyncIterator[Sink]:
    """Start a receiver of webhooks."""
    async with sink() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Build the release before this one, once in each process."""
    return former_release(tmp_path_factory.mktemp("former"))


@pytest.fixture
async def redis(server: Started) -> AsyncIterator[Redis]:
    """Return an admin client on an empty database. The product has fewer rights.

    The test fails if it leaves a key there that nothing will ever remove.
    """
    redis = whole(server.admin_url)
    try:
        await redis.flushall()
        yield redis
        # what another process still removes is no leak
        await eventually(lambda: leaks(redis), "nothing stays for ever", until=([]).__eq__, limit_s=5)
    finally:
        await redis.aclose()


@pytest.fixture
async def product_redis(redis: Redis, server: Started) -> AsyncIterator[Redis]:
    """Return a client with the rights of the product's own processes."""
    product = client(server.url)
    yield product
    await product.aclose()


@pytest.fixture
async def scripts(product_redis: Redis) -> AsyncIterator[Scripts]:
    gatherer = Gatherer(product_redis)
    yield Scripts(gatherer)
    await gatherer.aclose()


@pytest.fixture
def catalog(product_redis: Redis, scripts: Scripts) -> Catalog:
    return Catalog(product_redis, scripts, SystemClock())


@pytest.fixture
async def queue(catalog: Catalog) -> QueueName:
    """Register a queue of the model acme/echo with the default number of streams."""
    return await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())


@pytest.fixture
def driver(redis: Redis, scripts: Scripts, queue: QueueName) -> QueueDriver:
    """Return a driver of the queue. The test moves its clock."""
    return QueueDriver(redis, scripts, queue)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker load its share of the tests first: the others then find their byte code.

    pytest rewrites the assertions of a file before it compiles it, which takes 13 s for all of them.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or sys.dont_write_bytecode or session.config.args_source != pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(TESTS.rglob("test_*.py"))
    for file in files[WORKER::workers]:
        with suppress(Exception, pytest.skip.Exception):  # the collection will report it
            importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start slow tests first and keep the order of the others. Leave out tests that do not apply to this kind."""
    kind = config.getoption("redis_kind")
    for item in items:
        mark = item.get_closest_marker("not_on")
        if mark is not None and kind in mark.args:
            item.add_marker(pytest.mark.skip(reason=f"not on {kind}: {mark.kwargs['why']}"))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        NOT_RUN.setdefault(report.longrepr[2].removeprefix("Skipped: "), []).append(report.nodeid)
    elif report.outcome == "rerun":
        TRIED_AGAIN[report.nodeid] = report.longreprtext


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print which tests needed a second attempt and which did not run, with reasons: neither is a plain pass."""
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    if TRIED_AGAIN:
        print(*TRIED_AGAIN.values(), sep="\n")
        print(f"failed at the first try, to be mended: {'; '.join(TRIED_AGAIN)}")
    reasons = "; ".join(f"{len(tests)} tests: {reason}" for reason, tests in NOT_RUN.items())
    print(f"did not run: {reasons}" if reasons else "nothing was left out")
