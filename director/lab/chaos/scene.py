"""Start the processes of one run and the links between them in their own home, and end all of them with the block. All
parts are real: a server that loses nothing, the API, directors and keepers. A process that dies is started again
after a moment, as an orchestrator would.
"""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import ask, text
from director.broker.scripts import Scripts
from director.core.errors import DirectorError
from director.core.ids import QueueName
from director.core.settings import PREFIX
from director.lab.chaos.plan import (
    KEEPERS,
    LEFT_OUT,
    SERVER,
    SINGLE,
    SINK,
    TALKER,
    TO_REDIS,
    ServerKind,
    Stage,
    Tenants,
)
from director.lab.chaos.proxy import LOOPBACK, Link
from director.lab.chaos.rest import cut, size
from director.lab.chaos.servers import KINDS, SENTINELS, Servers, quiet_port, upstream
from director.local.home import Home, State
from director.local.launcher.processes import is_alive, signal_group, until_stopped
from director.local.parts import Expected, answers_200, until_ready
from director.local.supervisor import Part, Supervisor, supervising
from director.store.accounts import Accounts

# Five directors with a model server each. Two serve one model, one serves a model alone. The version of the fourth is
# deleted at times. The server of the fifth has OpenAI's API. The rest is as in production: an API, two keepers, a
# receiver of webhooks.

API: Final = "api-0"
MODELS: Final = ("chaos/shared", "chaos/alone")
CROWDED: Final = MODELS[0]  # its tenants want more than it can serve
IN_LINE: Final = MODELS[1]  # its lanes have one stream each, so the order of claims is exact
# The neighbours ask it for large outputs. Later its version is deleted while its director starts.
PASSING: Final = "chaos/passing"
SERVED: Final = (MODELS[0], MODELS[0], MODELS[1], PASSING, TALKER)  # the model of each director
SLOTS: Final = 8
TALKS: Final = {"runner": "openai", "runner_config": '{"model": "talker", "pass": ["user"]}'}
TALKS_AT_ONCE: Final = 3
EQUALS: Final = 6  # tenants besides the ordinary ones, which all want the same at once
# Further tenants: the bystander, then its neighbours in the order of `Tenants`. Some have limits.
NEIGHBOURS: Final = Tenants.__struct_fields__
LIMITS: Final = {
    "hoard": {"max_data_bytes": "8000000", "max_running": "4"},
    "poison": {"max_running": "4"},  # half of the slots of the model that it shares with the bystander
}
# The neighbours' slow connections come from an address of their own. All others come over the link, as over a proxy.
CONNECTIONS: Final = {"max_connections": 600, "max_peer_connections": 150, "trusted_proxies": "127.0.0.1"}
COGS: Final = tuple(f"cog-{n}" for n in range(len(SERVED)))
SLOTS_OF: Final = {name: TALKS_AT_ONCE if model == TALKER else SLOTS for name, model in zip(COGS, SERVED, strict=True)}
REDIS_CLIENTS: Final = (API, *(f"director-{n}" for n in range(len(SERVED))), *KEEPERS)
RUN_LIMIT_S: Final = 30  # ends a run that hangs and whose cancel was lost with its caller
DRAIN_S: Final = 5
BREAKER_COOL_S: Final = 5  # an open breaker hides a queue from the faults, so it closes again soon


class Role(Struct, frozen=True, kw_only=True):
    """`env` is the environment of its next start, `ready` the page that answers 200 once it is ready."""

    name: str
    command: Sequence[str]
    url: str
    ready: str
    env: dict[str, str]


def way_to(cog: str) -> str:
    """Return the name of the link over which its director reaches this model server."""
    return f"director-{cog.rpartition('-')[2]}:cog"


