"""Read what Redis holds once a run is at rest: predictions, leftovers, and the server's log of all changes. This
module calls no code under judgment: it sends plain commands on the keys that broker/keys.py names, and walks the
whole keyspace, which no path of the product does.
"""

import os
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import servers
from director.core.ids import PredictionId, QueueName
from director.core.states import TERMINAL
from director.lab.chaos.journal import Arrived, Breaker, Claimed, ServerLine, Stepped, Value, now_ms
from director.lab.chaos.journal import Final as Prediction
from director.lab.chaos.parties import FILL
from director.lab.spec.page import ENDED, OPEN

LEFTOVERS: Final = "leftovers.json"

BATCH: Final = 500
TAG: Final = re.compile(rb'^{"user":"([^"]+)"')  # a call's, at the beginning of its input
TAGGED_WITHIN: Final = 200
ALIVE_S: Final = 20  # a director heard within this time serves its queue
LISTING: Final = "{a:*}:listing"
LISTED_FOR: Final = re.compile(r"^\{a:(.+)\}:listing$")
QUEUE: Final = re.compile(r"^\{p\d+\}:q:(.+):meta$")
STREAM: Final = re.compile(r"^\{p\d+\}:q:(.+):[a-z]+:s(\d+)$")
LEDGER: Final = re.compile(r"^\{p\d+\}:ledger:\d{6}:[^:]+$")
OWED: Final = re.compile(r"^\{p\d+\}:owed$")
DEAD: Final = "/dead"  # how the addresses of receivers end that answer nothing: webhooks stay owed to them for days
OF_PREDICTION: Final = re.compile(r"^\{p\d+\}:(?:rec|in|out|ev):(\w{26})$")
# PERMANENT lists the last word of a queue's key, or the first word behind the tag of any other key.
OF_QUEUE: Final = re.compile(r"^\{p\d+\}:q:.+:([a-z]+)\d*$")
OUTSIDE: Final = re.compile(r"^(?:\{(?:a:[^}]+|p\d+)\}:)?([a-z]+)(?::.*)?$")
# A rewrite of the log drops the commands that led to the state, so the files from before it are kept as its history.
# Without rewrites, each restart took 9 s once the log had 200 MB, and a run of minutes was one outage after the other.
# A log is smaller than this until the bystander was watched, so that no rewrite disturbs it.
ALL_KEPT: Final = {
    "aof-disable-auto-gc": "yes",
    "auto-aof-rewrite-percentage": "50",
    "auto-aof-rewrite-min-size": "128mb",
}
FOLDER: Final = "appendonlydir"
MANIFEST: Final = "*.manifest"
LISTED: Final = re.compile(r"^file (\S+\.incr\.\S+) seq (\d+) type [hi]", re.MULTILINE)
TIMES: Final = ("created", "claimed", "completed")  # fields of a record that no two changes have alike
RECORD: Final = re.compile(r"^\{p\d+\}:rec:(\w{26})$")
EVENTS: Final = re.compile(r"^\{p\d+\}:ev:(\w{26})$")
INDEX: Final = re.compile(r"^\{p\d+\}:(?:q:.+:)?(lease|owed)$")
RESTARTED: Final = frozenset({"retried", "released"})  # events that name a code
GONE: Final[Mapping[str, Value]] = {
    "status": "",
    "token": "",
    "lease": None,
    "ended": "",
    "wants": False,
    "owed": False,
    "told": False,
}


class QueueRest(Struct, kw_only=True):
    """The leftovers of one queue. `lost_by` names the registries that miss it although a director serves it."""

    queue: str
    entries: int = 0
    pending: int = 0
    lease: int = 0
    delayed: int = 0
    deadline: int = 0
    live: int = 0
    lost_by: list[str] = []


class Leftovers(Struct, frozen=True, kw_only=True):
    queues: list[QueueRest]
    owed: int
    endless: list[str]
    # by `<account> <model>`: runs that the ledger counted, and tokens of their outputs. Former builds did not write it
    used_by: dict[str, tuple[int, int]] | None = None


async def predictions(redis: Redis, ids: Iterable[str]) -> AsyncIterator[Prediction]:
    client: Any = redis  # its types say str or bytes, but ours answers in bytes
    listed: dict[str, str] = {}
    for server in await servers(client):
        async for name in server.scan_iter(LISTING, count=BATCH):
            [account] = LISTED_FOR.findall(name.decode())
            listed |= {member.decode(): account for member in await client.zrange(name, 0, -1)}
    ordered = sorted(listed.keys() | set(ids))
    for start in range(0, len(ordered), BATCH):
        batch = [PredictionId(each) for each in ordered[start : start + BATCH]]
        pipe = client.pipeline(transaction=False)
        for each in batch:
            pipe.hgetall(keys.record(each))
            pipe.lrange(keys.events(each), 0, -1)
            pipe.hget(keys.output_data(each), "output")
            pipe.getrange(keys.input_data(each), 0, TAGGED_WITHIN)
        replies = iter(await pipe.execute())
        for each, record, events, output, given in zip(batch, replies, replies, replies, replies, strict=False):
            tag = TAG.search(given)
            yield Prediction(
                at=now_ms(),
                id=each,
                record={name.decode(): value.decode() for name, value in record.items()},
                events=[_event(entry) for entry in events],
                output=_short(output or b"").decode(),
                listed=listed.get(each, ""),
                tag=tag[1].decode() if tag else "",
            )


