"""Test the owner of the servers on shared devices with real processes. A fake device counts their memory exactly."""

import fcntl
import os
import signal
from pathlib import Path

import anyio
import httpx
import pytest
from msgspec.structs import replace

from director.core.devices import Device, Launch, Model
from director.core.errors import SettingsError
from director.core.pool_file import Hosted
from director.gpus.host import LoadFailed
from tests.support.cog import write_model
from tests.support.eventually import eventually
from tests.support.fake_device import ADDRESS, FakeDevices, fake_devices
from tests.support.hosts import a_model, a_pool, hosted_by, until_ready

GPU = {"gpu0": 8}


@pytest.fixture
def devices():
    with fake_devices(gpu0=10, gpu1=10) as made:
        yield made


async def test_model_is_loaded_and_its_memory_is_free_when_rest_returns(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU), a_model(devices, "a/b", memory=GPU))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        with pytest.raises(LoadFailed, match=r"gpu0.*Others have memory there: a/a"):
            await host.load("a/b", GPU)
        await host.rest("a/a")
        assert devices.holdings() == []
        await host.load("a/b", GPU)
        await until_ready(host.url("a/b"))
        assert (host.find_held("a/a").presence, host.find_held("a/b").presence) == ("absent", "running")
        assert host.find_held("a/a").ended == ""
    assert devices.holdings() == []
    assert devices.peak["gpu0"] == 8


async def test_server_sees_its_device_and_nothing_of_director(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRECTOR_REDIS_URL", "redis://:hush@db")
    monkeypatch.setenv("DIRECTOR_FILES_URL", "s3://files")
    ours = ("OTEL_EXPORTER_OTLP_HEADERS", "REDIS_PASSWORD", "SENTINEL_PASSWORD", "UPLOAD_SECRET")
    for name in (*ours, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hush")
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory={"gpu1": 1}), a_model(devices, "a/cpu"))
    async with hosted_by(pool) as host:
        for model in ("a/a", "a/cpu"):
            await host.load(model, pool.place(model))
            await until_ready(host.url(model))
        pid = devices.holdings()[0].pid
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert f"CUDA_VISIBLE_DEVICES=gpu1-of-{devices.address}" in environment
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in environment  # as nvidia-smi counts
        assert [each for each in environment if "hush" in each or each.startswith("DIRECTOR_")] == []
        assert host.last_lines("a/cpu") == ["a/cpu loads on ''"]


async def test_server_that_dies_while_loading_frees_its_memory_and_leaves_its_last_words(
    tmp_path: Path, devices: FakeDevices
) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, fails=True, forks=True))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        held = await eventually(lambda: host.find_held("a/a"), "it ended", until=lambda held: held.presence == "absent")
        assert devices.holdings() == []
        assert held.ended.splitlines()[-2:] == [
            "RuntimeError: the weights are broken",
            "the server ended: exit code 3",
        ]


