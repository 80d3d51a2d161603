"""Run `director up` and `director down`: start a whole service in one home, and end it. It says that all is ready only
when it is, and never leaves a process behind.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.durability import Server, check
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client, describe
from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable
from director.core.settings import PREFIX, CommonSettings, load
from director.local import DEFAULT_HOME, parts
from director.local.attendance import Attendant
from director.local.home import UP, Home, State
from director.local.launcher.processes import UpError, claimable, end, is_alive, mark
from director.local.models import Model, Served, Surroundings, examples, label, plan_processes
from director.local.parts import (
    Expected,
    answers_200,
    is_registered,
    refuse_if_hopeless,
    runs_models,
    until_ready,
)
from director.local.server import VALKEY, EmbeddedServer, find_binary
from director.local.supervisor import Supervisor, until_signal
from director.local.usage import how_to_serve, usage
from director.runtime.startup import raise_descriptor_limit
from director.store.accounts import ROLES, Accounts, digest
from director.store.sessions import Sessions

UP_GRACE_S: Final = 60.0  # `up` drains its directors before it ends
PART_GRACE_S: Final = 10.0
LOOK_S: Final = 0.2
NOTE_S: Final = 1.0
EXAMPLE: Final = "example/hello"
INPUT: Final = {"text": "hello", "n": 3}
PIECES: Final = {"x-cog-array-display": "concatenate"}
LOCAL: Final = "loopback"
ACCOUNT: Final = "local"
START_LIMIT_S: Final = 60.0
LINK_S: Final = 3600.0
STOPPED: Final = 0
INTERRUPTED: Final = 130
WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared with, not bound

PROMISES: Final = {
    "always": "accepted predictions survive a power cut",
    "replicated": "accepted predictions survive a failover",
    "everysec": "a power cut may cost the last two seconds",
    "memory": "in memory only: a restart of the server loses everything",
}


class Options(Struct, frozen=True, kw_only=True):
    """The options of the command line. `redis_url` wins over `redis_server`; without both, the wheel has Valkey.
    `on_ready` is called once all is up. `models` are the user's own. `python`: what runs them, for a folder that
    changes while it is watched.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    home: Path = Path(DEFAULT_HOME)
    has_examples: bool = True
    redis_url: str = ""
    redis_server: str = ""
    is_verbose: bool = False
    models: Sequence[Model] = ()
    python: str = ""
    is_watched: bool = False
    on_ready: Callable[[State], None] = lambda _: None


def up(options: Options, say: Callable[[str], None]) -> int:
    """Run until a signal; return the exit code. Raises UpError, or what makes Redis unfit, after all is ended."""
    raise_descriptor_limit()
    home = Home(options.home)
    home.make()
    with home.lock():
        end_leftovers(home)
        port = claimable(options.host, options.port)
        say(f"starting in {home.shown}")
        try:
            return anyio.run(Up(options, home, port, say).run)
        finally:
            with suppress(OSError):  # a full disk: the next `up` finds that nothing of it is alive
                home.write(home.read().without_processes())


