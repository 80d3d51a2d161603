"""Start one service for all incidents. Each incident has its own model, and so its own queue."""

from collections.abc import AsyncGenerator

import pytest

from tests.integration.incidents.scene import Scene, scene
from tests.support.servers import redis_server


@pytest.fixture(scope="module")
async def stage() -> AsyncGenerator[Scene]:
    """Start a server and an API."""
    with redis_server() as server:
        async with scene(server.url) as started:
            yield started
