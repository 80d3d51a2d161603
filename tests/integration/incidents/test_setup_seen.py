"""Measure how long after a failed setup each place names it: the page, the commands, a metric and an alert."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any, Final

import anyio
import httpx
import pytest
import yaml

from director.local.launcher.processes import free_port
from tests.integration.incidents.scene import Scene, scene
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import director_process
from tests.support.scrape import scrape
from tests.support.servers import redis_server
from tests.unit.operate.test_alerts import FILE

MODEL: Final = "acme/newcomer"
WHY: Final = "no weights at /weights"
ALERT: Final = "DirectorSetupFailing"
WITHIN_S: Final = 10.0
SCRAPE_S: Final = 5  # as components/monitoring has it
SOURCE: Final = f"""
    from cog import BasePredictor

    class Broken(BasePredictor):
        def setup(self):
            wait_for("now")
            raise RuntimeError("{WHY}")

        def predict(self) -> str:
            return ""
"""
COMMANDS: Final = {
    "doctor": (("doctor",), WHY),
    "directors": (("directors", "--queue", MODEL), WHY),
    "queues": (("queues",), "setup failed"),
    "top": (("top", "--once"), "setup failed"),
}


@asynccontextmanager
async def prometheus(folder: Path, *ports: int) -> AsyncGenerator[httpx.AsyncClient]:
    """Run Prometheus with our rules. Skips the test where it is not installed."""
    program = which("prometheus")
    if program is None:
        pytest.skip("no prometheus in PATH: install Debian's package prometheus")
    port = free_port()
    targets = [{"targets": [f"127.0.0.1:{each}" for each in ports]}]
    config: dict[str, Any] = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(FILE)],
        "scrape_configs": [{"job_name": "director", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    line = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = await anyio.open_process(line, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            yield http
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await process.wait()


async def scraped(http: httpx.AsyncClient) -> bool:
    """Return whether the director is there for Prometheus, so that only the setup is waited for."""
    try:
        answer = await http.get("/api/v1/query", params={"query": "director_servers"})
    except httpx.TransportError:
        return False
    return answer.is_success and bool(answer.json()["data"]["result"])


async def fires(http: httpx.AsyncClient) -> bool:
    alerts = (await http.get("/api/v1/alerts")).json()["data"]["alerts"]
    return any((one["labels"]["alertname"], one["state"]) == (ALERT, "firing") for one in alerts)


@pytest.mark.cog
@pytest.mark.heavy
async def test_each_surface_names_a_failed_setup_within_ten_seconds(tmp_path: Path) -> None:
    folder, seconds = write_model(tmp_path / "broken", SOURCE), dict[str, float]()
    (tmp_path / "prometheus").mkdir()
    with redis_server() as server:
        async with (
            scene(server.url) as stage,
            stage.keeper(),
            cog_server(folder, stub="predict.py:Broken", until="STARTING") as url,
            director_process(server.url, url, model=MODEL, version="", health_port=stage.ports["director"]),
            prometheus(tmp_path / "prometheus", *stage.ports.values()) as watching,
        ):
            await eventually(lambda: scraped(watching), "the director is scraped", limit_s=60)
            (folder / "now").touch()
            began = time.monotonic()

            async def time_of(name: str, look: Callable[[], Awaitable[Any]]) -> None:
                await eventually(look, f"{name} names it", limit_s=60)
                seconds[name] = round(time.monotonic() - began, 1)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(time_of, "page", lambda: named_on_page(stage))
                tasks.start_soon(time_of, "metric", lambda: named_by_metric(stage))
                tasks.start_soon(time_of, "alert", lambda: fires(watching))
                for name, (line, words) in COMMANDS.items():
                    await time_of(name, lambda line=line, words=words: named_by(stage, line, words))
    print("\nseconds after the setup failed:", seconds)
    assert {name: found for name, found in seconds.items() if found > WITHIN_S} == {}


async def named_on_page(stage: Scene) -> bool:
    return any(one.code == "setup_failed" and WHY in one.detail for one in await stage.findings())


async def named_by_metric(stage: Scene) -> bool:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stage.ports['keeper']}", trust_env=False) as http:
        return bool((await scrape(http)).total("director_queue_setup_failed", queue=MODEL))


async def named_by(stage: Scene, line: tuple[str, ...], words: str) -> bool:
    return words in await stage.command(*line)
