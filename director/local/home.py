"""The folder of one `director up`: its lock, its logs, its Valkey's data, and `up.json` for other commands. It holds
secrets, so only this user can read it, and accepted predictions, so it is never deleted by us.
"""

import fcntl
import os
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from director.core.errors import DirectorError
from director.local.launcher.launch import last_lines, open_log
from director.local.launcher.processes import Mark, UpError, is_alive

UP: Final = "up"  # the name of `up` itself among the processes


class Nowhere(DirectorError):
    """No service is known. Start one, or name its address."""


class State(Struct, frozen=True, kw_only=True):
    """The content of `up.json`. The token stays for the life of the home; `pids` is empty while nothing runs."""

    url: str = ""
    token: str = ""
    redis_url: str = ""
    files_dir: str = ""
    webhook_allow: str = ""
    servers: dict[str, str] = {}  # model → URL of its model server
    pids: dict[str, int] = {}
    started: dict[str, str] = {}  # for each pid, when its process started: see director.local.launcher.processes

    @property
    def is_up(self) -> bool:
        up = self.processes.get(UP)
        return up is not None and is_alive(up)

    @property
    def processes(self) -> dict[str, Mark]:
        """In the order of their start."""
        return {name: Mark(pid, self.started[name]) for name, pid in self.pids.items() if name in self.started}

    def running(self, processes: Mapping[str, Mark]) -> "State":
        pids = {name: one.pid for name, one in processes.items()}
        started = {name: one.started for name, one in processes.items()}
        return msgspec.structs.replace(self, pids=pids, started=started)

    def without_processes(self) -> "State":
        return msgspec.structs.replace(self, pids={}, started={}, servers={})


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.shown = str(path)  # as the user wrote it, for messages

    @property
    def state_file(self) -> Path:
        return self.path / "up.json"

    @property
    def valkey(self) -> Path:
        return self.path / "valkey"

    @property
    def files(self) -> Path:
        return self.path / "files"

    def log(self, part: str) -> Path:
        return self.path / "logs" / f"{part}.log"

    def make(self) -> None:
        try:
            for folder in (self.path, self.path / "logs", self.valkey, self.files):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise UpError(f"Cannot make {exc.filename}: {exc.strerror}. Choose another folder with --home.") from exc

    @contextmanager
    def lock(self) -> Generator[None, None, None]:
        """Hold the lock of this home. It ends with its process. Raises UpError if another `up` holds it."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                state = self.read()
                where = f" at {state.url}" if state.url else ""
                raise UpError(
                    f"director is up already{where}. Stop it with `director down --home {self.shown}`, "
                    "or choose another folder with --home."
                ) from None
            yield

    def read(self) -> State:
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=State)
        except FileNotFoundError:
            return State()
        except (OSError, msgspec.MsgspecError) as exc:
            raise UpError(f"{self.state_file} cannot be read ({exc}). Delete it: `director up` writes it.") from exc

    def write(self, state: State) -> None:
        """Replace `up.json` in one step, so that a reader never sees half of it. It holds a token: mode 0600."""
        data = msgspec.json.format(msgspec.json.encode(state), indent=2)
        self._replace(self.state_file, data + b"\n")

    def write_token(self, token: str) -> Path:
        """Write the token into a file of its own, which only this user may read. Raises OSError."""
        file = self.path / "token"
        self._replace(file, f"{token}\n".encode())
        return file

    def _replace(self, file: Path, data: bytes) -> None:
        """Write a new file with mode 0600 in the place of this one, which may be a link or open to others."""
        new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(data)
            new.replace(file)
        finally:
            with suppress(FileNotFoundError):
                new.unlink()

    def open_log(self, part: str) -> int:
        return open_log(self.log(part))

    def last_lines(self, part: str, count: int = 5, *, since: int = 0) -> list[str]:
        """Return the last lines of the part's log, without those in its first `since` bytes."""
        return last_lines(self.log(part), count, since=since)
