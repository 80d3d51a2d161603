"""Judge states and steps. The rules are those of the chaos checker and of the queue's books, for every state: each
prediction is in one place and ends once, each counter equals what it counts, and a stale token writes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from director.core.ids import ALL_LANES, IDLE, LANES
from director.lab.prove.actions import LOST, MANY
from director.lab.prove.picture import ENDED, OF_QUEUE, TAG, Director, Memory, Picture
from director.lab.prove.worlds import LEASE_TICKS, TICK_MS, World
from director.lab.spec import page
from director.lab.spec.page import Call, State, explain

WORDS_OF_LOST: Final = ("lost", False)
# The script of each call that has another name
SCRIPTS: Final = {
    "repeat": "enqueue",
    "again": "claim",
    "begin": "advance",
    "output": "advance",
    "fail": "release",
    "miss": "deliver",
    "drain": "extend",
    "serve": "extend",
}


def check_state(world: World, picture: Picture, memory: Memory) -> Iterator[str]:
    """Yield what is wrong in a state."""
    for number in memory.born:
        if not picture.records[number]:
            yield f"{number} was accepted and is lost"
            return
        yield from (f"{number} {what}" for what in _own(world, picture, memory, number))
    yield from _indexes(world, picture, memory)
    yield from _counts(world, picture, memory)
    yield from _turns(world, picture)


def _own(world: World, picture: Picture, memory: Memory, number: int) -> Iterator[str]:
    r, name = picture.records[number], picture.ids[number]
    kinds = [event.split(b" ", 1)[0] for event in picture.events[number]]
    ended = r[b"status"] in ENDED
    ends = [event.split(b" ", 2)[2] for event in picture.events[number] if event.startswith(b"completed ")]
    if ends != ([r[b"status"]] if ended else []):
        yield f"is {r[b'status'].decode()}, and its ends are {[end.decode() for end in ends]}"
    if ended and set(kinds[kinds.index(b"completed") + 1 :]) - {b"webhook"}:
        yield "has events after its end"
    if int(r[b"seq"]) != len(kinds):
        yield f"counts {r[b'seq'].decode()} events, and has {len(kinds)}"
    if kinds.count(b"started") > int(r.get(b"attempt", 0)) + kinds.count(b"released"):
        yield "has begun more often than it was handed out"
    lifetimes = {TAG + kind + name in picture.has_lifetime for kind in (b"rec:", b"in:", b"ev:")}
    if lifetimes != {ended}:
        yield "lives for ever after its end, or goes before it"
    if int(r[b"attempt"]) > world.policy.attempts:
        yield "has more attempts than it may"
    entries, token = picture.entries.get(name, []), r.get(b"token", b"")
    lane, account = r[b"lane"].decode(), r[b"account"].decode()
    line = picture.scores(f"backlog:{lane}:{account}")
    is_in_line = name in line
    if is_in_line and line[name] != float(r[b"arrival"]):
        yield "is in another place of its line than its arrival says"
    is_delayed, is_claimed = name in picture.scores("delayed"), name in picture.scores("lease")
    is_away = name in picture.scores("leaving")
    places = len(entries) * (not token) + is_in_line + is_delayed + is_claimed + is_away
    if places != (not ended):
        yield f"is in {places} places"
    if is_claimed != bool(token):
        yield "has a claim without a lease, or a lease without a claim"
    if ended and (entries or token):
        yield "is claimed or in line after its end"
    if is_away != picture.is_leaving(number):
        yield "leaves, and is not on the list of what leaves, or the other way round"
    if token and (len(entries) != 1 or not entries[0].consumer) and "lose" not in world.calls:
        yield "is claimed, and its entry is not pending"
    for entry in entries:
        if (str(entry.number).encode(), entry.mid) != (r.get(b"stream"), r.get(b"mid")):
            yield "has another entry than its record says"
        if not token and (entry.consumer or entry.is_past):
            yield "waits, and no claim will find it"
        if not token and not int(picture.meta.get(f"mask:{lane}".encode(), 0)) >> entry.number & 1:
            yield "waits in a stream that no claim looks into"
    if r.get(b"cancel") and not (token or is_away or ended):
        yield "waits, although it was canceled"
    if world.policy.on_lost == "fail" and r.get(b"begun") and not token and not ended:
        yield "began once, and may run again"
    if r.get(b"shown") and not token and not ended:
        yield "was shown, and may run again"
    wants = b"completed" in r.get(b"events", b"")
    is_owed = name in picture.owed
    if name in picture.scores("dead") and r[b"status"] != b"failed":
        yield "is a dead letter, and has not failed"
    if is_owed != (ended and wants and r.get(b"told") not in (b"delivered", b"given_up")):
        yield "owes a webhook, or owes none, against its record"


def _indexes(world: World, picture: Picture, memory: Memory) -> Iterator[str]:
    living = {picture.ids[number] for number in _find_living(picture, memory)}
    if picture.scores("live").keys() != living:
        yield "the list of what lives is wrong"
    timed = {name for name in living if _has_time(picture, picture.ids.index(name))}
    if picture.scores("deadline").keys() - living:
        yield "the list of deadlines has what has ended"
    has_lost = (
        "lose" in world.calls and not memory.deaths
    )  # of claims reconcile restores no deadline: heartbeats know it
    if timed - picture.scores("deadline").keys() and not has_lost:
        yield "a deadline is not on the list"
    if picture.stray:
        yield "an entry is pending that is not there"


def _find_living(picture: Picture, memory: Memory) -> list[int]:
    return [number for number in memory.born if not (picture.is_over(number) or picture.is_leaving(number))]


def _has_time(picture: Picture, number: int) -> bool:
    """Return True if expire has to look at it. Of a claim it has when it was notified once."""
    r = picture.records[number]
    if r.get(b"token"):
        return bool(r.get(b"deadline")) and not r.get(b"cancel")
    return bool(r.get(b"deadline") or (r.get(b"start_by") and not r.get(b"begun")))


def _counts(world: World, picture: Picture, memory: Memory) -> Iterator[str]:
    living = _find_living(picture, memory)
    running = [number for number in living if picture.records[number].get(b"token")]
    waiting = [number for number in living if number not in running]
    for what, those in (("queued", waiting), ("running", running)):
        real = Counter(world.wishes[number].account.encode() for number in those)
        counted = {account: int(count) for account, count in picture.hash(what).items()}
        if counted != real:
            yield f"{what} counts {counted}, and there are {dict(real)}"
    for lane in ALL_LANES:
        mine = [number for number in waiting if world.wishes[number].lane == lane]
        ready = sum(picture.ids[number] in picture.entries for number in mine)
        lines = sum(len(picture.ranks(f"backlog:{lane}:{account}")) for account in world.accounts)
        for what, real_count in (("ready", ready), ("backlogged", lines)):
            if int(picture.meta.get(f"{what}:{lane}".encode(), 0)) != real_count:
                yield f"{what}:{lane} is miscounted"
    keys_held = [picture.records[number].get(b"idem", number) for number in memory.born]
    if len(set(keys_held)) < len(keys_held):
        yield "one idempotency key has two predictions"
    ended = sum(picture.is_over(number) for number in memory.born)
    revived = sum(int(picture.records[number].get(b"revivals", 0)) for number in memory.born)
    if int(picture.hash("tally").get(b"ended", 0)) != ended + revived:
        yield "the ends are miscounted"


def _turns(world: World, picture: Picture) -> Iterator[str]:
    for account in world.accounts:
        name, may_run = account.encode(), _may_run(picture, account)
        most = _most_running(picture, account)
        if most is not None and int(picture.hash("running").get(name, 0)) > most and "limit" not in world.calls:
            yield f"{account} runs more than it may"
        for lane in ALL_LANES:
            has_turn, has_line = (name in picture.scores(f"vtime:{lane}"), picture.ranks(f"backlog:{lane}:{account}"))
            if has_turn != (bool(has_line) and may_run):
                yield f"{account} has a turn for nothing, or none with work"
            if has_turn and name in picture.scores(f"debt:{lane}"):
                yield f"{account} has two virtual times"
    probe = picture.meta.get(b"probe", b"")
    if picture.meta.get(b"breaker") == b"probing" and not picture.records[picture.ids.index(probe)].get(b"token"):
        yield "a probe does not run any more, and the breaker waits for it"
    waiting = [world.wishes[number] for number in _find_waiting(picture)]
    could = any(_may_run(picture, each.account) and (each.lane != IDLE or picture.idle_room > 0) for each in waiting)
    may_go = picture.meta.get(b"paused") != b"1" and not picture.meta.get(b"breaker")
    if could and may_go and not picture.has_bell:
        yield "work waits, and no wakeup was sent"


def _most_running(picture: Picture, account: str) -> int | None:
    most = picture.hash("limits").get(account.encode(), b"1  0").split(b" ")[1]
    return int(most) if most else None


def _may_run(picture: Picture, account: str) -> bool:
    name, most = account.encode(), _most_running(picture, account)
    if name in picture.raw.get(OF_QUEUE + b"held", ()) or name in picture.hash("suspended"):
        return False
    return most is None or int(picture.hash("running").get(name, 0)) < most


def check_step(world: World, text: str, before: Picture, after: Picture, memory: Memory, reply: Any) -> Iterator[str]:
    """Yield what is wrong in a step. `memory`: before it."""
    plain = text.removesuffix(LOST)
    verb, *names = plain.split()
    token = _token_of(memory, verb, names)
    for number in memory.born:
        was, now = before.records[number], after.records[number]
        if was[b"status"] in ENDED and verb != "revive":
            for field in (b"status", b"completed", b"ended"):
                if was.get(field) != now.get(field):
                    yield f"{number} had ended, and its {field.decode()} changed"
        was_canceled = was.get(b"cancel") == b"user" and was.get(b"token") and verb != "finish"
        if was_canceled and after.is_over(number) and now[b"status"] != b"canceled":
            yield f"{number} was canceled, and ended as {now[b'status'].decode()}"
    if token is not None:
        number = int(names[1].rstrip("+"))
        was, now = before.records[number], after.records[number]
        is_current = was.get(b"token") == token
        has_ended = was.get(b"ended") == token
        if verb == "output" and is_current and world.wishes[number].once_shown and not now.get(b"shown"):
            yield "what was shown is not noted"
        if not is_current and not (has_ended and verb == "finish"):
            if _word(reply) not in WORDS_OF_LOST:
                yield f"a stale token was answered {_word(reply)}"
            if was != now or before.events[number] != after.events[number]:
                yield "a stale token wrote"
        elif is_current and _word(reply) in WORDS_OF_LOST:
            yield "the token of the claim was refused"
        elif verb == "finish" and has_ended and not is_current and reply is not True:
            yield "a repeated end was not known again"
        elif verb == "finish" and is_current and (now[b"status"] not in ENDED or now.get(b"ended") != token):
            yield "it was finished, and has not ended"
    if check := CHECKS.get(verb):
        yield from (what for what in check(before, after, memory, names, reply))
    if verb == "enqueue" and not isinstance(reply, Exception):
        wish = world.wishes[int(names[0])]
        if (
            wish.most_queued is not None
            and int(before.hash("queued").get(wish.account.encode(), 0)) >= wish.most_queued
        ):
            yield f"{wish.account} has more waiting than it may"
    if verb == "reconcile" and reply[1]:
        yield f"what is well was repaired: {reply[1]}"
    if verb in ("extend", "drain", "serve"):
        yield from _check_extend(before, after, memory, names[0], reply)
    if verb in ("claim", "again"):
        most = _most_claims(before, memory)
        if len(reply) > (most if verb == "claim" else MANY):
            yield f"{len(reply)} were handed out, and {most} may be"
        director = next(each for each in memory.directors if each.name[0] == names[0])
        yield from _check_claims(world, before, after, director, reply, now=memory.now, is_again=verb == "again")
    if verb in ("claim", "finish") and after.has_bell and (verb == "claim" or not before.has_bell):
        yield from _check_wakeup(after)
    yield from _check_accepted(verb, before, after)
    yield from _check_usage(world, text, before, after, memory, reply)
    if verb != "lose":
        yield from _check_page(SCRIPTS.get(verb, verb), before, after, token or b"", memory.now)


def _check_page(script: str, before: Picture, after: Picture, token: bytes, now: int) -> Iterator[str]:
    """The specification allows the step, as one of this script."""
    for number in range(len(before.ids)):
        was, then = read_state(before, number), read_state(after, number)
        if was != then:
            is_claimed = then.token not in ("", was.token)
            was = replace(was, used=(was.token, was.ended))
            then = replace(then, used=(*was.used, then.token) if is_claimed else was.used)
            sent = then.token if is_claimed else token.decode() or was.token
            if why := explain(was, then, Call(sent, now=now, until=then.lease, wants=then.wants), script):
                yield f"{number}: {why}"


def read_state(picture: Picture, number: int) -> State:
    """Return the variables of the specification."""
    r, name = picture.records[number], picture.ids[number]
    if not r:
        return State()
    lease = picture.scores("lease").get(name)
    return State(
        status=page.ENDED if picture.is_over(number) else page.OPEN,
        token=r.get(b"token", b"").decode(),
        lease=None if lease is None else int(lease),
        ended=r.get(b"ended", b"").decode(),
        wants=b"completed" in r.get(b"events", b""),
        owed=name in picture.owed,
        told=r.get(b"told") in (b"delivered", b"given_up"),
    )


def _token_of(memory: Memory, verb: str, names: list[str]) -> bytes | None:
    if verb not in ("begin", "output", "finish", "release", "fail"):
        return None
    director = next(each for each in memory.directors if each.name[0] == names[0])
    same = [held for held in director.held if held.number == int(names[1].rstrip("+"))]
    return same[names[1].count("+")].token.encode()


def _word(reply: Any) -> Any:
    return getattr(reply, "hold", reply)


def _most_claims(before: Picture, memory: Memory) -> int:
    """Return how many a claim may hand out while the queue is paused, or its breaker not closed."""
    state, until = before.meta.get(b"breaker", b""), int(before.meta.get(b"open_until") or 0)
    if before.meta.get(b"paused") == b"1" or state == b"probing" or (state == b"open" and until > memory.now):
        return 0
    return 1 if state else MANY


def _check_cancel(before: Picture, after: Picture, memory: Memory, names: list[str], reply: Any) -> Iterator[str]:
    number = int(names[0])
    was, now = before.records[number], after.records[number]
    runs = bool(was.get(b"token") or was.get(b"leaving"))
    if reply != ("asked" if runs else "canceled"):
        yield f"a cancel was answered {reply}"
    if (now.get(b"cancel") if runs else now[b"status"]) != (b"user" if runs else b"canceled"):
        yield "a cancel was not written"


def _check_expire(before: Picture, after: Picture, memory: Memory, names: list[str], reply: Any) -> Iterator[str]:
    for number in memory.born:
        r, is_late = (
            before.records[number],
            int(before.records[number].get(b"deadline") or memory.now + 1) <= memory.now,
        )
        if r.get(b"token") and after.is_over(number):
            yield f"{number} runs, and was ended without its director"
        if r.get(b"token") and is_late and not after.records[number].get(b"cancel"):
            yield f"the director of {number} is not told that its time is up"
        if not r.get(b"token") and is_late and not after.is_over(number) and not r.get(b"leaving"):
            yield f"{number} is late, and waits on"


def _check_drop(before: Picture, after: Picture, memory: Memory, names: list[str], reply: Any) -> Iterator[str]:
    if not reply or before.ids[int(names[0])] in after.scores("dead"):
        yield "a letter was dropped, and is there"


def _check_due(before: Picture, after: Picture, memory: Memory, names: list[str], reply: Any) -> Iterator[str]:
    if any(after.owed[each.encode()] <= memory.now for each in reply):
        yield "a webhook was taken, and another courier may take it at once"


def _check_delivery(before: Picture, after: Picture, memory: Memory, names: list[str], reply: Any) -> Iterator[str]:
    number, revivals, _ = map(int, names)
    was, now, name = before.records[number], after.records[number], before.ids[number]
    is_other = revivals != int(was.get(b"revivals") or 0) or name not in before.owed
    if is_other and (was != now or before.owed != after.owed):
        yield "an answer to another webhook, or a repeated one, changed something"


def _check_miss(before: Picture, after: Picture, memory: Memory, names: list[str], reply: Any) -> Iterator[str]:
    yield from _check_delivery(before, after, memory, names, reply)
    number, _, known = map(int, names)
    was, now = (int(each.records[number].get(b"tellings") or 0) for each in (before, after))
    if now > max(known + 1, was):
        yield "an attempt was counted twice"


CHECKS: Final[dict[str, Callable[[Picture, Picture, Memory, list[str], Any], Iterator[str]]]] = {
    "cancel": _check_cancel,
    "expire": _check_expire,
    "drop": _check_drop,
    "due": _check_due,
    "deliver": _check_delivery,
    "miss": _check_miss,
}


def _check_extend(before: Picture, after: Picture, memory: Memory, name: str, reply: Any) -> Iterator[str]:
    director = next(each for each in memory.directors if each.name[0] == name)
    for held, word in zip(director.held, reply, strict=True):
        r, mine = before.records[held.number], before.ids[held.number]
        is_current = r.get(b"token") == held.token.encode()
        if is_current == (word == "lost"):
            yield f"a heartbeat for {held.number} was answered {word}"
        if is_current and after.scores("lease").get(mine) != memory.now + LEASE_TICKS * TICK_MS:
            yield f"a heartbeat did not extend the lease of {held.number}"
        if is_current and r.get(b"cancel") and word == "held":
            yield f"a heartbeat did not say that {held.number} must stop"


def _check_claims(
    world: World, before: Picture, after: Picture, director: Director, reply: Any, *, now: int, is_again: bool
) -> Iterator[str]:
    handed = [after.ids.index(claim.id.encode()) for claim in reply]
    for number, r in enumerate(before.records):
        nonce = director.nonce.encode() + b"-"
        if is_again and r.get(b"token", b"").startswith(nonce) and number not in handed:
            yield f"{number} was handed out by a call whose reply was lost, and is not by its repetition"
    if handed and not is_again and not _may_run(before, world.wishes[handed[0]].account):
        yield f"{handed[0]} was handed out, and its account may not run"
    if "limit" not in world.calls:
        yield from _check_turns(world, before, after, handed)
    idle = sum(world.wishes[number].lane == IDLE for number in handed)
    if not is_again and idle and idle > before.idle_room - (len(handed) - idle):
        yield "idle work took a slot that stays free for other work"
    for claim, number in zip(reply, handed, strict=True):
        r = after.records[number]
        if not is_again and int(r.get(b"start_after") or 0) > now:
            yield f"{number} was handed out before its time"
        if r.get(b"token") != claim.token.encode():
            yield f"{number} was handed out, and its record has another token"
        if before.records[number].get(b"token") not in (None, b"", claim.token.encode()):
            yield f"{number} was handed out, and was claimed"
        if not is_again and not before.records[number].get(b"token"):
            yield from _check_order(world, before, number, handed)


def _check_order(world: World, before: Picture, number: int, handed: list[int]) -> Iterator[str]:
    """Within a lane of one stream, an account's predictions that never ran go in the order in which they came, and idle
    work goes last.
    """
    r, wish = before.records[number], world.wishes[number]
    for other in set(_find_waiting(before)) - set(handed):
        record, its = before.records[other], world.wishes[other]
        never_ran = record[b"claims"] == r[b"claims"] == b"0" and not (record.get(b"revivals") or record.get(b"moves"))
        is_timed = any(record.get(field) for field in (b"deadline", b"start_by", b"start_after"))
        is_later = (its.account, its.lane) == (wish.account, wish.lane) and int(record[b"arrival"]) < int(r[b"arrival"])
        if is_later and never_ran and not is_timed and world.policy.streams == 1:
            yield f"{number} was handed out before {other}"
        if wish.lane == IDLE != its.lane and len(handed) == 1 and _may_run(before, its.account) and not is_timed:
            yield f"{number} is idle work, and was handed out before {other}"


def _check_turns(world: World, before: Picture, after: Picture, handed: list[int]) -> Iterator[str]:
    """The account that was served least goes first, of those with a backlog. Each admission is charged."""
    for lane in {world.wishes[number].lane for number in handed}:
        own = before.scores(f"vtime:{lane}")
        lines = {account: before.ranks(f"backlog:{lane}:{account.decode()}") for account in own}
        for number in handed:
            name, account = before.ids[number], world.wishes[number].account.encode()
            if name not in lines.get(account, ()):
                continue
            if own[account] > min(own[other] for other, line in lines.items() if line):
                yield f"{number} was handed out, and another account had the turn"
            lines[account].remove(name)
            own[account] += float(after.records[number].get(b"charged") or 0)


def _find_waiting(picture: Picture) -> list[int]:
    """Return what waits in line."""
    delayed = picture.scores("delayed")
    return [
        number
        for number, r in enumerate(picture.records)
        if r and not picture.is_over(number) and not (r.get(b"token") or r.get(b"leaving"))
        if picture.ids[number] not in delayed
    ]


def _check_wakeup(after: Picture) -> Iterator[str]:
    """No director is woken for idle work alone that may not start: it would come in vain again and again."""
    has_others = any(
        after.meta.get(f"mask:{lane}".encode(), b"0") != b"0" or after.scores(f"vtime:{lane}") for lane in LANES
    )
    if after.scores("vtime:idle") and after.idle_room <= 0 and not has_others:
        yield "a wakeup was sent for idle work that may not start"


def _check_accepted(verb: str, before: Picture, after: Picture) -> Iterator[str]:
    """Each new prediction is counted, and a planned one once it is due."""
    came = 0
    for number, name in enumerate(before.ids):
        was, now = before.records[number], after.records[number]
        is_due = bool(was.get(b"start_after")) and was[b"claims"] == b"0" and name not in after.scores("delayed")
        came += (
            (not was and bool(now) and name not in after.scores("delayed"))
            or (before.is_over(number) and not after.is_over(number))
            or (verb == "promote" and name in before.scores("delayed") and is_due)
        )
    counted = [
        sum(int(count) for what, count in each.hash("tally").items() if what.startswith(b"accepted:"))
        for each in (before, after)
    ]
    if counted[1] - counted[0] != came:
        yield "what was accepted is miscounted"


def _check_usage(world: World, text: str, before: Picture, after: Picture, memory: Memory, reply: Any) -> Iterator[str]:
    """Each claim that ends after its run began is counted once, by the step that ends it, as its director says."""
    verb = text.split()[0]
    held = [each for director in memory.directors for each in director.held]
    began = {each.token.encode() for each in held if each.began or (verb == "finish" and "started" in each.unsure)}
    expected: Counter[tuple[bytes, str]] = Counter()
    for number in memory.born:
        was = before.records[number]
        if was.get(b"token") and after.records[number].get(b"token") != was.get(b"token"):
            is_told = verb in ("finish", "release", "fail")
            if was[b"token"] in began if is_told else was.get(b"started"):
                account = world.wishes[number].account.encode()
                expected += {(account, "runs"): 1, (account, "output"): int(verb == "finish")}
    counted = _read_used(after)
    counted.subtract(_read_used(before))
    if counted != expected:
        yield f"{dict(+counted)} was counted, and {dict(expected)} was used"


def _read_used(picture: Picture) -> Counter[tuple[bytes, str]]:
    """Return the runs and output tokens by account, as the ledger counts them."""
    sums: Counter[tuple[bytes, str]] = Counter()
    for key, flat in picture.raw.items():
        if key.startswith(TAG + b"ledger:") and key.count(b":") > 2:
            account = key.rpartition(b":")[2]
            for row in flat[1::2]:
                runs, _, _, _, output = map(int, (row.split() + [b"0"] * 5)[:5])
                sums += {(account, "runs"): runs, (account, "output"): output}
    return sums
