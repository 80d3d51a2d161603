"""Start a process of this machine in a session of its own, with its output in a log and an environment of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

from director.core.settings import PREFIX
from director.local.launcher.processes import Mark, is_alive

LOOPBACK: Final = "127.0.0.1"
PORT: Final = "{port}"
LOG_KEPT_BYTES: Final = 1 << 20
LOOK_S: Final = 0.05
# Director's settings, the passwords from which manifests make them, and the address and headers of its collector; with
# a bucket for its files, also the key of that
OWN: Final = (PREFIX, "OTEL_", "REDIS_URL", "REDIS_PASSWORD", "SENTINEL_PASSWORD", "UPLOAD_SECRET")
KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
BUCKET: Final = "s3://"


async def launch(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: int, input_: int = subprocess.DEVNULL
) -> Process:
    """Start a program. In its own session, Ctrl-C in a terminal reaches only us: we end our programs in order."""
    return await anyio.open_process(
        command, stdin=input_, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=env, start_new_session=True
    )


async def until_gone(process: Mark) -> None:
    """Return once the process has ended. It need not be a child of ours."""
    if sys.platform == "linux":
        with suppress(OSError):  # it has ended, or no descriptor is free
            descriptor = os.pidfd_open(process.pid)
            try:
                if is_alive(process):
                    await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    while is_alive(process):  # noqa: ASYNC110 - other systems tell only a parent
        await anyio.sleep(LOOK_S)


def with_port(command: Sequence[str], port: int) -> list[str]:
    return [word.replace(PORT, str(port)) for word in command]


def server_environment() -> dict[str, str]:
    """Return our environment without what is Director's own: a model must not see its settings and secrets."""
    own = OWN + (KEYS if os.environ.get(PREFIX + "FILES_URL", "").startswith(BUCKET) else ())
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log. A log over a megabyte is first cut to its end. A program whose log
    cannot be opened, as on a full disk, runs without one.
    """
    try:
        cut_log(path)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def cut_log(path: Path) -> bool:
    """Cut a log over a megabyte to its end, also while a program appends to it. Return whether it was cut. A line that
    is written at this moment may be lost. Raises OSError.
    """
    if not path.exists() or path.stat().st_size <= LOG_KEPT_BYTES:
        return False
    with path.open("rb") as file:
        file.seek(-LOG_KEPT_BYTES // 2, os.SEEK_END)
        end = file.read()
    path.write_bytes(end)
    return True


def last_lines(path: Path, count: int, *, since: int = 0) -> list[str]:
    """Return the last lines of a log, without those in its first `since` bytes."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace").splitlines()[-count:]
    return []
