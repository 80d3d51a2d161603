"""Send script calls to Redis: calls made in one turn of the event loop leave in one write.

Every script is idempotent, so a call whose reply was lost is sent again. Canceling a caller never cancels the call.
"""

import asyncio
import hashlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from enum import StrEnum, auto
from functools import partial
from typing import Any, Final, Protocol

import hiredis
from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker import linker
from director.broker.cluster import Address, Cluster
from director.broker.connections import was_sent, without_frames
from director.broker.redis_client import GIVE_UP_S, PAUSE_S, SOCKET_TIMEOUT_S, TRIES, ClusterPipes, Pipes, unavailable
from director.core.errors import BackendUnavailable

log = logging.getLogger(__name__)

Arg = str | bytes | int | float | None

LARGEST_BATCH: Final = 256
# A pipeline is retried as a whole, and its first answer is read with its last one. Above this no call is added
BATCH_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 256 * 1024
# Items of one run of a script: Redis serves no other client meanwhile
MOST_ITEMS: Final = 32
ITEMS_BYTES: Final = 256 * 1024
RELIED_ON: Final = frozenset({"enlist"})  # by calls of the same turn of the loop
LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
NOT_CARRIED_OUT: Final = (exceptions.NoScriptError, *LOST)


class Traffic(StrEnum):
    """Kinds of calls that share pipelines. Urgent or small calls never wait behind large ones. Each call looks up its
    kind several times: of a plain Enum the hash is a function in Python.
    """

    SMALL = auto()
    HEARTBEATS = auto()
    LARGE_WRITES = auto()
    LARGE_READS = auto()


# Pipelines in flight at once: fewer than a pool has connections, so that a heartbeat finds one free.
AT_ONCE: Final[dict[Traffic, int]] = {Traffic.SMALL: 8, Traffic.LARGE_WRITES: 1, Traffic.LARGE_READS: 2}
Way = tuple[Address | None, Traffic]


class Meter(Protocol):
    """Receives the outcome of each round trip: the scripts that were answered, or the error."""

    def note_answer(self, took_s: float, scripts: Iterable[str] = ()) -> None: ...

    def note_failure(self, error: Exception) -> None: ...


class Script(Struct, frozen=True):
    """`takes_items`: one run of it carries out many calls, see lib/batch."""

    name: str
    text: str
    sha: str
    takes_items: bool

    @classmethod
    def load(cls, name: str, *, first: Sequence[str] = ()) -> "Script":
        shebang, _, body = linker.link(name).partition("\n")
        text = "\n".join([shebang, *map(linker.file, first), body])
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return cls(name, text, sha, takes_items="batch.each" in linker.names_in(linker.file(name)))


class Call(Struct):
    """Keys and arguments are packed, without the head of the command. `is_doubtful`: it may have run without an answer.

    `group`: see `Gatherer.call`; "" after a fault, when it is sent alone. `answer_bytes`: 0 if unknown.
    `asked_s`: by the loop's clock.
    `refusal`: the server's last error, after which it is sent again.
    """

    script: Script
    key: str
    keys: bytes
    args: bytes
    # how many words both are
    counts: tuple[int, int]
    size: int
    answer: "asyncio.Future[Any]"
    group: str
    answer_bytes: int
    asked_s: float
    is_doubtful: bool = False
    refusal: Exception | None = None

    @property
    def is_answered(self) -> bool:
        return self.answer.done() and not self.answer.cancelled()


