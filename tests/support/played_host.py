"""Play the servers of models that share a device, in this process. Each takes memory from a budget.

A load that does not fit, a second load at the same time and a run that is cut off are faults, which the test reads.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from director.core.devices import Device, Launch, Model, Place
from director.core.pool_file import Hosted
from director.gpus.host import Held, LoadFailed
from director.local.launcher.processes import free_port

DEVICE: Final = "gpu0"


class PlayedModel:
    """A model with one slot. `fails`: how its next loads end, None well. `stays_in_setup`: it never becomes ready."""

    def __init__(self, name: str, size: int = 1, *, load_s: float = 0.1, run_s: float = 0.02, **given: Any) -> None:
        terms: dict[str, Any] = {"places": ({DEVICE: size},), "slots": 1, "run_limit_s": 5.0} | given
        model = Model(name=name, **terms)
        self.hosted = Hosted(model, Launch(command=("played",), load_s=load_s))
        self.name = name
        self.load_s = load_s
        self.run_s = run_s
        self.port = free_port()
        self.fails: list[str | None] = []
        self.stays_in_setup = False
        self.held = Held()
        self.starts = 0
        self.running = 0
        self.spans: list[tuple[float, float]] = []
        self.ready_at = 0.0
        self.server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                method, path, _ = head.split(" ", 2)
                lines = [line for line in head.split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(int(lines[0].partition(":")[2]) if lines else 0)
                content = json.dumps(await self._answer(method, path, body)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content))
                await writer.drain()
        self.writers.discard(writer)
        writer.close()

    async def _answer(self, method: str, path: str, body: bytes) -> object:
        if method == "put":
            began = time.monotonic()
            self.running += 1
            await asyncio.sleep(json.loads(body)["input"].get("run_s", self.run_s))  # the model's own time
            self.running -= 1
            self.spans.append((began, time.monotonic()))
            return {"status": "succeeded", "output": self.name}
        if path == "/openapi.json":
            return {"paths": {"/predictions": {"post": {}}}, "components": {"schemas": {"Output": {"type": "string"}}}}
        is_ready = time.monotonic() >= self.ready_at and not self.stays_in_setup
        setup = {"started_at": f"start {self.starts}"}
        return {"status": "READY" if is_ready else "STARTING", "setup": setup, "version": {"coglet": "0.23.1"}}


class PlayedHost:
    """`faults`: what must never happen. `peak`: most memory at any time. `done`: the steps in order."""

    def __init__(self, *models: PlayedModel, memory: int, rest_s: float = 0.01) -> None:
        self.devices = (Device(DEVICE, memory),)
        self.models = {model.name: model for model in models}
        self.on_news: Callable[[], None] = lambda: None
        self.left: dict[str, Held] = {}  # by a director that died
        self.faults: list[str] = []
        self.peak = 0
        self.done: list[str] = []
        self.rest_s = rest_s
        self.loads = Counter[str]()

    def url(self, model: str) -> str:
        return f"http://127.0.0.1:{self.models[model].port}"

    def find_held(self, model: str) -> Held:
        return self.models[model].held

    async def take_over(self) -> Mapping[str, Held]:
        return self.left

    async def load(self, model: str, place: Place) -> None:
        played = self.models[model]
        if played.held.presence == "running":
            return
        if any(
            place.keys() & other.held.place.keys() and time.monotonic() < other.ready_at
            for other in self.models.values()
        ):
            self.faults.append(f"{model} loads while another one does")
        self.loads[model] += 1
        self.done.append(f"+{model}")
        if played.fails and (why := played.fails.pop(0)) is not None:
            raise LoadFailed(why)
        await self._start(played, place)

    async def _start(self, played: PlayedModel, place: Place) -> None:
        played.held = Held(presence="running", since=time.monotonic(), place=place)
        taken = sum(sum(one.held.place.values()) for one in self.models.values())
        self.peak = max(self.peak, taken)
        if taken > self.devices[0].memory:
            self.faults.append(f"{played.name} does not fit: {taken}")
        played.starts += 1
        played.ready_at = time.monotonic() + played.load_s
        played.server = await asyncio.start_server(played.serve, "127.0.0.1", played.port)

    async def rest(self, model: str) -> None:
        played = self.models[model]
        if played.held.presence == "running":
            if played.running:
                self.faults.append(f"a run of {model} was cut off")
            await self.die(model, ended="")
            self.done.append(f"-{model}")
            await asyncio.sleep(self.rest_s)  # the model's own time
        played.held = Held()

    async def die(self, model: str, *, ended: str) -> None:
        """End its server with all connections. With `ended` it died by itself."""
        played = self.models[model]
        if played.server is not None:
            played.server.close()
            for writer in list(played.writers):
                writer.transport.abort()
        played.running = 0
        played.held = Held(ended=ended, place=played.held.place if not ended else {})
        self.on_news()

    async def aclose(self) -> None:
        for name in self.models:
            await self.die(name, ended="")
