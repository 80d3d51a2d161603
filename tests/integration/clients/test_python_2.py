"""Test the unmodified official Python client 2.0.0b4 with the whole service: `python_2/` has one script per subject.

A script that reaches its end has found everything correct.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from anyio import to_thread

from tests.integration.clients.conftest import Caller
from tests.support.clients import python_2_client, run_script
from tests.support.live_director import Gate

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the client comes from a package registry

SCRIPTS = Path(__file__).parent / "python_2"
SUBJECTS = sorted(script.stem for script in SCRIPTS.glob("*.py") if script.stem != "given")


@pytest.fixture
async def env(pytestconfig: pytest.Config, caller: Caller, gate: Gate) -> Mapping[str, str]:
    assert pytestconfig.cache is not None
    cache = Path(pytestconfig.cache.mkdir("clients"))
    installed = await to_thread.run_sync(python_2_client, cache)
    return {
        **installed,
        "REPLICATE_BASE_URL": f"{caller.url}/v1",
        "REPLICATE_API_TOKEN": caller.token,
        "REPLICATE_POLL_INTERVAL": "0.05",
        "SSL_CERT_FILE": str(caller.authority),
        "GIVEN": caller.as_json(gate),
    }


@pytest.mark.parametrize("subject", SUBJECTS)
async def test_client_works_as_on_replicate(env: Mapping[str, str], subject: str) -> None:
    script = [sys.executable, str(SCRIPTS / f"{subject}.py")]
    assert await to_thread.run_sync(lambda: run_script(script, env=env)) is True
