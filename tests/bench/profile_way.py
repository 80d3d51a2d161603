"""Profile one prediction's way: CPU µs of each process, and commands and reads of Redis, per prediction.

python -m tests.bench.profile_way drain             one director with 64 slots, and a trivial model server
python -m tests.bench.profile_way accept            the API under POSTs, nothing runs
python -m tests.bench.profile_way wait              POSTs with `Prefer: wait`, API and one director
… --beside /another/checkout --rounds 5             both at the same time, and the median ratio
… --functions director                              where that process is, by function (cProfile)
"""

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import queue_name
from director.lab.bench.load import Load, ask
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.bench.sides.ours import Answers
from tests.support.eventually import eventually
from tests.support.live_director import Caller
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import redis_server

TICK_US: Final = 1e6 / os.sysconf("SC_CLK_TCK")
POST_PATH: Final = f"/v1/models/{MODEL}/predictions"
PARTS: Final = {"drain": ("director",), "accept": ("api",), "wait": ("api", "director")}
PATIENCE_S: Final = 300.0
BODY: Final = '{"input":{"text":"hello"}}'
Figures = dict[str, float]


class ModelServer(asyncio.Protocol):
    BODIES: Final = {"/openapi.json": {"paths": {"/predictions": {"post": {}}}}, "/health-check": {"status": "READY"}}

    def connection_made(self, transport: Any) -> None:
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = self._got[:end].lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            if len(self._got) < end + 4 + length:
                return
            self._got = self._got[end + 4 + length :]
            path = head.split(b" ", 2)[1].decode()
            body = json.dumps(self.BODIES.get(path, {"status": "succeeded", "output": "x"})).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def serve_model(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(ModelServer, "127.0.0.1", port)
    await server.serve_forever()


class Process:
    def __init__(self, args: list[str], *, env: dict[str, str], profile: Path | None = None) -> None:
        ahead = [__file__, "under", str(profile)] if profile else []
        self._process = subprocess.Popen(
            [sys.executable, *ahead, *args], env={**os.environ, **env}, stderr=subprocess.DEVNULL
        )

    @property
    def cpu_us(self) -> float:
        used = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(used[11]) + int(used[12])) * TICK_US

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def under(profile: str, module: str, *args: str) -> None:
    """Run a module under the profiler, by the CPU time of its thread."""
    sys.argv = [module, *args]
    # uvicorn raises the signal again once it has ended in good order
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    profiler = cProfile.Profile(time.thread_time)
    try:
        profiler.runcall(runpy.run_module, module, run_name="__main__", alter_sys=True)
    finally:
        profiler.dump_stats(profile)


