"""Make the calls of the processes: which one may come next, what it sends, and what its process remembers after the
reply. A call is a text, such as `finish a 1`. With `, reply lost` behind it the call is carried out and its process
does not know.
"""

from collections.abc import Coroutine, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from director.broker import keys
from director.broker.replies import Readiness
from director.broker.scripts import Scripts
from director.core.ids import Partition
from director.core.schema import NewPrediction
from director.core.states import Status
from director.core.usage import NOTHING, Used
from director.lab.prove.picture import Director, Held, Memory, Picture
from director.lab.prove.worlds import LEASE_TICKS, MODEL, QUEUE, START_MS, TICK_MS, VERSION, World, id_of

LOST: Final = ", reply lost"
MANY: Final = 16
MOST_TOLD: Final = 2  # attempts to deliver a webhook
MOST_DELIVERIES: Final = 2  # at once
LEASE_S: Final = LEASE_TICKS * TICK_MS / 1000
EVENT: Final = {"started": b"", "output": b'"x"'}
# Steps that a world makes by itself once nothing fails any more, and nothing new is asked for
FAIR: Final = frozenset(
    {
        *("claim", "again", "begin", "finish", "extend", "tick", "reap", "promote", "expire", "due", "deliver"),
        *("resume", "unhold", "stay", "serve"),
    }
)


class Plan(NamedTuple):
    """A call that may come next. `call`: None if only memories change. `gone`: keys that are deleted just before it.
    `repeats`: it asks again for what it got no reply to.
    """

    text: str
    call: Coroutine[Any, Any, Any] | None
    may_lose: bool = False
    gone: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def is_fair(self) -> bool:
        return self.repeats or self.text.split()[0] in FAIR


def first(world: World, scripts: Scripts) -> tuple[list[Coroutine[Any, Any, Any]], Memory]:
    """Return the calls that make the first state, and its memory."""
    directors = [Director(f"{letter}0", []) for letter in "abc"[: world.directors]]
    calls: list[Coroutine[Any, Any, Any]] = [scripts.register(QUEUE, version=VERSION, policy=world.policy)]
    calls += [_extend(world, scripts, director, START_MS) for director in directors]
    return calls, Memory(START_MS, directors, [], world.losses, world.deaths)


def _extend(
    world: World, scripts: Scripts, director: Director, now_ms: int, state: Readiness = "ready"
) -> Coroutine[Any, Any, Any]:
    claims = [(id_of(held.number), held.token) for held in director.held]
    return scripts.extend(
        QUEUE, consumer=director.name, lease_s=LEASE_S, claims=claims, slots=world.slots, state=state, now_ms=now_ms
    )


def plan(world: World, scripts: Scripts, memory: Memory, picture: Picture) -> Iterator[Plan]:
    """Yield all calls that may come next."""
    for verb in world.calls:
        yield from getattr(_Next(world, scripts, memory, picture), f"_{verb}")()
    if memory.deaths:
        for director in memory.directors:
            yield Plan(f"die {director.name[0]}", None)


