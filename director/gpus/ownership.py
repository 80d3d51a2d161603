"""Know which director owns which device and which server of this machine: locks that end with their process, and a
record of each server, which the next director reads.
"""

import fcntl
import os
import stat
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, Literal
from urllib.parse import quote

import anyio
import msgspec
from anyio.abc import Process
from msgspec import Struct

from director.core.clock import SystemClock
from director.core.devices import VISIBLE, Device, Place
from director.core.errors import SettingsError
from director.core.view import iso
from director.local.launcher.launch import server_environment
from director.local.launcher.processes import Mark

LOCK_WAIT_S: Final = 3.0  # the guard of a server that was left looks at a lock for a moment, and so holds it
LOOK_S: Final = 0.05
TOOL_LIMIT_S: Final = 30.0
GPUS: Final = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")

_left: Final[dict[tuple[str, ...], Process]] = {}

Presence = Literal["absent", "running", "asleep", "leaving"]
"""`running`: its process takes memory, whether it is loading or loaded. `asleep`: its process takes none."""


class Record(Struct, frozen=True, kw_only=True):
    """One server that was started. `guard` and `started` are the mark of its guard, and `word` is in the environment of
    all that the server started. `locks`: of its devices. `owner`: of its pool. `digest`: of how it was started.
    """

    model: str
    presence: Presence
    place: Place
    port: int
    digest: str
    guard: int
    started: str
    word: str
    owner: str
    locks: tuple[str, ...]

    @property
    def mark(self) -> Mark:
        return Mark(self.guard, self.started)


class Holder(Struct, frozen=True):
    pid: int
    user: int
    pool: str
    since: str


async def gpu_names() -> Mapping[str, str]:
    """Return the UUID of each GPU by its number. Empty on a machine without nvidia-smi."""
    try:
        answer = await ask_tool(GPUS)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(line.split(", ", 1) for line in answer.decode().splitlines() if ", " in line)


async def ask_tool(tool: tuple[str, ...]) -> bytes:
    """Return what a tool prints. Raises OSError, such as TimeoutError after TOOL_LIMIT_S, or CalledProcessError.

    nvidia-smi hangs where a driver does, and no signal ends it then. So one that hangs is left behind, and the same
    command is not started again beside it.
    """
    if tool in _left and _left[tool].returncode is None:
        raise TimeoutError("it was asked before, and still hangs")
    quiet = subprocess.DEVNULL
    with TemporaryFile() as output:
        process = await anyio.open_process(tool, stdin=quiet, stdout=output, stderr=quiet, env=server_environment())
        try:
            with anyio.move_on_after(TOOL_LIMIT_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                _left[tool] = process
        if process.returncode is None:
            raise TimeoutError(f"it hangs for {TOOL_LIMIT_S:g} s")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, tool)
        output.seek(0)
        return output.read()


