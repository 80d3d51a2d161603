"""Pair each runner of the conformance suite with a real server of its kind, all with the same model."""

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pytest
from msgspec import Raw, Struct

from director.core.runner_config import RunnerConfig, decode_runner_config
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import Ended, RunEvent, Runner, RunRequest
from tests.support.cog import cog_process, cog_schema, write_model
from tests.support.model_server import model_server

MOST_BYTES: Final = 256 * 1024
LIMIT_S: Final = 30.0

# Cog versions written in Python, from the first supported one on; each needs an environment of its own
OLD_COGS: Final = ("0.9", "0.10.0a27", "0.12", "0.14", "0.16")
NAMELESS: Final = ("0.9", "0.10.0a27")  # they do not report their version
HOSTLESS: Final = ("0.10.0a27",)  # they have no --host

COG_MODEL: Final = """
    import os
    from typing import Iterator
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, text: str = "a", n: int = 3, size: int = 0, gate: str = "", then: str = "") -> Iterator[str]:
            try:
                for number in range(n):
                    yield f"{text}{number}"
                if size:
                    yield "x" * size
                wait_for(gate)
            except BaseException:
                open(gate + ".stopped", "w").close()
                raise
            if then == "raise":
                raise ValueError("it went wrong")
            if then == "exit":
                os._exit(1)
"""
COG_INPUTS: Final = {"text": "string", "n": "integer", "size": "integer", "gate": "string", "then": "string"}
MAPPED: Final = {
    "input": {"args": {"$input": ""}},
    "output": "/result/items",
    "error": "/problem",
    "metrics": {"units": "/usage/units", "more": "/usage/more"},
}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "cog": {"kind": "cog"},
    "http": {"kind": "http", "path": "/predict", **MAPPED},
    "http batch": {"kind": "http", "path": "/predict_all", **MAPPED, "input": {"args": {"$each": ""}}, "batch": {}},
    "openai": {"kind": "openai"},
    "polling": {
        "kind": "polling",
        "path": "/jobs",
        "id_field": "/job/id",
        "poll_endpoint_template": "/jobs/{id}",
        "cancel_endpoint_template": "/cancel/{id}",
        "status": "/state",
        "interval_s": 0.02,
        "away_s": 0.5,
        **MAPPED,
    },
}


class LiveServer(Struct, frozen=True, kw_only=True):
    url: str
    kill: Callable[[], None]


class Kind(Struct, frozen=True, kw_only=True):
    name: str
    server: str  # how the name of its server begins
    config: RunnerConfig
    serve: Callable[..., AbstractAsyncContextManager[LiveServer]]
    asked: Callable[[dict[str, object]], dict[str, object]] = dict
    invalid: dict[str, object] = msgspec.field(default_factory=lambda: {"then": "invalid"})
    refuses: bool = True  # its server can be made to refuse by an input
    metrics: dict[str, object] = msgspec.field(default_factory=dict)
    starting: tuple[int, bytes] = (503, b"{}")  # how its server says that it is not ready yet
    health_path: str = "/health"

    def runner(self, url: str, inbox: Inbox, **options: Any) -> Runner:
        """Return a runner that reads at most MOST_BYTES of one output."""
        return make_runner(self.config, RunnerOptions(url=url, inbox=inbox, max_body=MOST_BYTES, **options))

    def request(self, prediction_id: str = "a" * 26, **given: object) -> RunRequest:
        return RunRequest(id=prediction_id, input=Raw(msgspec.json.encode(self.asked(given))))


@asynccontextmanager
async def _small(*, folder: Path, port: int | None = None) -> AsyncGenerator[LiveServer, None]:
    async with model_server(port=port) as server:
        yield LiveServer(url=server.url, kill=server.kill)


@asynccontextmanager
async def _coglet(*, streams: bool, folder: Path, port: int | None = None) -> AsyncGenerator[LiveServer, None]:
    model = write_model(folder / "model", COG_MODEL, cog_schema(COG_INPUTS, streams=streams))
    async with cog_process(model, port=port) as server:
        yield LiveServer(url=server.url, kill=server.kill)


@cache
def python_with(version: str) -> str:
    """Return a Python that has this Cog, or the last release of it if `version` has two numbers."""
    folder = Path(tempfile.mkdtemp(prefix=f"cog-{version}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    venv.create(folder)
    python = str(folder / "bin" / "python")
    wanted = f"cog=={version}.*" if version.count(".") == 1 else f"cog=={version}"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "-q", wanted)
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"Cog {version} cannot be installed here: {done.stderr[-300:]}")
    return python


@asynccontextmanager
async def _old_cog(version: str, *, folder: Path, port: int | None = None) -> AsyncGenerator[LiveServer, None]:
    python = await anyio.to_thread.run_sync(python_with, version)
    model = write_model(folder / "model", COG_MODEL)
    (model / "cog.yaml").write_text('predict: "predict.py:Predictor"\n')
    every = {"COG_THROTTLE_RESPONSE_INTERVAL": "0"}  # otherwise it reports output at most twice a second
    async with cog_process(model, port=port, python=python, env=every, takes_host=version not in HOSTLESS) as server:
        yield LiveServer(url=server.url, kill=server.kill)


def _config(name: str) -> RunnerConfig:
    return decode_runner_config(json.dumps(CONFIGS[name]))


def _cog_kind(name: str, server: str, serve: Callable[..., AbstractAsyncContextManager[LiveServer]]) -> Kind:
    return Kind(
        name=name,
        server=server,
        config=_config("cog"),
        serve=serve,
        invalid={"n": "three"},
        refuses=False,
        starting=(200, b'{"status": "STARTING"}'),
        health_path="/health-check",
    )


SUBJECTS: Final = {
    "cog": _cog_kind("cog", "coglet 0.", partial(_coglet, streams=True)),
    "cog answered": _cog_kind("cog answered", "coglet 0.", partial(_coglet, streams=False)),
    **{
        (name := f"cog {version}"): _cog_kind(
            name, "cog (python)" if version in NAMELESS else f"{name}.", partial(_old_cog, version)
        )
        for version in OLD_COGS
    },
    "http": Kind(name="http", server="http", config=_config("http"), serve=_small, metrics={"units": 3}),
    "http batch": Kind(
        name="http batch", server="http", config=_config("http batch"), serve=_small, metrics={"units": 3}
    ),
    "openai": Kind(
        name="openai",
        server="openai",
        config=_config("openai"),
        serve=_small,
        asked=lambda given: {"prompt": json.dumps(given)},
        metrics={"input_tokens": 5, "output_tokens": 3},
    ),
    "polling": Kind(
        name="polling",
        server="polling",
        config=_config("polling"),
        serve=_small,
        metrics={"units": 3},
    ),
}


async def follow(runner: Runner, request: RunRequest) -> list[RunEvent]:
    with anyio.fail_after(LIMIT_S):  # a run that never ends must fail its test, not hold up all the others
        async with aclosing(runner.run(request)) as events:
            return [event async for event in events]


@asynccontextmanager
async def opened(runner: Runner) -> AsyncGenerator[Runner, None]:
    try:
        yield runner
    finally:
        await runner.aclose()


def the_end(events: list[RunEvent]) -> Ended:
    ended = events[-1]
    assert isinstance(ended, Ended)
    return ended
