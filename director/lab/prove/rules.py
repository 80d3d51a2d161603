"""Judge states and steps. The rules are those of the chaos checker and of the queue's books, for every state: each
prediction is in one place and ends once, each counter equals what it counts, and a stale token writes nothing.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from director.core.ids import ALL_LANES
from director.lab.prove.actions import LOST
from director.lab.prove.picture import ENDED, OF_QUEUE, TAG, Memory, Picture
from director.lab.prove.worlds import World

WORDS_OF_LOST: Final = ("lost", False)


def check_state(world: World, picture: Picture, memory: Memory) -> Iterator[str]:
    """Yield what is wrong in a state."""
    for number in memory.born:
        if not picture.records[number]:
            yield f"{number} was accepted and is lost"
            return
        yield from (f"{number} {what}" for what in _own(world, picture, memory, number))
    yield from _indexes(picture, memory)
    yield from _counts(world, picture, memory)
    yield from _turns(world, picture, memory)


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
    is_in_line = name in picture.ranks(f"backlog:{lane}:{account}")
    is_delayed, is_claimed = name in picture.scores("delayed"), name in picture.scores("lease")
    places = len(entries) * (not token) + is_in_line + is_delayed + is_claimed
    if places != (not ended):
        yield f"is in {places} places"
    if is_claimed != bool(token):
        yield "has a claim without a lease, or a lease without a claim"
    if ended and (entries or token):
        yield "is claimed or in line after its end"
    if token and (len(entries) != 1 or not entries[0].consumer):
        yield "is claimed, and its entry is not pending"
    for entry in entries:
        if (str(entry.number).encode(), entry.mid) != (r.get(b"stream"), r.get(b"mid")):
            yield "has another entry than its record says"
        if not token and (entry.consumer or entry.is_past):
            yield "waits, and no claim will find it"
        if not token and not int(picture.meta.get(f"mask:{lane}".encode(), 0)) >> entry.number & 1:
            yield "waits in a stream that no claim looks into"
    if r.get(b"shown") and not token and not ended:
        yield "was shown, and may run again"
    wants = b"completed" in r.get(b"events", b"")
    is_owed = name in picture.owed
    if is_owed != (ended and wants and r.get(b"told") not in (b"delivered", b"given_up")):
        yield "owes a webhook, or owes none, against its record"


def _indexes(picture: Picture, memory: Memory) -> Iterator[str]:
    living = {picture.ids[number] for number in memory.born if not picture.is_over(number)}
    if picture.scores("live").keys() != living:
        yield "the list of what lives is wrong"
    timed = {name for name in living if _has_time(picture, picture.ids.index(name))}
    if picture.scores("deadline").keys() - living:
        yield "the list of deadlines has what has ended"
    if timed - picture.scores("deadline").keys():
        yield "a deadline is not on the list"
    if picture.stray:
        yield "an entry is pending that is not there"


def _has_time(picture: Picture, number: int) -> bool:
    """Return True if expire has to look at it. Of a claim it has when it was notified once."""
    r = picture.records[number]
    if r.get(b"token"):
        return bool(r.get(b"deadline")) and not r.get(b"cancel")
    return bool(r.get(b"deadline") or (r.get(b"start_by") and not r.get(b"begun")))


def _counts(world: World, picture: Picture, memory: Memory) -> Iterator[str]:
    living = [number for number in memory.born if not picture.is_over(number)]
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
    ended = sum(picture.is_over(number) for number in memory.born)
    revived = sum(int(picture.records[number].get(b"revivals", 0)) for number in memory.born)
    tally = picture.hash("tally")
    if int(tally.get(b"ended", 0)) != ended + revived:
        yield "the ends are miscounted"
    accepted = sum(int(count) for name, count in tally.items() if name.startswith(b"accepted:"))
    if accepted != len(memory.born) + revived:
        yield "what was accepted is miscounted"


def _turns(world: World, picture: Picture, memory: Memory) -> Iterator[str]:
    running, limits = picture.hash("running"), picture.hash("limits")
    held = {*picture.raw.get(OF_QUEUE + b"held", ()), *picture.hash("suspended")}
    could = False
    for account in map(str.encode, world.accounts):
        most = limits.get(account, b"1  0").split(b" ")[1]
        count = int(running.get(account, 0))
        if most and count > int(most):
            yield f"{account.decode()} runs more than it may"
        may_run = account not in held and (not most or count < int(most))
        for lane in ALL_LANES:
            line = picture.ranks(f"backlog:{lane}:{account.decode()}")
            if (account in picture.ranks(f"vtime:{lane}")) != (bool(line) and may_run):
                yield f"{account.decode()} has a turn for nothing, or none with work"
            if account in picture.ranks(f"vtime:{lane}") and account in picture.ranks(f"debt:{lane}"):
                yield f"{account.decode()} has two virtual times"
            could = could or (may_run and bool(line))
        ready = [n for n in memory.born if picture.ids[n] in picture.entries and not picture.records[n].get(b"token")]
        could = could or (may_run and any(world.wishes[n].account.encode() == account for n in ready))
    may_go = picture.meta.get(b"paused") != b"1" and not picture.meta.get(b"breaker")
    if could and may_go and OF_QUEUE + b"bell" not in picture.raw:
        yield "work waits, and no wakeup was sent"


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
        if verb in ("claim", "again") and was.get(b"token") and was.get(b"token") != now.get(b"token"):
            yield f"{number} was claimed, and is claimed by another one"
    if token is not None:
        number = int(names[1].rstrip("+"))
        was, now = before.records[number], after.records[number]
        is_current = was.get(b"token") == token
        has_ended = was.get(b"ended") == token
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
    if verb in ("claim", "again"):
        yield from _check_claims(world, before, after, memory, reply, is_again=verb == "again")
    yield from _check_usage(text, before, after, memory, reply)


def _token_of(memory: Memory, verb: str, names: list[str]) -> bytes | None:
    if verb not in ("begin", "output", "finish", "release", "fail"):
        return None
    director = next(each for each in memory.directors if each.name[0] == names[0])
    same = [held for held in director.held if held.number == int(names[1].rstrip("+"))]
    return same[names[1].count("+")].token.encode()


def _word(reply: Any) -> Any:
    return getattr(reply, "hold", reply)


def _check_claims(
    world: World, before: Picture, after: Picture, memory: Memory, reply: Any, *, is_again: bool
) -> Iterator[str]:
    for claim in reply:
        number = after.ids.index(claim.id.encode())
        r = after.records[number]
        if r.get(b"token") != claim.token.encode():
            yield f"{number} was handed out, and its record has another token"
        if before.records[number].get(b"token") not in (None, b"", claim.token.encode()):
            yield f"{number} was handed out, and was claimed"
        if not is_again and not before.records[number].get(b"token"):
            yield from _check_order(world, before, number)


def _check_order(world: World, before: Picture, number: int) -> Iterator[str]:
    """Within a lane, an account's predictions that never ran go in the order in which they came."""
    r, wish = before.records[number], world.wishes[number]
    for other, record in enumerate(before.records):
        if (
            record
            and world.wishes[other].account == wish.account
            and world.wishes[other].lane == wish.lane
            and record[b"status"] not in ENDED
            and not record.get(b"token")
            and before.ids[other] not in before.scores("delayed")
            and record[b"claims"] == r[b"claims"] == b"0"
            and int(record[b"arrival"]) < int(r[b"arrival"])
            and world.slots == 1
            and not record.get(b"deadline")
            and not record.get(b"start_by")
        ):
            yield f"{number} was handed out before {other}"


def _check_usage(text: str, before: Picture, after: Picture, memory: Memory, reply: Any) -> Iterator[str]:
    """Each claim that ends after its run began is counted once, by the step that ends it."""
    verb = text.split()[0]
    counted = _runs(after) - _runs(before)
    over = [
        number
        for number in memory.born
        if before.records[number].get(b"token")
        and after.records[number].get(b"token") != before.records[number].get(b"token")
    ]
    if verb in ("finish", "release", "fail"):
        held = [each for director in memory.directors for each in director.held]
        began = {each.token.encode() for each in held if each.began or "started" in each.unsure}
        expected = sum(before.records[number][b"token"] in began for number in over)
        if verb != "finish":
            began = {each.token.encode() for each in held if each.began}
            expected = sum(before.records[number][b"token"] in began for number in over)
    else:
        expected = sum(bool(before.records[number].get(b"started")) for number in over)
    if counted != expected:
        yield f"{counted} runs were counted, and {expected} ended"


def _runs(picture: Picture) -> int:
    rows = [value for key, value in picture.raw.items() if key.startswith(TAG + b"ledger:") and key.count(b":") > 2]
    return sum(int(row.split()[0]) for flat in rows for row in flat[1::2])
