"""Own model servers on fake devices, in this process or in one that a test can kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import anyio
import httpx
import msgspec
from anyio.abc import ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from director.core.devices import Device, Launch, Model
from director.core.pool_file import Hosted
from director.gpus.host import Host, hosting
from director.local.launcher.launch import launch
from tests.support.eventually import eventually
from tests.support.fake_device import ADDRESS, FakeDevices

MODEL: Final = Path(__file__).parent / "device_model.py"
ROOT: Final = Path(__file__).parents[2]
LINE_BYTES: Final = 1 << 20


class Pool(Struct, frozen=True):
    """The content of a pool file, as a host needs it. `path` need not exist."""

    path: Path
    devices: tuple[Device, ...]
    hosted: tuple[Hosted, ...]

    def place(self, model: str) -> dict[str, int]:
        return dict(next(each.model.places[0] for each in self.hosted if each.model.name == model))


def a_model(devices: FakeDevices, name: str, *, grace_s: float = 5.0, sleeps: bool = False, **habits: Any) -> Hosted:
    """Return a model on a fake device. `habits`: see `tests.support.device_model`."""
    said = json.dumps({"model": name, **habits})
    return Hosted(
        Model(name=name, places=(habits.get("memory", {}),)),
        Launch(
            command=(sys.executable, "-I", "-S", str(MODEL), "{port}", said),
            env={ADDRESS: devices.address},
            grace_s=grace_s,
            sleep="/sleep" if sleeps else "",
            wake="/wake" if sleeps else "",
        ),
    )


def a_pool(folder: Path, devices: FakeDevices, *hosted: Hosted, name: str = "pool.toml") -> Pool:
    cards = [
        Device(device, size, {"CUDA_VISIBLE_DEVICES": f"{device}-of-{devices.address}"})
        for device, size in devices.sizes.items()
    ]
    return Pool(folder / name, tuple(cards), hosted)


def hosted_by(pool: Pool, *, orphan_s: float = 60.0) -> AbstractAsyncContextManager[Host]:
    return hosting(pool.path, pool.devices, pool.hosted, folder=pool.path.parent / "devices", orphan_s=orphan_s)


async def health(url: str) -> int:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            return (await client.get(f"{url}/health")).status_code
    except httpx.TransportError:
        return 0


async def until_ready(url: str) -> None:
    await eventually(lambda: health(url), f"{url} is ready", until=lambda status: status == httpx.codes.OK)


class Owner:
    """A host in a process of its own. `ask` sends it the name of a method and its arguments."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)  # type: ignore[arg-type]

    async def ask(self, *words: Any) -> Any:
        await self.tell(*words)
        return await self.hear()

    async def tell(self, *words: Any) -> None:
        await cast(ByteSendStream, self.process.stdin).send(json.dumps(words).encode() + b"\n")

    async def hear(self) -> Any:
        return json.loads(await self._lines.receive_until(b"\n", LINE_BYTES))

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def owner(pool: Pool, *, orphan_s: float = 60.0) -> AsyncGenerator[Owner]:
    """Yield a host in another process. It has taken over, and its first answer says what."""
    given = json.dumps({"pool": msgspec.to_builtins(pool, enc_hook=str), "orphan_s": orphan_s})
    process = await launch(
        [sys.executable, "-m", "tests.support.hosts", given],
        env=dict(os.environ),
        cwd=ROOT,
        output=subprocess.PIPE,
        input_=subprocess.PIPE,
    )
    try:
        yield Owner(process)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            await process.wait()
            await process.aclose()


async def _own(pool: Pool, orphan_s: float) -> None:
    with anyio.CancelScope() as scope, anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks, hosted_by(pool, orphan_s=orphan_s) as host:
            tasks.start_soon(_cancel_on_signal, signals, scope)
            _say(sorted(await host.take_over()))
            while True:
                await anyio.wait_readable(sys.stdin)  # not in a thread, which could not be canceled
                _say(await _done(host, json.loads(os.read(0, LINE_BYTES))))


async def _cancel_on_signal(signals: Any, scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def _done(host: Host, words: Sequence[Any]) -> Any:
    name, *given = words
    result = getattr(host, name)(*given)
    return msgspec.to_builtins(await result if hasattr(result, "__await__") else result)


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    anyio.run(_own, msgspec.convert(given["pool"], Pool, dec_hook=lambda kind, said: kind(said)), given["orphan_s"])