class Gatherer:
    """Gathers script calls to one Redis server, or to each master of a Cluster.

    While `at_once` writes of small calls are in flight, further calls are gathered: many callers share a few large
    writes. Each master and each kind of `Traffic` has its own writes, so none delays another.
    """

    def __init__(self, redis: Redis, *, at_once: int | None = None, meter: Meter | None = None) -> None:
        self.redis = redis
        self._meter = meter
        self._slots = redis.slots if isinstance(redis, Cluster) else None
        self._pipes: Pipes | ClusterPipes = (
            Pipes(redis, timeout_s=SOCKET_TIMEOUT_S)
            if self._slots is None
            else ClusterPipes(self._slots, timeout_s=SOCKET_TIMEOUT_S)
        )
        self._at_once = AT_ONCE if at_once is None else {**AT_ONCE, Traffic.SMALL: at_once}
        self._scripts: dict[str, Script] = {}
        self._waiting: dict[Way, deque[Call]] = {}
        self._sending: defaultdict[Way, set[asyncio.Task[None]]] = defaultdict(set)

    def call(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        traffic: Traffic = Traffic.SMALL,
        answer_bytes: int = 0,
        group: str = "",
    ) -> "asyncio.Future[Any]":
        """Run a script, with None as ''. The result is its reply as redis-py has it, or BackendUnavailable while Redis
        cannot answer.

        Whether the call was carried out is then unknown, unless `is_untouched` is set. It is sent also if the result is
        not awaited. `group`: calls of a script that takes items share one run if they have the same group, in one slot
        of a Cluster.
        """
        loop = asyncio.get_running_loop()
        script = self._script(name)
        words = ["" if arg is None else arg for arg in args]
        if script.takes_items:
            words.insert(0, len(words))
        # packed here, so that text which cannot be sent fails its own caller and not the whole pipeline
        packed = _pack(keys), _pack(words)
        size, counts = len(packed[0]) + len(packed[1]), (len(keys), len(words))
        call = Call(script, keys[0], *packed, counts, size, loop.create_future(), group, answer_bytes, loop.time())
        if size >= LARGE_BYTES:
            traffic = Traffic.LARGE_WRITES
        way = (None if self._slots is None else self._slots.owner(keys[0]), traffic)
        waiting = self._waiting.get(way)
        if waiting is None:
            waiting = self._waiting[way] = deque()
            loop.call_soon(self._send, way)
        waiting.append(call)
        return call.answer

    def pack(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> bytes:
        """Return the command of a call that its caller sends, of a script that takes no items."""
        given = ["" if arg is None else arg for arg in args]
        words: tuple[Any, ...] = ("EVALSHA", self._script(name).sha, len(keys), *keys, *given)
        command: bytes = hiredis.pack_command(words)
        return command

    def _script(self, name: str) -> Script:
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = Script.load(name, first=() if self._slots is None else linker.IN_CLUSTER)
        return script

    async def aclose(self) -> None:
        while self._waiting or any(self._sending.values()):
            await asyncio.sleep(0)  # calls of this turn of the loop are in flight after it
            if sending := set().union(*self._sending.values()):
                await asyncio.wait(sending)
        await self._pipes.aclose()

    def _send(self, way: Way) -> None:
        sending, waiting = self._sending[way], self._waiting.get(way)
        most = self._at_once.get(way[1])
        while waiting and (most is None or len(sending) < most):  # else the first pipeline to return sends them
            if calls := _batch(waiting):
                task = asyncio.get_running_loop().create_task(self._deliver(way, calls))
                sending.add(task)
                task.add_done_callback(partial(self._came_back, way))
        if not waiting:
            self._waiting.pop(way, None)

    def _came_back(self, way: Way, task: asyncio.Task[None]) -> None:
        self._sending[way].discard(task)
        if way in self._waiting and way[1] in self._at_once:
            self._send(way)

    async def _deliver(self, way: Way, calls: list[Call]) -> None:
        give_up = asyncio.get_running_loop().time() + GIVE_UP_S
        for attempt in range(1, TRIES + 1):
            try:
                calls = await self._send_once(calls)
            except Exception as exc:  # noqa: BLE001 - every caller must hear of it, whatever it is
                away = unavailable(exc)
                if away is not None:
                    without_frames(exc)
                    if self._meter is not None:
                        self._meter.note_failure(exc)
                calls = [call for call in calls if not call.is_answered]
                for call in calls:
                    call.group = ""
                    call.is_doubtful = call.is_doubtful or was_sent(exc)
                if away is None or attempt == TRIES or asyncio.get_running_loop().time() > give_up:
                    for call in calls:
                        _fail(call, exc)
                    if away is not None:
                        self._fail_waiting(way, exc)
                    return
                log.info("redis did not answer, asking again", extra={"error": type(exc).__name__, "attempt": attempt})
                await self.redis.connection_pool.disconnect(inuse_connections=False)
                await asyncio.sleep(PAUSE_S * attempt)
            else:
                if not calls:
                    return
        for call in calls:
            _fail(call, call.refusal or exceptions.NoScriptError())

    def _fail_waiting(self, way: Way, exc: Exception) -> None:
        """Fail calls that have waited for a pipeline as long as a call is tried. Else each one that fails lets the rest
        wait for the next one: with 2,000 calls a second to a server that vanished, they waited 15 s after 15 s.
        """
        waiting = self._waiting.get(way, ())
        since = asyncio.get_running_loop().time() - GIVE_UP_S
        while waiting and waiting[0].asked_s < since:
            _fail(waiting.popleft(), exc)

    async def _send_once(self, calls: list[Call]) -> list[Call]:
        """Send all in one pipeline; return the calls to send again. Raises if others were not answered."""
        began = time.perf_counter()
        runs = _runs(calls)
        names = () if self._slots is None else [run[0].key for run in runs]
        replies = await self._pipes.ask(list(map(_command, runs)), names)
        took_s = time.perf_counter() - began
        again: list[Call] = []
        unknown: list[Call] = []
        lost: list[Exception] = []
        for run, reply in zip(runs, replies, strict=True):
            if isinstance(reply, exceptions.NoScriptError):
                unknown.append(run[0])
                for call in run:
                    call.refusal = reply
                again += run
            elif isinstance(reply, LOST):
                lost.append(reply)
            else:
                again += _answer(run, reply)
        if self._meter is not None:
            carried_out = zip(runs, replies, strict=True)
            named = [run[0].script.name for run, reply in carried_out if not isinstance(reply, NOT_CARRIED_OUT)]
            self._meter.note_answer(took_s, named)
        missing: dict[tuple[Redis, str], None] = {}  # each master has scripts of its own
        for call in unknown:
            at = self.redis if self._slots is None else await self._slots.serving(call.key)
            missing[at, call.script.text] = None
        for at, text in missing:  # in the order of the calls, so that one that others rely on is known before them
            await at.script_load(text)
        if lost:
            raise next(filter(was_sent, lost), lost[0])
        return again


def _runs(calls: list[Call]) -> list[list[Call]]:
    """Return the calls of each run of a script, in an order in which none comes before what it relies on: a run has the
    place of its last call, and one that others rely on that of its first.
    """
    runs: dict[int, list[Call]] = {}
    open_runs: dict[tuple[str, str], list[Call]] = {}
    left: dict[tuple[str, str], int] = {}
    for call in calls:
        way = (call.script.name, call.group)
        run = open_runs.get(way) if call.group else None
        if run is None or len(run) == MOST_ITEMS or call.size > left[way]:
            run, left[way] = [], ITEMS_BYTES
            open_runs[way] = run
        elif call.script.name not in RELIED_ON:
            del runs[id(run)]
        run.append(call)
        left[way] -= call.size
        runs[id(run)] = run
    return list(runs.values())


def _command(run: list[Call]) -> bytes:
    keys, args = (sum(counts) for counts in zip(*(call.counts for call in run), strict=True))
    head = _pack(("EVALSHA", run[0].script.sha, keys))
    return b"".join([b"*%d\r\n" % (3 + keys + args), head, *(call.keys for call in run), *(call.args for call in run)])


def _pack(words: Sequence[Arg]) -> bytes:
    """Return words of a command without the number in front of them."""
    whole: tuple[Any, ...] = tuple(words)
    command: bytes = hiredis.pack_command(whole)
    return command[command.index(b"\n") + 1 :]


def _answer(run: list[Call], reply: Any) -> list[Call]:
    """Answer the calls of a run. Returns the calls to send again alone, because an item of their run was at fault. An
    error that says that Redis is away or full has nothing to do with an item: all get it, and none is sent again.
    """
    is_whole = isinstance(reply, Exception) or not run[0].script.takes_items
    is_of_server = isinstance(reply, Exception) and unavailable(reply) is not None
    again = []
    for call, own in zip(run, [reply] * len(run) if is_whole else reply, strict=True):
        if not isinstance(own, Exception):
            if not call.answer.done():
                call.answer.set_result(own)
        elif len(run) > 1 and not is_of_server:
            call.group = ""
            call.is_doubtful = call.is_doubtful or not is_whole  # an item at fault may be half written
            call.refusal = own
            again.append(call)
        else:
            _fail(call, own)
    return again


def _batch(waiting: deque[Call]) -> list[Call]:
    """Take the calls of one pipeline. A large read whose caller is gone is dropped: it changes nothing."""
    calls: list[Call] = []
    weight = 0
    while waiting and weight < BATCH_BYTES and len(calls) < LARGEST_BATCH:
        call = waiting.popleft()
        if call.answer_bytes >= LARGE_BYTES and call.answer.cancelled():
            continue
        calls.append(call)
        weight += call.size + call.answer_bytes
    return calls


def _fail(call: Call, error: Exception) -> None:
    """Fail a call. An error reply from the server means that the script did not run."""
    if call.answer.done():
        return
    away = unavailable(error)
    if isinstance(error, exceptions.NoScriptError):
        away = BackendUnavailable(f"Redis forgets its scripts as fast as they are loaded: {error}")
    if away is not None:
        away.is_untouched, away.__cause__ = not call.is_doubtful, error
    call.answer.set_exception(away or error)
    call.answer.exception()  # the caller may be gone; this keeps asyncio from logging an unread exception