class _Next:
    """The calls of each verb."""

    def __init__(self, world: World, scripts: Scripts, memory: Memory, picture: Picture) -> None:
        self.world, self.scripts, self.memory, self.picture = world, scripts, memory, picture
        self.now = memory.now

    def _enqueue(self) -> Iterator[Plan]:
        asked = []
        for number, wish in enumerate(self.world.wishes):
            if number not in self.memory.born and wish not in asked:
                asked.append(wish)
                yield Plan(f"enqueue {number}", self.enqueue(number))

    def enqueue(self, number: int) -> Coroutine[Any, Any, Any]:
        wish = self.world.wishes[number]
        return self.scripts.enqueue(
            NewPrediction(
                id=id_of(number),
                queue=QUEUE,
                account=wish.account,
                model=MODEL,
                version=VERSION,
                lane=wish.lane,
                shard=",".join(map(str, range(self.world.policy.streams))),
                input=b"{}",
                lifetime_ms=None if wish.lifetime is None else wish.lifetime * TICK_MS,
                start_by_ms=None if wish.start_by is None else wish.start_by * TICK_MS,
                start_after=None if wish.start_after is None else self.now + wish.start_after * TICK_MS,
                most_running=wish.most_running,
                most_queued=wish.most_queued,
                webhook="https://example.com" if wish.webhook else "",
                webhook_events="completed" if wish.webhook else "",
                once_shown=wish.once_shown,
                idempotency=(wish.key, "print") if wish.key else None,
            ),
            now_ms=self.now,
        )

    def _repeat(self) -> Iterator[Plan]:
        """A caller asks again for what it asked for."""
        for number in self.memory.born:
            yield Plan(f"repeat {number}", self.enqueue(number))

    def _cancel(self) -> Iterator[Plan]:
        for number in self.memory.born:
            if not self.picture.records[number].get(b"cancel") and not self.picture.is_over(number):
                account = self.world.wishes[number].account
                yield Plan(f"cancel {number}", self.scripts.cancel(id_of(number), account=account, now_ms=self.now))

    def _claim(self) -> Iterator[Plan]:
        for director in self.memory.directors:
            free, name = self.world.slots - director.busy, director.name
            if free > 0 and not self.picture.drains(name):
                nonce = director.nonce or f"n{self.memory.calls}{name}"
                verb = "again" if director.nonce else "claim"
                call = self.scripts.claim(
                    QUEUE, consumer=name, nonce=nonce, count=free, lease_s=LEASE_S, now_ms=self.now
                )
                yield Plan(f"{verb} {name[0]}", call, may_lose=True, gone=() if director.nonce else (keys.bell(QUEUE),))

    def _runs(self, asked: str = "") -> Iterator[tuple[Held, str]]:
        """Yield claims that are to go on, and those whose director still asks for this end."""
        for director in self.memory.directors:
            for held in director.held:
                if held.asked in ("", asked):
                    yield held, f"{director.name[0]} {_name_of(director, held)}"

    def _begin(self) -> Iterator[Plan]:
        for held, name in self._runs():
            if not held.began:
                yield Plan(f"begin {name}", self.advance(held, "started"), may_lose=True)

    def _output(self) -> Iterator[Plan]:
        for held, name in self._runs():
            if held.began and held.told != "shown":
                yield Plan(f"output {name}", self.advance(held, "output"), may_lose=True)

    def advance(self, held: Held, event: str) -> Coroutine[Any, Any, Any]:
        events = [(each, EVENT[each]) for each in dict.fromkeys([*held.unsure, event])]
        return self.scripts.advance(
            id_of(held.number), token=held.token, seq=held.seq, ran_ms=0, events=events, now_ms=self.now
        )

    def _finish(self) -> Iterator[Plan]:
        for held, name in self._runs("finish"):
            yield Plan(f"finish {name}", self.finish(held), may_lose=True)

    def finish(self, held: Held) -> Coroutine[Any, Any, Any]:
        status = Status.CANCELED if held.told in ("user", "deadline") else Status.SUCCEEDED
        ran = held.began or "started" in held.unsure
        return self.scripts.finish(
            id_of(held.number),
            queue=QUEUE,
            token=held.token,
            status=status,
            output=b"1",
            ran_ms=0 if ran else None,
            seq=held.seq,
            used=Used(runs=1, output_tokens=1) if ran else NOTHING,
            events=[(each, EVENT[each]) for each in held.unsure],
            now_ms=self.now,
        )

    def _release(self) -> Iterator[Plan]:
        yield from self._give_back("release", spent=False)

    def _fail(self) -> Iterator[Plan]:
        yield from self._give_back("fail", spent=True)

    def _give_back(self, verb: str, *, spent: bool) -> Iterator[Plan]:
        for held, name in self._runs(verb):
            call = self.scripts.release(
                id_of(held.number),
                token=held.token,
                spent=spent,
                delay_s=TICK_MS / 1000 if spent else 0,
                error="e",
                code="c",
                used=Used(runs=1) if held.began else NOTHING,
                now_ms=self.now,
            )
            yield Plan(f"{verb} {name}", call, may_lose=True, repeats=bool(held.asked))

    def _extend(self) -> Iterator[Plan]:
        for director in self.memory.directors:
            if director.held:
                yield Plan(f"extend {director.name[0]}", _extend(self.world, self.scripts, director, self.now))

    def _drain(self) -> Iterator[Plan]:
        """A director claims nothing more, and what it runs goes on, or it begins again."""
        for director in self.memory.directors:
            is_back = self.picture.drains(director.name)
            call = _extend(self.world, self.scripts, director, self.now, state="ready" if is_back else "draining")
            yield Plan(f"{'serve' if is_back else 'drain'} {director.name[0]}", call)

    def _tick(self) -> Iterator[Plan]:
        yield Plan("tick", None)

    def _reap(self) -> Iterator[Plan]:
        if self.picture.scores("lease"):
            yield Plan("reap", self.scripts.reap(QUEUE, limit=MANY, lease_s=LEASE_S, now_ms=self.now))

    def _promote(self) -> Iterator[Plan]:
        if self.picture.scores("delayed"):
            yield Plan("promote", self.scripts.promote(QUEUE, limit=MANY, now_ms=self.now))

    def _expire(self) -> Iterator[Plan]:
        if self.picture.scores("deadline"):
            yield Plan("expire", self.scripts.expire(QUEUE, limit=MANY, now_ms=self.now))

    def _reconcile(self) -> Iterator[Plan]:
        yield Plan("reconcile", self.reconcile())

    def reconcile(self) -> Coroutine[Any, Any, Any]:
        return self.scripts.reconcile(QUEUE, start=0, count=MANY, lease_s=LEASE_S, now_ms=self.now)

    def _lose(self) -> Iterator[Plan]:
        """The server loses a key, and a keeper looks at once."""
        lanes = {wish.lane for wish in self.world.wishes}
        lost = [
            keys.lease(QUEUE),
            keys.deadline(QUEUE),
            keys.delayed(QUEUE),
            *(keys.vtime(QUEUE, each) for each in lanes),
        ]
        lost += [keys.stream(QUEUE, each, number) for each in lanes for number in range(self.world.policy.streams)]
        for key in lost if self.memory.deaths else ():
            if key.encode() in self.picture.raw:
                yield Plan(f"lose {key.partition(f'{QUEUE}:')[2]}", self.reconcile(), gone=(key,))

    def _recover(self) -> Iterator[Plan]:
        for lane in sorted({wish.lane for wish in self.world.wishes}):
            for number in range(self.world.policy.streams):
                call = self.scripts.recover(QUEUE, lane, number, cursor="0-0", count=MANY, idle_s=0, now_ms=self.now)
                yield Plan(f"recover {lane} {number}", call)

    def _due(self) -> Iterator[Plan]:
        if self.picture.owed and len(self.memory.courier) < MOST_DELIVERIES:
            yield Plan("due", self.scripts.due(Partition(0), limit=1, hold_s=LEASE_S, now_ms=self.now))

    def _deliver(self) -> Iterator[Plan]:
        for number, revivals, known, asked in sorted(set(self.memory.courier)):
            is_last = known + 1 == MOST_TOLD
            for verb, outcome, is_over in (
                ("deliver", "delivered", True),
                ("miss", "given_up" if is_last else "failed", is_last),
            ):
                if asked not in ("", verb):
                    continue
                call = self.scripts.deliver(
                    id_of(number),
                    outcome=outcome,
                    delay_s=None if is_over else TICK_MS / 1000,
                    revivals=revivals,
                    known=known,
                    account=self.world.wishes[number].account,
                    host="h",
                    now_ms=self.now,
                )
                yield Plan(f"{verb} {number} {revivals} {known}", call, may_lose=True, repeats=bool(asked))

    def _revive(self) -> Iterator[Plan]:
        for number in self._dead():
            if not self.picture.records[number].get(b"revivals"):
                yield Plan(f"revive {number}", self.scripts.revive(id_of(number), now_ms=self.now))

    def _drop(self) -> Iterator[Plan]:
        for number in self._dead():
            yield Plan(f"drop {number}", self.scripts.drop(id_of(number), QUEUE, now_ms=self.now))

    def _dead(self) -> list[int]:
        dead = self.picture.scores("dead")
        return [number for number in self.memory.born if self.picture.ids[number] in dead]

    def _pause(self) -> Iterator[Plan]:
        is_paused = self.picture.meta.get(b"paused") == b"1"
        call = self.scripts.pause(QUEUE, paused=not is_paused, now_ms=self.now)
        yield Plan("resume" if is_paused else "pause", call)

    def _hold(self) -> Iterator[Plan]:
        held = self.picture.raw.get(f"{keys.held(QUEUE)}".encode(), ())
        for account in self.world.accounts:
            is_held = account.encode() in held
            call = self.scripts.pause(QUEUE, paused=not is_held, account=account, now_ms=self.now)
            yield Plan(f"{'unhold' if is_held else 'hold'} {account}:", call)

    def _limit(self) -> Iterator[Plan]:
        """An operator limits an account to one run, or takes the limit away."""
        limits = self.picture.hash("limits")
        for account in self.world.accounts:
            is_limited = limits.get(account.encode(), b"1  0").split(b" ")[1] != b""
            call = self.scripts.limit(QUEUE, account, weight=1, most_running=None if is_limited else 1)
            yield Plan(f"limit {account}:", call)

    def _resize(self) -> Iterator[Plan]:
        most = self.world.policy.streams
        streams = 1 if self.picture.meta.get(b"streams") == str(most).encode() else most
        yield Plan(f"resize {streams}", self.scripts.resize(QUEUE, streams=streams))

    def _depart(self) -> Iterator[Plan]:
        for number in self.memory.born:
            r = self.picture.records[number]
            if not self.picture.is_over(number) and not r.get(b"leaving") and r.get(b"moves", b"0") == b"0":
                ids = [(id_of(number), self.world.wishes[number].account)]
                yield Plan(f"depart {number}", self.scripts.depart(QUEUE, ids, site="far", now_ms=self.now))

    def _stay(self) -> Iterator[Plan]:
        for number in self.memory.born:
            if self.picture.records[number].get(b"leaving"):
                yield Plan(f"stay {number}", self.scripts.stay(id_of(number), site="far", now_ms=self.now))


