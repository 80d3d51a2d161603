"""Fill each disk that the manifests give a process of ours, one after the other. What was accepted stays. All is up
again within 30 s after the disk has room. Redis, API, keeper and director have the commands, users and folders of their
pods. What ends is started again, as by a kubelet.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
import yaml

from director.broker.redis_client import client
from director.local.launcher.processes import free_port
from director.store.accounts import SCOPES, Accounts
from tests.support.disk import fill, small_disk
from tests.support.eventually import eventually
from tests.support.manifests import K8S
from tests.support.model_server import model_server
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import binary

pytestmark = [pytest.mark.faults]

UP_AGAIN_S: Final = 30.0
# disk → its component and where it is mounted there
DISKS: Final = {
    "redis-data": ("redis", "/data"),
    "redis-tmp": ("redis", "/tmp"),
    "api-tmp": ("api", "/tmp"),
    "keeper-tmp": ("keeper", "/tmp"),
    "director-tmp": ("director", "/tmp"),
    "director-coglet": ("director", "/coglet"),
    "files": ("api", "/files"),
}
USERS: Final = {"REDIS": "director", "API_REDIS": "api", "KEEPER_REDIS": "keeper", "RUN_REDIS": "run"}
RUNNER: Final = {"path": "/predict", "input": {"args": {"$input": ""}}, "output": "/result/items"}
SMALL: Final = b"x" * 6_000
TEXT: Final = base64.b64encode(SMALL).decode()[:-1]  # the model adds "0"
MADE: Final = base64.b64decode(TEXT + "0")
ENDED: Final = {"succeeded"}
# The model's output is gone where its file cannot be stored within 5 s: such a run fails, and says why
ENDED_UNSTORED: Final = {"succeeded", "output_not_stored"}
NEEDED: Final = ("redis-data", "redis-tmp", "files")  # without these something is refused meanwhile


class Part:
    """A process that is started again whenever it has ended."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._env = {"PATH": os.environ["PATH"], **env}
        self._log = log
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def tend(self) -> None:
        if self._process.poll() is not None:
            self._process = self._started()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Pods:
    def __init__(self, folder: Path, disks: Mapping[str, Path], model_url: str) -> None:
        self.disks = disks
        self.parts: dict[str, Part] = {}
        self.ports = {name: free_port() for name in ("api", "keeper", "director")}
        self.socket = folder / "s"
        self._folder = folder
        self._files = str(disks["files"])
        url = self.url("api")
        self._settings = {
            "api": {"DIRECTOR_PORT": str(self.ports["api"]), "DIRECTOR_FILES_DIR": self._files},
            "keeper": {"DIRECTOR_PORT": str(self.ports["keeper"]), "DIRECTOR_FILES_DIR": self._files},
            "director": {
                "DIRECTOR_HEALTH_PORT": str(self.ports["director"]),
                "DIRECTOR_FILES_URL": url,
                "DIRECTOR_FILES_BASE": url,
                "DIRECTOR_UPLOAD_SECRET": "s" * 20,
                "DIRECTOR_COGLET_DIR": f"{disks['director-coglet']}/predictions",
                "DIRECTOR_MODEL": MODEL,
                "DIRECTOR_VERSION": VERSION,
                "DIRECTOR_SERVERS": model_url,
                "DIRECTOR_RUNNER": "http",
                "DIRECTOR_RUNNER_CONFIG": json.dumps(RUNNER),
            },
        }

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def start_redis(self) -> None:
        etc = self._folder / "etc"
        shutil.copytree(K8S / "base" / "redis", etc)
        conf, data = etc / "redis.conf", self.disks["redis-data"]
        conf.write_text(conf.read_text().replace("dir /data", f"dir {data}\nport 0\nunixsocket {self.socket}"))
        programs = self._folder / "bin"
        programs.mkdir()
        (programs / "valkey-server").symlink_to(binary("valkey"))
        secrets = {f"{name}_PASSWORD": user for name, user in USERS.items()}
        env = {"PATH": f"{programs}:{os.environ['PATH']}", "DATA": str(data), "TMPDIR": str(self.disks["redis-tmp"])}
        env |= {**secrets, "KEDA_PASSWORD": "keda", "ADMIN_PASSWORD": "admin"}
        self.parts["redis"] = Part(["sh", str(etc / "start.sh")], env, self._folder / "redis.log")

    def start(self, name: str) -> None:
        """Start one of ours with the arguments of its manifest, and with its own user of Redis."""
        user = "run" if name == "director" else name
        env = {"DIRECTOR_REDIS_URL": f"unix://{user}:{user}@{self.socket}", "TMPDIR": str(self.disks[f"{name}-tmp"])}
        command = [sys.executable, "-m", "director", user]
        self.parts[name] = Part(command, {**env, **self._settings[name]}, self._folder / f"{name}.log")

    def tend(self) -> None:
        for part in self.parts.values():
            part.tend()

    async def are_ready(self, http: httpx.AsyncClient) -> bool:
        return await self._all_say(http, "readyz")

    async def are_alive(self, http: httpx.AsyncClient) -> bool:
        return await self._all_say(http, "livez")

    async def _all_say(self, http: httpx.AsyncClient, path: str) -> bool:
        self.tend()
        with suppress(httpx.TransportError):
            return all([(await http.get(f"{self.url(name)}/{path}")).is_success for name in self.ports])
        return False

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-3_000:]}" for path in self._folder.glob("*.log"))


