"""Decide how many directors run, as KEDA and its HPA do, but poll and cool down at once."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final

import anyio
import yaml

from tests.support.eventually import eventually, every
from tests.support.live_director import DirectorProcess, director_process
from tests.support.timed_server import TimedServer, timed_server

COMPONENTS: Final = Path(__file__).parents[2] / "k8s" / "components"
POLL_S: Final = 0.2
TARGETS: Final = {"metrics-api": "targetValue", "redis": "listLength"}

Number = Callable[[], Awaitable[float | None]]
"""What a scaler of KEDA is told; None for an error."""


def scaled_object(component: str) -> dict[str, Any]:
    objects = yaml.safe_load_all((COMPONENTS / component / "scale.yaml").read_text())
    return dict(next(each for each in objects if each["kind"] == "ScaledObject")["spec"])


def trigger(component: str) -> dict[str, str]:
    (only,) = scaled_object(component)["triggers"]
    return dict(only["metadata"])


class Autoscaler:
    """`seen`: each figure and the number of directors at that time. `ended`: exit codes."""

    def __init__(self, component: str, number: Number, redis_url: str, *, run_s: float, most: int) -> None:
        spec = scaled_object(component)
        (trigger,) = spec["triggers"]
        self.least: int = spec["minReplicaCount"]
        self.most: int = min(spec["maxReplicaCount"], most)
        self.target = float(trigger["metadata"][TARGETS[trigger["type"]]])
        self.fallback = spec["fallback"]
        self.seen: list[tuple[float | None, int]] = []
        self.ended: list[int] = []
        self.servers: list[TimedServer] = []
        self._number = number
        self._redis_url = redis_url
        self._run_s = run_s
        self._failures = 0
        self._directors: list[DirectorProcess] = []

    @property
    def directors(self) -> int:
        """Return the number of wanted directors. Like a Deployment, it does not count draining ones."""
        return len(self._directors)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            async for _ in every(POLL_S):
                await self.run_once(tasks)

    async def run_once(self, tasks: anyio.abc.TaskGroup) -> None:
        number = await self._number()
        self.seen.append((number, self.directors))
        wanted = self._wanted(number)
        while self.directors < wanted:
            await tasks.start(self._direct)
        while self.directors > wanted:
            director = self._directors.pop()
            director.send(SIGTERM)

    def _wanted(self, number: float | None) -> int:
        if number is None:
            self._failures += 1
            is_late = self._failures >= self.fallback["failureThreshold"]
            return max(self.directors, int(self.fallback["replicas"])) if is_late else self.directors
        self._failures = 0
        # KEDA decides between 0 and 1 by its activation threshold, which is 0; the HPA decides everything above
        return min(self.most, max(1, math.ceil(number / self.target))) if number > 0 else self.least

    async def _direct(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(timed_server(self._run_s))
            director = await stack.enter_async_context(director_process(self._redis_url, server.url))
            await director.begins()  # a kubelet ends no director that has not started
            self.servers.append(server)
            self._directors.append(director)
            task_status.started()
            self.ended.append(await director.process.wait())


@asynccontextmanager
async def autoscaled(
    component: str, number: Number, redis_url: str, *, run_s: float = 0.5, most: int = 8
) -> AsyncGenerator[Autoscaler]:
    """Run an autoscaler in this block. The block fails unless every director ends with exit code 0."""
    scaler = Autoscaler(component, number, redis_url, run_s=run_s, most=most)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scaler.run)
        yield scaler
        await eventually(
            lambda: len(scaler.ended), "all have ended", until=lambda n: n == len(scaler.servers), limit_s=60
        )
        tasks.cancel_scope.cancel()
    assert set(scaler.ended) <= {0}
