"""Attend to the own models of an `up` or a `serve`: show how to call each when it is ready, say why one is not, and
start its server again when its files change. The setup of a model may take any time, and may fail: that ends nothing.
"""

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio
import httpx
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec import Raw, Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.local.home import Home, State
from director.local.launcher.folder import find_folder, fingerprint, keep_schema, make_schema
from director.local.launcher.processes import UpError
from director.local.models import Served
from director.local.supervisor import Supervisor
from director.local.usage import example_input, output_of, usage
from director.store.catalog import OPEN_SCHEMA, Catalog

LOOK_S: Final = 0.3
ANSWER_S: Final = 5.0
SOON_S: Final = 5.0
SLOW_S: Final = 60.0
LAST_LINES: Final = 8
CHECK: Final = "model"  # what a director calls its model at /readyz
FAILED: Final = "setup_failed"
SLOWLY: Final = "slow"
SLOW: Final = "{model} has not been ready for {seconds:.0f} s: {why}. A large model may still load its weights."
SOON: Final = "{model} is not ready yet: {why}."
OTHER_HEALTH: Final = (
    ' If it is ready all the same, name its own health check with --runner-config \'{"health": "/PATH"}\'. '
    "An empty one takes any answer."
)
KEY: Final = " Give the director its key: DIRECTOR_SERVER_HEADER='authorization: Bearer KEY'."
NOTHING_LISTENS: Final = " Start it, or correct the address in --http or --openai."
STILL_STARTS: Final = (
    " It still starts, or its --command does not listen at {url}: write {{port}} where it takes its port."
)
# Hints by the reason why a server other than Cog's is not ready: the first that fits
HINTS: Final = (
    (re.compile(r"answered (?:401|403|407) "), KEY),
    (re.compile(r"answered \d+ to GET |did not answer within"), OTHER_HEALTH),
)
NO_DIRECTOR: Final = "its director does not answer yet"
UNREACHABLE: Final = "cannot be reached"
NO_SCHEMA: Final = "Its server shows no schema, so inputs are not checked, and the page asks for JSON. "


class Attendant(Struct, kw_only=True, eq=False):
    """Looks after one model. `state`: the service that it is served by. `told`: what was last said of the model."""

    served: Served
    home: Home
    state: State
    redis: Redis
    supervisor: Supervisor
    say: Callable[[str], None]
    program: str
    python: str = ""
    told: str = ""
    has_been_ready: bool = False

    def start(self, tasks: TaskGroup, *, is_watching: bool) -> None:
        tasks.start_soon(self.run)
        if is_watching:
            tasks.start_soon(self.watch)

    async def run(self) -> None:
        began = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
            while True:
                why, start = await self._look(client)
                if why == "":
                    began = time.monotonic()
                    await self._tell(f"ready since {start}", self._how_to_ask)
                elif FAILED in why:
                    await self._tell(why, partial(self._in_words, f"{self._name}: {why}."))
                elif why == NO_DIRECTOR and time.monotonic() - began <= SLOW_S:
                    pass
                elif SOON_S < time.monotonic() - began <= SLOW_S and self.served.model.folder is None:
                    words = SOON.format(model=self._name, why=why.rstrip("."))
                    hint = self._hint(why)
                    await self._tell(f"soon{hint}", partial(self._in_words, words + hint))
                elif time.monotonic() - began > SLOW_S:
                    waited = SLOW.format(model=self._name, seconds=SLOW_S, why=why)
                    await self._tell(SLOWLY, partial(self._in_words, waited))
                await anyio.sleep(LOOK_S)

    async def watch(self) -> None:
        """Make the schema again, and restart the server, after each change of the folder's files."""
        if self.served.model.folder is None:
            return
        folder = self.served.model.folder
        seen = await to_thread.run_sync(fingerprint, folder.path)
        while True:
            await anyio.sleep(LOOK_S)
            now = await to_thread.run_sync(fingerprint, folder.path)
            if now == seen:
                continue
            seen = now
            try:
                folder = find_folder(folder.path, self.python)
                keep_schema(folder, await to_thread.run_sync(make_schema, folder))
            except (UpError, OSError) as exc:
                self.say(f"{self._name}: {exc} The server goes on as it was.")
                continue
            self.say(f"{self._name}: its files have changed, starting its server again")
            server = self.served.server
            assert server is not None  # noqa: S101 - for the type checker: a folder has a server
            env = {**server.env, **folder.said.environment, "COG_PREDICT_TYPE_STUB": folder.predict}
            await self.supervisor.restart(replace(server, env=env))

    @property
    def _name(self) -> str:
        return self.served.model.name

    async def _look(self, client: httpx.AsyncClient) -> tuple[str, str]:
        """Return why the model cannot run, '' if it can, and the last start of its server, as its director saw it."""
        try:
            found = (await client.get(self.served.ready_url)).json()
            missing = found["missing"]
            why = str(missing.get(CHECK) or "; ".join(missing.values()))
            return why, str(found.get("setup_run", {}).get("started_at"))
        except (httpx.TransportError, ValueError, KeyError, AttributeError):
            return NO_DIRECTOR, ""

    def _hint(self, why: str) -> str:
        if UNREACHABLE in why:
            return STILL_STARTS.format(url=self.served.url) if self.served.server is not None else NOTHING_LISTENS
        return next((hint for pattern, hint in HINTS if pattern.search(why)), "")

    async def _tell(self, told: str, words: Callable[[], Awaitable[str]]) -> None:
        if told != self.told:
            self.told = told
            self.say(await words())

    async def _how_to_ask(self) -> str:
        if self.has_been_ready:
            return f"{self._name} is ready again"
        try:
            schema = await self._schema()
        except BackendUnavailable as exc:
            self.told = ""  # Redis is away for a moment: say it when it answers
            return f"{self._name} is ready, and Redis is not: {exc}"
        self.has_been_ready = True
        document = msgspec.json.decode(schema)
        ready = f"{self._name} is ready. " + ("" if schema != OPEN_SCHEMA else NO_SCHEMA)
        how = usage(
            self._name,
            example_input(document),
            self.state,
            program=self.program,
            home=self.home.shown,
            output=output_of(document),
        )
        return f"\n{ready.strip()} {how}\n"

    async def _schema(self) -> Raw:
        catalog = Catalog(self.redis, Scripts(Gatherer(self.redis)), SystemClock())
        model = await catalog.model(self._name)
        version = await catalog.version(self._name, model.latest) if model is not None else None
        return OPEN_SCHEMA if version is None else version.schema

    async def _in_words(self, words: str) -> str:
        if self.served.server is None:
            return words
        part = self.served.server.name
        end = "".join(f"\n  {line}" for line in self.home.last_lines(part, LAST_LINES))
        return f"{words} The log of its server, {self.home.log(part)}, ends with:{end}"
