"""Run a real Cog model server, started in a model's folder and always ended with the test."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
from anyio.abc import Process
from msgspec import Struct

from director.local.launcher.processes import free_port
from tests.support.eventually import eventually

START_LIMIT_S: Final = 30.0  # a bare model is READY in 0.3 s; a busy machine may take many times that
LOG_TAIL: Final = 4000


ITEMS: Final = {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"}


def cog_schema(inputs: Mapping[str, str], output: Mapping[str, Any] = ITEMS, *, streams: bool = True) -> dict[str, Any]:
    """Return the OpenAPI document of a model whose inputs have these types."""
    properties = {name: {"type": kind} for name, kind in inputs.items()}
    return {
        "openapi": "3.0.2",
        "info": {"title": "Cog", "version": "0.1.0"},
        "paths": {"/predictions": {"post": {"x-cog-streaming": True} if streams else {}}},
        "components": {"schemas": {"Input": {"type": "object", "properties": properties}, "Output": output}},
    }


class CogServer(Struct, frozen=True, kw_only=True):
    """`pid` names the process group of the server and its worker."""

    url: str
    pid: int
    exited: Callable[[], bool] = lambda: False

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)


# A model that says `wait_for(gate)` waits until a test has made this file, or not at all for an empty name
GATES: Final = """
    import os, time

    def wait_for(path):
        while path and not os.path.exists(path):
            time.sleep(0.005)  # another process makes the file

"""


def write_model(folder: Path, source: str, schema: Mapping[str, Any] | None = None) -> Path:
    """Write a Cog model to `folder`. Without a schema Cog checks no input and refuses event streams."""
    folder.mkdir(parents=True, exist_ok=True)
    gates = textwrap.dedent(GATES) if "wait_for(" in source else ""
    (folder / "predict.py").write_text(gates + textwrap.dedent(source))
    if schema is not None:
        (folder / ".cog").mkdir(exist_ok=True)
        (folder / ".cog" / "openapi_schema.json").write_text(json.dumps(schema))
    return folder


@asynccontextmanager
async def cog_server(
    folder: Path,
    *,
    stub: str = "predict.py:Predictor",
    env: Mapping[str, str] | None = None,
    slots: int = 1,
    until: str = "READY",
    upload_url: str = "",
) -> AsyncGenerator[str, None]:
    """Serve the model in `folder` on loopback and yield its URL once its health is `until`."""
    async with cog_process(folder, stub=stub, env=env, slots=slots, until=until, upload_url=upload_url) as server:
        yield server.url


@asynccontextmanager
async def cog_process(
    folder: Path,
    *,
    stub: str = "predict.py:Predictor",
    env: Mapping[str, str] | None = None,
    slots: int = 1,
    until: str = "READY",
    port: int | None = None,
    trains: bool = False,
    python: str = sys.executable,
    upload_url: str = "",
    takes_host: bool = True,
) -> AsyncGenerator[CogServer, None]:
    """Yield the process of `cog_server`. `trains`: the stub is a function that trains, and nothing else runs.
    `takes_host`: False for a version that has no such option, and listens on every address.
    """
    port = port or free_port()
    with tempfile.TemporaryFile() as log:
        # --await-explicit-shutdown is how a director runs Cog: SIGTERM goes to the director first, which drains
        process = await anyio.open_process(
            [
                *(python, "-m", "cog.server.http", "--await-explicit-shutdown=true"),
                *(("--host", "127.0.0.1") if takes_host else ()),
                *(("--x-mode", "train") if trains else ()),
                *(("--upload-url", upload_url) if upload_url else ()),
            ],
            cwd=folder,
            env=_environment(stub=stub, port=port, slots=slots, python=python, trains=trains) | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            server = CogServer(
                url=f"http://127.0.0.1:{port}", pid=process.pid, exited=lambda: process.returncode is not None
            )
            try:
                await _wait_for_health(server.url, until, process)
            except (ChildProcessError, AssertionError) as exc:
                exc.add_note(f"Cog's log in {folder}:\n{_tail(log.fileno())}")
                raise
            yield server
        finally:
            await _end(process)


def _environment(*, stub: str, port: int, slots: int, python: str, trains: bool) -> dict[str, str]:
    # Cog starts its worker as `python` from PATH: it has to be the interpreter that has cog and the model's packages
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])
    return dict(os.environ) | {
        "PATH": path,
        "PORT": str(port),
        "COG_PREDICT_TYPE_STUB": stub,
        **({"COG_TRAIN_TYPE_STUB": stub} if trains else {}),  # a server in Python starts with none that it cannot call
        "COG_MAX_CONCURRENCY": str(slots),
        "PYTHONDONTWRITEBYTECODE": "1",  # leave no __pycache__ in the folder that is served
    }


async def _wait_for_health(url: str, until: str, process: Process) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:

        async def status() -> str:
            if process.returncode is not None:
                raise ChildProcessError(f"Cog exited with {process.returncode} before it was {until}")
            try:
                return str((await client.get("/health-check", timeout=START_LIMIT_S)).json()["status"])
            except httpx.TransportError:
                return "silent"

        ends = {until, "SETUP_FAILED"}
        found = await eventually(status, f"Cog is {until}", until=ends.__contains__, limit_s=START_LIMIT_S)
    assert found == until, f"Cog is {found}, and was waited for until {until}"


async def _end(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        with suppress(ProcessLookupError):  # the test ended it
            os.killpg(process.pid, signal.SIGKILL)  # the whole group: a worker that hangs outlives its parent
        await process.aclose()


def _tail(log_fd: int) -> str:
    size = os.fstat(log_fd).st_size
    return os.pread(log_fd, LOG_TAIL, max(0, size - LOG_TAIL)).decode(errors="replace")
