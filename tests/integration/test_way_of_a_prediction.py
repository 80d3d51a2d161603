"""Count the product files that one prediction passes in the API, the director and the keeper.

The prediction is a POST with `Prefer: wait` and a webhook, on a real Cog that streams. The API's cache is off, so that
the token and the model are looked up as for the first request. The test knows the product by its commands, settings and
HTTP alone, and by the record's key and its field `told`: it runs on any layout of the two packages.

The prediction is repeated. A function counts if it ran in every round and not in every idle round, in which nothing is
asked. The figure with the idle loops is printed too, but does not count: it depends on how fast the machine is, since a
loop of half a second runs in every round that takes longer. A file counts if one of its functions does. Files that hold
only constants and data types, and Lua scripts, are not seen.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from anyio.abc import Process
from redis import Redis

from director.local.launcher.processes import free_port
from tests.support import function_trace
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.eventually import eventually
from tests.support.function_trace import Function
from tests.support.servers import redis_server
from tests.support.sink import Sink, sink

pytestmark = pytest.mark.cog

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("api", "director")
# A reorganisation lowers it.
MOST_FILES: Final = 56

WARM_UP: Final = 2
ROUNDS: Final = 5
IDLE_ROUNDS: Final = 2
LEAST_IDLE_S: Final = 0.6  # longer than the period of the fastest loop
REPLY_S: Final = 0.1  # from the last write of a prediction until the process that asked for it has its reply
MODEL: Final = "acme/echo"
SOURCE: Final = """
    from typing import Iterator
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, text: str = "a") -> Iterator[str]:
            print("begun")
            yield text
            yield text