def after(text: str, memory: Memory, picture: Picture, reply: Any) -> Memory:
    """Return what the processes remember after this call, with its reply or without it. `picture`: after it."""
    new = msgspec.msgpack.decode(msgspec.msgpack.encode(memory), type=Memory)
    plain = text.removesuffix(LOST)
    is_lost = plain is not text
    verb, *names = plain.split()
    if is_lost:
        new.losses -= 1
    if verb == "tick":
        new.now += TICK_MS
    elif verb == "lose":
        new.deaths -= 1
    elif verb == "enqueue":
        is_new = not isinstance(reply, Exception) and not reply.replayed
        new.born = sorted([*new.born, int(names[0])]) if is_new else new.born
    elif verb == "due":
        new.courier += [(_number(each), *_read_attempts(picture, _number(each)), "") for each in reply]
    elif verb in ("deliver", "miss"):
        number, revivals, known = map(int, names)
        taken = (number, revivals, known)
        new.courier.remove((*taken, verb) if (*taken, verb) in new.courier else (*taken, ""))
        new.courier += [(*taken, verb)] if is_lost else []
    elif names and names[0] in ("a", "b", "c"):
        director = next(each for each in new.directors if each.name[0] == names[0])
        _remember(new, director, verb, names[1:], reply, is_lost=is_lost)
    return new


