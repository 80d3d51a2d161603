"""A Valkey of the measurement's own: embedded, in a temporary folder, in memory, gone with the block.

Writes no append-only file: what is measured here is the scripts, not the disk. Touches no server that somebody uses.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import anyio
from redis.asyncio import Redis

from director.broker.redis_client import ask, client
from director.core.errors import BackendUnavailable
from director.local import child
from director.local.home import Home
from director.local.processes import UpError
from director.local.server import VALKEY, EmbeddedServer, find_binary

IN_MEMORY: Final = {"appendonly": "no"}
START_LIMIT_S: Final = 20.0
END_LIMIT_S: Final = 10.0


@asynccontextmanager
async def own_server() -> AsyncGenerator[Redis, None]:
    """A client of a new and empty server."""
    with tempfile.TemporaryDirectory(prefix="director-bench-") as folder:
        home = Home(Path(folder))
        home.make()
        server = EmbeddedServer(home.valkey, find_binary(), IN_MEMORY)
        server.prepare()
        with _running(server, home) as process:
            redis = client(server.url, name="director-bench")
            try:
                await _until_it_answers(redis, home, process)
                yield redis
            finally:
                await redis.aclose()


@contextmanager
def _running(server: EmbeddedServer, home: Home) -> Generator["subprocess.Popen[bytes]", None, None]:
    part = server.part(home.path)
    log = home.open_log(VALKEY)
    try:
        # by way of `child`, so that it does not outlive us; its own session, so that Ctrl-C reaches us first
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(child.__file__), str(os.getpid()), *part.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=part.cwd,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_it_answers(redis: Redis, home: Home, process: "subprocess.Popen[bytes]") -> None:
    with anyio.move_on_after(START_LIMIT_S):
        while process.poll() is None:
            try:
                await ask(redis.ping)
            except BackendUnavailable:
                await anyio.sleep(0.01)
            else:
                return
    raise UpError(f"the {VALKEY} to measure with did not start: {' | '.join(home.last_lines(VALKEY))}")
