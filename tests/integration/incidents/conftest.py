"""One service for all incidents: each has a model, and so a queue, of its own."""

from collections.abc import AsyncGenerator

import pytest

from tests.integration.incidents.scene import Scene, scene
from tests.support.servers import redis_server


@pytest.fixture(scope="module")
async def stage() -> AsyncGenerator[Scene]:
    """A server and an API."""
    with redis_server() as server:
        async with scene(server.url) as started:
            yield started
