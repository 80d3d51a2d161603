"""Own the server processes of the models that share devices: start them, put them to rest, know when memory is free.

What is loaded and when is decided elsewhere. Each server runs under a guard (`director.local.launcher.guard`), which
ends it with all that it started. A guard outlives a killed director for a while: the next director can adopt its
server.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import anyio
import httpx
import msgspec
from anyio import to_thread
from anyio.abc import ByteSendStream, Process, TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from director.core.devices import VISIBLE, Device, Place
from director.core.errors import DirectorError
from director.core.pool_file import Hosted
from director.gpus.ownership import Presence, Record, StateFolder, ask_tool, gpu_names
from director.local.launcher.folder import (
    cog_command,
    find_folder,
    has_schema,
    keep_schema,
    make_schema,
    model_environment,
)
from director.local.launcher.guard import guarding
from director.local.launcher.launch import (
    LOG_KEPT_BYTES,
    LOOPBACK,
    last_lines,
    launch,
    open_log,
    server_environment,
    until_gone,
    with_port,
)
from director.local.launcher.processes import Mark, UpError, claimable, end_family, family, free_port, is_alive, mark

log = logging.getLogger(__name__)

CALL_LIMIT_S: Final = 120.0  # vLLM moves weights of 80 GB in less
FREE_LIMIT_S: Final = 30.0
LOOK_S: Final = 0.25
END_LIMIT_S: Final = 5.0  # a guard ends what it guards at once
# Beside its grace. No signal ends a process that waits for the driver of a broken GPU, perhaps until the next boot
LEFT_LIMIT_S: Final = 20.0
ORPHAN_S: Final = 60.0  # a killed director is back by then, or its machine serves nothing any more
LAST_LINES: Final = 8
MIB: Final = 1 << 20
GIB: Final = 1 << 30
WORD: Final = "MODEL_SERVER_ID"


class LoadFailed(DirectorError):
    """A server could not be started or woken. Its memory is free again, or was never taken. Read why; try later."""


class Held(Struct, frozen=True, kw_only=True):
    """How the server of one model stands. `since`: of this presence, by the monotonic clock.

    `place`: the bytes that it takes now on each device. `ended`: how its last process ended by itself, with the last
    lines of its output; empty after it was put to rest.
    """

    presence: Presence = "absent"
    since: float = 0.0
    place: Place = {}
    ended: str = ""


class _Server(Struct, eq=False):
    """The server of one model. `is_asked`: it was asked to end. `gone` is set once its processes have ended."""

    hosted: Hosted
    port: int
    held: Held = Held()
    record: Record | None = None
    process: Process | None = None
    is_asked: bool = False
    gone: anyio.Event = msgspec.field(default_factory=anyio.Event)
    lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)

    @property
    def model(self) -> str:
        return self.hosted.model.name


class Host:
    """Owns the servers of one pool. Made by `hosting`, which holds the locks of the devices.

    `on_news` is called whenever the presence of a model has changed. `upload_url`: where Cog servers put the files of
    their outputs; empty where they answer with them. Set both before anything is taken over or loaded.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        hosted: Sequence[Hosted],
        folder: StateFolder,
        tasks: TaskGroup,
        orphan_s: float,
    ) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self.upload_url = ""
        self._devices = {device.name: device for device in devices}
        self._folder = folder
        self._tasks = tasks
        self._orphan_s = orphan_s
        left = {record.model: record.port for record in self._find_left() if self._is_own(record)}
        self._servers = {
            one.model.name: _Server(one, left.get(one.model.name) or _new_port(left.values())) for one in hosted
        }
        self._strays = list[Record]()  # servers of no model of this pool that are being ended

    def url(self, model: str) -> str:
        """Return the address of the model's server: the same for the life of this process, loaded or not."""
        return f"http://{LOOPBACK}:{self._servers[model].port}"

    def find_held(self, model: str) -> Held:
        return self._servers[model].held

    def last_lines(self, model: str, count: int = LAST_LINES) -> list[str]:
        """Return the end of the output of the model's server."""
        path = self._folder.log(model)
        lines = last_lines(path, count)
        return lines if len(lines) == count else [*last_lines(path.with_name(f"{path.name}.1"), count), *lines][-count:]

    async def take_over(self) -> Mapping[str, Held]:
        """Adopt or end the servers that a dead director left on these devices. Returns the adopted ones, and those of
        this pool that have not ended in time: they are `leaving`. What has not ended holds its place until it has.

        Call it once, before anything is loaded. An adopted server has the address that `url` returns.
        """
        locks = {lock for device in self._devices.values() for lock in self._folder.locks_of(device)}
        others = []
        for record in self._find_left():
            if self._is_adoptable(record):
                log.info("adopted a server that a dead director left", extra={"model": record.model})
                self._adopt(record)
            elif self._is_own(record) or locks & set(record.locks):
                others.append(record)
        async with anyio.create_task_group() as tasks:
            for record in others:
                log.warning("ending a server that a dead director left", extra={"model": record.model})
                tasks.start_soon(self._end_of_pool if self._is_of_pool(record) else self._end_left, record)
        return {name: one.held for name, one in self._servers.items() if one.record is not None}

    async def load(self, model: str, place: Place) -> None:
        """Start or wake the model's server. Returns once it runs: whether it is ready is for its watch to say.

        Does nothing if it runs already. Raises LoadFailed if it does not fit beside what has memory now.
        """
        server = self._servers[model]
        async with server.lock:
            if server.held.presence == "leaving" or (server.record is not None and server.record.place != place):
                await self._end(server)
            if server.held.presence == "running":
                return
            self._check_room(server, place)
            await self._until_free(place)
            if server.held.presence == "asleep":
                await self._wake(server)
            else:
                await self._start(server, place)

    async def rest(self, model: str) -> None:
        """Put the model's server to sleep or end it. Returns when its memory is known to be free. Safe to repeat."""
        server = self._servers[model]
        async with server.lock:
            if server.held.presence in ("absent", "asleep"):
                return
            self._note(server, "leaving")
            path = server.hosted.launch.sleep
            if path and not server.is_asked and await self._call(server, path) and server.record is not None:
                self._note(server, "asleep")
            else:
                await self._end(server)

    async def end_all(self) -> None:
        """End all servers, at once, and return when all have ended: also those that were not taken over."""
        known = [server.record for server in self._servers.values()]
        async with anyio.create_task_group() as tasks:
            for server in self._servers.values():
                tasks.start_soon(self._end, server)
            for record in self._find_left():
                if self._is_own(record) and record not in [*known, *self._strays]:
                    tasks.start_soon(self._end_left, record)

    # starting

    async def _start(self, server: _Server, place: Place) -> None:
        try:
            claimable(LOOPBACK, server.port)
            command, cwd, own = await to_thread.run_sync(self._describe, server)
        except UpError as exc:
            raise LoadFailed(str(exc)) from exc
        word = f"{WORD}={os.urandom(16).hex()}"
        name, _, value = word.partition("=")
        env = {**own, **self._devices_env(place), **server.hosted.launch.env, name: value}
        task = {
            "command": with_port(command, server.port),
            "cwd": str(cwd),
            "env": env,
            "word": word,
            "log": str(self._folder.log(server.model)),
            "log_bytes": LOG_KEPT_BYTES,
            "owner": str(self._folder.owner),
            "orphan_s": self._orphan_s,
            "grace_s": server.hosted.launch.grace_s,
        }
        with anyio.CancelScope(shield=True):  # a guard that gets no task would wait for it
            await self._guard(server, place, task)

    async def _guard(self, server: _Server, place: Place, task: Mapping[str, Any]) -> None:
        """Start the guard, then note it, then tell it what to start: no server runs that is not in a record."""
        output = open_log(self._folder.log(server.model))
        try:
            process = await launch(guarding(), env=task["env"], cwd=Path("/"), output=output, input_=subprocess.PIPE)
            stdin = cast(ByteSendStream, process.stdin)
        except OSError as exc:
            raise LoadFailed(f"{server.model} cannot be started: {exc.strerror}.") from exc
        finally:
            os.close(output)
        guard = mark(process.pid)
        try:
            if guard is None:
                raise LoadFailed(f"{server.model} cannot be started: its guard ended at once.")
            record = self._record(server, place, guard, task["word"])
            self._folder.write(record)
            server.process, server.record, server.is_asked = process, record, False
            self._set(server)
            self._attend(server, guard)
            await stdin.send(msgspec.json.encode(task))
        except (OSError, anyio.BrokenResourceError) as exc:
            raise LoadFailed(f"{server.model} cannot be started: {exc}.") from exc
        finally:
            await stdin.aclose()
            if server.process is not process:
                await process.wait()

    def _record(self, server: _Server, place: Place, guard: Mark, word: str) -> Record:
        return Record(
            model=server.model,
            presence="running",
            place=dict(place),
            port=server.port,
            digest=self._digest(server, place),
            guard=guard.pid,
            started=guard.started,
            word=word,
            owner=self._folder.owner.name,
            locks=tuple(lock for name in place for lock in self._folder.locks_of(self._devices[name])),
        )

    def _describe(self, server: _Server) -> tuple[Sequence[str], Path, Mapping[str, str]]:
        """Return command, folder and environment. Of a Cog folder, the schema is made first. Raises UpError."""
        given, port = server.hosted.launch, {"PORT": str(server.port)}
        if not given.folder:
            return given.command, Path.cwd(), server_environment() | port
        folder = find_folder(Path(given.folder))
        if not has_schema(folder):
            keep_schema(folder, make_schema(folder))
        env = {
            "COG_PREDICT_TYPE_STUB": folder.predict,
            "COG_MAX_CONCURRENCY": str(server.hosted.model.slots),
            "COG_UPLOAD_URL": self.upload_url,
        }
        return cog_command(folder), folder.path, {**model_environment(folder, self._folder.links), **port, **env}

    def _devices_env(self, place: Place) -> dict[str, str]:
        """Return the variables that show a server its devices, and hide all others from it."""
        names = {name for device in self._devices.values() for name in device.env}
        shown = [device.env for name, device in self._devices.items() if name in place]
        env = {name: ",".join(env[name] for env in shown if name in env) for name in sorted(names)}
        # Else CUDA gives the fastest GPU the number 0, and nvidia-smi the first one on the bus
        return env | ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if VISIBLE in env else {})

    def _digest(self, server: _Server, place: Place) -> str:
        given = server.hosted.launch
        upload_url = self.upload_url if given.folder else ""
        own = (given.command, given.folder, sorted(given.env.items()), given.sleep, given.wake, upload_url)
        how = (*own, server.hosted.model.slots, sorted(place.items()), self._devices_env(place))
        return sha256(msgspec.json.encode(how)).hexdigest()

    # memory

    def _check_room(self, server: _Server, place: Place) -> None:
        for name, needed in place.items():
            held = {one.model: _count_taken(one, name) for one in self._servers.values() if one is not server}
            held |= self._count_left_on(name)
            if needed + sum(held.values()) > self._devices[name].memory:
                others = ", ".join(f"{model} {size / GIB:.1f} GiB" for model, size in held.items() if size)
                raise LoadFailed(
                    f"{server.model} needs {needed / GIB:.1f} GiB of {name}, which has "
                    f"{self._devices[name].memory / GIB:.1f} GiB. Others have memory there: {others or 'none'}."
                )

    def _count_left_on(self, name: str) -> dict[str, int]:
        """Return what strays hold of a device. Another pool may call it otherwise: then all that they hold counts."""
        locks = set(self._folder.locks_of(self._devices[name]))
        on_it = [record for record in self._strays if locks & set(record.locks)]
        return {record.model: record.place.get(name, sum(record.place.values())) for record in on_it}

    async def _until_free(self, place: Place) -> None:
        """Wait until the tool of each device says that this much is free: an ended process may be slow to give it back.
        Raises LoadFailed if that takes too long, or the tool does not answer.
        """
        for name, needed in place.items():
            device, give_up = self._devices[name], time.monotonic() + FREE_LIMIT_S
            memory = device.memory + device.asleep  # servers that sleep keep a part of it in use
            while device.used and (used := await _ask_used(device)) + needed > memory:
                if time.monotonic() >= give_up:
                    raise LoadFailed(
                        f"{name} has {used / GIB:.1f} of {memory / GIB:.1f} GiB in use, so "
                        f"{needed / GIB:.1f} GiB are not free there. Another program may use it."
                    )
                await anyio.sleep(LOOK_S)

    # sleeping and ending

    async def _wake(self, server: _Server) -> None:
        self._note(server, "running")
        if not await self._call(server, server.hosted.launch.wake):
            await self._end(server)
            raise LoadFailed(f"{server.model} could not be woken by {server.hosted.launch.wake}, and was ended.")

    async def _call(self, server: _Server, path: str) -> bool:
        url = f"{self.url(server.model)}{path}"
        try:
            with anyio.fail_after(CALL_LIMIT_S):  # httpx's own limit begins again with each byte
                async with (
                    httpx.AsyncClient(trust_env=False, timeout=CALL_LIMIT_S) as client,
                    client.stream("POST", url) as answer,
                ):
                    async for _ in answer.aiter_raw():
                        pass
        except (httpx.HTTPError, TimeoutError) as exc:
            log.warning("a server did not answer", extra={"model": server.model, "path": path, "error": repr(exc)})
            return False
        if not answer.is_success:
            log.warning("a server refused", extra={"model": server.model, "path": path, "status": answer.status_code})
        return answer.is_success

    async def _end(self, server: _Server) -> None:
        if server.record is None:
            return
        server.is_asked = True
        self._note(server, "leaving")
        await _end_guard(server.record, server.gone.wait, server.hosted.launch.grace_s)

    def _attend(self, server: _Server, guard: Mark) -> None:
        server.gone = anyio.Event()
        self._tasks.start_soon(self._until_gone, server, guard)

    async def _until_gone(self, server: _Server, guard: Mark) -> None:
        record = server.record
        assert record is not None  # noqa: S101 - for the type checker: it was started
        with anyio.CancelScope(shield=True):  # a director that ends waits for it too
            await until_gone(guard)
            # a guard that was killed has left what its server started
            await to_thread.run_sync(end_family, guard, record.word)
            if server.process is not None:
                await server.process.wait()
                await server.process.aclose()
        server.process = server.record = None
        self._folder.remove(server.model)
        ended = "" if server.is_asked else "\n".join(self.last_lines(server.model))
        if ended:
            log.error("a server ended by itself", extra={"model": server.model, "output": ended})
        server.held = Held(presence="absent", since=time.monotonic(), ended=ended)
        server.gone.set()
        self.on_news()

    def _note(self, server: _Server, presence: Presence) -> None:
        assert server.record is not None  # noqa: S101 - for the type checker: it was started
        if presence == server.record.presence:
            return
        server.record = replace(server.record, presence=presence)
        try:
            self._folder.write(server.record)
        except OSError as exc:  # the next director would take it for what it was before
            log.warning("a server cannot be noted", extra={"model": server.model, "error": str(exc)})
        self._set(server)

    def _set(self, server: _Server) -> None:
        record = server.record
        assert record is not None  # noqa: S101 - for the type checker: it was started
        place = {} if record.presence == "asleep" else record.place
        server.held = Held(presence=record.presence, since=time.monotonic(), place=place)
        self.on_news()

    # what a dead director left

    def _find_left(self) -> list[Record]:
        """Return the servers of which something still runs, and forget the others."""
        found = []
        for path, record in self._folder.records():
            if is_alive(record.mark) or family(record.mark, record.word):
                found.append(record)
            else:
                path.unlink(missing_ok=True)
        return found

    def _is_own(self, record: Record) -> bool:
        return record.owner == self._folder.owner.name

    def _is_of_pool(self, record: Record) -> bool:
        """Return whether it is the server of a model of this pool, on devices that the pool has still."""
        is_known = record.model in self._servers and record.place.keys() <= self._devices.keys()
        return self._is_own(record) and is_known

    def _is_adoptable(self, record: Record) -> bool:
        if not self._is_of_pool(record) or not is_alive(record.mark):
            return False
        if record.presence not in ("running", "asleep"):
            return False  # one that fell asleep or woke up meanwhile may take memory or not
        server = self._servers[record.model]
        if record.digest != self._digest(server, record.place):
            return False
        try:
            self._check_room(server, record.place)
        except LoadFailed:
            return False
        return True

    def _adopt(self, record: Record) -> None:
        server = self._servers[record.model]
        server.record = record
        self._set(server)
        self._attend(server, record.mark)

    async def _end_of_pool(self, record: Record) -> None:
        """Own a server and end it. Returns when it has ended, or after some time: its end goes on then."""
        self._adopt(record)
        server = self._servers[record.model]
        self._tasks.start_soon(self._end, server)
        with anyio.move_on_after(server.hosted.launch.grace_s + LEFT_LIMIT_S):
            await server.gone.wait()
            return
        log.error("a server that a dead director left does not end", extra={"model": record.model})

    async def _end_left(self, record: Record) -> None:
        """End a server of no model of this pool. Returns when it has ended, or after some time: its end goes on then,
        and what it holds is not free.
        """
        ended = anyio.Event()

        async def end_family_after_guard() -> None:
            await until_gone(record.mark)
            await to_thread.run_sync(end_family, record.mark, record.word)

        async def end() -> None:
            with anyio.CancelScope(shield=True):  # a director that ends waits for it too
                await _end_guard(record, end_family_after_guard, END_LIMIT_S)
            self._strays.remove(record)
            ended.set()
            self.on_news()

        self._strays.append(record)
        self._tasks.start_soon(end)
        with anyio.move_on_after(LEFT_LIMIT_S):
            await ended.wait()
            return
        log.error("a server that a dead director left does not end", extra={"model": record.model})