@pytest.fixture(scope="module")
async def pods(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Pods]:
    folder = tmp_path_factory.mktemp("pods")
    async with AsyncExitStack() as stack:
        disks = {name: stack.enter_context(small_disk(folder / name, mib=8)) for name in DISKS}
        model = await stack.enter_async_context(model_server())
        pods = Pods(folder, disks, model.url)
        stack.callback(lambda: [part.kill() for part in pods.parts.values()])
        pods.start_redis()
        await eventually(pods.socket.exists, "Redis listens")
        for name in ("api", "keeper", "director"):
            pods.start(name)
        yield pods


@pytest.fixture(scope="module")
async def http(pods: Pods) -> AsyncGenerator[httpx.AsyncClient]:
    redis: Any = client(f"unix://admin:admin@{pods.socket}")
    token = await Accounts(redis).create_token(ACCOUNT, scopes=SCOPES)
    await redis.aclose()
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=pods.url("api"), headers=headers, trust_env=False, timeout=30) as http:
        await eventually(lambda: pods.are_ready(http), "all are ready", limit_s=60)
        yield http


class Work:
    """A caller, who keeps what was accepted."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.predictions: list[str] = []
        self.files: list[str] = []

    async def create(self) -> int:
        body = {"version": VERSION, "input": {"n": 1, "text": f"data:application/octet-stream;base64,{TEXT}"}}
        return await self._asked(self.predictions, "/v1/predictions", json=body)

    async def upload(self) -> int:
        return await self._asked(self.files, "/v1/files", files={"content": ("a.bin", SMALL, "image/png")})

    async def _asked(self, accepted: list[str], path: str, **given: Any) -> int:
        answer = await self._http.post(path, **given)
        if answer.status_code == 201:
            accepted.append(answer.json()["urls"]["get"])
        return answer.status_code

    async def ends(self) -> list[str]:
        """Return how the predictions ended. Those that succeeded have their file."""
        found = []
        for url in self.predictions:
            shown = (await self._http.get(url)).json()
            found.append(shown.get("code") or shown["status"])
            if shown["status"] == "succeeded":
                assert (await self._http.get(shown["output"][0])).content == MADE
        return found

    async def sizes(self) -> list[int]:
        return [(await self._http.get(url)).json()["size"] for url in self.files]


def mounted() -> set[tuple[str, str]]:
    """Return the component and the path of each disk that a container of ours may write to."""
    found = set()
    for path in ("base/api.yaml", "base/keeper.yaml", "base/redis/redis.yaml", "components/gpu-pool/director.yaml"):
        for each in yaml.safe_load_all((K8S / path).read_text()):
            if each["kind"] in ("Deployment", "StatefulSet"):
                [container] = each["spec"]["template"]["spec"]["containers"]
                name = each["metadata"]["name"]
                found |= {(name, at["mountPath"]) for at in container["volumeMounts"] if not at.get("readOnly")}
    patches = (K8S / "components/files-volume/kustomization.yaml").read_text()
    return found | ({("api", "/files")} if "mountPath: /files" in patches else set())


def test_every_disk_of_the_manifests_is_tried() -> None:
    assert set(DISKS.values()) == mounted()


@pytest.mark.parametrize("disk", DISKS)
async def test_full_disk_loses_nothing_and_all_is_up_soon_after_it_has_room(
    pods: Pods, http: httpx.AsyncClient, disk: str
) -> None:
    work = Work(http)
    assert (await work.create(), await work.upload()) == (201, 201)
    ballast = fill(pods.disks[disk])
    try:
        pods.parts[DISKS[disk][0]].kill()  # it starts while its disk is full
        pods.tend()
        await eventually(lambda: pods.are_alive(http), "ours are alive meanwhile", limit_s=60)
        answers = {status for _ in range(3) for status in (await work.create(), await work.upload())}
        assert answers <= {201, 503, 507}
        assert disk not in NEEDED or answers != {201}
    finally:
        shutil.rmtree(ballast)
    freed = anyio.current_time()
    await eventually(lambda: pods.are_ready(http), "all are ready again", limit_s=UP_AGAIN_S)
    await eventually(work.create, "creates are accepted again", until=(201).__eq__, limit_s=UP_AGAIN_S)
    await eventually(work.upload, "files are accepted again", until=(201).__eq__, limit_s=UP_AGAIN_S)
    assert anyio.current_time() - freed <= UP_AGAIN_S, pods.logs()
    may_end = ENDED_UNSTORED if disk == "files" else ENDED
    await eventually(work.ends, "all have ended", until=lambda ends: set(ends) <= may_end, limit_s=60)
    assert set(await work.sizes()) == {len(SMALL)}
