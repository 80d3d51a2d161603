"""Run the pod of the overlay `shared` on this machine: its command, environment and probes, its volumes as folders."""

import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import msgspec
import pytest
from anyio.abc import Process
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.examples import EXAMPLES
from director.gpus.ownership import Record
from director.local.launcher.processes import Mark, family, free_port
from director.store.catalog import Catalog
from tests.integration.gpus.test_swaps import callers
from tests.k8s.rules.settings import mounted
from tests.support.eventually import eventually
from tests.support.live_director import TERMINAL, Caller
from tests.support.manifests import environment, overlay, pods
from tests.support.servers import RedisServer, as_user

pytestmark = [pytest.mark.kubectl, pytest.mark.cog, pytest.mark.faults]

MODELS: Final = ("acme/painter", "acme/speaker", "acme/writer")
SECRET: Final = "a-word-of-uploads"
PATH: Final = f"{Path(sys.executable).parent}:/usr/bin:/bin"


class Container:
    """The director's container. Folders below `place` stand for its volumes and for what its image has in /models."""

    def __init__(self, place: Path, redis_url: str) -> None:
        objects = overlay("shared")
        [self.pod] = [pod for pod in pods(objects) if pod.component == "director"]
        self.given = self.pod.container("director")
        self.secret = environment(self.given, objects)["REDIS_PASSWORD"]
        self._place = place
        port = str(free_port())
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10)
        for model in MODELS:
            shutil.copytree(EXAMPLES["example/hello"].folder, place / "models" / model.rpartition("/")[2])
        self._mounts = {mount["mountPath"]: place / "volumes" / mount["name"] for mount in self.given["volumeMounts"]}
        for mount in self.given["volumeMounts"]:
            folder = self._mounts[mount["mountPath"]]
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # as the kubelet makes an emptyDir
        for name, text in mounted("/etc/director", self.given, self.pod, objects).items():
            (self._mounts["/etc/director"] / name).write_text(text.replace('"/models/', f'"{place}/models/'))
        said = {name: self.here(value) for name, value in environment(self.given, objects).items()}
        instead = {"DIRECTOR_REDIS_URL": as_user("run", redis_url), "DIRECTOR_HEALTH_PORT": port}
        instead |= {"DIRECTOR_UPLOAD_SECRET": SECRET, "DIRECTOR_FILES_DIR": str(place)}  # as components for files do
        self.upload_url = f"http://127.0.0.1:{port}/uploads/{SECRET}/"
        self._env = {"PATH": PATH, "TMPDIR": str(self._mounts["/tmp"])} | said | instead
        assert self.given["command"] == ["director"]
        self.command = [sys.executable, "-m", "director", *map(self.here, self.given["args"])]

    def here(self, word: str) -> str:
        """Put the folders in place of the paths in the container."""
        for path in sorted(self._mounts, key=len, reverse=True):
            if re.match(rf"{re.escape(path)}(/|$)", word):
                return word.replace(path, str(self._mounts[path]), 1)
        return word

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[Process]:
        with (self._place / "log").open("ab") as log:
            process = await anyio.open_process(
                self.command, env=self._env, cwd=self._mounts["/tmp"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            for probe in ("startupProbe", "readinessProbe"):
                await eventually(lambda: self._is_200(self.given[probe]), probe, limit_s=90)  # noqa: B023
            yield process
        finally:
            with anyio.CancelScope(shield=True), suppress(ProcessLookupError):
                process.kill()
                await process.aclose()

    async def _is_200(self, probe: Mapping[str, Any]) -> bool:
        with suppress(httpx.TransportError):
            return (await self.http.get(probe["httpGet"]["path"])).status_code == httpx.codes.OK
        return False

    def records(self) -> list[Record]:
        kept = self._mounts["/run/director"].rglob("*.json")
        return [msgspec.json.decode(path.read_bytes(), type=Record) for path in kept]

    def servers(self) -> list[Mark]:
        return [each for record in self.records() for each in family(record.mark, record.word)]

    @property
    def log(self) -> str:
        return (self._place / "log").read_text()


async def test_pod_serves_more_models_than_its_gpus_hold(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, tmp_path: Path
) -> None:
    container = Container(tmp_path, server.url)
    in_image = sorted((tmp_path / "models").rglob("*"))
    async with container.http:
        async with container.started() as process:
            known = await callers(redis, scripts, catalog, list(MODELS))
            await check(list(known.values()))
            kept = container.records()
            assert len(kept) == len({place for record in kept for place in record.place}) == len(MODELS) - 1
            seen = "\0".join(Path(f"/proc/{each.pid}/environ").read_text() for each in container.servers())
            assert container.secret not in seen
            assert {line for line in seen.split("\0") if SECRET in line} == {f"COG_UPLOAD_URL={container.upload_url}"}
            process.kill()
            await process.wait()
        async with container.started() as process:
            await check([known[record.model] for record in kept])
            assert container.log.count("adopted a server that a dead director left") == len(kept)
            left = container.servers()
            process.terminate()
            with anyio.fail_after(container.pod.spec["terminationGracePeriodSeconds"]):
                assert await process.wait() == 0
    assert container.records() == []
    assert not [each for each in left if Path(f"/proc/{each.pid}").exists()]
    assert sorted((tmp_path / "models").rglob("*")) == in_image, "the root of the container cannot be written"


async def check(callers: Sequence[Caller]) -> None:
    asked = [(caller, await caller.submit(text="a", n=1)) for caller in callers]
    for caller, one in asked:
        await eventually(lambda: caller.status(one), "it ended", until=lambda status: status in TERMINAL, limit_s=90)  # noqa: B023
        assert (await caller.ended(one))["output"] == ["a 1\n"]
        assert (await caller.record(one)).attempt == 1