async def leftovers(redis: Redis) -> Leftovers:
    client: Any = redis
    # a key may come twice
    lifetimes = {name: ttl for server in await servers(client) async for name, ttl in _lifetimes(server)}
    queues = {match[1]: QueueRest(queue=match[1]) for name in lifetimes if (match := QUEUE.match(name))}
    dead: set[str] = set()
    owed = 0
    for name, rest in queues.items():
        queue = QueueName(name)
        for part in ("lease", "delayed", "deadline", "live"):
            setattr(rest, part, await client.zcard(getattr(keys, part)(queue)))
        rest.lost_by = await _find_lost(client, queue)
        dead |= {member.decode() for member in await client.zrange(keys.dead(queue), 0, -1)}
    for name in lifetimes:
        if match := STREAM.match(name):
            rest = queues.setdefault(match[1], QueueRest(queue=match[1]))
            rest.entries += await client.xlen(name)
            rest.pending += sum([group["pending"] for group in await client.xinfo_groups(name)])
        elif OWED.match(name):
            owed += await count_owed_to_living(client, name)
    used_by = await _count_used(client, filter(LEDGER.match, lifetimes))
    endless = sorted(name for name, ttl in lifetimes.items() if ttl == -1 and not _may_stay(name, dead))
    return Leftovers(queues=list(queues.values()), owed=owed, endless=endless, used_by=used_by)


