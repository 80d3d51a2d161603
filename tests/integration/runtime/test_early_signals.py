"""Test a SIGTERM during the start of a process: as the first process of a container it must not miss the signal."""

import os
import signal
import sys

import anyio
import pytest

from tests.support.queue_driver import MODEL
from tests.support.servers import RedisServer

pytestmark = pytest.mark.heavy

# Sends itself a SIGTERM as soon as its command begins to work, when it has no handler yet
PROGRAM = """
import os, resource, signal, sys
from director.cli.main import main

def limited(which):
    os.kill(os.getpid(), signal.SIGTERM)
    return 100, 100

resource.getrlimit = limited
sys.exit(main())
"""
COMMANDS = {
    "api": ("api", "--port", "0"),
    "run": ("run", "--model", MODEL, "--server", "http://127.0.0.1:9"),
    "keeper": ("keeper",),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
async def test_early_sigterm_takes_effect_once_it_can_be_handled(server: RedisServer, command: tuple[str, ...]) -> None:
    env = dict(os.environ) | {"DIRECTOR_REDIS_URL": server.url}
    with anyio.fail_after(60):
        ended = await anyio.run_process([sys.executable, "-c", PROGRAM, *command], env=env, check=False)
    # uvicorn raises the signal again after a clean shutdown
    assert ended.returncode in (0, -signal.SIGTERM if command[0] == "api" else 0)
    assert b'"message":' in ended.stderr, "it came as far as its log"