"""
SCHEMA: Final = cog_schema({"text": "string"})

Called = dict[str, set[Function]]  # by the name of the process


class Service:
    """An API, a director and a keeper that can be traced, and a caller."""

    def __init__(self, *, folder: Path, url: str, redis: Redis, receiver: Sink) -> None:
        self.pids: dict[str, int] = {}
        self.token = ""
        self._folder = folder
        self._url = url
        self._redis = redis
        self._receiver = receiver

    async def traced(self, act: Callable[[], Awaitable[None]]) -> Called:
        """Return the product functions that each process calls meanwhile."""
        for name, pid in self.pids.items():
            function_trace.start(pid)
            await eventually(partial(function_trace.has_started, self._folder, pid), f"{name} records")
        await act()
        called = {}
        for name, pid in self.pids.items():
            function_trace.stop(pid)
            look = partial(function_trace.recording, self._folder, pid)
            found = await eventually(look, f"the recording of {name}", until=lambda seen: seen is not None)
            called[name] = set(_of_the_product(found or ()))
        return called

    async def predict(self) -> None:
        """Run one prediction to its end and to the end of its webhook, on a connection of its own."""
        body = {"input": {"text": "hello"}, "webhook": self._receiver.url}
        headers = {"authorization": f"Bearer {self.token}", "prefer": "wait"}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            answer = await http.post(f"{self._url}/v1/models/{MODEL}/predictions", json=body, headers=headers)
        prediction = answer.json()
        assert (answer.status_code, prediction["status"]) == (201, "succeeded"), answer.text
        await eventually(
            lambda: self._outcome(prediction["id"]), "the webhook is noted", until=lambda seen: seen == b"delivered"
        )
        await anyio.sleep(REPLY_S)  # the way to a distant Redis

    def _outcome(self, prediction: str) -> bytes | None:
        [record] = self._redis.scan_iter(f"*:rec:{prediction}", count=1000)
        outcome: Any = self._redis.hget(record, "told")
        return outcome


def _of_the_product(functions: Iterable[Function]) -> Iterable[Function]:
    for file, name in functions:
        path = Path(file)
        if path.is_relative_to(ROOT) and (inner := path.relative_to(ROOT)).parts[0] in PACKAGES:
            yield inner.as_posix(), name


@asynccontextmanager
async def service(folder: Path) -> AsyncGenerator[Service]:
    """Start all processes and wait until they can serve a prediction."""
    traces = folder / "traces"
    traces.mkdir()
    health, keeper, port = free_port(), free_port(), free_port()
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        receiver = await stack.enter_async_context(sink())
        cog = await stack.enter_async_context(cog_server(write_model(folder / "model", SOURCE, SCHEMA)))
        redis = stack.enter_context(Redis.from_url(server.admin_url))
        outer = {name: value for name, value in os.environ.items() if not name.startswith("DIRECTOR_")}
        variables = outer | function_trace.traced_environment(traces, ROOT)
        variables |= {"DIRECTOR_REDIS_URL": server.url, "DIRECTOR_WEBHOOK_ALLOW": "loopback"}
        found = Service(folder=traces, url=f"http://127.0.0.1:{port}", redis=redis, receiver=receiver)
        made = await _command("token", "create", "--account", "acme", "--json", variables=variables)
        found.token = json.loads(made)["token"]
        commands = {
            "director": ("run", {"MODEL": MODEL, "SERVERS": cog, "HEALTH_PORT": health}, health),
            "api": ("api", {"PORT": port, "CACHE_S": 0}, port),
            "keeper": ("keeper", {"PORT": keeper}, keeper),
        }
        for name, (command, settings, _) in commands.items():
            own = {f"DIRECTOR_{key}": str(value) for key, value in settings.items()}
            process = await stack.enter_async_context(_process(command, variables | own))
            found.pids[name] = process.pid
        for name, (_, _, at) in commands.items():
            await eventually(lambda at=at: _is_ready(at), f"{name} is ready", limit_s=60)
        yield found


async def _command(*line: str, variables: Mapping[str, str]) -> bytes:
    done = await anyio.run_process([sys.executable, "-m", "director", *line], cwd=ROOT, env=variables)
    return done.stdout


@asynccontextmanager
async def _process(command: str, variables: Mapping[str, str]) -> AsyncGenerator[Process]:
    process = await anyio.open_process(
        [sys.executable, "-m", "director", command],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        await process.aclose()


async def _is_ready(port: int) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/readyz")).is_success
        except httpx.TransportError:
            return False


class Way:
    """The functions that a prediction calls, by process. `counted` omits those that idle loops call too."""

    def __init__(self, during: Called, idle: Called) -> None:
        self.during = during
        self.counted = {name: functions - idle[name] for name, functions in during.items()}

    @property
    def files(self) -> set[str]:
        return _files_of(set().union(*self.counted.values()))

    def __str__(self) -> str:
        during, counted = (set().union(*called.values()) for called in (self.during, self.counted))
        lines = [
            f"{len(self.files)} files and {len(counted)} functions",
            f"with what also runs in idle time: {len(_files_of(during))} files and {len(during)} functions",
        ]
        for name, functions in self.counted.items():
            files, also = _files_of(functions), _files_of(self.during[name]) - _files_of(functions)
            lines.append(f"{name}: {len(files)} files and {len(functions)} functions")
            lines += [f"  {file}" for file in sorted(files)]
            lines += [f"  ({file}, also in idle time)" for file in sorted(also)]
        return "\n".join(lines)


def _always(rounds: Sequence[Called]) -> Called:
    return {name: set.intersection(*(called[name] for called in rounds)) for name in rounds[0]}


def _files_of(functions: Iterable[Function]) -> set[str]:
    return {file for file, _ in functions}


async def test_one_prediction_passes_few_files(tmp_path: Path) -> None:
    async with service(tmp_path) as running:
        for _ in range(WARM_UP):
            await running.predict()
        rounds, longest_s = [], LEAST_IDLE_S
        for _ in range(ROUNDS):
            began = anyio.current_time()
            rounds.append(await running.traced(running.predict))
            longest_s = max(longest_s, anyio.current_time() - began)
        # an idle round is no shorter than any other: what its period brought into every round is in both idle ones too
        idle = [await running.traced(lambda: anyio.sleep(longest_s)) for _ in range(IDLE_ROUNDS)]
    way = Way(_always(rounds), _always(idle))
    print(f"\n{way}")
    assert all(way.counted[name] for name in ("api", "director")), f"the trace saw nothing:\n{way}"
    assert len(way.files) <= MOST_FILES, f"at most {MOST_FILES} files are allowed:\n{way}"
