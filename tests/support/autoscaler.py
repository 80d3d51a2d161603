"""KEDA and the HPA that it makes, as far as they decide how many directors there are: one poll after the other.

Reads a ScaledObject of ours and follows it, but for the times: it polls and cools down at once, so that a number which
is wrong for a moment is acted on, where a cluster might never see it. Ends any director, as an HPA does.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final

import anyio
import yaml

from tests.support.eventually import eventually
from tests.support.live_director import DirectorProcess, director_process
from tests.support.timed_server import TimedServer, timed_server

__all__ = ("Autoscaler", "Number", "autoscaled", "trigger")

COMPONENTS: Final = Path(__file__).parents[2] / "k8s" / "components"
POLL_S: Final = 0.2
TARGETS: Final = {"metrics-api": "targetValue", "redis": "listLength"}

Number = Callable[[], Awaitable[float | None]]
"""What a scaler of KEDA is told; None for an error."""


def scaled_object(component: str) -> dict[str, Any]:
    """What we ship."""
    objects = yaml.safe_load_all((COMPONENTS / component / "scale.yaml").read_text())
    return dict(next(each for each in objects if each["kind"] == "ScaledObject")["spec"])


def trigger(component: str) -> dict[str, str]:
    """What the one scaler of it is told to ask."""
    (only,) = scaled_object(component)["triggers"]
    return dict(only["metadata"])


class Autoscaler:
    """`seen`: each number, and how many directors there were then. `ended`: exit codes. `servers`: of all directors."""

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
        """That are wanted. Those that drain are not counted: nor are they by a Deployment."""
        return len(self._directors)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                await self.run_once(tasks)
                await anyio.sleep(POLL_S)

    async def run_once(self, tasks: anyio.abc.TaskGroup) -> None:
        """Ask, then have as many as that says."""
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
        # 0 and 1 are KEDA's to decide, by its activation threshold, which is 0; all above is the HPA's
        return min(self.most, max(1, math.ceil(number / self.target))) if number > 0 else self.least

    async def _direct(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(timed_server(self._run_s))
            director = await stack.enter_async_context(director_process(self._redis_url, server.url))
            await director.begins()  # a kubelet ends none that was not started
            self.servers.append(server)
            self._directors.append(director)
            task_status.started()
            self.ended.append(await director.process.wait())


@asynccontextmanager
async def autoscaled(
    component: str, number: Number, redis_url: str, *, run_s: float = 0.5, most: int = 8
) -> AsyncGenerator[Autoscaler]:
    """At work. All directors have ended well by the end of the block, or it fails."""
    scaler = Autoscaler(component, number, redis_url, run_s=run_s, most=most)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scaler.run)
        yield scaler
        await eventually(
            lambda: len(scaler.ended), "all have ended", until=lambda n: n == len(scaler.servers), limit_s=60
        )
        tasks.cancel_scope.cancel()
    assert set(scaler.ended) <= {0}