async def test_two_owners_of_one_device_are_refused_with_the_name_of_the_first(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.ownership.LOCK_WAIT_S", 0.1)
    first = a_pool(tmp_path, devices)
    async with hosted_by(first):
        second = a_pool(tmp_path, devices, name="other.toml")
        with pytest.raises(SettingsError, match=rf"gpu0.* is held by the director with pid {os.getpid()} .*pool\.toml"):
            async with hosted_by(second):
                pass
    async with hosted_by(second):
        pass


@pytest.mark.parametrize("shown", ["GPU-aaaa-1", "GPU-a", "2,0"])
async def test_gpu_has_one_lock_by_number_by_uuid_and_among_others(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    monkeypatch.setattr("director.gpus.ownership.LOCK_WAIT_S", 0.1)
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nprintf "0, GPU-aaaa-1\\n1, GPU-bbbb-2\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first, second, other = (
        Device(name, 10, {"CUDA_VISIBLE_DEVICES": gpu}) for name, gpu in [("a", "0"), ("b", shown), ("c", "1")]
    )
    pool = a_pool(tmp_path, devices)
    async with hosted_by(replace(pool, devices=(first, other))):
        with pytest.raises(SettingsError, match=rf"The device b \(CUDA_VISIBLE_DEVICES={shown}\) is held by"):
            async with hosted_by(replace(pool, path=tmp_path / "other.toml", devices=(second,))):
                pass
    with pytest.raises(SettingsError, match="are the same"):
        async with hosted_by(replace(pool, devices=(first, second))):
            pass


async def test_folder_of_locks_and_records_is_held_against_removal_by_age(tmp_path: Path, devices: FakeDevices) -> None:
    """systemd-tmpfiles skips a folder on which another process has a lock, with all below."""
    one = a_pool(tmp_path, devices)
    async with hosted_by(one), hosted_by(replace(one, path=tmp_path / "other.toml", devices=())):
        folder = os.open(tmp_path / "devices", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)


async def test_cog_server_is_told_where_to_put_files(tmp_path: Path, devices: FakeDevices) -> None:
    folder = write_model(tmp_path / "model", "def predict(): ...", schema={})
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$COG_UPLOAD_URL" > told\nexec sleep 600\n')
    python.chmod(0o755)
    pool = a_pool(tmp_path, devices, Hosted(Model(name="a/a", places=({},)), Launch(folder=str(folder))))
    async with hosted_by(pool) as host:
        host.upload_url = "http://127.0.0.1:9100/uploads/secret/"
        await host.load("a/a", {})
        told = await eventually(lambda: (folder / "told").exists() and (folder / "told").read_text(), "it is told")
        assert told.strip() == host.upload_url


async def test_two_loads_of_one_model_start_one_server(tmp_path: Path, devices: FakeDevices) -> None:
    """Triton #7018 and llama-swap #281: two requests at once loaded a model twice."""
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory={"gpu0": 3}))
    async with hosted_by(pool) as host, anyio.create_task_group() as tasks:
        tasks.start_soon(host.load, "a/a", {"gpu0": 3})
        tasks.start_soon(host.load, "a/a", {"gpu0": 3})
        await until_ready(host.url("a/a"))
    assert devices.loads == ["a/a"]


async def test_nothing_loads_before_the_tool_of_the_device_says_that_memory_is_free(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.host.FREE_LIMIT_S", 0.05)
    said = tmp_path / "mib"
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory={"gpu0": 3}))
    card = Device("gpu0", 10 << 20, {"CUDA_VISIBLE_DEVICES": "0"}, used=("cat", str(said)))
    async with hosted_by(replace(pool, devices=(card,))) as host:
        with pytest.raises(LoadFailed, match="does not say how much of gpu0 is in use"):
            await host.load("a/a", {"gpu0": 3 << 20})
        said.write_text("8\n")
        with pytest.raises(LoadFailed, match="Another program may use it"):
            await host.load("a/a", {"gpu0": 3 << 20})
        said.write_text("7\n")
        await host.load("a/a", {"gpu0": 3 << 20})


async def test_tool_that_hangs_fails_the_load_and_is_not_started_twice(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.ownership.TOOL_LIMIT_S", 0.5)
    monkeypatch.setattr("subprocess.Popen.kill", lambda _: None)  # as where it waits for a driver
    started, pool = tmp_path / "started", a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU))
    used = ("sh", "-c", f"echo $$ >> {started}; exec sleep 60")
    card = Device("gpu0", 10, {"CUDA_VISIBLE_DEVICES": "0"}, used=used)
    async with hosted_by(replace(pool, devices=(card,))) as host:
        for why in ("it hangs for 0.5 s", "it was asked before, and still hangs"):
            with pytest.raises(LoadFailed, match=f"does not say how much of gpu0 is in use: {why}"):
                await host.load("a/a", GPU)
        [pid] = started.read_text().split()
        os.kill(int(pid), signal.SIGKILL)


