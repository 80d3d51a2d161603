"""Define the processes of a run: command, environment and sign of readiness of each. Starts nothing.

There are four directors with a model server each. Two serve one model, and one serves a model alone. The fourth serves
a model whose version is deleted at times. The rest is as in production: an API, two keepers, a receiver of webhooks.
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
CROWDED: Final = MODELS[0]  # its tenants want more than it can serve
IN_LINE: Final = MODELS[1]  # its lanes have one stream each, so the order of claims is exact
PASSING: Final = "chaos/passing"  # only the nemesis asks for it: its version is deleted while its director starts
SERVED: Final = (MODELS[0], MODELS[0], MODELS[1], PASSING)  # the model of each director
KEEPERS: Final = 2
REDIS_CLIENTS: Final = (API, *(f"director-{n}" for n in range(len(SERVED))), *(f"keeper-{n}" for n in range(KEEPERS)))
LOOPBACK: Final = "127.0.0.1"
RUN_LIMIT_S: Final = 30  # ends a run that hangs and whose cancel was lost with its caller
DRAIN_S: Final = 5
BREAKER_COOL_S: Final = 5  # an open breaker hides a queue from the faults, so it closes again soon

# Ports below the range that systems hand out to clients: a port must be free again whenever its process comes back.
# Each is used once. Two runs at the same time begin at different ports.
QUIET_PORTS: Final = range(20_000, 32_000)
PORTS_OF_A_RUN: Final = 16
_ports: Final = (QUIET_PORTS[(os.getpid() * PORTS_OF_A_RUN + n) % len(QUIET_PORTS)] for n in itertools.count())


class Role(Struct, frozen=True, kw_only=True):
    """A process of the run.

    `env` is the environment of its next start, `url` its base URL, `ready` the page that answers 200 once it is ready.
    """

    name: str
    command: Sequence[str]
    url: str
    ready: str
    env: dict[str, str]

    def part(self, cwd: Path) -> Part:
        """Return the part for the supervisor, which reads the environment again at each start."""
        return Part(name=self.name, command=self.command, env=self.env, cwd=cwd, grace_s=DRAIN_S + 5)


def sink(journal: Path, secrets: Path) -> Role:
    """Return the receiver of webhooks."""
    return _scripted(SINK, "sink", [str(journal), str(secrets)], ready="/health")


def cogs(folder: Path, *, slots: int) -> list[Role]:
    """Return a scripted model server for each director."""
    return [
        _scripted(name, "cog", [str(folder / f"{name}.jsonl"), name, str(slots)], ready="/health-check")
        for name in (f"cog-{number}" for number in range(len(SERVED)))
    ]


def directors(redis_urls: Mapping[str, str], servers: Sequence[Role], *, slots: int, lease_s: float) -> list[Role]:
    """Return the directors, each with its own link to Redis and its own model server."""
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
    return _ours(API, ["api"], ("host", "port"), redis_url=redis_urls[API])


def _quiet_port() -> int:
    """Return a free port outside the range that this machine hands out to clients."""
    while True:
        with suppress(UpError):
            return claimable(LOOPBACK, next(_ports))


def _scripted(name: str, kind: str, arguments: Sequence[str], *, ready: str) -> Role:
    port = _quiet_port()
    url = f"http://{LOOPBACK}:{port}"
    command = [sys.executable, "-P", "-m", "director.chaos.parties", kind, str(port), *arguments]
    return Role(name=name, command=command, url=url, ready=f"{url}{ready}", env=_environment())


def _ours(name: str, command: Sequence[str], listen: tuple[str, str], **settings: object) -> Role:
    """Return a process of the product. `listen` names its settings for the host and port that it serves health on."""
    port = _quiet_port()
    settings |= {listen[0]: LOOPBACK, listen[1]: port}
    url = f"http://{LOOPBACK}:{port}"
    return Role(
        name=name,
        command=[sys.executable, "-P", "-m", *command],
        url=url,
        ready=f"{url}/readyz",
        env=_environment() | {PREFIX + setting.upper(): str(value) for setting, value in settings.items()},
    )


def _environment() -> dict[str, str]:
    # without the user's own settings, so that the same seed is the same run on every machine
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