class StateFolder:
    """The folder of locks, which all users of the machine share, and in it this user's records and logs of one pool.

    `gpus`: see `gpu_names`. A GPU has one lock, whether a device names it by its number or by its UUID, alone
    or with others.
    """

    def __init__(self, path: Path, pool: Path, gpus: Mapping[str, str]) -> None:
        self._path = path
        self._gpus = gpus
        self._pool = pool.absolute()
        self._user = path / str(os.getuid())
        short = sha256(bytes(self._pool)).hexdigest()[:16]
        self._own = self._user / short
        self.owner = path / f"pool-{short}.lock"

    @property
    def links(self) -> Path:
        return self._own / "bin"

    def locks_of(self, device: Device) -> list[str]:
        """Return the names of its locks: one for each GPU that it has, or one for what else its variables show."""
        gpus = [gpu.strip() for gpu in device.env.get(VISIBLE, "").split(",") if gpu.strip()]
        shown = [f"{VISIBLE}={self._in_full(gpu)}" for gpu in gpus]
        others = ",".join(f"{name}={value}" for name, value in sorted(device.env.items()))
        names = shown or [others or f"device={device.name}"]
        return [f"{quote(name, safe='=,')}.lock" for name in dict.fromkeys(names)]

    def _in_full(self, gpu: str) -> str:
        """Return the UUID of a GPU that is named as CUDA allows: by its number, or by enough of its UUID."""
        begun = [uuid for uuid in self._gpus.values() if uuid.startswith(gpu)]
        return self._gpus.get(gpu) or (begun[0] if len(begun) == 1 else gpu)

    def log(self, model: str) -> Path:
        return self._own / f"{quote(model, safe='')}.log"

    def make(self) -> None:
        """Raises SettingsError if the folder cannot be used, or this user's part of it belongs to another user."""
        try:
            if not self._path.exists():
                self._path.mkdir(parents=True)
                self._path.chmod(0o1777)
            for folder in (self._user, self._own):
                folder.mkdir(mode=0o700, exist_ok=True)
            base, found = self._path.stat(), self._user.lstat()
        except OSError as exc:
            raise SettingsError(f"Cannot make {exc.filename}: {exc.strerror}. Set DIRECTOR_DEVICES_DIR.") from exc
        # its owner, or anyone who may write to it, could put another folder in place of ours
        if base.st_uid not in (0, os.getuid()) or (base.st_mode & stat.S_IWOTH and not base.st_mode & stat.S_ISVTX):
            raise SettingsError(f"Other users can replace what is in {self._path}. Set DIRECTOR_DEVICES_DIR.")
        # who writes there has us end processes
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
            raise SettingsError(f"{self._user} is not a folder that only this user can read. Set DIRECTOR_DEVICES_DIR.")

    @asynccontextmanager
    async def lock(self, devices: Sequence[Device]) -> AsyncGenerator[None]:
        """Hold the locks of this pool and its devices. Raises SettingsError with the director that holds one, or if two
        devices have one GPU.
        """
        wanted = {self.owner: f"The pool {self._pool}"}
        for device in devices:
            for path in [self._path / name for name in self.locks_of(device)]:
                if path in wanted:
                    both = f"{wanted[path]} and {_describe(device)}"
                    raise SettingsError(f"{both} are the same, or have a GPU in common. Name it once, with its memory.")
                wanted[path] = _describe(device)
        async with AsyncExitStack() as stack:
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            # systemd-tmpfiles ages /tmp. It skips a folder that is locked, with all below (tmpfiles.d(5)), but that of
            # systemd 252 removes files that are locked: a lock whose file is gone holds nothing
            await _until_locked(folder, fcntl.LOCK_SH)
            for path, what in sorted(wanted.items()):
                descriptor = _open(path)
                stack.callback(os.close, descriptor)
                await self._lock(descriptor, what)
            yield

    async def _lock(self, descriptor: int, what: str) -> None:
        if not await _until_locked(descriptor, fcntl.LOCK_EX):
            raise SettingsError(f"{what} is held by {_holder(descriptor)}.")
        holder = Holder(os.getpid(), os.getuid(), str(self._pool), iso(SystemClock().now_ms()))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, msgspec.json.encode(holder), 0)

    def records(self) -> Iterator[tuple[Path, Record]]:
        """Yield the records of all pools of this user. One that cannot be read is of no use to anyone."""
        for path in sorted(self._user.glob("*/*.json")):
            try:
                yield path, msgspec.json.decode(path.read_bytes(), type=Record)
            except (OSError, msgspec.MsgspecError):
                path.unlink(missing_ok=True)

    def write(self, record: Record) -> None:
        path = self._record(record.model)
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(record))
        new.replace(path)

    def remove(self, model: str) -> None:
        self._record(model).unlink(missing_ok=True)

    def _record(self, model: str) -> Path:
        return self._own / f"{quote(model, safe='')}.json"


def _describe(device: Device) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in sorted(device.env.items()))
    return f"The device {device.name} ({shown})" if shown else f"The device {device.name}"


async def _until_locked(descriptor: int, how: int) -> bool:
    """Return False if another process still holds the lock after LOCK_WAIT_S."""
    give_up = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            await anyio.sleep(LOOK_S)


def _open(path: Path) -> int:
    with suppress(FileNotFoundError):  # without O_CREAT: the system refuses to create another user's file
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with suppress(PermissionError):  # another user was faster
        os.fchmod(descriptor, 0o666)
    return descriptor


def _holder(descriptor: int) -> str:
    try:
        found = msgspec.json.decode(os.pread(descriptor, 1 << 16, 0), type=Holder)
    except msgspec.MsgspecError:
        return "another director"
    return (
        f"the director with pid {found.pid} of user {found.user}, which has served {found.pool} since {found.since}. "
        "Stop it, or give this pool other devices"
    )
