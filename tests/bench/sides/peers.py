"""The peers: what is installed for each, and where; how jobs are filed, and run.

Each has a virtual environment outside the repository, made once. Uses the network then, and never while it measures.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.bench.processes import Child, child
from tests.bench.sides.ours import SLOTS
from tests.bench.sides.servers import OwnRedis

__all__ = ("PEERS", "NotInstalled", "Peer", "installed")

JOBS: Final = Path(__file__).parents[1] / "peers"
INSTALL_S: Final = 300.0
FILE_S: Final = 120.0
FAST: Final = ("hiredis==3.5.0", "uvloop==0.23.0", "aiohttp==3.14.5")


class NotInstalled(Exception):
    """A peer's environment could not be made: say why, and measure the others."""


class Peer(Struct, frozen=True, kw_only=True):
    """`needs`: what is installed. `work`: how its Python is told to run jobs, of which `jobs` take a few seconds."""

    name: str
    version: str
    needs: tuple[str, ...]
    work: tuple[str, ...]
    jobs: int = 4_000
    is_threaded: bool = False

    @property
    def shown(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def home(self) -> Path:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches / "director-bench" / f"{self.name}-{self.version}"

    @property
    def python(self) -> str:
        return str(self.home / "bin" / "python")

    def file(self, server: OwnRedis, many: int) -> None:
        """Let so many jobs wait."""
        command = [self.python, f"{self.name}_job.py", str(many)]
        subprocess.run(command, cwd=JOBS, env=os.environ | self._env(server, ""), check=True, timeout=FILE_S)

    @contextmanager
    def worker(self, server: OwnRedis, model_url: str) -> Iterator[Child]:
        """One process that runs jobs, 64 at once."""
        with child(self.name, [self.python, *self.work], cwd=JOBS, **self._env(server, model_url)) as worker:
            yield worker

    def _env(self, server: OwnRedis, model_url: str) -> dict[str, str]:
        return {"BENCH_REDIS": server.url, "BENCH_MODEL": model_url, "BENCH_SLOTS": str(SLOTS), "PYTHONPATH": str(JOBS)}


PEERS: Final = (
    Peer(
        name="taskiq",
        version="0.13.0",
        needs=("taskiq==0.13.0", "taskiq-redis==1.2.4", *FAST),
        work=(
            *("-m", "taskiq", "worker", "taskiq_job:broker", "--workers", "1"),
            *("--max-async-tasks", str(SLOTS), "--log-level", "WARNING"),
        ),
        jobs=6_000,
    ),
    Peer(
        name="saq",
        version="0.26.4",
        needs=("saq[redis]==0.26.4", *FAST),
        work=("saq_job.py", "work"),
    ),
    Peer(name="arq", version="0.28.0", needs=("arq==0.28.0", *FAST), work=("arq_job.py", "work")),
    Peer(
        name="dramatiq",
        version="2.2.1",
        needs=("dramatiq[redis]==2.2.1", FAST[0]),
        work=("-m", "dramatiq", "dramatiq_job", "--processes", "1", "--threads", str(SLOTS)),
        is_threaded=True,
    ),
    Peer(
        name="celery",
        version="5.7.0",
        needs=("celery[redis]==5.7.0", FAST[0]),
        work=(
            *("-m", "celery", "-A", "celery_job", "worker", "--pool", "threads", "--concurrency", str(SLOTS)),
            *("--without-gossip", "--without-mingle", "--loglevel", "WARNING"),
        ),
        jobs=1_200,
        is_threaded=True,
    ),
)


def installed(peer: Peer) -> Peer:
    """Make its environment where there is none yet. Raises NotInstalled."""
    stamp = peer.home / "installed"
    wanted = "\n".join(peer.needs)
    if stamp.exists() and stamp.read_text() == wanted:
        return peer
    try:
        venv.create(peer.home, with_pip=False, clear=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            peer.python,
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, *peer.needs], check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.CalledProcessError as exc:
        raise NotInstalled((exc.stderr.strip().splitlines() or ["pip failed"])[-1]) from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotInstalled(str(exc)) from exc
    stamp.write_text(wanted)
    return peer
