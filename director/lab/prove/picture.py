"""Read a state: what the server has of the world's queue, and what its processes remember. Two states whose canonical
forms agree are one.

A canonical form has ranks and distances instead of names: a time is the ticks until then, a token is that of the claim
or an older one, a place is its number in line, and directors with the same past may change their names. Left out is
what only estimates and figures read: durations, virtual times, numbers of events and of arrivals.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from itertools import permutations
from typing import Any, Final

from msgspec import Struct

from director.core.ids import ALL_LANES
from director.core.states import TERMINAL
from director.lab.prove.worlds import QUEUE, TICK_MS, World, id_of

TAG: Final = b"{p0}:"
OF_QUEUE: Final = f"{{p0}}:q:{QUEUE}:".encode()
ENDED: Final = frozenset(str(status).encode() for status in TERMINAL)
Fields = dict[bytes, bytes]
NOTHING: Final[Fields] = {}


class Held(Struct, array_like=True):
    """A claim as its director remembers it. `unsure`: events whose reply was lost. `asked`: the end that it asks for
    until it gets a reply. `told`: why it must stop.
    """

    number: int
    token: str
    seq: int
    began: bool = False
    unsure: list[str] = []
    asked: str = ""
    told: str = ""


class Director(Struct, array_like=True):
    """`nonce`: of a claim whose reply was lost."""

    name: str
    held: list[Held]
    nonce: str = ""

    @property
    def busy(self) -> int:
        return len(self.held)


class Memory(Struct, array_like=True):
    """The knowledge of all processes, and the faults that are left. `calls`: claims so far; it makes nonces."""

    now: int
    directors: list[Director]
    born: list[int]
    losses: int
    deaths: int
    calls: int = 0
    # its webhooks: number, revivals and attempts of the record, and the outcome that it notes until it gets a reply
    courier: list[tuple[int, int, int, str]] = []


class Entry(Struct, array_like=True):
    lane: str
    number: int
    mid: bytes
    rank: int
    consumer: bytes  # that has it pending
    is_past: bool


class Picture:
    """All that a server has of the queue."""

    def __init__(self, world: World, found: Sequence[Any]) -> None:
        self.found = found
        self.has_lifetime = {key for key, _, ttl, _ in found if ttl}
        self.raw: dict[bytes, Any] = {key: value for key, _, _, value in found}
        self.records: list[Fields] = []
        self.events: list[list[bytes]] = []
        self.ids = [id_of(number).encode() for number in range(len(world.wishes))]
        for name in self.ids:
            self.records.append(_fields(self.raw.get(TAG + b"rec:" + name, ())))
            self.events.append(self.raw.get(TAG + b"ev:" + name, []))
        self.meta = self.hash("meta")
        self.entries: dict[bytes, list[Entry]] = {}
        self.stray = 0  # pending ids without an entry
        for lane in ALL_LANES:
            for number in range(world.policy.streams):
                stream = self.raw.get(OF_QUEUE + f"{lane}:s{number}".encode())
                if stream:
                    self._note_stream(lane, number, *stream)

    def _note_stream(self, lane: str, number: int, rows: Any, groups: Any, pending: Any) -> None:
        held = dict(pending)
        last = (0, 0)
        for group in groups:
            last = _parts(group[group.index(b"last-delivered-id") + 1])
        for rank, (mid, fields) in enumerate(rows):
            consumer = held.pop(mid, b"")
            entry = Entry(lane, number, mid, rank, consumer, _parts(mid) <= last)
            self.entries.setdefault(fields[1], []).append(entry)
        self.stray += len(held)

    def hash(self, what: str) -> Fields:
        return _fields(self.raw.get(OF_QUEUE + what.encode(), ()))

    def scores(self, what: str) -> dict[bytes, float]:
        flat = self.raw.get(OF_QUEUE + what.encode(), ())
        return {flat[i]: float(flat[i + 1]) for i in range(0, len(flat), 2)}

    def ranks(self, what: str) -> list[bytes]:
        flat = self.raw.get(OF_QUEUE + what.encode(), ())
        return list(flat[::2])

    @property
    def owed(self) -> dict[bytes, float]:
        flat = self.raw.get(TAG + b"owed", ())
        return {flat[i]: float(flat[i + 1]) for i in range(0, len(flat), 2)}

    @property
    def has_bell(self) -> bool:
        return OF_QUEUE + b"bell" in self.raw

    @property
    def idle_room(self) -> float:
        """How much more idle work may start: some slots stay free for other work, if the queue has more than these."""
        slots, kept = (int(self.meta.get(field) or 0) for field in (b"slots", b"spare_slots"))
        return math.inf if kept == 0 or slots <= kept else slots - kept - len(self.scores("lease"))

    def drains(self, director: str) -> bool:
        return self.hash("slots").get(director.encode(), b"").endswith(b"draining")

    def is_over(self, number: int) -> bool:
        return self.records[number].get(b"status") in ENDED

    def is_leaving(self, number: int) -> bool:
        return bool(self.records[number].get(b"leaving"))


def _fields(flat: Sequence[bytes]) -> Fields:
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else NOTHING


def _parts(mid: bytes) -> tuple[int, int]:
    at, _, number = mid.partition(b"-")
    return int(at), int(number)


def digest(world: World, picture: Picture, memory: Memory) -> bytes:
    """Return the canonical form in 16 bytes."""
    return blake2b(canonical(world, picture, memory).encode(), digest_size=16).digest()


def canonical(world: World, picture: Picture, memory: Memory) -> str:
    shared = _read_queue(world, picture, memory)
    own = [_own(picture, memory, number) for number in range(len(world.wishes))]
    orders = permutations(range(len(memory.directors)))
    return min(_name_directors(world, picture, memory, shared, own, order) for order in orders)


# Fields of a record that decide what scripts do with it, and the kinds of their values
PLAIN: Final = (
    b"status",
    b"attempt",
    b"cancel",
    b"begun",
    b"shown",
    b"revivals",
    b"left",
    b"leaving",
    b"moves",
    b"code",
)
TIMES: Final = (b"deadline", b"start_by", b"start_after", b"next_telling", b"forwarded", b"due")
OF_ENDED: Final = (b"status", b"code", b"revivals", b"told", b"tellings", b"forwarded")
OF_BREAKER: Final = (b"probe", b"failed_id")
META: Final = (
    *(b"paused", b"breaker", b"failures", b"several", b"slots", b"streams", b"read"),
    *(f"{what}:{lane}".encode() for what in ("ready", "backlogged", "mask", "next", "credit") for lane in ALL_LANES),
)


def _own(picture: Picture, memory: Memory, number: int) -> tuple[Any, ...]:
    """Return what is known of one prediction, without names of directors."""
    r, name = picture.records[number], picture.ids[number]
    if not r:
        return (number in memory.born,)
    owed = _turn(picture.owed, name, memory.now)
    dead, blamed = name in picture.scores("dead"), [picture.meta.get(field) == name for field in OF_BREAKER]
    if r[b"status"] in ENDED:
        return (*(r.get(field, b"") for field in OF_ENDED), owed, dead, blamed)
    lane, account = r[b"lane"].decode(), r[b"account"].decode()
    entries = [(e.lane, e.number, e.rank, bool(e.consumer), e.is_past) for e in picture.entries.get(name, ())]
    indexes = [_turn(picture.scores(what), name, memory.now) for what in ("lease", "delayed", "deadline")]
    older = sum(_stands_before(other, r) for other in picture.records)
    return (
        *(r.get(field, b"") for field in PLAIN),
        *(_until(float(r[field]) if r.get(field) else None, memory.now) for field in TIMES),
        r[b"claims"] != b"0",
        bool(r.get(b"token")),
        bool(r.get(b"charged")),
        name in picture.ranks(f"backlog:{lane}:{account}"),
        older,
        entries,
        indexes,
        [name in picture.scores(what) for what in ("live", "leaving")],
        blamed,
    )


def _stands_before(other: Fields, r: Fields) -> bool:
    """Return True if the other one goes before this one where both wait in their account's line."""
    if not other.get(b"arrival") or other[b"status"] in ENDED:
        return False
    return (other[b"account"], other[b"lane"]) == (r[b"account"], r[b"lane"]) and int(other[b"arrival"]) < int(
        r[b"arrival"]
    )


