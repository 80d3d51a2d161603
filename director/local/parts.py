"""Describe the parts of an `up`: the command and the environment of each, and when it is ready. Readiness is asked of
the parts themselves: that a process runs proves nothing.
"""

import importlib.util
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import httpx
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import version_id
from director.core.settings import PREFIX
from director.examples import EXAMPLES, Example
from director.local.home import Home
from director.local.processes import UpError, free_port
from director.local.supervisor import Part, Supervisor
from director.store.catalog import Catalog

LOOPBACK: Final = "127.0.0.1"
COGLET_DIR: Final = "/tmp/coglet/predictions"  # noqa: S108 - coglet's own, whatever TMPDIR says
DRAIN_S: Final = 10
HAND_BACK_S: Final = 13.0  # the user who pressed Ctrl-C watches: do not wait for a long run
LOOK_S: Final = 0.1
ANSWER_S: Final = 5.0
HOPELESS_ENDS: Final = 3  # a part that died this often before it was ready will not start by itself
# Cog takes this address as an argument only, and any user of the machine can read arguments. So it comes in a variable.
COG: Final = (
    "import os, runpy, sys; sys.argv += ['--upload-url', os.environ.pop('COG_UPLOAD_URL')]; "
    "runpy.run_module('cog.server.http', run_name='__main__', alter_sys=True)"
)
NEEDED_BY_EXAMPLES: Final = {"cog": "cog", "PIL": "pillow"}


class Served(Struct, frozen=True, kw_only=True):
    example: Example
    version: str
    url: str
    ready_url: str
    server: Part
    director: Part


def api(home: Home, *, redis_url: str, host: str, port: int) -> Part:
    return _ours(home, "api", [*_python("api")], redis_url=redis_url, host=host, port=str(port))


def keeper(home: Home, *, redis_url: str) -> tuple[Part, str]:
    port = free_port()
    part = _ours(home, "keeper", [*_python("director"), "keeper"], redis_url=redis_url, host=LOOPBACK, port=str(port))
    return part, f"http://{LOOPBACK}:{port}/readyz"


def served_examples(home: Home, *, redis_url: str) -> list[Served]:
    return [_served(home, example, redis_url) for example in EXAMPLES.values()]


def missing_for_examples() -> list[str]:
    return [package for module, package in NEEDED_BY_EXAMPLES.items() if importlib.util.find_spec(module) is None]


def _served(home: Home, example: Example, redis_url: str) -> Served:
    short = example.name.rpartition("/")[2]
    port, health_port, upload_secret = free_port(), free_port(), secrets.token_urlsafe(24)
    url = f"http://{LOOPBACK}:{port}"
    version = version_id(example.name, example.schema_file.read_bytes(), example.predictor_file.read_bytes())
    return Served(
        example=example,
        version=version,
        url=url,
        ready_url=f"http://{LOOPBACK}:{health_port}/readyz",
        server=Part(
            name=f"model-{short}",
            # SIGTERM is for the director; the server ends after it, when asked by HTTP
            command=[sys.executable, "-c", COG, "--host", LOOPBACK, "--await-explicit-shutdown=true"],
            env={
                **_model_environment(example, port),
                "COG_UPLOAD_URL": f"http://{LOOPBACK}:{health_port}/uploads/{upload_secret}/",
            },
            cwd=example.folder,
            shutdown_url=f"{url}/shutdown",
        ),
        director=_ours(
            home,
            f"director-{short}",
            [*_python("director"), "run"],
            redis_url=redis_url,
            grace_s=DRAIN_S + HAND_BACK_S,
            model=example.name,
            version=version,
            servers=url,
            drain_s=str(DRAIN_S),
            health_host=LOOPBACK,
            health_port=str(health_port),
            upload_secret=upload_secret,
            coglet_dir=COGLET_DIR,
        ),
    )


def _python(module: str) -> Sequence[str]:
    # -P: never import from the folder that `up` is called in, which may contain an `api` of its own
    return [sys.executable, "-P", "-m", module]


def _ours(
    home: Home, name: str, command: Sequence[str], *, redis_url: str, grace_s: float = 10.0, **settings: str
) -> Part:
    allowed = os.environ.get(PREFIX + "WEBHOOK_ALLOW", "")
    settings |= {
        "redis_url": redis_url,
        "files_dir": os.environ.get(PREFIX + "FILES_DIR", "") or str(home.files),
        "webhook_allow": ",".join(filter(None, [allowed, "loopback"])),
    }
    env = {PREFIX + setting.upper(): value for setting, value in settings.items()}
    return Part(name=name, command=command, env=dict(os.environ) | env, cwd=home.path, grace_s=grace_s)


def _model_environment(example: Example, port: int) -> Mapping[str, str]:
    # a model sees neither our settings nor the address of Redis
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    # Cog starts its worker as `python` from PATH, which must be this interpreter: it has cog and what models import
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return theirs | {
        "PATH": path,
        "PORT": str(port),
        "COG_PREDICT_TYPE_STUB": example.predict,
        "PYTHONDONTWRITEBYTECODE": "1",  # the folder belongs to the package
    }


Ask = Callable[[httpx.AsyncClient], Awaitable[bool]]


class Expected(Struct, frozen=True):
    part: str
    asks: Sequence[Ask]


def answers_200(url: str) -> Ask:
    async def ask(client: httpx.AsyncClient) -> bool:
        return (await client.get(url)).status_code == httpx.codes.OK

    return ask


def runs_models(url: str) -> Ask:
    async def ask(client: httpx.AsyncClient) -> bool:
        return (await client.get(f"{url}/health-check")).json()["status"] in ("READY", "BUSY")

    return ask


def is_registered(redis: Redis, served: Served) -> Ask:
    """Return the condition that the catalogue has the model, so that the API accepts predictions for it."""
    catalog = Catalog(redis, Scripts(Gatherer(redis)), SystemClock())

    async def ask(_: httpx.AsyncClient) -> bool:
        return await catalog.version(served.example.name, served.version) is not None

    return ask


async def until_ready(
    expected: Sequence[Expected], *, home: Home, supervisor: Supervisor, say: Callable[[str], None], limit_s: float
) -> None:
    """Return when all are ready. Raises UpError with the part that is not, and the end of its log."""
    waiting = {one.part: one for one in expected}
    async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
        with anyio.move_on_after(limit_s):
            while waiting:
                for one in list(waiting.values()):
                    refuse_if_hopeless(one.part, home, supervisor)
                    if await _is_ready(one, client):
                        say(f"{one.part} is ready")
                        del waiting[one.part]
                await anyio.sleep(LOOK_S)
    if waiting:
        part, *others = waiting
        also = f" Nor did {', '.join(others)}." if others else ""
        raise UpError(f"{part} did not become ready within {limit_s:g} s.{also} {_log_of(part, home)}")


def refuse_if_hopeless(part: str, home: Home, supervisor: Supervisor) -> None:
    if supervisor.ends[part] >= HOPELESS_ENDS:
        raise UpError(f"{part} does not start. {_log_of(part, home)}")


async def _is_ready(one: Expected, client: httpx.AsyncClient) -> bool:
    try:
        for ask in one.asks:
            if not await ask(client):
                return False
    except (httpx.TransportError, BackendUnavailable, ValueError, KeyError):  # not listening yet, or another program
        return False
    return True


def _log_of(part: str, home: Home) -> str:
    end = "".join(f"\n  {line}" for line in home.last_lines(part))
    return f"Its log, {home.log(part)}, ends with:{end}" if end else f"Its log, {home.log(part)}, is empty."
