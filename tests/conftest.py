"""What every test has: anyio on asyncio, and one real server for the whole run."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Redis's client is asyncio-only, so that is the backend that is promised and tested."""
    return ("asyncio", {"use_uvloop": False})