async def _count_used(client: Any, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return runs and output tokens of the ledger by account and model. A row is `<day> <model> <API token>` and
    `<runs> <ms> <input> <cached> <output> <bytes>`.
    """
    used: dict[str, tuple[int, int]] = {}
    for name in names:
        for row, counted in (await client.hgetall(name)).items():
            whose = f"{name.rpartition(':')[2]} {row.decode().split(' ')[1]}"
            (runs, tokens), numbers = used.get(whose, (0, 0)), [*map(int, counted.split()), *[0] * 6]
            used[whose] = runs + numbers[0], tokens + numbers[4]
    return used


async def count_owed_to_living(redis: Redis, name: str) -> int:
    """Return how many webhooks on this list are owed to receivers that answer."""
    client: Any = redis
    pipe = client.pipeline(transaction=False)
    for each in await client.zrange(name, 0, -1):
        pipe.hget(keys.record(PredictionId(each.decode())), "webhook")
    return sum(not (url or b"").endswith(DEAD.encode()) for url in await pipe.execute())


async def _find_lost(client: Any, queue: QueueName) -> list[str]:
    seconds, _ = await client.time()
    if not await client.zcount(keys.directors(queue), (seconds - ALIVE_S) * 1000, "+inf"):
        return []
    model, version = queue.rpartition(":")[0], (await client.hget(keys.meta(queue), "version")).decode()
    named = {
        "the queues": await client.sismember(keys.queues(), queue),
        "the versions": await client.hexists(keys.versions(), version),
        "the catalogue": await client.hexists(keys.version(model, version), "created"),
    }
    return [registry for registry, is_named in named.items() if not is_named]


async def _lifetimes(client: Any) -> AsyncIterator[tuple[str, int]]:
    cursor = 0
    while True:
        cursor, names = await client.scan(cursor, count=BATCH)
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.pttl(name)
        for name, ttl in zip(names, await pipe.execute(), strict=True):
            yield name.decode(), ttl
        if not cursor:
            return


def _may_stay(name: str, dead: set[str]) -> bool:
    if match := OF_PREDICTION.match(name):
        return match[1] in dead
    if OWED.match(name):  # it is gone with its last member, and these are judged one by one
        return True
    match = OF_QUEUE.match(name) or OUTSIDE.match(name)
    return match is not None and match[1] in keys.PERMANENT


def _event(entry: bytes) -> tuple[str, int, str]:
    kind, at, data = _short(entry).decode().split(" ", 2)
    return kind, int(at), data


def _short(output: bytes) -> bytes:
    return output.replace(FILL.encode(), b"")


def size(data: Path) -> int:
    """Return the length of the log of the server with this data folder, so that reading may begin there later."""
    return sum(path.stat().st_size for path in _files(data))


def cut(data: Path, length: int, *, is_torn: bool) -> None:
    """Drop what this log has behind this length, as a power cut drops what was not synced; only the second half of that
    if `is_torn`. Its server stands still. It refuses a torn file that is not the last one.
    """
    files = _files(data)
    for path in files:
        size = path.stat().st_size
        kept = max(0, min(size, length))
        os.truncate(path, kept + (size - kept) // 2 if is_torn and length >= 0 and path == files[-1] else kept)
        length -= size


def server_log(data: Path, *, start: int = 0) -> Iterator[ServerLine]:
    """Yield arrivals, claims, changes of breakers and the steps of predictions from this place of the append-only file
    on, in the server's order. The file says what scripts did, not what they were asked to do: the read of an entry
    appears as an `XCLAIM` with the server's own time, and a script as a transaction. The server may be at rest or
    running.
    """
    reader, steps = Reader(), Steps()
    for number, command in enumerate(chain.from_iterable(_parts(data, start))):
        if (line := reader.line(number, command)) is not None:
            yield line
        yield from steps.read(number, command)


def join(logs: Mapping[str, Iterable[ServerLine]], master_at: Callable[[int], str]) -> list[ServerLine]:
    """Return the lines of several servers, each one once, in order of time. Lines of one millisecond are in the order
    of the server that was the master then. A replica's log has its master's lines, but not what it got as a whole.
    """
    copies: dict[ServerLine, dict[str, ServerLine]] = defaultdict(dict)
    for name, log in logs.items():
        for line in log:
            nameless = {"stream": 0, "delivered": 0} if isinstance(line, Claimed) else {}
            copies[replace(line, number=0, **nameless)].setdefault(name, line)
    lines = []
    for line, several in copies.items():
        first = next(iter(several.values()))
        fullest = max(several.values(), key=lambda each: each.stream if isinstance(each, Claimed) else 0)
        lines.append(replace(fullest, number=several.get(master_at(line.at), first).number))
    ordered = sorted(lines, key=lambda line: (line.at, line.number))
    return [replace(line, number=number) for number, line in enumerate(ordered)]


class Change(Struct, frozen=True):
    """A change of a prediction's record. `at` is its time, or 0 if it has none; `mark` tells it from all others."""

    id: str
    at: int
    mark: int


def changes(data: Path) -> Iterator[list[Change]]:
    """Yield the changes in each file of a server's log. A server that gives up its own state begins another file."""
    for part in _parts(data, 0):
        yield [
            Change(found[1], max(int(fields.get(name) or 0) for name in TIMES), hash(tuple(command)))
            for command in part
            if command[0] == b"HSET" and (found := RECORD.match(command[1].decode()))
            for fields in [_pairs(command[2:])]
        ]


def _parts(data: Path, start: int) -> Iterator[Iterator[list[bytes]]]:
    for path in _files(data):
        with path.open("rb") as file:
            file.seek(start)
            yield _commands(file)
        start = max(0, start - path.stat().st_size)


def _files(data: Path) -> list[Path]:
    [manifest] = (data / FOLDER).glob(MANIFEST)
    listed = sorted((int(number), name) for name, number in LISTED.findall(manifest.read_text()))
    return [data / FOLDER / name for _, name in listed]


def _commands(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield each whole command. A kill may have cut the last one: the server then drops it too."""
    while head := file.readline():
        if not head.startswith(b"*"):
            continue  # an annotation, such as the time
        command = []
        for _ in range(int(head[1:])):
            length = file.readline()
            if not length.endswith(b"\n"):
                return
            command.append(file.read(int(length[1:]) + 2)[:-2])
        yield command


class Reader:
    def __init__(self) -> None:
        self._entries: dict[tuple[bytes, bytes], tuple[str, int]] = {}
        self._reads: dict[str, tuple[int, int]] = {}
        self._open: set[str] = set()
        self._now = 0

    def line(self, number: int, command: list[bytes]) -> ServerLine | None:
        match command:
            # a slot that moves brings an empty stream with an entry that has MAXLEN and no id
            case [b"XADD", stream, mid, *fields] if mid != b"MAXLEN" and (found := STREAM.match(stream.decode())):
                self._entries[stream, mid] = _pairs(fields)["id"], int(found[2])
            case [b"XCLAIM", stream, _, _, _, mid, b"TIME", at, *_] if (stream, mid) in self._entries:
                prediction_id, place = self._entries[stream, mid]
                self._reads[prediction_id] = place, int(at)
                self._now = int(at)
            case [b"HSET", key, *fields] if found := RECORD.match(key.decode()):
                return self._record(number, found[1], _pairs(fields))
            case [b"HSET", key, *fields] if found := QUEUE.match(key.decode()):
                return self._meta(number, found[1], _pairs(fields))
            case _:
                pass
        return None

    def _meta(self, number: int, queue: str, fields: dict[str, str]) -> Breaker | None:
        """A change of the breaker has no time of its own, so it gets the time of the last read."""
        is_open = bool(fields.get("breaker"))
        if "breaker" not in fields or is_open is (queue in self._open):
            return None
        self._open ^= {queue}
        return Breaker(at=self._now, number=number, queue=queue, is_open=is_open)

    def _record(self, number: int, prediction_id: str, fields: dict[str, str]) -> ServerLine | None:
        if "created" in fields:
            return Arrived(
                at=int(fields["created"]),
                number=number,
                id=prediction_id,
                tenant=fields["account"],
                queue=fields["queue"],
                lane=fields["lane"],
            )
        if fields.get("token") and "claimed" in fields:
            stream, delivered = self._reads.pop(prediction_id, (-1, 0))
            return Claimed(
                at=int(fields["claimed"]),
                number=number,
                id=prediction_id,
                stream=stream,
                holder=fields.get("holder", ""),
                delivered=delivered,
            )
        return None


class Steps:
    """Reads what each script wrote of the specification's variables."""

    def __init__(self) -> None:
        self._is_open = False
        self._wrote: dict[str, dict[str, Value]] = defaultdict(dict)
        self._now: dict[str, int] = {}
        self._codes: dict[str, str] = {}
        self._last = 0

    def read(self, number: int, command: list[bytes]) -> Iterator[Stepped]:
        """Yield the steps of a script, with its last command. Half a script, of a server that was killed, has none. A
        command outside of a transaction is no step: a slot that moves brings each key alone, as it is.
        """
        if command[0] == b"MULTI":
            self._forget()
            self._is_open = True
        elif command[0] != b"EXEC" and self._is_open:
            self._note(command)
        if command[0] != b"EXEC":
            return
        self._is_open = False
        for name, wrote in self._wrote.items():
            now = self._now.get(name, 0)
            self._last = now or self._last
            code = self._codes.get(name, "")
            yield Stepped(at=self._last, number=number, id=name, wrote=tuple(wrote.items()), now=now, code=code)
        self._forget()

    def _forget(self) -> None:
        for gathered in (self._wrote, self._now, self._codes):
            gathered.clear()

    def _note(self, command: list[bytes]) -> None:
        match command:
            case [b"HSET", key, *fields] if found := RECORD.match(key.decode()):
                self._note_record(found[1], _pairs(fields))
            case [b"HDEL", key, *fields] if b"token" in fields and (found := RECORD.match(key.decode())):
                self._wrote[found[1]]["token"] = ""
            case [b"UNLINK", key, *_] if found := RECORD.match(key.decode()):
                self._wrote[found[1]] = dict(GONE)
            case [b"RPUSH", key, *_, entry] if found := EVENTS.match(key.decode()):
                kind, at, data = entry.decode(errors="replace").split(" ", 2)
                self._now[found[1]] = int(at)
                if kind in RESTARTED:
                    self._codes[found[1]] = data.partition(" ")[0]
            # with XX a webhook that is owed moves, and no variable changes
            case [b"ZADD", key, *pairs] if pairs[0] != b"XX" and (found := INDEX.match(key.decode())):
                for score, name in zip(pairs[::2], pairs[1::2], strict=True):
                    self._note_index(found[1], name.decode(), int(float(score)))
            case [b"ZREM", key, *names] if found := INDEX.match(key.decode()):
                for name in names:
                    self._note_index(found[1], name.decode(), None)
            case _:
                pass

    def _note_index(self, index: str, name: str, score: int | None) -> None:
        wrote = self._wrote[name]
        wrote[index] = score if index == "lease" else score is not None
        if index == "owed" and score is None and "status" not in wrote:  # only `revive` gives a webhook up untold
            wrote["told"] = True

    def _note_record(self, name: str, fields: dict[str, str]) -> None:
        status, token = fields.get("status", ""), fields.get("token")
        if "created" in fields:
            wants = bool(fields.get("webhook")) and "completed" in fields.get("events", "")
            self._wrote[name] |= {"status": OPEN, "wants": wants}
        elif status in TERMINAL:
            self._wrote[name]["status"] = ENDED
            self._codes[name] = fields.get("code", "")
        elif fields.get("completed") == "":
            self._wrote[name] |= {"status": OPEN, "ended": "", "told": False}
        if token is not None:
            self._wrote[name]["token"] = token
        if fields.get("ended"):
            self._wrote[name]["ended"] = fields["ended"]
        if at := max(int(fields.get(time) or 0) for time in TIMES):
            self._now[name] = at


def _pairs(fields: list[bytes]) -> dict[str, str]:
    named = zip(fields[::2], fields[1::2], strict=True)
    return {name.decode(): value.decode(errors="replace") for name, value in named}  # a webhook's URL may be any bytes