async def test_log_of_a_server_is_bounded_and_keeps_its_end(tmp_path: Path, devices: FakeDevices) -> None:
    talks = a_model(devices, "a/a", memory=GPU, chatty=5 << 20, fails=True)
    async with hosted_by(a_pool(tmp_path, devices, talks)) as host:
        await host.load("a/a", GPU)
        held = await eventually(lambda: host.find_held("a/a"), "it ended", until=lambda held: held.presence == "absent")
    assert held.ended.endswith("the server ended: exit code 3")
    assert 1 << 20 < sum(path.stat().st_size for path in tmp_path.rglob("*.log*")) <= 2 << 20


async def test_command_that_does_not_exist_is_named(tmp_path: Path, devices: FakeDevices) -> None:
    missing = Hosted(Model(name="a/a", places=({},)), Launch(command=("no-such-server", "{port}")))
    async with hosted_by(a_pool(tmp_path, devices, missing)) as host:
        await host.load("a/a", {})
        held = await eventually(lambda: host.find_held("a/a"), "it ended", until=lambda held: held.presence == "absent")
    assert held.ended.splitlines()[-2:] == [
        "no-such-server: No such file or directory",
        "the server ended: exit code 1",
    ]


async def test_folder_that_others_may_write_to_is_refused(tmp_path: Path, devices: FakeDevices) -> None:
    (tmp_path / "devices" / str(os.getuid())).mkdir(parents=True, mode=0o755)
    with pytest.raises(SettingsError, match="only this user"):
        async with hosted_by(a_pool(tmp_path, devices)):
            pass


@pytest.mark.parametrize("whose", ["writable", "foreign"])
async def test_folder_whose_contents_others_can_replace_is_refused(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    folder = tmp_path / "devices"
    folder.mkdir()
    if whose == "writable":
        folder.chmod(0o777)
    elif os.getuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SettingsError, match="Other users can replace"):
        async with hosted_by(a_pool(tmp_path, devices)):
            pass


COG = """
import json, os, socket
from cog import BasePredictor

class Predictor(BasePredictor):
    def setup(self) -> None:
        host, _, port = os.environ["FAKE_DEVICES"].partition(":")
        self.memory = socket.create_connection((host, int(port)))
        wanted = [{"device": "gpu0", "model": "a/cog", "pid": os.getpid(), "size": 8}]
        self.memory.sendall(json.dumps(wanted).encode())
        assert self.memory.recv(1) == b"1"

    def predict(self, text: str) -> str:
        return text + os.environ["CUDA_VISIBLE_DEVICES"]
"""


def _is_ok(answer: httpx.Response) -> bool:
    return answer.status_code == httpx.codes.OK


@pytest.mark.cog
@pytest.mark.faults
async def test_cog_folder_is_served_and_its_worker_gives_its_memory_back(tmp_path: Path, devices: FakeDevices) -> None:
    folder = write_model(tmp_path / "cog", COG)
    launch = Launch(folder=str(folder), env={ADDRESS: devices.address})
    cog = Hosted(Model(name="a/cog", places=(GPU,)), launch)
    given = {"input": {"text": "on "}}
    pool = a_pool(tmp_path, devices, cog, a_model(devices, "a/b", memory=GPU))
    async with hosted_by(pool) as host, httpx.AsyncClient(trust_env=False, base_url=host.url("a/cog")) as client:
        for _ in range(2):
            await host.load("a/cog", GPU)
            await eventually(devices.holdings, "its setup has memory", limit_s=60)
            answer = await eventually(lambda: client.post("/predictions", json=given), "it answers", until=_is_ok)
            assert answer.json()["output"] == f"on gpu0-of-{devices.address}"
            schema = (await client.get("/openapi.json")).json()["components"]["schemas"]["Input"]
            assert schema["required"] == ["text"]
            await host.rest("a/cog")
            assert devices.holdings() == []
            await host.load("a/b", GPU)
            await until_ready(host.url("a/b"))
            await host.rest("a/b")
