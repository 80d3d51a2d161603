"""Describe the parts of an `up`: the command and the environment of each, and when it is ready. Readiness is asked of
the parts themselves: that a process runs proves nothing.
"""

import importlib.util
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import httpx
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.settings import PREFIX
from director.local.home import Home
from director.local.launcher.launch import LOOPBACK
from director.local.launcher.processes import UpError, free_port
from director.local.models import Served, Surroundings, ours, python_of_ours
from director.local.supervisor import Part, Supervisor
from director.store.catalog import Catalog

LOOK_S: Final = 0.1
ANSWER_S: Final = 5.0
HOPELESS_ENDS: Final = 3  # a part that died this often before it was ready will not start by itself
NEEDED_BY_EXAMPLES: Final = {"cog": "cog", "PIL": "pillow"}


def api(around: Surroundings, *, host: str, port: int) -> Part:
    # an `up` is one release, so it may serve OpenAI's API
    openai = os.environ.get(f"{PREFIX}OPENAI") or "true"
    command = python_of_ours("director.runtime.own_api")
    return ours(around, "api", command, host=host, port=str(port), openai=openai)


def keeper(around: Surroundings) -> tuple[Part, str]:
    port = free_port()
    openai = os.environ.get(f"{PREFIX}OPENAI") or "true"
    command = [*python_of_ours("director"), "keeper"]
    part = ours(around, "keeper", command, host=LOOPBACK, port=str(port), openai=openai)
    return part, f"http://{LOOPBACK}:{port}/readyz"


def missing_for_examples() -> list[str]:
    return [package for module, package in NEEDED_BY_EXAMPLES.items() if importlib.util.find_spec(module) is None]


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
        return await catalog.version(served.model.name, served.model.version) is not None

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
