"""Run the containers of a GPU pool's pod as processes, with its manifest's commands and probes."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import anyio
import httpx
import yaml
from anyio.abc import Process, TaskGroup

from director.execution import director
from director.local.launcher.processes import free_port
from tests.support.eventually import eventually, every
from tests.support.queue_driver import MODEL, VERSION

POOL: Final = Path(__file__).parents[2] / "k8s" / "components" / "gpu-pool"
DEPLOYMENT: Final[dict[str, Any]] = next(
    each for each in yaml.safe_load_all((POOL / "director.yaml").read_text()) if each["kind"] == "Deployment"
)
SPEC: Final[dict[str, Any]] = DEPLOYMENT["spec"]["template"]["spec"]
(SIDECAR,) = SPEC["initContainers"]
(MAIN,) = SPEC["containers"]
GRACE_S: Final[int] = SPEC["terminationGracePeriodSeconds"]
HAND_BACK_S: Final = director.HAND_BACK_S + 2 * director.TELL_S
DEFAULTS: Final = dict(
    literal.split("=", 1)
    for made in yaml.safe_load((POOL / "kustomization.yaml").read_text())["configMapGenerator"]
    for literal in made["literals"]
)
MODEL_PORT, HEALTH_PORT = "5000", DEFAULTS["DIRECTOR_HEALTH_PORT"]
AGAIN_S: Final = 0.1  # a kubelet's periods and backoff are longer, but their order is the same


class Pod:
    """`starts` counts the starts of each container, `killed` names containers that exceeded their grace period."""

    def __init__(self, model: Path, redis_url: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.model_port, self.health_port = str(free_port()), str(free_port())
        self.starts = {"model": 0, "director": 0}
        self.killed: list[str] = []
        self.exit_codes: dict[str, int] = {}
        self.answered = 0
        self.has_started = anyio.Event()
        self._model = model
        self._folder = folder
        self._running: dict[str, Process] = {}
        self._is_ending = False
        self._env = {
            **{name: self._here(value) for name, value in DEFAULTS.items()},
            "DIRECTOR_HEALTH_HOST": "127.0.0.1",
            "DIRECTOR_COGLET_DIR": "",  # all users of this machine share /tmp/coglet
            "DIRECTOR_REDIS_URL": redis_url,
            "DIRECTOR_MODEL": MODEL,
            "DIRECTOR_VERSION": VERSION,
            **settings,
        }
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.health_port}", trust_env=False, timeout=10)

    async def live(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep, "model", self._model_command(), self._model_env())
            await self._started_up()
            tasks.start_soon(self._keep, "director", [sys.executable, "-m", "director", *MAIN["args"]], self._env)
            await eventually(self.is_live, "the director lives", limit_s=60)
            self.has_started.set()

    async def end(self, *, grace_s: float = GRACE_S) -> None:
        """Send SIGTERM to the director, after its end to the model server, and SIGKILL to the rest after `grace_s`."""
        self._is_ending = True
        with anyio.move_on_after(grace_s):
            for name in ("director", "model"):
                await self._stop(name)
        for name, process in list(self._running.items()):
            self.killed.append(name)
            _kill(process)
            await process.wait()

    def kill_model(self) -> None:
        _kill(self._running["model"])

    async def is_live(self) -> bool:
        return await self._is_200(MAIN["livenessProbe"])

    async def is_ready(self) -> bool:
        return await self._is_200(MAIN["readinessProbe"])

    async def missing(self) -> dict[str, str]:
        """Return why the pod is not ready, as its director reports it."""
        path = MAIN["readinessProbe"]["httpGet"]["path"]
        return dict((await self.http.get(path)).json()["missing"])

    async def becomes_ready(self) -> None:
        await eventually(self.is_ready, "the pod is ready", limit_s=60)

    def _here(self, text: str) -> str:
        return text.replace(f":{MODEL_PORT}", f":{self.model_port}").replace(HEALTH_PORT, self.health_port)

    def _model_command(self) -> list[str]:
        python, *rest = SIDECAR["command"]
        assert python == "python"
        return [sys.executable, *rest, "--host", "127.0.0.1", *SIDECAR["args"]]

    def _model_env(self) -> dict[str, str]:
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PORT": self.model_port,
            "COG_PREDICT_TYPE_STUB": "predict.py:Predictor",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    async def _started_up(self) -> None:
        python, *rest = SIDECAR["startupProbe"]["exec"]["command"]
        assert python == "python"
        line = [sys.executable, *map(self._here, rest)]
        async for _ in every(AGAIN_S):
            asked = await anyio.run_process(line, check=False)
            if asked.returncode == 0:
                return
            # refused, or told that it starts: who cannot connect raises, which is told apart by what is written
            self.answered += not asked.stderr

    async def _keep(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        async for _ in every(AGAIN_S):
            if self._is_ending:
                break
            with (self._folder / name).open("ab") as log:
                process = await anyio.open_process(
                    command,
                    cwd=self._model if name == "model" else None,
                    env=dict(os.environ) | dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.starts[name] += 1
            self._running[name] = process
            try:
                self.exit_codes[name] = await process.wait()
                del self._running[name]
            except BaseException:
                _kill(process)
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await process.aclose()

    async def _stop(self, name: str) -> None:
        if (process := self._running.get(name)) is not None:
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: name not in self._running, f"{name} ended", limit_s=GRACE_S)

    async def _is_200(self, probe: Mapping[str, Any]) -> bool:
        with suppress(httpx.TransportError):
            return (await self.http.get(probe["httpGet"]["path"])).status_code == 200
        return False


@asynccontextmanager
async def pod(
    model: Path, redis_url: str, *, settings: Mapping[str, str] = MappingProxyType({}), starts: bool = True
) -> AsyncGenerator[Pod]:
    with tempfile.TemporaryDirectory(prefix="dr-pod-") as folder:
        one = Pod(model, redis_url, Path(folder), settings)
        tasks: TaskGroup
        async with one.http, anyio.create_task_group() as tasks:
            tasks.start_soon(one.live)
            if starts:
                await one.has_started.wait()
            yield one
            tasks.cancel_scope.cancel()


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)  # the whole group: a worker that hangs outlives its parent
