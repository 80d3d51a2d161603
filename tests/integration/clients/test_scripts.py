"""Test unmodified official clients with the whole service: Python 2.0.0b4 and JavaScript 1.4.0, one script per subject.

A script that reaches its end has found everything correct.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from anyio import to_thread

from tests.support.clients import run_script

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the clients come from package registries

HERE = Path(__file__).parent
SCRIPTS = sorted(path for path in [*HERE.glob("*/*.js"), *HERE.glob("python_2/*.py")] if path.stem != "given")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_client_works_as_on_replicate(
    env_of: Callable[[str], Awaitable[Mapping[str, str]]], script: Path
) -> None:
    env = await env_of(script.parent.name)
    program = "node" if script.suffix == ".js" else sys.executable
    assert await to_thread.run_sync(lambda: run_script([program, str(script)], env=env)) is True
