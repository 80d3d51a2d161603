"""Install peers in environments outside the repository, file their jobs and run their workers."""

import os
import subprocess
import sys
import venv
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.bench.interpreter import caches
from tests.bench.processes import Child, child
from tests.bench.sides.ours import SLOTS
from tests.bench.sides.servers import OwnRedis

JOBS: Final = Path(__file__).parents[1] / "peers"
INSTALL_S: Final = 300.0
FILE_S: Final = 120.0
FAST: Final = ("hiredis==3.5.0", "uvloop==0.23.0", "aiohttp==3.14.5")


class NotInstalled(Exception):
    """A peer's environment could not be made: say why, and measure the others."""


class Peer(Struct, frozen=True, kw_only=True):
    """`needs`: packages. `work`: the command that runs `jobs`, which take a few seconds; `{slots}` of them at once."""

    name: str
    version: str
    needs: tuple[str, ...]
    work: tuple[str, ...]
    jobs: int = 4_000
    is_node: bool = False

    @property
    def shown(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def home(self) -> Path:
        return caches() / (self.shown.replace(" ", "-") + ("" if self.is_node else f"-{sys.version.split()[0]}"))

    @property
    def program(self) -> str:
        return "node" if self.is_node else str(self.home / "bin" / "python")

    @property
    def install(self) -> list[str]:
        if self.is_node:
            return ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(self.home), *self.needs]
        pip = [sys.executable, "-m", "pip", "--python", self.program, "install", "--quiet"]
        return [*pip, "--disable-pip-version-check", *self.needs]

    @property
    def modules(self) -> dict[str, str]:
        """Return the variable that says where its interpreter finds its packages and the jobs."""
        return {"NODE_PATH": str(self.home / "node_modules")} if self.is_node else {"PYTHONPATH": str(JOBS)}

    def file(self, server: OwnRedis, many: int) -> None:
        command = [self.program, f"{self.name}_job.{'cjs' if self.is_node else 'py'}", str(many)]
        env = os.environ | self._env(server, "")
        filing = subprocess.run(command, cwd=JOBS, env=env, capture_output=True, text=True, timeout=FILE_S, check=False)
        if filing.returncode:
            raise ChildProcessError(f"{self.name} could not file its jobs: {_last_line(filing.stderr)}")

    def worker(self, server: OwnRedis, model_url: str, *, slots: int = SLOTS) -> AbstractContextManager[Child]:
        work = [word.format(slots=slots) for word in self.work]
        return child(self.name, [self.program, *work], cwd=JOBS, **self._env(server, model_url, slots))

    def _env(self, server: OwnRedis, model_url: str, slots: int = SLOTS) -> dict[str, str]:
        return {"BENCH_REDIS": server.url, "BENCH_MODEL": model_url, "BENCH_SLOTS": str(slots), **self.modules}


PEERS: Final = (
    Peer(
        name="taskiq",
        version="0.13.0",
        needs=("taskiq==0.13.0", "taskiq-redis==1.2.4", *FAST),
        work=(
            *("-m", "taskiq", "worker", "taskiq_job:broker", "--workers", "1"),
            *("--max-async-tasks", "{slots}", "--log-level", "WARNING"),
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
        work=("-m", "dramatiq", "dramatiq_job", "--processes", "1", "--threads", "{slots}"),
    ),
    Peer(
        name="celery",
        version="5.7.0",
        needs=("celery[redis]==5.7.0", FAST[0]),
        work=(
            *("-m", "celery", "-A", "celery_job", "worker", "--pool", "threads", "--concurrency", "{slots}"),
            *("--without-gossip", "--without-mingle", "--loglevel", "WARNING"),
        ),
        jobs=1_200,
    ),
    Peer(
        name="bullmq",
        version="6.7.0",
        needs=("bullmq@6.7.0", "ioredis@6.0.0"),
        work=("bullmq_job.cjs", "work"),
        jobs=6_000,
        is_node=True,
    ),
)


def installed(peer: Peer) -> Peer:
    stamp = peer.home / "installed"
    wanted = "\n".join(peer.needs)
    if stamp.exists() and stamp.read_text() == wanted:
        return peer
    try:
        peer.home.mkdir(parents=True, exist_ok=True)
        if not peer.is_node:
            venv.create(peer.home, with_pip=False, clear=True)
        subprocess.run(peer.install, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.CalledProcessError as exc:
        raise NotInstalled(_last_line(exc.stderr)) from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotInstalled(str(exc)) from exc
    stamp.write_text(wanted)
    return peer


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it did not say why"])[-1]