def cast(
    journals: Path,
    secrets: Path,
    redis_urls: Mapping[str, str],
    cog_urls: Mapping[str, str],
    *,
    lease_s: float,
    durability: str,
) -> list[list[Role]]:
    cogs = [
        _script(name, kind, [str(journals / f"{name}.jsonl"), name, str(SLOTS_OF[name])], ready=health)
        for name, model in zip(COGS, SERVED, strict=True)
        for kind, health in [("talker", "/health") if model == TALKER else ("cog", "/health-check")]
    ]
    shared: dict[str, object] = {"lease_s": lease_s, "webhook_allow": "loopback", "durability": durability}
    run: dict[str, object] = shared | {"run_limit_s": RUN_LIMIT_S, "drain_s": DRAIN_S}
    run["breaker_cool_s"] = BREAKER_COOL_S
    files: dict[str, object] = {"openai": True, "files_dir": journals.parent / "files"}  # keepers run batches with it
    directors = [
        _ours(
            f"director-{n}",
            "director run",
            redis_urls,
            "health_",
            model=model,
            servers=cog_urls.get(COGS[n], cogs[n].url),
            concurrent_predictions=SLOTS_OF[COGS[n]],
            **(run | TALKS if model == TALKER else run),
        )
        for n, model in enumerate(SERVED)
    ]
    return [
        [_ours(name, "director keeper", redis_urls, **(shared | files)) for name in KEEPERS],
        [_script(SINK, "sink", [str(journals / "sink.jsonl"), str(secrets)], ready="/health"), *cogs],
        directors,
        [_ours(API, "api", redis_urls, durability=durability, **(files | CONNECTIONS))],
    ]


def _script(name: str, kind: str, arguments: Sequence[str], *, ready: str) -> Role:
    port = quiet_port()
    return _role(name, ["director.lab.chaos.parties", kind, str(port), *arguments], port, ready)


def _ours(name: str, command: str, redis_urls: Mapping[str, str], health: str = "", /, **settings: object) -> Role:
    port = quiet_port()
    settings |= {f"{health}host": LOOPBACK, f"{health}port": port, "redis_url": redis_urls[name]}
    env = {PREFIX + setting.upper(): str(value) for setting, value in settings.items()}
    return _role(name, command.split(), port, "/readyz", **env)