def _remember(memory: Memory, director: Director, verb: str, names: list[str], reply: Any, *, is_lost: bool) -> None:
    if verb == "die":
        memory.deaths -= 1
        director.held, director.nonce = [], ""
        director.name = f"{director.name[0]}{int(director.name[1:]) + 1}"
    elif verb in ("claim", "again"):
        nonce = director.nonce or f"n{memory.calls}{director.name}"
        memory.calls += 1
        director.nonce = nonce if is_lost else ""
        if not is_lost:
            director.held += [Held(_number(claim.id), claim.token, claim.record.seq) for claim in reply]
    elif verb in ("extend", "drain", "serve"):
        for held, word in zip(list(director.held), reply, strict=True):
            if word == "lost":
                director.held.remove(held)
            elif word != "held":
                held.told = word
    else:
        held = next(each for each in director.held if _name_of(director, each) == names[0])
        if verb in ("begin", "output"):
            event = {"begin": "started", "output": "output"}[verb]
            _note_advance(director, held, event, reply, is_lost=is_lost)
        elif is_lost:
            held.asked = verb
        else:
            director.held.remove(held)


def _note_advance(director: Director, held: Held, event: str, reply: Any, *, is_lost: bool) -> None:
    if is_lost:
        held.unsure = list(dict.fromkeys([*held.unsure, event]))
    elif reply.hold == "lost":
        director.held.remove(held)
    else:
        held.seq, held.unsure, held.began = reply.seq, [], True
        if reply.hold != "held":
            held.told = reply.hold


def _name_of(director: Director, held: Held) -> str:
    """Return the number of its prediction, with a mark behind it for a later claim of the same one."""
    same = [each for each in director.held if each.number == held.number]
    return f"{held.number}{'+' * same.index(held)}"


def _read_attempts(picture: Picture, number: int) -> tuple[int, int]:
    """Return the revivals and the attempts that a courier reads in the record of an owed webhook."""
    r = picture.records[number]
    return int(r.get(b"revivals") or 0), int(r.get(b"tellings") or 0)


def _number(prediction_id: str) -> int:
    return next(number for number in range(MANY) if id_of(number) == prediction_id)
