"""The Redis server that an operator's command works on, and its stores. The commands work while no API runs."""

import argparse
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import anyio
from redis.asyncio import Redis

from director.broker.redis_client import client, describe
from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import QueueName
from director.core.settings import CommonSettings, load
from director.files.data_files import DataFiles
from director.local.home import Home, Nowhere
from director.operate.overview import Overview
from director.operate.scaling import Scaling
from director.store.ledger import Ledger
from director.store.services import Services

Done = TypeVar("Done")


class Backend(Services):
    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.overview = Overview.of(self)
        self.scaling = Scaling(redis, self.scripts, self.catalog, self.clock)
        self.other_ledgers: Mapping[str, Ledger] = {}  # of the other sites of an API, by name

    @cached_property
    def settings(self) -> CommonSettings:
        """Return the settings of the environment. Raises SettingsError."""
        return load(CommonSettings)

    @cached_property
    def scripts_with_files(self) -> Scripts:
        """Scripts that read data in the file store that the environment names. Raises SettingsError."""
        # only here: it takes longer to import than most commands run
        from director.files.choose import output_store_in

        settings = self.settings
        store = output_store_in(settings.files_dir, self.redis, self.clock, url=settings.files_url)
        return Scripts(self.gatherer, whole=DataFiles(self.clock, store).whole)

    async def queue(self, name: str) -> QueueName:
        """Return the queue that a command line names. Raises SettingsError for an unknown queue."""
        found = await self.queues.find(name)
        if found is None:
            raise SettingsError(f"there is no queue {name}: `director queues` shows them.")
        return found


def on_backend(given: argparse.Namespace, act: Callable[[Backend], Awaitable[Done]]) -> Done:
    """Call `act` on the server that the command line, the environment or the `up` names. Return its result."""
    url = redis_url(given)

    async def run() -> Done:
        async with connect(url) as backend:
            return await act(backend)

    try:
        return anyio.run(run)
    except BackendUnavailable as exc:
        raise BackendUnavailable(f"{exc}, at {describe(url)}. See --redis and DIRECTOR_REDIS_URL.") from exc


def redis_url(given: argparse.Namespace) -> str:
    """Return the address of the Redis server. Raises Nowhere."""
    url = given.redis or os.environ.get("DIRECTOR_REDIS_URL", "") or Home(Path(given.home)).read().redis_url
    if not url:
        raise Nowhere(
            f"no Redis is known: {given.home} has no up.json. Start a service here with `director up`, "
            "or say where Redis is with --redis or DIRECTOR_REDIS_URL."
        )
    return str(url)


def connect(url: str) -> AbstractAsyncContextManager[Backend]:
    return aclosing(Backend(client(url, name="director-cli")))