def _turn(scores: dict[bytes, float], name: bytes, now: int) -> tuple[int, int] | None:
    """Return the ticks until then, and for what is due its turn among all that is due."""
    if name not in scores:
        return None
    ticks = _until(scores[name], now) or 0
    return ticks, 0 if ticks else sorted(scores, key=lambda each: (scores[each], each)).index(name)


def _until(at: float | None, now: int) -> int | None:
    return None if at is None else max(0, int(at - now) // TICK_MS)


def _read_queue(world: World, picture: Picture, memory: Memory) -> tuple[Any, ...]:
    """Return what is known of the queue and its accounts."""
    meta = picture.meta
    turns = []
    for lane in ALL_LANES:
        times, debts = picture.ranks(f"vtime:{lane}"), picture.ranks(f"debt:{lane}")
        if times or debts:
            turns.append((lane, times, sorted(debts)))
    return (
        tuple(meta.get(field, b"") for field in META),
        _until(float(meta[b"open_until"]) if meta.get(b"open_until") else None, memory.now),
        turns,
        *(sorted(picture.hash(what).items()) for what in ("queued", "running", "limits", "suspended")),
        sorted(picture.raw.get(OF_QUEUE + b"held", ())),
        picture.has_bell,
        (memory.losses, memory.deaths, picture.stray),
        sorted(key for key in picture.raw if b":idem:" in key or b":ledger:" in key),
    )


def _name_directors(
    world: World,
    picture: Picture,
    memory: Memory,
    shared: tuple[Any, ...],
    own: list[tuple[Any, ...]],
    order: tuple[int, ...],
) -> str:
    """Return the form in which directors have the names of this order."""
    last = picture.hash("last")
    of = {memory.directors[old].name.encode(): new for new, old in enumerate(order)}
    rows = []
    for number, known in enumerate(own):
        r = picture.records[number]
        holders = []
        for new, old in enumerate(order):
            director = memory.directors[old]
            holders += [
                (new, _which(held.token, r), int(r.get(b"seq", 0)) - held.seq, *_what(held))
                for held in director.held
                if held.number == number
            ]
            nonce = director.nonce.encode()
            if nonce and r.get(b"token", b"").rpartition(b"-")[0] == nonce:
                holders.append((new, "claims"))
        rows.append(
            (
                world.wishes[number].account,
                world.wishes[number].lane,
                _class(world, number),
                known,
                of.get(r.get(b"holder", b""), -1) if r.get(b"token") else None,
                [
                    of.get(entry.consumer, -1)
                    for entry in picture.entries.get(picture.ids[number], ())
                    if entry.consumer
                ],
                holders,
                [
                    (revivals == int(r.get(b"revivals") or 0), known, asked)
                    for n, revivals, known, asked in memory.courier
                    if n == number
                ],
            )
        )
    rows.sort(key=repr)
    directors = [
        (
            bool(director.nonce),
            last.get(director.name.encode(), b"").startswith(director.nonce.encode() + b" "),
            picture.drains(director.name),
        )
        for director in (memory.directors[old] for old in order)
    ]
    return repr((shared, rows, directors))


def _class(world: World, number: int) -> int:
    """Return the first wish that is like this one: predictions of the same wish may change their names."""
    return world.wishes.index(world.wishes[number])


def _what(held: Held) -> tuple[Any, ...]:
    return held.began, tuple(held.unsure), held.asked, held.told


def _which(token: str, r: Fields) -> str:
    """Say what became of the claim with this token."""
    text = token.encode()
    if r.get(b"token") == text:
        return "current"
    return "ended" if r.get(b"ended") == text else "stale"