class Up:
    def __init__(self, options: Options, home: Home, port: int, say: Callable[[str], None]) -> None:
        self._options = options
        self._home = home
        self._say = say
        self._port = port
        self._url = f"http://{_in_url(WILDCARDS.get(options.host, options.host))}:{port}"
        self._state = msgspec.structs.replace(home.read().without_processes(), url=self._url)
        self._is_ready = False
        self._is_noted = True

    async def run(self) -> int:
        await until_signal(self._start, home=self._home, say=self._say, changed=self._note)
        return STOPPED if self._is_ready else INTERRUPTED

    async def _start(self, supervisor: Supervisor, tasks: TaskGroup) -> None:
        self._supervisor = supervisor
        self._note()
        tasks.start_soon(self._note_again)
        if self._options.is_verbose:
            tasks.start_soon(follow, self._home, self._say)
        redis_url, server = await self._start_server()
        around = Surroundings(
            home=self._home,
            redis_url=redis_url,
            files_dir=os.environ.get(PREFIX + "FILES_DIR", "") or str(self._home.files),
            webhook_allow=",".join(filter(None, [os.environ.get(PREFIX + "WEBHOOK_ALLOW", ""), LOCAL])),
        )
        async with connect(redis_url) as redis:
            token = await Accounts(redis).create_token(ACCOUNT, scopes=ROLES["admin"], token=self._state.token or None)
            all_served = [plan_processes(one, around) for one in label([*self._examples(), *self._options.models])]
            self._state = msgspec.structs.replace(
                self._state,
                token=token,
                redis_url=redis_url,
                files_dir=around.files_dir,
                webhook_allow=around.webhook_allow,
                servers={one.model.name: one.url for one in all_served},
            )
            await until_ready(
                self._start_parts(redis, around, all_served),
                home=self._home,
                supervisor=self._supervisor,
                say=self._say,
                limit_s=START_LIMIT_S,
            )
            self._is_ready = True
            program, home = program_name(), self._home.shown
            page = f"{self._url}/#/login/{await make_link(redis, token)}"
            self._options.on_ready(self._state)
            self._say(banner(self._state, program=program, home=home, promise=PROMISES[server.level], page=page))
            own = [one for one in all_served if not one.model.is_example]
            for one in own:
                attendant = Attendant(
                    served=one,
                    home=self._home,
                    state=self._state,
                    redis=redis,
                    supervisor=supervisor,
                    say=self._say,
                    program=program,
                    python=self._options.python,
                )
                attendant.start(tasks, is_watching=self._options.is_watched)
            await anyio.sleep_forever()

    def _start_parts(self, redis: Redis, around: Surroundings, all_served: Sequence[Served]) -> list[Expected]:
        """Start all but the server. The reverse order ends the API first, then the runs, then what runs need."""
        keeper, keeper_url = parts.keeper(around)
        api = parts.api(around, host=self._options.host, port=self._port)
        servers = [one.server for one in all_served if one.server is not None]
        for stage in ([keeper], servers, [one.director for one in all_served], [api]):
            self._supervisor.start(stage)
        awaited = [one for one in all_served if one.model.is_example]  # the setup of an own model may take any time
        return [
            Expected(keeper.name, [answers_200(keeper_url)]),
            Expected(api.name, [answers_200(f"{self._url}/readyz")]),
            *(Expected(f"model-{one.model.label}", [runs_models(one.url)]) for one in awaited),
            *(Expected(one.director.name, [answers_200(one.ready_url), is_registered(redis, one)]) for one in awaited),
        ]

    async def _start_server(self) -> tuple[str, Server]:
        url = self._options.redis_url
        if not url:
            embedded = EmbeddedServer(self._home.valkey, find_binary(self._options.redis_server))
            embedded.prepare()
            url = embedded.url
            self._supervisor.start([embedded.part(self._home.path)])
        async with connect(url) as redis:
            found = await self._until_it_answers(redis, url)
        self._say(f"{found.kind} {found.version} is ready")
        return url, found

    async def _until_it_answers(self, redis: Redis, url: str) -> Server:
        settings = load(CommonSettings, redis_url=url)
        with anyio.move_on_after(START_LIMIT_S):
            while True:
                try:
                    return await check(redis, settings)
                except BackendUnavailable as exc:
                    if self._options.redis_url:
                        raise UpError(
                            f"Nothing answers at {describe(url)}. Start Redis there, or leave out --redis."
                        ) from exc
                    refuse_if_hopeless(VALKEY, self._home, self._supervisor)
                await anyio.sleep(0.05)
        raise UpError(f"{VALKEY} did not answer within {START_LIMIT_S:g} s. Its log is {self._home.log(VALKEY)}.")

    def _examples(self) -> list[Model]:
        if not self._options.has_examples:
            return []
        if missing := parts.missing_for_examples():
            self._say(f"without the example models, which need {' and '.join(missing)} in the environment of director")
            return []
        return examples()

    def _note(self) -> None:
        """Write what runs. On a full disk `_note_again` does it later: that is no reason to end what runs."""
        own = mark(os.getpid())
        self._state = self._state.running(({UP: own} if own else {}) | self._supervisor.marks)
        try:
            self._home.write(self._state)
        except OSError as exc:
            if self._is_noted:
                self._say(f"{self._home.state_file} cannot be written ({exc.strerror}); trying again")
            self._is_noted = False
        else:
            self._is_noted = True

    async def _note_again(self) -> None:
        while True:
            await anyio.sleep(NOTE_S)
            if not self._is_noted:
                self._note()


