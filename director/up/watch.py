"""Start a model server again whose worker has died: Cog's parent process lives on, and never works again."""

from collections.abc import Callable
from typing import Final

import anyio
import httpx

from director.up.parts import Served
from director.up.supervisor import Supervisor

__all__ = ("watch_model",)

LOOK_S: Final = 1.0
ANSWER_S: Final = 15.0  # a server whose worker hangs takes 10 s to say so
BROKEN: Final = frozenset({"UNHEALTHY", "DEFUNCT"})
BROKEN_LOOKS: Final = 3  # a health check of the model's own may fail once and recover


async def watch_model(served: Served, supervisor: Supervisor, say: Callable[[str], None]) -> None:
    """Look for ever; a server that stays broken is killed, which starts it again."""
    looks = 0
    async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
        while True:
            await anyio.sleep(LOOK_S)
            looks = looks + 1 if await _is_broken(client, served.url) else 0
            if looks == BROKEN_LOOKS:
                say(f"{served.server.name} cannot run any more")
                supervisor.restart(served.server.name)
                looks = 0


async def _is_broken(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health-check")).json()["status"] in BROKEN
    except (httpx.TransportError, ValueError, KeyError):  # gone, or busy starting: the supervisor sees to that
        return False