class Stage:
    def __init__(self, given: argparse.Namespace, stack: AsyncExitStack) -> None:
        self.given = given
        self._stack = stack
        self.parts: dict[str, Process] = {}

    async def set_up(self) -> None:
        given, stack = self.given, self._stack
        durable = {"appendonly": "yes", "appendfsync": "always"} if given.durable else {"appendonly": "no"}
        server = stack.enter_context(redis_server(loopback=True, on_disk=True, config=durable))
        self.redis = client(server.tcp_url)
        stack.push_async_callback(self.redis.aclose)
        self.scripts = Scripts(Gatherer(self.redis))
        self.queue = queue_name(MODEL, VERSION)
        self.token = await Accounts(self.redis).create_token(ACCOUNT)
        level = {"DIRECTOR_REDIS_URL": server.tcp_url, "DIRECTOR_DURABILITY": "always" if given.durable else "memory"}
        model_port, self.port = free_port(), free_port()
        self._start("model", [__file__, "serve", "--port", str(model_port)], level)
        await self._wait(Answers(f"http://127.0.0.1:{model_port}/health-check"))
        http: dict[str, object] = {"kind": "http", "path": "/run", "health": "/health-check"}
        config = {"kind": "cog", "fast": True} if given.cog else http
        director = {"MODEL": MODEL, "VERSION": VERSION, "SERVERS": f"http://127.0.0.1:{model_port}"}
        director |= {"CONCURRENT_PREDICTIONS": str(given.slots), "RUNNER_CONFIG": json.dumps(config)}
        director |= {} if given.cog else {"RUNNER": "http"}
        # for `accept` too: it registers the model
        self._start("director", ["-m", "director", "run"], level | {f"DIRECTOR_{k}": v for k, v in director.items()})
        await self._wait(self._is_registered)
        if given.what == "accept":
            self.parts.pop("director").end()
        if given.what != "drain":
            self._start("api", ["-m", "api"], level | {"DIRECTOR_PORT": str(self.port)})
            await self._wait(Answers(f"http://127.0.0.1:{self.port}/livez"))

    def _start(self, name: str, args: list[str], env: dict[str, str]) -> None:
        profile = Path(self.given.folder) / name if self.given.functions == name else None
        process = self.parts[name] = Process(args, env=env, profile=profile)
        self._stack.callback(process.end)

    async def _is_registered(self) -> bool:
        catalog = Catalog(self.redis, self.scripts, SystemClock())
        return await catalog.version(MODEL, VERSION) is not None and (await self.scripts.stats(self.queue)).slots > 0

    async def _wait(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        await eventually(is_so, "it is so", limit_s=PATIENCE_S)

    async def measure(self) -> Figures:
        runs = self.given.runs
        await self._ready(few := max(200, runs // 10))
        await self._work(few)
        await self._ready(runs)
        before, asked = self._cpu(), await _redis_facts(self.redis)
        began = time.perf_counter()
        runs, times = await self._work(runs)
        took_s = time.perf_counter() - began
        figures = {f"{name} CPU µs": (now - before[name]) / runs for name, now in self._cpu().items()}
        found = {name: (value - asked.get(name, 0)) / runs for name, value in (await _redis_facts(self.redis)).items()}
        return {**figures, **found, "runs/s": runs / took_s, **times}

    def _cpu(self) -> Figures:
        return {name: self.parts[name].cpu_us for name in PARTS[self.given.what]}

    async def _ready(self, runs: int) -> None:
        if self.given.what != "drain":
            return
        caller = Caller(self.redis, self.scripts)
        await self.scripts.pause(self.queue, paused=True)
        for begun in range(0, runs, 100):
            await asyncio.gather(*(caller.submit(text="hello") for _ in range(min(100, runs - begun))))

    async def _work(self, runs: int) -> tuple[int, Figures]:
        if self.given.what != "drain":
            headers = {"authorization": f"Bearer {self.token}"}
            headers |= {"prefer": "wait"} if self.given.what == "wait" else {}
            url, connections = f"http://127.0.0.1:{self.port}{POST_PATH}", self.given.connections
            load = Load(url=url, headers=headers, body=BODY, connections=connections, requests=runs, seconds=PATIENCE_S)
            answered = await ask(load)
            return answered.total, {"p50_ms": answered.p50_ms, "p99_ms": answered.p99_ms}
        await self.scripts.pause(self.queue, paused=False)
        await self._wait(self._is_empty)
        return runs, {}

    async def _is_empty(self) -> bool:
        await asyncio.sleep(0.02)  # the reads of a wait are no work that is measured
        return await self.redis.zcard(keys.live(self.queue)) == 0


async def _redis_facts(redis: Redis) -> Figures:
    cpu, stats, commands = await asyncio.gather(redis.info("cpu"), redis.info("stats"), redis.info("commandstats"))
    by_name = {name.removeprefix("cmdstat_").upper(): row for name, row in commands.items()}
    scripts = by_name.pop("EVALSHA", {"calls": 0, "usec": 0})
    return {
        "redis CPU µs": 1e6 * (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]),
        "redis reads": stats["total_reads_processed"],
        "scripts": scripts["calls"],
        "script µs": scripts["usec"],
        "commands": sum(row["calls"] for row in by_name.values()),
        **{f"  {name}": row["calls"] for name, row in sorted(by_name.items())},
    }


async def one_round(given: argparse.Namespace) -> Figures:
    async with AsyncExitStack() as stack:
        stage = Stage(given, stack)
        await stage.set_up()
        return await stage.measure()


async def in_checkout(given: argparse.Namespace, checkout: str) -> Figures:
    asked = [f"--{name}={getattr(given, name)}" for name in ("runs", "slots", "connections")]
    asked += [f"--{name}" for name in ("durable", "cog") if getattr(given, name)]
    program = [sys.executable, __file__, given.what, *asked, "--json"]
    env = {**os.environ, "PYTHONPATH": checkout}
    # there, since `-m` looks where it is run before it looks into PYTHONPATH
    found = await asyncio.create_subprocess_exec(*program, env=env, cwd=checkout, stdout=subprocess.PIPE)
    said, _ = await found.communicate()
    figures: Figures = json.loads(said)
    return figures


async def rounds(given: argparse.Namespace, checkouts: list[str]) -> list[list[Figures]]:
    """Return the rounds of each checkout. All checkouts run at once, so noise disturbs them alike."""
    found = [
        await asyncio.gather(*(in_checkout(given, checkout) for checkout in checkouts)) for _ in range(given.rounds)
    ]
    return [list(of_one) for of_one in zip(*found, strict=True)]


def main() -> None:
    if sys.argv[1:2] == ["under"]:
        under(sys.argv[2], *sys.argv[4:])
        return
    given = asked()
    if given.what == "serve":
        uvloop.run(serve_model(given.port))
    elif given.json:
        print(json.dumps(uvloop.run(one_round(given))))
    elif given.functions:
        with tempfile.TemporaryDirectory() as given.folder:
            uvloop.run(one_round(given))
            pstats.Stats(str(Path(given.folder) / given.functions)).sort_stats("tottime").print_stats(45)
    else:
        here = str(Path(__file__).parents[2])
        show(asyncio.run(rounds(given, [here, given.beside] if given.beside else [here])))


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*PARTS, "serve"])
    for name, default in (("runs", 4000), ("slots", 64), ("connections", 64), ("rounds", 1), ("port", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("durable", "cog", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    for name in ("beside", "functions"):
        parser.add_argument(f"--{name}", default="")
    parser.set_defaults(folder="")
    return parser.parse_args()


def show(found: list[list[Figures]]) -> None:
    for name in found[0][0]:
        rows = [[figures.get(name, 0.0) for figures in of_one] for of_one in found]
        cells = [f"{median(row):10.2f}" for row in rows]
        if len(rows) > 1:
            ratios = sorted(own / other for own, other in zip(*rows, strict=True) if other)
            cells += [f"{median(ratios):8.3f}  ({ratios[0]:.3f} … {ratios[-1]:.3f})"] if ratios else []
        print(f"{name:22}{''.join(cells)}")


if __name__ == "__main__":
    main()
