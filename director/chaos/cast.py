"""Who takes part in a run: the command, the environment and the sign of readiness of each process. Starts nothing.

Four directors with a model server each: two share a model, one is alone with its own, and one serves a model whose
version is deleted now and then. The rest is as in production: an API, two keepers, and a receiver of webhooks.
"""

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from director.core.settings import PREFIX
from director.local.processes import UpError, claimable
from director.local.supervisor import Part

SERVER: Final = "redis-0"
API: Final = "api-0"
SINK: Final = "sink-0"
MODELS: Final = ("chaos/shared", "chaos/alone")
CROWDED: Final = MODELS[0]  # where tenants want more than there is
IN_LINE: Final = MODELS[1]  # its lanes have one stream each, so that the order of claims is exact
PASSING: Final = "chaos/passing"  # only the nemesis asks for it: its version is deleted while its director starts
SERVED: Final = (MODELS[0], MODELS[0], MODELS[1], PASSING)  # by each director
KEEPERS: Final = 2
REDIS_CLIENTS: Final = (API, *(f"director-{n}" for n in range(len(SERVED))), *(f"keeper-{n}" for n in range(KEEPERS)))
LOOPBACK: Final = "127.0.0.1"
RUN_LIMIT_S: Final = 30  # a run that hangs, and whose cancel got lost with its caller, ends all the same
DRAIN_S: Final = 5
BREAKER_COOL_S: Final = 5  # an open breaker spares a queue the rest of the faults: soon there is to be work again

# Below what systems hand out to clients by themselves: a port must be free again whenever its process comes back.
# Each is given once, and two runs at one time begin at different ones.
QUIET_PORTS: Final = range(20_000, 32_000)
PORTS_OF_A_RUN: Final = 16
_ports: Final = (QUIET_PORTS[(os.getpid() * PORTS_OF_A_RUN + n) % len(QUIET_PORTS)] for n in itertools.count())


class Role(Struct, frozen=True, kw_only=True):
    """A process of the run. `env` is what it is started with next; `url` its base, `ready` the page that says 200."""

    name: str
    command: Sequence[str]
    url: str
    ready: str
    env: dict[str, str]

    def part(self, cwd: Path) -> Part:
        """What the supervisor runs. It reads the environment anew at each start."""
        return Part(name=self.name, command=self.command, env=self.env, cwd=cwd, grace_s=DRAIN_S + 5)


def sink(journal: Path, secrets: Path) -> Role:
    """The receiver of webhooks."""
    return _scripted(SINK, "sink", [str(journal), str(secrets)], ready="/health")


def cogs(folder: Path, *, slots: int) -> list[Role]:
    """A scripted model server for each director."""
    return [
        _scripted(name, "cog", [name, str(slots), str(folder / f"{name}.jsonl")], ready="/health-check")
        for name in (f"cog-{number}" for number in range(len(SERVED)))
    ]


def directors(redis_urls: Mapping[str, str], servers: Sequence[Role], *, slots: int, lease_s: float) -> list[Role]:
    """The directors, each on its way to Redis and beside its server."""
    return [
        _ours(
            f"director-{number}",
            ["director", "run"],
            ("health_host", "health_port"),
            redis_url=redis_urls[f"director-{number}"],
            model=model,
            servers=server.url,
            concurrent_predictions=slots,
            lease_s=lease_s,
            run_limit_s=RUN_LIMIT_S,
            drain_s=DRAIN_S,
            breaker_cool_s=BREAKER_COOL_S,
            webhook_allow="loopback",
        )
        for number, (model, server) in enumerate(zip(SERVED, servers, strict=True))
    ]


def keepers(redis_urls: Mapping[str, str], *, lease_s: float) -> list[Role]:
    """The keepers."""
    return [
        _ours(
            name,
            ["director", "keeper"],
            ("host", "port"),
            redis_url=redis_urls[name],
            lease_s=lease_s,
            webhook_allow="loopback",
        )
        for name in (f"keeper-{number}" for number in range(KEEPERS))
    ]


def api(redis_urls: Mapping[str, str]) -> Role:
    """The front door."""
    return _ours(API, ["api"], ("host", "port"), redis_url=redis_urls[API])


def _quiet_port() -> int:
    """A free port that no client of this machine is given by chance."""
    while True:
        with suppress(UpError):
            return claimable(LOOPBACK, next(_ports))


def _scripted(name: str, program: str, arguments: Sequence[str], *, ready: str) -> Role:
    """A process of this room: its port, then what else it is told."""
    port = _quiet_port()
    url = f"http://{LOOPBACK}:{port}"
    command = [sys.executable, "-P", "-m", f"director.chaos.{program}", str(port), *arguments]
    return Role(name=name, command=command, url=url, ready=f"{url}{ready}", env=_environment())


def _ours(name: str, command: Sequence[str], door: tuple[str, str], **settings: object) -> Role:
    """A process of the product. `door`: its settings for the address of its health."""
    port = _quiet_port()
    settings |= {door[0]: LOOPBACK, door[1]: port}
    url = f"http://{LOOPBACK}:{port}"
    return Role(
        name=name,
        command=[sys.executable, "-P", "-m", *command],
        url=url,
        ready=f"{url}/readyz",
        env=_environment() | {PREFIX + setting.upper(): str(value) for setting, value in settings.items()},
    )


def _environment() -> dict[str, str]:
    # without the user's own settings: the same seed is to be the same run on every machine
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
