"""Provide one API for the tests that need neither a token nor Redis."""

from collections.abc import AsyncGenerator

import httpx
import pytest

from director.core.settings import ApiSettings
from tests.support.api import api_client


@pytest.fixture(scope="session")
async def alone() -> AsyncGenerator[httpx.AsyncClient]:
    """Return a client of an API whose Redis is away. One for all: its start waits a second for Redis."""
    async with api_client(ApiSettings(redis_url="redis://127.0.0.1:1", openai=True)) as client:
        yield client
