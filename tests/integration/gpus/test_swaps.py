"""Swap models with all real parts: `director run --config`, its host, servers that take memory of a counted device."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import PredictionId
from director.store.catalog import Catalog
from tests.support.eventually import eventually, every
from tests.support.fake_device import ADDRESS, FakeDevices, fake_devices
from tests.support.hosts import MODEL as SERVER
from tests.support.live_director import Caller, DirectorProcess, pool_process
from tests.support.servers import RedisServer

GIB: Final = 1 << 30


def pool_file(folder: Path, devices: FakeDevices, models: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a pool file of models on fake devices. `habits` of a model: see `tests.support.device_model`."""
    tables = [
        f'[[device]]\nname = "{name}"\nmemory = "{size // GIB}GiB"\nenv = {{ CUDA_VISIBLE_DEVICES = "{name}" }}\n'
        for name, size in devices.sizes.items()
    ]
    for name, given in models.items():
        terms = {"load_s": 1, "min_loaded_s": 1, "max_wait_s": 20, "run_limit_s": 20} | given
        habits = {"model": name, "memory": {"gpu0": GIB * terms.pop("gib", 1)}} | terms.pop("habits", {})
        command = json.dumps([sys.executable, "-I", "-S", str(SERVER), "{port}", json.dumps(habits)])
        memory = ", ".join(f'{device} = "{size // GIB}GiB"' for device, size in habits["memory"].items())
        lines = [f"{field} = {json.dumps(value)}" for field, value in terms.items()]
        tables.append(
            f'[[model]]\nname = "{name}"\nrunner = "http"\n'
            'runner_config = { path = "/predict", output = "/output" }\n'
            f'command = {command}\ndevices = {{ {memory} }}\nready = "/health"\n'
            f'env = {{ {ADDRESS} = "{devices.address}" }}\n' + "\n".join(lines) + "\n"
        )
    path = folder / "pool.toml"
    path.write_text("\n".join(tables))
    return path


async def callers(redis: Redis, scripts: Scripts, catalog: Catalog, names: list[str]) -> dict[str, Caller]:
    """Return callers of these models once their director has registered them."""

    async def latest(name: str) -> str:
        model = await catalog.model(name)
        return model.latest if model else ""

    return {
        name: Caller(redis, scripts, model=name, version=await eventually(lambda: latest(name), name, limit_s=60))  # noqa: B023
        for name in names
    }


async def check(caller: Caller, ids: list[PredictionId]) -> None:
    """Check that each succeeded at its first attempt, and was never claimed for a model that was not loaded."""
    for one in ids:
        assert (await caller.ended(one))["output"] == caller.model
        assert (await caller.record(one)).attempt == 1
        assert "released" not in await caller.kinds(one)


@pytest.mark.faults
async def test_three_models_share_room_for_two(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, tmp_path: Path
) -> None:
    names = [f"acme/{name}" for name in "abc"]
    with fake_devices(gpu0=2 * GIB) as devices:
        pool = pool_file(tmp_path, devices, {name: {} for name in names})
        async with pool_process(server.url, pool, devices_dir=tmp_path / "devices", drain_s=5) as director:
            known = await callers(redis, scripts, catalog, names)
            asked: dict[str, list[PredictionId]] = {name: [] for name in names}
            async for _ in every(0.2, 10):
                for name, caller in known.items():
                    asked[name].append(await caller.submit(seconds=0.1))
            for name, caller in known.items():
                await check(caller, asked[name])
            await _ends(director)
        assert devices.cut == []
        assert devices.peak["gpu0"] == 2 * GIB
        assert set(devices.loads) == set(names)
        assert devices.holdings() == []


async def _ends(director: DirectorProcess) -> None:
    director.send(15)
    assert await director.exit_code() == 0