def program_name() -> str:
    typed = sys.argv[0]
    if Path(typed).name != "director":  # run with -m
        return f"{shlex.quote(sys.executable)} -m director"
    return "director" if typed == shutil.which("director") else shlex.quote(typed)


def connect(url: str) -> AbstractAsyncContextManager[Redis]:
    return aclosing(client(url, name="director-up"))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def make_link(redis: Redis, token: str) -> str:
    """Return the end of a link that logs this user in at the page, once."""
    gatherer = Gatherer(redis)
    try:
        sessions = Sessions(redis, Scripts(gatherer))
        made = await sessions.link(ACCOUNT, digest(token), ROLES["admin"], life_s=LINK_S)
        return made.secret
    finally:
        await gatherer.aclose()


def banner(state: State, *, program: str, home: str, promise: str, page: str) -> str:
    """Return what `up` prints when all is ready. The token is shown to the user, a password of Redis never. `page`: the
    link that logs in.
    """
    url, token = state.url, state.token
    facts = {
        "token": token,
        "page": f"{page} (logs you in once, within an hour)",
        "data": f"{home} ({promise})",
    }
    parts = ["\n".join((f"\nDirector is up at {url}", *(f"  {name:<6} {value}" for name, value in facts.items())))]
    if EXAMPLE in state.servers:
        parts.append(usage(EXAMPLE, INPUT, state, program=program, home=home, output=PIECES))
    parts.append(how_to_serve(program=program, home=home))
    parts.append("Webhooks may go to addresses of this machine. Ctrl-C ends everything; the data stays.\n")
    return "\n\n".join(parts)


async def follow(home: Home, say: Callable[[str], None]) -> None:
    ends = {log: log.stat().st_size for log in _logs(home)}
    while True:
        for log in _logs(home):
            ends[log] = _say_new(log, ends.get(log, 0), say)
        await anyio.sleep(LOOK_S)


def _logs(home: Home) -> list[Path]:
    return sorted(home.path.glob("logs/*.log"))


def _say_new(log: Path, shown: int, say: Callable[[str], None]) -> int:
    """Return the new position. A log that was cut is shown again."""
    if log.stat().st_size < shown:
        shown = 0
    with log.open("rb") as file:
        file.seek(shown)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        say(f"{log.stem:>18} | {line}")
    return shown + len(whole)


def down(home: Home) -> bool:
    """End the `up` of this home and all that a killed `up` left. Return True if there was something. Safe to repeat."""
    up = home.read().processes.get(UP)
    was_up = up is not None and is_alive(up)
    if up is not None:
        end(up, grace_s=UP_GRACE_S)
    return end_leftovers(home) or was_up


def end_leftovers(home: Home) -> bool:
    """End the parts that `up.json` still names while no `up` runs, Valkey last. Return True if there were any."""
    state = home.read()
    left = [one for name, one in state.processes.items() if name != UP and is_alive(one)]
    for one in reversed(left):
        end(one, grace_s=PART_GRACE_S)
    if state.pids:
        home.write(state.without_processes())
    return bool(left)
