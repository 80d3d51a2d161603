"""Test the unmodified official JavaScript client 1.4.0 with the whole service: `javascript/` has one script per
subject.

A script that reaches its end has found everything correct.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from anyio import to_thread

from tests.integration.clients.conftest import Caller
from tests.support.clients import javascript_client, run_script
from tests.support.live_director import Gate

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the client comes from a package registry

SCRIPTS = Path(__file__).parent / "javascript"
SUBJECTS = sorted(script.stem for script in SCRIPTS.glob("*.js") if script.stem != "given")


@pytest.fixture
async def env(pytestconfig: pytest.Config, caller: Caller, gate: Gate) -> Mapping[str, str]:
    assert pytestconfig.cache is not None
    cache = Path(pytestconfig.cache.mkdir("clients"))
    installed = await to_thread.run_sync(javascript_client, cache)
    return {
        **installed,
        "NODE_EXTRA_CA_CERTS": str(caller.authority),
        "GIVEN": caller.as_json(gate),
    }


@pytest.mark.parametrize("subject", SUBJECTS)
async def test_client_works_as_on_replicate(env: Mapping[str, str], subject: str) -> None:
    assert await to_thread.run_sync(lambda: run_script(["node", str(SCRIPTS / f"{subject}.js")], env=env)) is True
