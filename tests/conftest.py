"""What every test has: anyio on asyncio, and one real server for the whole run, or what `--redis-kind` names."""

import inspect
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest
import sniffio
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.policy import Policy
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.keyspace import leaks
from tests.support.kinds import KINDS, Started, started, whole
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.release import Release, former_release

NOT_RUN: dict[str, list[str]] = {}
TRIED_AGAIN: dict[str, str] = {}

hypothesis.settings.register_profile("here", deadline=None)  # a machine that is busy is no fault of the code
hypothesis.settings.load_profile("here")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Redis's client is asyncio-only, so that is the backend that is promised and tested."""
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(autouse=True)
def its_own_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that is no coroutine may run a loop of its own, also while a module's fixture holds one open."""
    if inspect.iscoroutinefunction(request.function):
        yield
        return
    token = sniffio.current_async_library_cvar.set(None)
    yield
    sniffio.current_async_library_cvar.reset(token)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-kind", choices=sorted(KINDS), default="valkey", help="what the tests' server is")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Started]:
    """One durable server, with the users that we ship. A test that kills or fills its server starts its own."""
    with started(request.config.getoption("redis_kind")) as server:
        yield server


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The release before this one, built once in each process."""
    return former_release(tmp_path_factory.mktemp("former"))


@pytest.fixture
async def redis(server: Started) -> AsyncIterator[Redis]:
    """A client on an empty database that may do everything, as the product may not.

    Whoever leaves a key there that nothing will ever remove fails here.
    """
    redis = whole(server.admin_url)
    try:
        await redis.flushall()
        yield redis
        assert await leaks(redis) == []
    finally:
        await redis.aclose()


@pytest.fixture
async def product_redis(redis: Redis, server: Started) -> AsyncIterator[Redis]:
    """A client with the rights of our own processes, and no more."""
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
    """A registered queue of the model acme/echo, as large as queues are by default."""
    return await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())


@pytest.fixture
def driver(redis: Redis, scripts: Scripts, queue: QueueName) -> QueueDriver:
    """The queue, with time in the test's hands."""
    return QueueDriver(redis, scripts, queue)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long is begun first; all else stays in its order. What makes no sense on this kind is left out."""
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
    """The last lines of a run: what needed a second try, and what it did not run and why. Neither is quietly a pass."""
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    if TRIED_AGAIN:
        print(*TRIED_AGAIN.values(), sep="\n")
        print(f"failed at the first try, to be mended: {'; '.join(TRIED_AGAIN)}")
    reasons = "; ".join(f"{len(tests)} tests: {reason}" for reason, tests in NOT_RUN.items())
    print(f"did not run: {reasons}" if reasons else "nothing was left out")
