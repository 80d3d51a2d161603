"""The Redis server that an operator's command works on, and the stores that use it.

The API is not asked, so these commands work while no API runs.
"""

import argparse
import getpass
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from director.core.errors import DirectorError

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from director.core.ids import QueueName


Done = TypeVar("Done")


class Nowhere(DirectorError):
    """No service is known. Start one, or name its address."""


class Backend:
    """The stores on one Redis server. They are imported here, so that `--help` stays quick."""

    def __init__(self, redis: "Redis") -> None:
        from director.broker.gatherer import Gatherer
        from director.broker.scripts import Scripts
        from director.core.clock import SystemClock
        from director.diagnosis.closer_look import CloserLook
        from director.diagnosis.overview import Overview
        from director.diagnosis.scaling import Scaling
        from director.store.accounts import Accounts
        from director.store.administration import Administration, Suspensions
        from director.store.catalog import Catalog
        from director.store.changes import Changes
        from director.store.dead import DeadLetters
        from director.store.directors import Directors
        from director.store.models import Collections, Examples, ModelConfigs
        from director.store.owed import Owed
        from director.store.queues import QueueAdministration, QueueHistory, Queues

        self.redis = redis
        self._gatherer = Gatherer(redis)
        clock = SystemClock()
        self.scripts = Scripts(self._gatherer)
        self.changes = Changes(redis, self.scripts, clock)
        self.catalog = Catalog(redis, self.scripts, clock)
        self.collections = Collections(redis)
        self.configs = ModelConfigs(redis, self.scripts, clock)
        self.examples = Examples(redis, self.scripts)
        self.accounts = Accounts(redis)
        self.administration = Administration(
            self.accounts,
            self.catalog,
            self.scripts,
            Suspensions(redis, self.accounts, self.catalog, self.scripts, clock),
            self.changes,
        )
        self.queue_administration = QueueAdministration(self.scripts, self.changes)
        self.history = QueueHistory(redis)
        self.scaling = Scaling(redis, self.scripts, self.catalog, clock)
        self.queues = Queues(redis, self.catalog, self.scripts)
        self.dead = DeadLetters(redis, self.scripts, clock)
        self.directors = Directors(redis)
        owed = Owed(redis, self.catalog)
        self.overview = Overview(self.queues, self.directors, owed, CloserLook(redis, owed), clock)

    async def queue(self, name: str) -> "QueueName":
        """Return the queue that a command line names. Raises SettingsError for an unknown queue."""
        from director.core.errors import SettingsError

        found = await self.queues.named(name)
        if found is None:
            raise SettingsError(f"there is no queue {name}: `director queues` shows them.")
        return found

    async def aclose(self) -> None:
        """Close the connection."""
        await self._gatherer.aclose()
        await self.redis.aclose()


def on_backend(given: argparse.Namespace, act: Callable[[Backend], Awaitable[Done]]) -> Done:
    """Call `act` on the server that the command line, the environment or the `up` names. Return its result."""
    import anyio

    from director.broker.redis_client import describe
    from director.core.errors import BackendUnavailable

    url = redis_url(given)

    async def run() -> Done:
        async with connected(url) as backend:
            return await act(backend)

    try:
        return anyio.run(run)
    except BackendUnavailable as exc:
        raise BackendUnavailable(f"{exc}, at {describe(url)}. See --redis and DIRECTOR_REDIS_URL.") from exc


def redis_url(given: argparse.Namespace) -> str:
    """Return the address of the Redis server. Raises Nowhere."""
    from director.local.home import Home

    url = given.redis or os.environ.get("DIRECTOR_REDIS_URL", "") or Home(Path(given.home)).read().redis_url
    if not url:
        raise Nowhere(
            f"no Redis is known: {given.home} has no up.json. Start a service here with `director up`, "
            "or say where Redis is with --redis or DIRECTOR_REDIS_URL."
        )
    return str(url)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Backend]:
    """Connect to one server while the block lasts."""
    from director.broker.redis_client import client

    backend = Backend(client(url, name="director-cli"))
    try:
        yield backend
    finally:
        await backend.aclose()


CHANGES = "director.store.changes"


@contextmanager
def audited() -> Iterator[str]:
    """Yield the operator's name, and write each change in the block as a line of JSON on stderr too."""
    import logging
    import sys

    from director.runtime.logs import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process="cli"))
    changes = logging.getLogger(CHANGES)
    level = changes.level
    changes.addHandler(handler)
    changes.setLevel(logging.INFO)
    try:
        yield typist()
    finally:
        changes.setLevel(level)
        changes.removeHandler(handler)


def typist() -> str:
    """Return the operator's name as the log of changes has it. Only the user's name is read."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # in a container the user may have a number without a name
        return "cli:unknown"
