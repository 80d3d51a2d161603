"""Send script calls to Redis: those made in one turn of the loop leave in one write.

Knows nothing of what a script does. Every script is idempotent, so a call whose reply was lost is sent again.
A caller that is canceled abandons its answer, never the call: state-changing work is not cut in half.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from importlib.resources import files
from typing import Any, Final, Protocol

import hiredis
from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker.cluster import Address, Cluster
from director.broker.connections import was_sent
from director.broker.pipes import ClusterPipes, Pipes
from director.broker.redis_client import GIVE_UP_S, PAUSE_S, SOCKET_TIMEOUT_S, TRIES, unavailable
from director.core.errors import BackendUnavailable

log = logging.getLogger(__name__)

Arg = str | bytes | int | float

LARGEST_BATCH: Final = 256
# A pipeline is sent again as a whole, and its first answer is heard with its last one. No call is added above this
BATCH_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 256 * 1024
# Of a part of lua/lib/: a function, up to the `end` that closes its only line or stands at the left; or any other line
BLOCKS: Final = re.compile(
    r"^local function (?P<name>\w+)(?:.* end$|(?s:.*?)^end$)|^(?!local function ).*$", re.MULTILINE
)
WORDS: Final = re.compile(r"[A-Za-z_]\w*")
COMMENT: Final = re.compile(r"--.*")
# Nothing is known of what was asked: it is asked again
LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
NOT_CARRIED_OUT: Final = (exceptions.NoScriptError, *LOST)
# What goes before every script there
IN_CLUSTER: Final = ("lib/slot",)


def source(name: str) -> str:
    """The text of a script with the parts of lua/lib/ that its header names put in front, below the shebang.

    Functions of them that it does not come to are left out: a server makes each one anew whenever the script is run.
    """
    shebang, _, body = _file(name).partition("\n")
    uses = next((line for line in body.splitlines() if line.startswith("-- Uses ")), "-- Uses ")
    return "\n".join([shebang, *_needed("\n".join(map(_file, uses.split()[2:])), body), body])


def _needed(parts: str, body: str) -> Iterator[str]:
    """The blocks of these parts, but for functions that neither the body nor another block that is needed names."""
    blocks = [(match["name"] or "", match[0]) for match in BLOCKS.finditer(parts)]
    needed, words = {""}, _words(body) | {""}
    while words:
        needed |= words
        found = [text for name, text in blocks if name in words]
        words = set().union(*map(_words, found)) - needed
    return (text for name, text in blocks if name in needed)


def _words(text: str) -> set[str]:
    return set(WORDS.findall(COMMENT.sub("", text)))


def _led_by(parts: Sequence[str], text: str) -> str:
    shebang, _, body = text.partition("\n")
    return "\n".join([shebang, *map(_file, parts), body])


def _file(name: str) -> str:
    return files("lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")


class Traffic(Enum):
    """Calls that share pipelines. What is urgent or small never waits behind what is large."""

    SMALL = auto()
    BEATS = auto()
    LARGE_WRITES = auto()
    LARGE_READS = auto()


# Pipelines on their way at once: fewer than a pool has connections, so that a heartbeat finds one free.
# Large writes are carried out in their order
AT_ONCE: Final[dict[Traffic, int]] = {Traffic.SMALL: 8, Traffic.LARGE_WRITES: 1, Traffic.LARGE_READS: 2}
Way = tuple[Address | None, Traffic]


class Meter(Protocol):
    """Hears of each round trip: that it came back with the answers of these scripts, or did not."""

    def answered(self, took_s: float, scripts: Iterable[str] = ()) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Script(Struct, frozen=True):
    """A script as the server knows it."""

    name: str
    text: str
    sha: str

    @classmethod
    def load(cls, name: str, *, first: Sequence[str] = ()) -> "Script":
        text = _led_by(first, source(name))
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Call(Struct):
    """One script call on its way, as it is sent, and the future its caller awaits. `is_doubtful`: the server may have
    carried it out, although its answer did not come back. `weight`: bytes of the command and, if known, of its answer.
    """

    script: Script
    key: str
    command: bytes
    answer: "asyncio.Future[Any]"
    weight: int
    is_doubtful: bool = False

    @property
    def is_answered(self) -> bool:
        """Did its caller hear? One that is gone never does."""
        return self.answer.done() and not self.answer.cancelled()


class Gatherer:
    """Script calls to one Redis server, or to each master of a Cluster, gathered.

    While `at_once` writes of small calls are on their way, calls are gathered until one of them has come back: a crowd
    of callers then shares a few large writes, instead of waiting for a connection each until that takes too long. The
    calls to each master go by themselves: one that is away holds up none to another. So does each kind of `Traffic`.
    """

    def __init__(self, redis: Redis, *, at_once: int | None = None, meter: Meter | None = None) -> None:
        self.redis = redis
        self._meter = meter
        self._slots = redis.slots if isinstance(redis, Cluster) else None
        self._pipes = Pipes(redis, timeout_s=SOCKET_TIMEOUT_S)
        self._routes = None if self._slots is None else ClusterPipes(self._slots, timeout_s=SOCKET_TIMEOUT_S)
        self._at_once = AT_ONCE if at_once is None else {**AT_ONCE, Traffic.SMALL: at_once}
        self._scripts: dict[str, Script] = {}
        self._waiting: dict[Way, deque[Call]] = {}
        self._sending: defaultdict[Way, set[asyncio.Task[None]]] = defaultdict(set)

    async def call(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        traffic: Traffic = Traffic.SMALL,
        answer_bytes: int = 0,
    ) -> Any:
        """Run a script and return its reply as redis-py gives it. A large command is a large write by itself.

        Raises BackendUnavailable while Redis cannot answer; whether the call was carried out is then unknown, unless
        that says so.
        """
        return await self.begin(name, keys, args, traffic=traffic, answer_bytes=answer_bytes)

    def begin(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        traffic: Traffic = Traffic.SMALL,
        answer_bytes: int = 0,
    ) -> "asyncio.Future[Any]":
        """As `call`, for who has more to ask in the same write: it goes on by itself, and needs no task for that."""
        loop = asyncio.get_running_loop()
        # packed here, so that text which cannot be sent fails its own caller, not every call of the pipeline
        script, command = self._script(name), self.packed(name, keys, args)
        call = Call(script, keys[0], command, loop.create_future(), len(command) + answer_bytes)
        if len(command) >= LARGE_BYTES:
            traffic = Traffic.LARGE_WRITES
        way = (None if self._slots is None else self._slots.owner(keys[0]), traffic)
        waiting = self._waiting.get(way)
        if waiting is None:
            waiting = self._waiting[way] = deque()
            loop.call_soon(self._send, way)
        waiting.append(call)
        return call.answer

    def packed(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> bytes:
        """The call as it goes over the wire, for whoever sends it in another way."""
        words: tuple[Any, ...] = ("EVALSHA", self._script(name).sha, len(keys), *keys, *args)
        command: bytes = hiredis.pack_command(words)
        return command

    def _script(self, name: str) -> Script:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = Script.load(name, first=() if self._slots is None else IN_CLUSTER)
        return script

    async def aclose(self) -> None:
        """Let calls that are on their way come back."""
        while self._waiting or any(self._sending.values()):
            await asyncio.sleep(0)  # calls of this very turn are on their way after it
            if sending := set().union(*self._sending.values()):
                await asyncio.wait(sending)
        await self._pipes.aclose()
        if self._routes is not None:
            await self._routes.aclose()

    def _send(self, way: Way) -> None:
        sending, waiting = self._sending[way], self._waiting.get(way)
        most = self._at_once.get(way[1])
        while waiting and (most is None or len(sending) < most):  # else whichever comes back first sends them
            if calls := _batch(waiting):
                task = asyncio.get_running_loop().create_task(self._deliver(calls))
                sending.add(task)
                task.add_done_callback(partial(self._came_back, way))
        if not waiting:
            self._waiting.pop(way, None)

    def _came_back(self, way: Way, task: asyncio.Task[None]) -> None:
        self._sending[way].discard(task)
        if way in self._waiting and way[1] in self._at_once:
            self._send(way)

    async def _deliver(self, calls: list[Call]) -> None:
        give_up = asyncio.get_running_loop().time() + GIVE_UP_S
        for attempt in range(1, TRIES + 1):
            try:
                calls = await self._send_once(calls)
            except Exception as exc:  # noqa: BLE001 - every caller must hear of it, whatever it is
                away = unavailable(exc)
                if away is not None and self._meter is not None:
                    self._meter.failed(exc)
                calls = [call for call in calls if not call.is_answered]
                if was_sent(exc):
                    for call in calls:
                        call.is_doubtful = True
                if away is None or attempt == TRIES or asyncio.get_running_loop().time() > give_up:
                    for call in calls:
                        _fail(call, exc)
                    return
                log.info("redis did not answer, asking again", extra={"error": type(exc).__name__, "attempt": attempt})
                await self.redis.connection_pool.disconnect(inuse_connections=False)
                await asyncio.sleep(PAUSE_S * attempt)
            else:
                if not calls:
                    return
        for call in calls:
            _fail(call, BackendUnavailable("Redis forgets its scripts as fast as they are loaded"))

    async def _send_once(self, calls: list[Call]) -> list[Call]:
        """Send all in one pipeline; return those that the server does not know the script of.

        Raises where some were not answered; others may be.
        """
        began = time.perf_counter()
        commands = [call.command for call in calls]
        if self._routes is None:
            replies = await self._pipes.ask(commands, answers=len(calls))
        else:
            replies = await self._routes.ask(commands, [call.key for call in calls])
        took_s = time.perf_counter() - began
        unknown: list[Call] = []
        lost: list[Exception] = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, exceptions.NoScriptError):
                unknown.append(call)
            elif isinstance(reply, LOST):
                lost.append(reply)
            elif isinstance(reply, Exception):
                _fail(call, reply)
            elif not call.answer.done():
                call.answer.set_result(reply)
        if self._meter is not None:
            carried_out = zip(calls, replies, strict=True)
            named = [call.script.name for call, reply in carried_out if not isinstance(reply, NOT_CARRIED_OUT)]
            self._meter.answered(took_s, named)
        for call in {call.script.text: call for call in unknown}.values():
            at = self.redis if self._slots is None else await self._slots.serving(call.key)
            await at.script_load(call.script.text)
        if lost:
            raise next(filter(was_sent, lost), lost[0])
        return unknown


def _batch(waiting: deque[Call]) -> list[Call]:
    """Take the calls of one pipeline. A large read whose caller has gone is left out: nothing is changed by it."""
    calls: list[Call] = []
    weight = 0
    while waiting and weight < BATCH_BYTES and len(calls) < LARGEST_BATCH:
        call = waiting.popleft()
        if call.weight - len(call.command) >= LARGE_BYTES and call.answer.cancelled():
            continue
        calls.append(call)
        weight += call.weight
    return calls


def _fail(call: Call, error: Exception) -> None:
    """What a server answers instead of a result, it answers instead of carrying it out."""
    if call.answer.done():
        return
    if away := unavailable(error):
        away.is_untouched, away.__cause__ = not call.is_doubtful, error
    call.answer.set_exception(away or error)
    call.answer.exception()  # who began it may be gone: nobody is left to be told