def _role(name: str, command: Sequence[str], port: int, ready: str, **env: str) -> Role:
    # without the user's own settings, so that the same seed is the same run on every machine
    env |= {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    url = f"http://{LOOPBACK}:{port}"
    return Role(name=name, command=[sys.executable, "-P", "-m", *command], url=url, ready=url + ready, env=env)


MISSING: Final = "libfaketime is not installed"
# Debian and its derivatives have a folder for each architecture, other systems one for all
PLACES: Final = (
    "usr/lib/*/faketime/libfaketime.so.1",
    "usr/lib*/faketime/libfaketime.so.1",
    "usr/local/lib/faketime/libfaketime.so.1",
)


def find_library(wanted: str = "", *, places: Iterable[str] = PLACES) -> Path | None:
    """Return libfaketime: the file `wanted` if given, else the one that the system has, or None without one."""
    if wanted:
        return Path(wanted) if Path(wanted).is_file() else None
    return next((path for place in places for path in sorted(Path("/").glob(place))), None)


class SteppedClock:
    """The clock of a process that was started with libfaketime. `offset_s` is its lead over the machine's clock,
    `highest_s` the largest so far. CLOCK_MONOTONIC stays as it is.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.offset_s = self.highest_s = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        self.offset_s += seconds
        self.highest_s = max(self.highest_s, self.offset_s)
        self._write()

    def _write(self) -> None:
        # replaced in one move: a file that is read half written would be another step
        draft = self._file.with_name(f"{self._file.name}.new")
        draft.write_text(f"{self.offset_s:+d}\n")
        draft.replace(self._file)


FRONT: Final = "client:api"
RECEIVING: Final = f"webhooks:{SINK}"  # the link to the receiver
AGAIN_S: Final = 0.3
START_LIMIT_S: Final = 60.0
LOOK_S: Final = 0.02
SOON_S: Final = 0.002
ANSWER_S: Final = 2.0
DELETION_S: Final = 10.0  # seconds; the deletion goes over a slow link


class Rollout(Struct, frozen=True, kw_only=True):
    before: Path
    after: Path


class Options(Struct, frozen=True, kw_only=True):
    """The load lasts `seconds`, or longer until so many `predictions` are sent. Without `home`, the run uses a
    temporary folder, which stays only if `is_kept` or a promise was broken. A `rollout` has no peace before it and no
    rush, because fairness is judged within one release. `faketime` is the library that steps the server's clock, or ''
    for the system's. `kept_in` is the folder to which a campaign moves what stays of `home`.
    """

    seed: int
    seconds: float
    lease_s: float = 15.0
    tenants: int = 40
    home: Path | None = None
    is_kept: bool = False
    kept_in: Path | None = None
    calibration_s: float = 5.0
    has_faults: bool = True
    rollout: Rollout | None = None
    faketime: str = ""
    predictions: int = 0
    kind: ServerKind = SINGLE

    @property
    def left_out(self) -> str:
        """Which faults this run cannot have, and why; '' if it can have all."""
        if self.kind in LEFT_OUT:
            return LEFT_OUT[self.kind]
        return "" if find_library(self.faketime) else f"clock steps left out: {MISSING}"


@dataclass
class Scene:
    home: Home
    options: Options
    servers: Servers
    supervisor: Supervisor
    http: httpx.AsyncClient
    links: dict[str, Link] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    operator: str = ""  # the token of the operator
    to_delete: QueueName = field(init=False)  # the queue of the version that only the nemesis asks for
    clock: SteppedClock | None = None
    sink_url: str = ""  # over its link

    def __post_init__(self) -> None:
        self.journals.mkdir()
        library = None if self.options.left_out else find_library(self.options.faketime)
        self.clock = SteppedClock(library, self.home.path / "faketime") if library else None

    @property
    def journals(self) -> Path:
        return self.home.path / "journals"

    @property
    def redis(self) -> Redis:
        return self.servers.redis

    @property
    def names(self) -> list[str]:
        return [*self.servers.direct, *self.roles]

    @property
    def neighbours(self) -> Tenants:
        first = self.options.tenants + EQUALS + 1
        return Tenants(*range(first, first + len(NEIGHBOURS)))

    @property
    def stage(self) -> Stage:
        spared = {number for number, model in enumerate(SERVED) if model == PASSING}
        apart = {FRONT, *(f"director-{n}{link}" for n in spared for link in ("", ":redis"))}
        apart |= {COGS[n] for n in spared}
        links = [name for name in self.links if name not in apart]

        def hit(part: str) -> list[str]:
            return [name for name in self.roles if name.startswith(f"{part}-") and name not in apart]

        return Stage(
            directors=hit("director"),
            cogs=hit("cog"),
            apis=hit("api"),
            keepers=hit("keeper"),
            links=[name for name in links if name.endswith(TO_REDIS)],
            ways=[name for name in links if not name.endswith(TO_REDIS)],
            spared=[f"director-{n}" for n in spared],
            kind=self.options.kind,
            servers=list(self.servers.data),
            sentinels=[name for name in SENTINELS if name in self.servers.direct],
            has_clock=self.clock is not None,
        )

    async def queues(self) -> list[QueueName]:
        return sorted(QueueName(text(name)) for name in await ask(lambda: self.redis.smembers(keys.queues())))

    async def resize(self, *, streams: int, in_line: bool = False) -> None:
        scripts = Scripts(Gatherer(self.redis))
        for queue in await self.queues():
            if queue.startswith(f"{IN_LINE}:") is in_line:
                await scripts.resize(queue, streams=streams)

    async def until_listening(self, name: str) -> None:
        host, port = urlsplit(self.roles[name].url).netloc.split(":")
        while True:
            with suppress(OSError):
                await (await anyio.connect_tcp(host, int(port))).aclose()
                return
            await anyio.sleep(LOOK_S)

    async def until_known(self, queue: QueueName, *, is_known: bool) -> None:
        while True:
            with suppress(DirectorError):
                if bool(await ask(lambda: self.redis.exists(keys.meta(queue)))) is is_known:
                    return
            await anyio.sleep(SOON_S)

    async def delete_version(self, queue: QueueName) -> int:
        """Delete the version as if its directors had been silent for the required minute; 0 if no answer came."""
        client: Any = self.redis  # its types say str or bytes, but ours answers in bytes
        with suppress(DirectorError, httpx.TransportError):
            version = text(await ask(lambda: client.hget(keys.meta(queue), "version")) or b"")
            await ask(lambda: client.delete(keys.directors(queue)))
            headers = {"authorization": f"Bearer {self.operator}"}
            url = f"{self.roles[API].url}/v1/models/{PASSING}/versions/{version}"
            return (await self.http.delete(url, headers=headers, timeout=DELETION_S)).status_code
        return 0

    async def create_passing(self, *, key: str) -> httpx.Response | None:
        headers = {"authorization": f"Bearer {self.tokens[0]}", "idempotency-key": key}
        url = f"{self.roles[API].url}/v1/models/{PASSING}/predictions"
        with suppress(httpx.TransportError):
            return await self.http.post(url, headers=headers, json={"input": {}})
        return None

    def release(self, name: str, folder: str) -> None:
        self.roles[name].env["PYTHONPATH"] = folder

    def pid(self, name: str) -> int:
        marked = self.supervisor.marks.get(name)
        return marked.pid if marked else 0

    def is_alive(self, name: str) -> bool:
        marked = self.supervisor.marks.get(name)
        return marked is not None and is_alive(marked)

    async def find_synced(self) -> int:
        """Return a length of the server's log that is on the disk. The server answers only after it has synced all that
        it wrote before, so the length comes first.
        """
        length = size(self.home.valkey)
        await ask(self.redis.ping)
        return length

    def cut_power(self, synced: int, *, is_torn: bool) -> None:
        """Kill the server, and drop what its log has behind `find_synced`. There is no pause, so that nothing wakes or
        restarts the server meanwhile.
        """
        self.signal(SERVER, signal.SIGSTOP)
        until_stopped(self.pid(SERVER))
        cut(self.home.valkey, synced, is_torn=is_torn)
        self.signal(SERVER, signal.SIGKILL)

    def signal(self, name: str, number: signal.Signals) -> None:
        if self.is_alive(name):
            signal_group(self.pid(name), number)

    async def until_gone(self, name: str, pid: int) -> None:
        while self.pid(name) == pid and self.is_alive(name):  # noqa: ASYNC110 - the supervisor has no event for it
            await anyio.sleep(LOOK_S)

    async def until_restarted(self, name: str, pid: int) -> None:
        while self.pid(name) == pid:  # noqa: ASYNC110 - the supervisor has no event for it
            await anyio.sleep(LOOK_S)

    async def is_ready(self, name: str) -> bool:
        try:
            if name in self.servers.direct:
                return await self.servers.is_ready(name)
            return (await self.http.get(self.roles[name].ready)).status_code == httpx.codes.OK
        except (exceptions.RedisError, httpx.TransportError):
            return False

    async def until_ready(self, name: str) -> None:
        while not await self.is_ready(name):  # noqa: ASYNC110 - it has to be asked
            await anyio.sleep(LOOK_S)

    async def start(self) -> None:
        """Return when all are ready. Raises UpError when a process does not become ready."""
        redis_urls = await self.start_server()
        secrets = await self._make_accounts()
        durability = self.servers.durability
        # the neighbours' large outputs would fill this process, which also carries what the bystander asks for
        far = [name for name, model in zip(COGS, SERVED, strict=True) if model != PASSING]
        cog_urls = {name: await self._lead_to(name, way_to(name)) for name in far}
        self.sink_url = await self._lead_to(SINK, RECEIVING)
        lease_s = self.options.lease_s
        for roles in cast(self.journals, secrets, redis_urls, cog_urls, lease_s=lease_s, durability=durability):
            self.roles |= {role.name: role for role in roles}
            for role in roles:
                if self.options.rollout and role.name in REDIS_CLIENTS:
                    self.release(role.name, str(self.options.rollout.before))
            cwd, grace_s = self.home.path, DRAIN_S + 5
            # an environment is shared: it is read again at each start
            self.supervisor.start(
                [Part(name=each.name, command=each.command, env=each.env, cwd=cwd, grace_s=grace_s) for each in roles]
            )
        await self._link(FRONT).listen(upstream(self.roles[API].url))
        await until_ready(
            [Expected(role.name, [answers_200(role.ready)]) for role in self.roles.values()],
            home=self.home,
            supervisor=self.supervisor,
            say=lambda _: None,
            limit_s=START_LIMIT_S,
        )
        await self.resize(streams=1, in_line=True)
        [self.to_delete] = [queue for queue in await self.queues() if queue.startswith(f"{PASSING}:")]

    async def _lead_to(self, name: str, link: str) -> str:
        """Let a link lead to a process that has no port yet. Return the link's URL."""
        await self._link(link).listen(lambda: upstream(self.roles[name].url)())
        return f"http://{LOOPBACK}:{self.links[link].port}"

    @property
    def to_redis(self) -> list[Link]:
        return [link for name, link in self.links.items() if name.endswith(TO_REDIS)]

    async def start_server(self) -> dict[str, str]:
        """Return the servers' URL for each of their clients, which leads over its link."""
        with anyio.fail_after(START_LIMIT_S):
            await self.servers.start(self.supervisor, self.clock.environment if self.clock else {})
        return {
            name: await self.servers.lead(self._link(f"{name}{TO_REDIS}"), number)
            for number, name in enumerate(REDIS_CLIENTS)
        }

    async def _make_accounts(self) -> Path:
        accounts = Accounts(self.redis)
        secrets = {}
        for number in range(self.options.tenants + EQUALS + 1 + len(NEIGHBOURS)):
            self.tokens.append(await accounts.create_token(f"tenant-{number}"))
            [secrets[str(number)]] = await accounts.webhook_secrets(f"tenant-{number}")
        for name, limits in LIMITS.items():
            await accounts.set_limits(f"tenant-{getattr(self.neighbours, name)}", limits)
        self.operator = await accounts.create_token("operator", scopes=("read", "run", "admin"))
        path = self.home.path / "secrets.json"
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(secrets))
        return path

    def _link(self, name: str) -> Link:
        return self.links.setdefault(name, Link(name, self.options.seed))


@asynccontextmanager
async def open_scene(home: Home, options: Options) -> AsyncGenerator[Scene]:
    """Yield a scene in this new home, not started yet. No process of it is left after the block."""
    servers = KINDS[options.kind](home)
    log = home.log("supervisor")
    http = httpx.AsyncClient(trust_env=False, timeout=ANSWER_S)

    def say(line: str) -> None:
        with log.open("a") as file:
            file.write(f"{line}\n")

    def note() -> None:
        # so that `director down --home` can end what a killed run left, and `director queues --home` can look inside
        home.write(State(redis_url=servers.url).running(supervisor.marks))

    try:
        async with supervising(
            home=home, say=say, changed=note, first_pause_s=AGAIN_S, longest_pause_s=AGAIN_S
        ) as supervisor:
            scene = Scene(home, options, servers, supervisor, http)
            try:
                yield scene
            finally:
                with anyio.CancelScope(shield=True):
                    for link in scene.links.values():
                        await link.stop()
    finally:
        await http.aclose()
        await servers.aclose()