@asynccontextmanager
async def hosting(
    pool: Path, devices: Sequence[Device], hosted: Sequence[Hosted], *, folder: Path, orphan_s: float = ORPHAN_S
) -> AsyncGenerator[Host]:
    """Hold the locks of these devices, and end all servers with the block. `folder` has the locks, records and logs.

    `orphan_s`: how long a server waits for the next director after this process was killed. Raises SettingsError with
    the holder if another director has one of the devices, or this pool.
    """
    place = StateFolder(folder, pool, await gpu_names())
    place.make()
    async with place.lock(devices), anyio.create_task_group() as tasks:
        host = Host(devices, hosted, place, tasks, orphan_s)
        try:
            yield host
        finally:
            with anyio.CancelScope(shield=True):
                await host.end_all()


def _new_port(taken: Iterable[int]) -> int:
    while (port := free_port()) in taken:
        pass
    return port


def _count_taken(server: _Server, device: str) -> int:
    return server.held.place.get(device, 0)


async def _end_guard(record: Record, gone: Callable[[], Any], grace_s: float) -> None:
    """Ask a guard to end its server, and kill the guard if it does not. Returns when all that it started is gone."""
    with suppress(ProcessLookupError):
        if is_alive(record.mark):
            os.kill(record.guard, signal.SIGTERM)
    with anyio.move_on_after(grace_s + END_LIMIT_S):
        await gone()
        return
    with suppress(ProcessLookupError):
        if is_alive(record.mark):
            os.kill(record.guard, signal.SIGKILL)
    await gone()


async def _ask_used(device: Device) -> int:
    """Return the bytes in use, as the device's tool says. Raises LoadFailed if it does not say."""
    try:
        return sum(int(line) for line in (await ask_tool(device.used)).split()) * MIB
    except (OSError, ValueError, subprocess.CalledProcessError) as exc:
        raise LoadFailed(f"`{' '.join(device.used)}` does not say how much of {device.name} is in use: {exc}.") from exc
