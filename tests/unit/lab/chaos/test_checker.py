import gzip
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from director.lab.chaos.checker import INVARIANTS, Report, check, text
from director.lab.chaos.evidence import Rules
from director.lab.chaos.journal import (
    Answered,
    Arrived,
    Batched,
    Breaker,
    Called,
    Claimed,
    CogEnded,
    CogStarted,
    Delivered,
    Fault,
    Final,
    Followed,
    Healed,
    Heard,
    Held,
    Journal,
    Line,
    Listed,
    Rested,
    Sampled,
    Seen,
    Sent,
    Spoken,
    Stepped,
    Unmade,
    Visited,
)
from director.lab.chaos.parties import ODD
from director.lab.chaos.plan import CLUSTER, NEIGHBOURS, SENTINEL, SINGLE, ServerKind
from director.lab.chaos.rest import Leftovers, QueueRest
from director.lab.spec.page import CHECKS

T = 1_800_000_000_000
HOLDER = "host-41-0a1b2c3d"  # a director's name has its pid
EMPTY = Leftovers(queues=[QueueRest(queue="acme/echo:a1")], owed=0, endless=[])
RULES = Rules(seed=7, seconds=60, lease_s=15, attempts=3, slots=2, schedule_s=(2.0, 5.0, 15.0))

Events = list[tuple[str, int, str]]
RETRIED_EVENT = ("retried", 15_500, f"director_lost {HOLDER}")


def item(run: str) -> str:
    return f'{{"run":"{run}","i":0}}'


def create(
    key: str,
    prediction: str,
    *,
    at: int = 0,
    status: int = 201,
    plan: str = "plain",
    shown: str = "",
    tenant: str = "t",
    **asked: int,
) -> list[Line]:
    """Return the lines of the client, and the server's line if the create was accepted."""
    lines: list[Line] = [
        Sent(at=T + at, key=key, action="create", webhook=True, plan=plan, **asked),
        Answered(at=T + at + 5, key=key, action="create", status=status, id=prediction, shown=shown or "starting"),
    ]
    if prediction:
        lines.append(arrived(prediction, at, tenant=tenant))
    return lines


def arrived(prediction: str, at: int, *, tenant: str = "t", number: int | None = None) -> Line:
    number = at if number is None else number
    return Arrived(at=T + at, number=number, id=prediction, tenant=tenant, queue="q", lane="normal")


def claimed(
    prediction: str, at: int, *, stream: int = 0, number: int | None = None, delivered: int | None = None
) -> Line:
    return Claimed(
        at=T + at,
        number=at if number is None else number,
        id=prediction,
        stream=stream,
        holder=HOLDER,
        delivered=T + (at if delivered is None else delivered),
    )


def cancel(key: str, prediction: str, *, at: int, shown: str) -> list[Line]:
    return [
        Sent(at=T + at, key=key, action="cancel", plan="cancel"),
        Answered(at=T + at + 5, key=key, action="cancel", status=200, id=prediction, shown=shown),
    ]


def run(
    prediction: str,
    name: str,
    *,
    began: int,
    ended: int | None,
    outcome: Any = "succeeded",
    asked: int | None = None,
    **where: Any,
) -> list[Line]:
    """Return the lines of the model server, and the server's line of the claim."""
    where = {"server": "cog-0", "pid": 90, **where}
    lines: list[Line] = [claimed(prediction, began - 1), CogStarted(at=T + began, id=prediction, run=name, **where)]
    if ended is not None:
        told_at = 0 if asked is None else T + asked
        lines.append(CogEnded(at=T + ended, id=prediction, run=name, outcome=outcome, asked=told_at))
    return lines


def unmade(at: int) -> Line:
    return Unmade(at=T + at, id=f"gone-{at}", server="redis-0", promoted=T + 9_000)


def fault(kind: str, target: str, begin: int, end: int, *, pid: int = 0) -> list[Line]:
    return [
        Fault(at=T + begin, kind=kind, target=target, phase="begin", pid=pid),
        Fault(at=T + end, kind=kind, target=target, phase="end", pid=pid),
    ]


def told(prediction: str, status: str, *, at: int, answered: int = 200, name: str = "", signed: bool = True) -> Line:
    return Delivered(
        at=T + at,
        id=prediction,
        webhook_id=name
        or f"msg_{prediction}_{'completed' if status in ('succeeded', 'failed', 'canceled') else status}",
        status=status,
        answered=answered,
        signed=signed,
    )


def final(prediction: str, status: str, *events: tuple[str, int, str], output: str = "", **record: str) -> Line:
    return Final(
        at=T + 90_000,
        id=prediction,
        record={"status": status, **record} if status else {},
        events=[(kind, T + at, data) for kind, at, data in events],
        output=output,
    )


def over(
    prediction: str, status: str, end: int, *between: tuple[str, int, str], asked: int = 1, by: str = ""
) -> list[Line]:
    """Return the webhook and the record of a prediction that ended at `end`. `by` is the run that gave its output."""
    events = [("created", asked, ""), *between, ("completed", end, status)]
    output = f"[{item(by)}]" if by else ""
    return [told(prediction, status, at=end + 20), final(prediction, status, *events, output=output)]


def ended_well(prediction: str, name: str, *, at: int = 100) -> Events:
    return [("created", 1, ""), ("started", 20, ""), ("output", 30, item(name)), ("completed", at, "succeeded")]


def missed(*attempts: tuple[int, int], plan: str = "missing") -> list[Line]:
    """Return a prediction with these attempts at its webhook, as (at, answered)."""
    lines = without(plain("m", 1, 10, 90, plan=plan), Delivered)
    return [*lines, *(told("m", "succeeded", at=at, answered=answered) for at, answered in attempts)]


def sampled(
    target: str, begin: int, end: int, *, share: float = 0.01, kb: int = 60_000, grows_kb: int = 0, pid: int = 41
) -> list[Line]:
    """Return a sample each second, of a process that uses this share of a core and grows by so much in each."""
    return [
        Sampled(at=T + at, target=target, pid=pid, busy_ms=int(share * (at - begin)), kb=kb + grows_kb * number)
        for number, at in enumerate(range(begin, end, 1_000))
    ]


def in_a_hole(target: str, *, link: str = "director-0:redis", **used: Any) -> list[Line]:
    """Return samples of a process. Its link, or another one, is a black hole meanwhile."""
    return [*good(), *fault("black_hole", link, 20_000, 45_000), *sampled(target, 1_000, 40_000, **used)]


def at_rest(target: str, **used: Any) -> list[Line]:
    return [*good(), Rested(at=T + 62_000, until=T + 66_000), *sampled(target, 30_000, 66_500, **used)]


def at_work(lines: list[Line], *, at: int, busy_ms: int) -> list[Line]:
    """Return the lines with so much work of the sampled process at this time."""
    return [
        replace(each, busy_ms=each.busy_ms + busy_ms) if isinstance(each, Sampled) and each.at > T + at else each
        for each in lines
    ]


def on_list_of(account: str) -> list[Line]:
    """Return a prediction of the account `t` that is on the list of this account."""
    lines = altered("succeeded", *ended_well("a", "r-a"))
    rest = lines[-1]
    assert isinstance(rest, Final)
    return [*lines[:-1], replace(rest, listed=account, record={**rest.record, "account": "t"})]


def good(prediction: str = "a", key: str = "k-a") -> list[Line]:
    name = f"r-{prediction}"
    between = ended_well(prediction, name)[1:-1]
    ran = run(prediction, name, began=10, ended=90)
    return [*create(key, prediction), *ran, *over(prediction, "succeeded", 100, *between, by=name)]


def with_logs() -> list[Line]:
    """Return a prediction whose model printed a word after its output."""
    ran, between = run("a", "r-a", began=10, ended=90), ended_well("a", "r-a")[1:-1]
    return [*create("k-a", "a"), *ran, *over("a", "succeeded", 100, *between, ("logs", 95, '"slow"'), by="r-a")]


def lived_through_a_death(*, died: int = 50, retried: int = 15_500, again: int = 16_000, lost: int = 0) -> list[Line]:
    """Return a prediction whose first director is killed, and whose second run ends it. `lost`: so is the next."""
    first, second = ("output", 40, item("r1")), ("output", again + 40, item("r2"))
    between = [("retried", at, f"director_lost {HOLDER}") for at in (retried, lost) if at]
    return [
        *create("k-b", "b"),
        *run("b", "r1", began=20, ended=60, outcome="canceled"),
        *fault("kill_director", "director-0", died, died + 1_000, pid=41),
        *run("b", "r2", began=again, ended=again + 80, server="cog-1", pid=91),
        *over("b", "succeeded", again + 100, first, *between, second, by="r2"),
    ]


def canceled(*, shown: str = "canceled", status: str = "canceled", ended: int = 300) -> list[Line]:
    """Return a prediction that its caller canceled while it ran."""
    return [
        *create("k-c", "c"),
        *run("c", "r-c", began=10, ended=ended - 10, outcome=status, asked=205),
        *cancel("k-c", "c", at=200, shown=shown),
        *over("c", status, ended, ("started", 20, "")),
    ]


def oddly(*restarts: str, end: str = "failed", code: str = "model_failed", odd: str = "NaN") -> list[Line]:
    """Return a prediction whose servers answered oddly, once more after each of these restarts."""
    lines, events = create("k-o", "o", plan="odd"), Events()
    must = ODD[odd].outcome
    for number in range(len(restarts) + 1):
        began = 1_000 * number + 10
        answered = run("o", f"o{number}", began=began, ended=began + 80, outcome=must)
        lines += [replace(line, odd=odd) if isinstance(line, CogEnded) else line for line in answered]
        events += [(word, began + 85, "server_lost host-41-aa") for word in restarts[number : number + 1]]
    webhook, rest = over("o", end, began + 100, *events)
    assert isinstance(rest, Final)
    return [*lines, webhook, replace(rest, record={**rest.record, "code": code})]


def without(lines: list[Line], kind: type[Line]) -> list[Line]:
    return [line for line in lines if not isinstance(line, kind)]


def altered(status: str, *events: tuple[str, int, str], output: str = f"[{item('r-a')}]") -> list[Line]:
    """Return a good prediction, except for its state in Redis at rest."""
    ended = max((at for kind, at, _ in events if kind == "completed"), default=100)
    others = without(without(good(), Final), Delivered)
    return [*others, told("a", "succeeded", at=ended + 20), final("a", status, *events, output=output)]


def runs(*intervals: tuple[int, int | None], released: int = 0, crashed: bool = False) -> list[Line]:
    """Return one prediction with these runs. Its first `released` restarts are releases, the others are retries."""
    lines: list[Line] = [*create("k-d", "d")]
    events: Events = []
    last = len(intervals) - 1
    for number, (began, ended) in enumerate(intervals):
        outcome = "succeeded" if number == last else "crashed" if crashed else "canceled"
        lines += run("d", f"r{number}", began=began, ended=ended, outcome=outcome, server=f"cog-{number}")
        if number:
            word = "released" if number <= released else "retried"
            events.append((word, began - 5, "server_lost host-41-aa"))
    end = (intervals[-1][1] or 0) + 10
    return [*lines, *over("d", "succeeded", end, *events, ("output", end - 5, item(f"r{last}")), by=f"r{last}")]


def beside(count: int) -> list[Line]:
    return [line for number in range(count) for line in good(f"e{number}", f"k-e{number}")]


def plain(
    prediction: str, asked: int, began: int, ended: int, *, plan: str = "plain", tenant: str = "t", **where: Any
) -> list[Line]:
    """Return a prediction with one run and no progress, on the second server unless `where` says another."""
    name, where = f"r-{prediction}", {"server": "cog-1", "pid": 91, **where}
    return [
        *create(f"k-{prediction}", prediction, at=asked, plan=plan, tenant=tenant),
        *run(prediction, name, began=began, ended=ended, **where),
        *over(prediction, "succeeded", ended + 10, asked=asked, by=name),
    ]


def in_turn(*turns: tuple[str, int], tenants: str = "aaa", arrive: str = "xyz") -> list[Line]:
    """Return three predictions that ran at the same time on the two streams of a lane.

    `turns` holds (id, stream) in the order of claims.
    """
    asked = {name: 20 * place for place, name in enumerate(arrive)}
    lines: list[Line] = []
    for name, tenant in zip(arrive, tenants, strict=True):
        story = plain(name, asked[name], 500, 600)
        lines += [line for line in story if not isinstance(line, Arrived | Claimed | CogStarted | CogEnded)]
        lines += run(name, f"r-{name}", began=500, ended=600, server=f"cog-{name}")[1:]
        lines.append(arrived(name, asked[name], tenant=tenant))
    return lines + [claimed(name, 100, stream=stream, number=place) for place, (name, stream) in enumerate(turns)]


def start_by(*, claims: int, began: int, again: int | None = None, is_seen: bool = True) -> list[Line]:
    """Return a prediction that was to start within a second.

    `again` is the time of a second claim, after the death of a model server. Unless `is_seen`, the dead server has
    recorded no run, though its director sent one.
    """
    retried = [("retried", again - 5, f"server_lost {HOLDER}")] if again is not None else []
    if not is_seen:
        retried.insert(0, ("started", began, ""))
    ended = (began if again is None else again) + 50
    first = run("s", "r1", began=began, ended=began + 40, outcome="crashed" if again is not None else "succeeded")[1:]
    return [
        *create("k-s", "s", start_by_s=1),
        claimed("s", claims),
        *(first if is_seen else []),
        *([] if again is None else run("s", "r2", began=again, ended=again + 40)),
        *over("s", "succeeded", ended, *retried, asked=0),
    ]


def stepped(lines: list[Line], *, at: int, seconds: int) -> list[Line]:
    """Return the same lines with a step of the server's clock. The server's times differ from then on."""

    def told_by_it(ms: int) -> int:
        return ms + seconds * 1000 if ms >= T + at else ms

    found: list[Line] = []
    for line in lines:
        if isinstance(line, Arrived | Breaker):
            found.append(replace(line, at=told_by_it(line.at)))
        elif isinstance(line, Claimed):
            found.append(replace(line, at=told_by_it(line.at), delivered=told_by_it(line.delivered)))
        elif isinstance(line, Final):
            events = [(kind, told_by_it(when), data) for kind, when, data in line.events]
            found.append(replace(line, events=events))
        else:
            found.append(line)
    step = fault("clock_step", "redis-0", at, at)
    return found + [replace(line, detail=f"{seconds:+d}") for line in step if isinstance(line, Fault)]


def hurried(*, ended: int) -> list[Line]:
    """Return a prediction that was to start within a second and ended without a start, beside a good one."""
    return [
        *good(),
        *create("k-h", "h", start_by_s=1),
        told("h", "failed", at=ended + 20),
        final("h", "failed", ("created", 0, ""), ("completed", ended, "failed"), code="start_by_exceeded"),
    ]


def taken_from_the_living() -> list[Line]:
    """Return a prediction whose director loses the claim although no fault hit it."""
    return without(lived_through_a_death(), Fault)


def too_long(*, ended: int) -> list[Line]:
    """Return a prediction with a deadline of two seconds, whose model server was not asked to stop."""
    return [
        *create("k-l", "l", cancel_after_s=2),
        *run("l", "r-l", began=10, ended=ended, outcome="canceled"),
        *over("l", "canceled", ended, asked=0),
    ]


def held_by_a_freeze(kind: str = "stop_director", target: str = "director-2", *, until: int = 3_950) -> list[Line]:
    """Return a rush in which a director freezes between its claim for the third tenant and the run, at 4,000 ms."""
    claim = claimed("2-15", 1_510)
    lines = [line for line in rush(39, 39, 15) if not (isinstance(line, Claimed) and line.id == "2-15")]
    return [*lines, claim, *fault(kind, target, 1_515, until)]


def rush(*shares: int, light_ms: int = 300, heavy_ms: int = 9_000) -> list[Line]:
    """Return four seconds in which tenants want all of a queue. This many runs of each get in, and then the rest.

    A light tenant and a heavy one come first, and wait this long.
    """
    lines: list[Line] = []
    for tenant, share in enumerate(shares):
        for number in range(40):
            began = 10 + 100 * number if number < share else 4_000 + 100 * (number - share)
            where = {"tenant": f"t{tenant}", "server": f"cog-{tenant}", "pid": 90}
            lines += plain(f"{tenant}-{number}", 0, began, began + 100, plan="rush", **where)
    for name, plan, ms in (("light", "plain", light_ms), ("heavy", "flood", heavy_ms)):
        where = {"tenant": name[0], "server": f"cog-{name[0]}", "pid": 90}
        lines += plain(name, 100, 100 + ms, 200 + ms, plan=plan, **where)
    return lines


def heard(prediction: str, *events: tuple[str, str, str]) -> list[Line]:
    """Return the events that a reader received: (event, id, data)."""
    return [
        Heard(at=T + 50 + place, id=prediction, event=event, mark=mark, data=data)
        for place, (event, mark, data) in enumerate(events)
    ]


def visited(prediction: str, *, status: int = 200, after: str = "", end: Any = "done", until: int = 31_000) -> Line:
    return Visited(at=T + 40, id=prediction, after=after, status=status, end=end, until=T + until)


def listed(lines: list[Line]) -> Line:
    [rest] = [line for line in lines if isinstance(line, Final)]
    events = [(number, kind) for number, (kind, _, _) in enumerate(rest.events, start=1)]
    return Listed(at=T + 80_000, id=rest.id, events=events)


def followed(lines: list[Line], *parts: list[Line] | Line) -> list[Line]:
    """Return the same prediction with a reader that received these events."""
    [rest] = [line for line in lines if isinstance(line, Final)]
    reader: list[Line] = [Followed(at=T + 6, id=rest.id, tenant=0)]
    for part in parts:
        reader += part if isinstance(part, list) else [part]
    return [*lines, *reader]


def watched(
    *,
    alone_ms: int = 40,
    create_ms: int = 5,
    stream_ms: int = 60,
    webhook_ms: int = 40,
    is_refused: bool = False,
    without: str = "",
    held: int = 32,
    hoarded: int = 429,
) -> list[Line]:
    """Return a bystander that is watched alone and then beside its neighbours, which are there except for one."""
    lines: list[Line] = [Held(at=T + 11_000, kind=kind, part="peace", count=held) for kind in ("slow", "stall")]
    for place, plan in enumerate(plan for plan in NEIGHBOURS if plan != without):
        lines += plain(f"n{place}", 9_000 + 100 * place, 9_010 + 100 * place, 9_020 + 100 * place, plan=plan)
    lines += [
        Sent(at=T + 11_000, key="hoard-2", action="create", plan="hoard"),
        Answered(at=T + 11_001, key="hoard-2", action="create", status=hoarded),
    ]
    for number in range(16):
        lines += seen("alone", number, 100 * number, create_ms=5, stream_ms=60, webhook_ms=alone_ms)
        times = {"create_ms": create_ms, "stream_ms": stream_ms, "webhook_ms": webhook_ms}
        lines += seen("beside", number, 10_000 + 100 * number, is_refused=is_refused and not number, **times)
    return lines


def seen(
    plan: str, number: int, at: int, *, create_ms: int, stream_ms: int, webhook_ms: int, is_refused: bool = False
) -> list[Line]:
    """Return one prediction of the bystander. Each fourth one is followed."""
    name = f"{plan}-{number}"
    sent = Sent(at=T + at, key=name, action="create", webhook=True, plan=plan)
    events: Events = [("created", at, ""), ("completed", at + 30, "succeeded")]
    rest = final(name, "succeeded", *events, output=f"[{item(name)}]")
    lines: list[Line] = [
        *([sent, Answered(at=T + at + 1, key=name, action="create", status=503)] if is_refused else []),
        sent,
        Answered(at=T + at + create_ms, key=name, action="create", status=201, id=name, shown="starting"),
        arrived(name, at),
        *run(name, name, began=at + 10, ended=at + 20, server="cog-1", pid=91),
        told(name, "succeeded", at=at + webhook_ms),
        rest,
    ]
    if number % 4:
        return lines
    told_ms = T + at + stream_ms
    output = Heard(at=told_ms, id=name, event="output", mark="2:1:0", data=item(name))
    done = Heard(at=told_ms, id=name, event="done", mark="2:1:0:done", data="{}")
    return [*lines, Followed(at=T + at + 6, id=name, tenant=0), visited(name), output, done, listed([rest])]


def looked(by: Literal["get", "list"], asked: int, status: str) -> Line:
    return Seen(at=T + asked + 5, id="a", asked=T + asked, by=by, status=status)


BOTH: tuple[Literal["get", "list"], ...] = ("get", "list")
ONE: tuple[str, str, str] = ("output", "3:1:0", item("r-a"))
DONE: tuple[str, str, str] = ("done", "3:1:0:done", "{}")
FIRST: tuple[str, str, str] = ("output", "2:1:0", item("r1"))
RETRIED: tuple[str, str, str] = ("retried", "", "")
SECOND: tuple[str, str, str] = ("output", "4:1:0", item("r2"))
LAST: tuple[str, str, str] = ("done", "4:1:0:done", "{}")


def misheard(*events: tuple[str, str, str], lists: list[Line] | None = None, **visit: Any) -> list[Line]:
    """Return a good prediction with a reader that received these events, and a list of them (the true one)."""
    lists = [listed(good())] if lists is None else lists
    return followed(good(), visited("a", **visit), heard("a", *events), *lists)


def listing(*kinds: tuple[int, str]) -> list[Line]:
    return [Listed(at=T + 80_000, id="a", events=list(kinds))]


def misread(*events: tuple[str, str, str]) -> list[Line]:
    """Return a prediction of two attempts with a reader that received these events."""
    story = lived_through_a_death()
    return followed(story, visited("b"), heard("b", *events), listed(story))


def failed_unseen() -> list[Line]:
    ended = CogEnded(at=T + 90, id="a", run="r-a", outcome="failed")
    events = [("created", 1, ""), ("started", 20, ""), ("completed", 100, "failed")]
    rest = final("a", "failed", *events, output=f"[{item('r-a')}]", code="model_failed", error="no")
    return [*create("k-a", "a"), *run("a", "r-a", began=10, ended=None), ended, told("a", "failed", at=120), rest]


def piece(number: int, *, run: str = "r-c", why: str = "null") -> str:
    return f'{{"id":"{run}","choices":[{{"delta":{{"content":"{run}/{number} "}},"finish_reason":{why}}}]}}'


P0, P1, P2 = piece(0), piece(1), piece(2, why='"stop"')
ERROR = '{"error":{"message":"lost","code":"server_lost"}}'
SECOND_RUN = piece(0, run="r-d")
ROLE = '{"id":"r-c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'


def called(
    *chunks: str,
    end: Any = "whole",
    plan: str = "chat",
    status: int = 200,
    at: int = 95,
    sent: tuple[str, ...] = (P0, P1, P2),
    ended: int = 90,
    outcome: str = "succeeded",
) -> list[Line]:
    """Return a call that got these chunks. The server sent others in its first run."""
    stopped = {"outcome": outcome, "asked": ended if outcome == "canceled" else None}
    return [
        *create("call-0", "c", plan=plan),
        *run("c", "r-c", began=10, ended=ended, **stopped),
        *(Spoken(at=T + 20 + place, run="r-c", data=data, tokens=1) for place, data in enumerate(sent)),
        *over("c", outcome, ended + 10, by="r-c"),
        Called(at=T + at, key="call-0", id="c", plan=plan, status=status, chunks=list(chunks), end=end),
    ]


def again(*chunks: str, sent: tuple[str, ...] = ()) -> list[Line]:
    """Return a call whose first run was lost after it sent something, and whose second run gave it these chunks."""
    lost = Spoken(at=T + 45, run="r-d", data=SECOND_RUN, tokens=1)
    first = [*run("c", "r-c", began=10, ended=20, outcome="crashed")]
    first += [Spoken(at=T + 15, run="r-c", data=data, tokens=1) for data in sent]
    events = ("retried", 30, "server_lost host-41-aa")
    second = run("c", "r-d", began=40, ended=80)
    over_at = over("c", "succeeded", 90, events, by="r-d")
    call = Called(at=T + 95, key="call-0", id="c", plan="chat", status=200, chunks=list(chunks), end="whole")
    return [*create("call-0", "c", plan="chat"), *first, *second, lost, *over_at, call]


def batched(
    *written: tuple[str, str], failed: tuple[tuple[str, str], ...] = (), ran: str = "xy", **shown: Any
) -> list[Line]:
    """Return a batch of two lines whose output has these, as (name, prediction). These predictions `ran` once."""
    counts = {"total": 2, "completed": len(written), "failed": len(failed)}
    at_rest = {
        "status": "completed",
        "counts": counts,
        "output": list(written),
        "errors": list(failed),
    }
    made = Batched(at=T + 5, id="batch_1", key="k", tenant=0, total=2)
    own = (Sent, Answered, Delivered)
    lines = [line for name in ran for line in plain(name, 1, 10, 90) if not isinstance(line, own)]
    return [*good(), *lines, made, replace(made, at=T + 70_000, **{**at_rest, **shown})]


def failed_as(code: str) -> list[Line]:
    """Return a batch whose second line is in its error file, with a prediction of this code."""
    failed = [
        *create("k-y", "y", at=1, plan="plain", tenant="t"),
        *run("y", "r-y", began=10, ended=90, outcome="failed", server="cog-1", pid=91),
        *over("y", "failed", 100, asked=1, by="r-y"),
    ]
    own = [
        replace(each, record={**each.record, "code": code}) if isinstance(each, Final) else each
        for each in failed
        if not isinstance(each, (Sent, Answered, Delivered))
    ]
    return [*batched(("k-0", "x"), failed=(("k-1", "y"),), ran="x"), *own]


KILLED = fault("kill_director", "director-1", 50, 150)
BOTH_LINES = (("k-0", "x"), ("k-1", "y"))
TWICE = run("y", "r-y2", began=200, ended=300, server="cog-1", pid=91)


def tagged(lines: list[Line]) -> list[Line]:
    return [replace(line, tag="call-0-0") if isinstance(line, Final) else line for line in lines]


KEPT: dict[str, list[Line]] = {
    "a reader whose API process stood still": [
        *misheard(ONE, DONE, end="silent"),
        *fault("stop_api", "api-0", 2_000, 31_500),
    ],
    "a batch with both lines in its output": batched(*BOTH_LINES),
    "a batch with a line whose director was lost": [*failed_as("director_lost"), *KILLED],
    "a batch whose line ran again because its server died": [
        *batched(*BOTH_LINES),
        *TWICE,
        *fault("kill_director", "director-1", 95, 150),
    ],
    "a call that came whole": called(P0, P1, P2, "[DONE]"),
    "a call that is not streamed": called(P2, plan="whole", sent=(P2,)),
    "a call that failed after a chunk": called(P0, ERROR, outcome="failed"),
    "a call that was refused": called(ERROR, status=503, sent=()),
    "a call whose API died": [*called(P0, end="broken"), *fault("kill_api", "api-0", 60, 900)],
    "a call that got no answer": called(end="broken", status=0),
    "a call whose first run showed nothing": again(SECOND_RUN, ERROR, sent=(P0,)),
    "a call whose first run showed its role": again(ROLE, SECOND_RUN, ERROR),
    "a call that was given up": called(P0, end="left", plan="leave", ended=1_900, outcome="canceled"),
    "a call that was accepted after its caller had left": called(
        end="left", plan="leave", at=-500, ended=1_900, outcome="canceled"
    ),
    "a call that went on": called(P0, end="left", plan="go_on", ended=5_000),
    "a call that was given up, but its director was frozen": [
        *called(P0, end="left", plan="leave", ended=3_000, outcome="canceled"),
        *fault("stop_director", "director-0", 60, 2_900),
    ],
    "a receiver that fails, in its schedule": missed((120, 404), (2_000, 404), (6_600, 404), (21_000, 200)),
    "a receiver that fails, and was called again when its answer was lost": [
        *missed((1_120, 404), (1_200, 404), (6_600, 200)),
        *fault("black_hole", "webhooks:sink-0", 1_000, 1_500),
    ],
    "a receiver that fails, and a step of the clock": stepped(
        missed((1_120, 404), (1_900, 404), (6_600, 200)), at=1_500, seconds=60
    ),
    "a process that has work": [*good(), *sampled("director-0", 1_000, 40_000, share=0.9)],
    "a process without work": [*in_a_hole("director-0"), *sampled("keeper-1", 1_000, 40_000, share=0.9, pid=42)],
    "a process that has work, while another one has no way to Redis": in_a_hole("director-1", share=0.9),
    "a process that starts": [
        *good(),
        Rested(at=T + 62_000, until=T + 66_000),
        *sampled("api-0", 60_000, 66_500, share=1.0),
    ],
    "a process at rest": at_rest("api-0"),
    "a process that works for a moment at the end": at_work(in_a_hole("director-0"), at=36_500, busy_ms=350),
    "one to which nothing happened": good(),
    "attempts to tell of the end, noted behind it": altered(
        "succeeded", *ended_well("a", "r-a"), ("webhook", 120, "completed delivered 200 1 - h")
    ),
    "a death, and another run": lived_through_a_death(),
    "one on its account's list": on_list_of("t"),
    "an end over narrow links": [
        *altered("succeeded", *ended_well("a", "r-a", at=12_000)),
        *fault("narrow", "all:redis", 50, 16_000),
    ],
    "an end that was written late, but its director had no way to Redis": [
        *altered("succeeded", *ended_well("a", "r-a", at=20_000)),
        *fault("partition", "director-0:redis", 50, 19_000),
    ],
    "a slow start, but Redis was away": [
        *lived_through_a_death(again=25_000),
        *fault("kill_redis", "redis-0", 5_000, 6_000),
    ],
    "a slow start, but the disk of Redis stood still": [
        *lived_through_a_death(again=25_000),
        *fault("slow_disk", "redis", 5_000, 6_000),
    ],
    "a slow start, but the next director died before it began": lived_through_a_death(again=33_000, lost=32_000),
    "a slow start, but no keeper was there for more than half a lease": [
        *lived_through_a_death(retried=24_100, again=25_000),
        *fault("partition", "keeper-0:redis", 100, 9_000),
        *fault("kill_keeper", "keeper-1", 1_000, 9_500),
    ],
    "a slow start, but what its director had sent arrived after its death": [
        *lived_through_a_death(retried=24_100, again=24_500),
        *fault("partition", "director-0:redis", 40, 9_000),
    ],
    "a slow start, but the next model server froze": [
        *without(lived_through_a_death(again=25_000), Claimed),
        claimed("b", 19),
        claimed("b", 15_600),
        *fault("stop_cog", "cog-1", 15_550, 24_900),
    ],
    "a slow start, but the clock stepped while no keeper was there": [
        *stepped(lived_through_a_death(retried=24_100, again=25_000), at=500, seconds=60),
        *fault("kill_keeper", "keeper-0", 100, 9_000),
        *fault("kill_keeper", "keeper-1", 100, 9_000),
    ],
    "a slow start, but no keeper was there as its lease ended": [
        *lived_through_a_death(retried=38_100, again=38_500),
        *fault("kill_keeper", "keeper-0", 15_000, 23_000),
        *fault("kill_keeper", "keeper-1", 15_000, 24_000),
    ],
    "a slow start, but its queue's breaker was open": [
        *lived_through_a_death(again=40_000),
        Breaker(at=T + 15_600, number=1, queue="", is_open=True),
        Breaker(at=T + 39_900, number=2, queue="", is_open=False),
    ],
    "a slow start, but every slot was taken": [
        *lived_through_a_death(again=25_000),
        *plain("f0", 0, 15_000, 24_990, server="cog-0", pid=90),
        *plain("f1", 0, 15_000, 24_990, server="cog-0", pid=90),
        *plain("f2", 0, 15_000, 24_990),
        *plain("f3", 0, 15_000, 24_990),
    ],
    "a slow start, but many were in line before it": [
        *lived_through_a_death(again=25_000),
        *[line for n in range(4) for line in plain(f"g{n}", 15_400, 24_900 + 20 * n, 24_915 + 20 * n)],
    ],
    "a cancel of one that ran": canceled(),
    "a cancel that came too late": canceled(shown="succeeded", status="succeeded"),
    "a slow cancel under a fault": [
        *canceled(shown="processing", ended=4_000),
        *fault("stop_director", "director-0", 100, 900),
    ],
    "three attempts and one unspent": runs((10, 20), (50, 60), (100, 110), (150, 160), released=1),
    "a zombie that went on for a lease": runs((10, 18_000), (15_000, 18_100)),
    "the second revival of a dead letter": [
        *create("k-g", "g"),
        *run("g", "r1", began=10, ended=20, outcome="failed"),
        *run("g", "r2", began=210, ended=220),
        told("g", "failed", at=40),
        told("g", "succeeded", at=240, name="msg_g_completed_2"),
        *over("g", "succeeded", 230, ("completed", 30, "failed"), ("revived", 200, ""), by="r2")[1:],
    ],
    "an answer that was lost, and the same key again": [
        *create("k-a", "", at=-50, status=0),
        *good(),
    ],
    "another body under a known key": [*good(), *create("k-a", "", at=50, status=422, plan="other body")],
    "one whose acceptance the client missed": [
        *good(),
        *create("k-h", "", status=503),
        final("h", "canceled", ("created", 1, ""), ("completed", 30, "canceled")),
    ],
    "as many at once as there are slots": beside(2),
    "webhooks that failed, then arrived": [
        *without(good(), Delivered),
        told("a", "succeeded", at=110, answered=500),
        told("a", "succeeded", at=900),
    ],
    "one line, in order": in_turn(("x", 0), ("y", 0), ("z", 0)),
    "two streams are two lines": in_turn(("z", 1), ("x", 0), ("y", 0)),
    "another tenant is another line": in_turn(("y", 0), ("x", 0), ("z", 0), tenants="aba"),
    "a retry overtakes": [*in_turn(("x", 0), ("y", 0), ("z", 0)), claimed("x", 100, number=9)],
    "a start in time": start_by(claims=999, began=1_100),
    "a start in time, and another one after a death": start_by(claims=900, began=950, again=4_000),
    "an end in time": too_long(ended=2_010),
    "a start in time by a clock that went back": stepped(start_by(claims=1_500, began=1_600), at=500, seconds=-600),
    "an end before its time by a clock that went forward": stepped(hurried(ended=600), at=500, seconds=60),
    "all as it should be while the clock goes forward": stepped(lived_through_a_death(), at=60, seconds=60),
    "all as it should be while the clock goes back": stepped(lived_through_a_death(), at=60, seconds=-600),
    "a start that waited for contact after a step": stepped(
        lived_through_a_death(retried=25_000, again=25_900), at=10_000, seconds=-600
    ),
    "a start after a step between the end of the lease and the reaper's next look": stepped(
        lived_through_a_death(retried=30_400, again=31_000), at=15_400, seconds=60
    ),
    "a claim of one that stood still": [
        *taken_from_the_living(),
        *fault("stop_director", "director-0", 50, 30_050, pid=41),
    ],
    "a claim of one that was cut off": [
        *taken_from_the_living(),
        *fault("partition", "director-0:redis", 50, 15_000),
    ],
    "an end too late, under a fault": [*too_long(ended=9_000), *fault("partition", "all:redis", 1_900, 8_000)],
    "a rush, and equal shares": rush(39, 39, 39),
    "a rush under faults, and shares that are nearly equal": [
        *rush(39, 39, 24),
        *fault("kill_director", "director-0", 900, 1_100),
    ],
    "a rush under faults, in which too little was done to compare": [
        *plain("first", 0, 10, 110, plan="rush", tenant="t0"),
        *plain("second", 0, 110, 210, plan="rush", tenant="t0"),
        *[
            line
            for tenant in ("t0", "t1", "t2")
            for turn in (0, 100)
            for line in plain(
                f"{tenant}-{turn}", 0, 3_000 + turn, 3_090 + turn, plan="rush", tenant=tenant, server=f"cog-{tenant}"
            )
        ],
        *fault("kill_director", "director-0", 900, 1_100),
    ],
    "a rush, and a frozen director that keeps the slot of one tenant": [
        *rush(39, 39, 15),
        *fault("stop_director", "director-2", 1_505, 3_900),
    ],
    "a bystander that was served beside its neighbours": watched(),
    "a bystander that waited beside its neighbours for less than two seconds": watched(
        create_ms=1_900, stream_ms=1_900, webhook_ms=1_900
    ),
    "a bystander on a slow machine": watched(alone_ms=500, webhook_ms=2_400),
    "a run that was sent to a frozen server, which died before it knew of it": [
        *start_by(claims=900, began=950, again=4_000, is_seen=False),
        *fault("stop_by_input", "cog-0", 940, 1_900),
    ],
    "a run that was sent to a server which a neighbour's run had just killed": [
        *start_by(claims=900, began=950, again=4_000, is_seen=False),
        *runs((300, 940), (5_000, 5_040), crashed=True),
    ],
    "a rush, and a director that froze before the run that it had claimed for one tenant": held_by_a_freeze(),
    "a rush, and a director that was cut from its server before that run": held_by_a_freeze(
        "black_hole", "director-2:cog"
    ),
    "a rush, and a director that was cut from its server while one tenant had several of its slots": [
        *rush(39, 39, 39, 39),
        *[
            line
            for number in range(2)
            for line in plain(f"kept-{number}", 0, 1_000, 1_100, plan="rush", tenant="t0", server="cog-9", pid=99)
        ],
        *fault("partition", "director-9:cog", 1_050, 3_950),
    ],
    "a rush, and a director that froze while one tenant had several of its slots": [
        *rush(39, 39, 39, 39),
        *[
            line
            for number in range(2)
            for line in plain(f"kept-{number}", 0, 1_000, 1_100, plan="rush", tenant="t0", server="cog-9", pid=99)
        ],
        *fault("stop_director", "director-9", 1_050, 3_950),
    ],
    "a rush, and one tenant whose slot froze for longer than any other's share": [
        *rush(20, 20, 20, 5),
        *fault("stop_director", "director-3", 505, 4_900),
    ],
    "a reader that heard all of it": misheard(ONE, DONE),
    "a reader that came back in the middle": followed(
        good(),
        [visited("a", status=0, end="broken"), visited("a", end="left"), *heard("a", ONE)],
        [visited("a", status=503, after="3:1:0", end="broken"), visited("a", after="3:1:0"), *heard("a", DONE)],
        listed(good()),
    ),
    "a reader that heard logs": followed(
        with_logs(),
        visited("a"),
        heard("a", ONE, ("logs", "4:1:1", "slow"), ("done", "4:1:1:done", "{}")),
        listed(with_logs()),
    ),
    "a reader of two attempts": misread(FIRST, RETRIED, SECOND, LAST),
    "a reader that left behind a comment, and heard it again": misread(FIRST, RETRIED, RETRIED, SECOND, LAST),
    "a reader that heard all at the end": followed(
        failed_unseen(),
        visited("a"),
        heard(
            "a",
            ("output", "2:1:0", item("r-a")),
            ("error", "2:1:0:error", '{"detail":"no"}'),
            ("done", "2:1:0:done", '{"reason":"error"}'),
        ),
        listed(failed_unseen()),
    ),
    "an odd answer that failed its prediction": oddly(),
    "an odd answer that can be read": oddly(end="succeeded", code="", odd="half a surrogate pair"),
    "an odd answer of a server that was then killed": [
        *oddly("retried"),
        *fault("kill_cog", "cog-0", 92, 500, pid=90),
    ],
    "an odd answer to a director that was killed": [
        *oddly("retried"),
        *fault("kill_director", "director-0", 60, 1_000, pid=41),
    ],
    "an odd answer of a server that another run killed": [
        *oddly("retried"),
        *runs((10, 92), (2_000, 2_050), crashed=True),
    ],
    "several clients at once, which see its end when it is there": [
        *good(),
        *[looked(by, asked, "processing") for by in BOTH for asked in (30, 90, 119)],
        *[looked(by, 121, "succeeded") for by in BOTH],
    ],
    "a straggler of a director that was frozen": [
        *good(),
        told("a", "processing", at=500),
        *fault("stop_director", "director-0", 20, 490),
    ],
}

BROKEN: list[tuple[str, str, list[Line]]] = [
    ("I28", "ended without a reason to finish and without an error", called(P0, P1)),
    ("I28", "answered 503, and ended without", called("Service Unavailable", status=503, sent=())),
    ("I31", "it is in_progress at rest", batched(ran="", status="in_progress")),
    ("I31", "it is unknown at rest", batched(ran="")[:-1]),
    ("I31", "its files have k-1 0 times", batched(("k-0", "x"), ran="x")),
    ("I31", "its files have k-0 2 times", batched(*BOTH_LINES, ("k-0", "x"))),
    ("I31", "its files have k-1 2 times", batched(*BOTH_LINES, failed=(("k-1", ""),))),
    ("I31", "its files have k-2, which is no line", batched(*BOTH_LINES, failed=(("k-2", ""),))),
    ("I31", "k-1 was refused", batched(("k-0", "x"), failed=(("k-1", ""),), ran="x")),
    ("I31", "k-1 failed with the code 'director_lost', which no", failed_as("director_lost")),
    ("I31", "k-1 failed with the code 'start_by_exceeded', which no", [*failed_as("start_by_exceeded"), *KILLED]),
    ("I31", "it counts {'total': 2}, its files", batched(*BOTH_LINES, counts={"total": 2})),
    ("I31", "ran again at", [*batched(*BOTH_LINES), *TWICE, *fault("kill_keeper", "keeper-0", 95, 150)]),
    ("I31", "ran again at", [*batched(*BOTH_LINES), *TWICE, *fault("kill_director", "director-0", 95, 150)]),
    ("I8", "a second prediction of some key", batched(("k-0", "x"), ("k-1", ""))),
    ("I28", "it came whole, and has no reason to finish", called(P0, P1, "[DONE]", sent=(P0, P1))),
    ("I28", "it came whole, and has no reason to finish", called(P0, ERROR, "[DONE]", sent=(P0,), outcome="failed")),
    ("I28", "more came after its error", called(P0, ERROR, P1, P2, "[DONE]")),
    ("I28", "nothing came any more after 1 chunks", called(P0, end="silent")),
    ("I28", "its connection broke, though nothing", called(P0, end="broken")),
    ("I28", "its connection broke, though", [*called(P0, end="broken"), *fault("kill_cog", "cog-0", 60, 900, pid=90)]),
    ("I29", "its 3 chunks are those of 0 runs of 1", called(P0, P2, P1, ERROR)),
    ("I29", "its 1 chunks are those of 0 runs of 1", called(P0.replace(":", ": "), ERROR)),
    ("I29", "it ended as whole after 1 chunks of 3", called(P2, "[DONE]", sent=(P2, P0, P1))),
    ("I29", "its 2 chunks are those of 0 runs of 2", again(P0, SECOND_RUN, ERROR, sent=(P0,))),
    ("I29", "it ran again after 1 chunks were shown", again(P0, ERROR, sent=(P0,))),
    ("I29", "its role came 2 times", again(ROLE, ROLE, SECOND_RUN, ERROR)),
    ("I30", "it ran on for 2005 ms", called(P0, end="left", plan="leave", ended=2_100, outcome="canceled")),
    (
        "I30",
        "its caller left, which wanted it to go on",
        called(P0, end="left", plan="go_on", ended=500, outcome="canceled"),
    ),
    ("I23", "it used 90% of a core", in_a_hole("director-0", share=0.9)),
    ("I23", "it used 90% of a core", in_a_hole("keeper-1", link="all:redis", share=0.9)),
    ("I23", "it used 90% of a core", at_rest("api-0", share=0.9)),
    ("I23", "it used 13% of a core", at_work(in_a_hole("director-0"), at=36_500, busy_ms=600)),
    ("I23", "it grew by 234 MB", in_a_hole("director-0", grows_kb=16_000)),
    ("I23", "it had 585 MB", [*good(), *sampled("director-0", 1_000, 40_000, kb=600_000)]),
    ("I25", "answered 'NaN', and it was retried", oddly("retried", "retried")),
    ("I25", "answered 'empty', and it was released", oddly("released", odd="empty")),
    ("I25", "answered 'NaN', and it was retried", [*oddly("retried"), *fault("kill_cog", "cog-1", 92, 500, pid=91)]),
    ("I25", "answered 'NaN', but its code is server_lost", oddly(code="server_lost")),
    ("I25", "answered 'half a surrogate pair', and it failed", oddly(code="", odd="half a surrogate pair")),
    (
        "evidence",
        "no model server answered oddly",
        [line for number in range(10) for line in plain(f"{number}", 0, 10, 110, plan="odd", server=f"cog-{number}")],
    ),
    ("I24", "attempt 2 came after 0.1 s", missed((120, 404), (220, 404), (6_600, 404), (21_000, 200))),
    ("I24", "attempt 4 came after 9.9 s", missed((120, 404), (2_000, 404), (6_600, 404), (10_000, 200))),
    ("I1", "no record of it", [*without(good("z", "k-z"), Final), *good()]),
    ("I1", "still processing", altered("processing", ("created", 1, ""), ("started", 20, ""))),
    ("I2", "its ends are", altered("succeeded", ("created", 1, ""), ("output", 30, item("r-a")))),
    (
        "I2",
        "its record says failed",
        [*without(altered("failed", *ended_well("a", "r-a")), Delivered), told("a", "failed", at=120)],
    ),
    ("I2", "was shown failed", [*good(), *create("k-a", "a", at=500, shown="failed")]),
    ("I3", "missing", without(good(), Delivered)),
    ("I3", "missing", [*without(good(), Delivered), told("a", "succeeded", at=120, answered=500)]),
    ("I3", "missing", [*without(good(), Delivered), told("a", "processing", at=60)]),
    ("I3", "copies of one webhook", [*good(), told("a", "succeeded", at=200, name="msg_other")]),
    ("I3", "wrong signature", [*good(), told("a", "succeeded", at=200, signed=False)]),
    ("I3", "the last webhook says failed", [*good(), told("a", "failed", at=200)]),
    (
        "I3",
        "a webhook says succeeded 1 ms before that end was written",
        [*without(good(), Delivered), told("a", "succeeded", at=99)],
    ),
    ("I3", "webhook processing after the end", [*good(), told("a", "processing", at=200)]),
    ("I4", "after its end", altered("succeeded", *ended_well("a", "r-a"), ("output", 110, item("r-a")))),
    (
        "I4",
        "no model server had",
        altered("succeeded", ("created", 1, ""), ("output", 30, item("r-x")), ("completed", 100, "succeeded")),
    ),
    (
        "I4",
        "at rest: an output of the run r-x",
        altered("succeeded", *ended_well("a", "r-a"), output=f"[{item('r-x')}]"),
    ),
    (
        "I4",
        "no run of its last attempt did",
        [*without(good(), CogEnded), CogEnded(at=T + 90, id="a", run="r-a", outcome="canceled")],
    ),
    ("I5", "it ran 4 times, but 3 are allowed", runs((10, 20), (50, 60), (100, 110), (150, 160))),
    ("I5", "overlapped for 21000 ms", runs((10, 37_000), (16_000, 37_100))),
    ("I6", "shown canceled, but now it is succeeded", canceled(status="succeeded")),
    ("I6", "ended 3795 ms after the cancel", canceled(shown="processing", ended=4_000)),
    (
        "I6",
        "ended 3795 ms after the cancel",
        [*canceled(shown="processing", ended=4_000), *fault("kill_cog", "cog-1", 100, 900)],
    ),
    ("I8", "one key made", [*good(), *good("b", "k-a")]),
    ("I8", "one prediction for the keys", [*good(), *create("k-z", "a")]),
    ("I8", "was refused as a different one", [*good(), *create("k-a", "", at=50, status=422)]),
    ("I8", "answered 201", [*good(), *create("k-a", "a", at=50, plan="other body")]),
    ("I8", "a second prediction", [*good(), final("h", "canceled", ("created", 1, ""), ("completed", 30, "canceled"))]),
    ("I8", "a call that was sent once made a, b", [*tagged(good()), *tagged(good("b", "k-b"))]),
    ("I9", "3 runs at once", beside(3)),
    ("I10", "but done {} is due", misheard(ONE, ONE, DONE)),
    ("I10", "heard done {} as number 1", misheard(DONE)),
    ("I10", "a stream was silent for 30 s", misheard(ONE, DONE, end="silent")),
    (
        "I10",
        "a stream was silent for 30 s",
        [*misheard(ONE, DONE, end="silent"), *fault("kill_director", "director-0", 500, 900)],
    ),
    ("I10", "heard 1 events of 2", misheard(ONE)),
    ("I10", "heard 3 events of 2", misheard(ONE, DONE, DONE)),
    ("I10", "heard event 3 under the id 2:1:0", misheard(("output", "2:1:0", item("r-a")), DONE)),
    ("I10", "heard the id 3:1:0 after 3:1:0", misheard(ONE, ("done", "3:1:0", "{}"))),
    ("I10", "but retried  is due", misread(FIRST, SECOND, LAST)),
    (
        "I10",
        "but its output is",
        followed(
            altered("succeeded", *ended_well("a", "r-a"), output="[]"),
            visited("a"),
            heard("a", ONE, DONE),
            listed(good()),
        ),
    ),
    (
        "I10",
        "its events are numbered [1, 2, 4, 5]",
        misheard(ONE, DONE, lists=listing((1, "created"), (2, "started"), (4, "output"), (5, "completed"))),
    ),
    (
        "I10",
        "its events are listed as",
        misheard(ONE, DONE, lists=listing((1, "created"), (2, "started"), (3, "completed"))),
    ),
    ("I10", "no reader received the list", misheard(ONE, DONE, lists=[])),
    ("I10", "a reader was answered 404", misheard(ONE, DONE, status=404)),
    ("I10", "without a done event", misheard(ONE, DONE, end="whole")),
    ("I11", "a later one of a was claimed before it: q normal 0", in_turn(("z", 0), ("y", 0), ("x", 0))),
    ("I11", "a later one of a was claimed before it: q normal 1", in_turn(("x", 0), ("z", 1), ("y", 1))),
    ("I12", "it started again 24950 ms later", lived_through_a_death(again=25_000)),
    (
        "I12",
        "it started again 24950 ms later",
        [*lived_through_a_death(again=25_000), *fault("kill_keeper", "keeper-1", 100, 9_000)],
    ),
    (
        "I12",
        "it started again 24950 ms later",
        [*lived_through_a_death(again=25_000), *fault("partition", "director-0:redis", 60, 9_000)],
    ),
    (
        "I12",
        "it started again 24950 ms later",
        [*lived_through_a_death(again=25_000), *fault("stop_cog", "cog-1", 15_550, 24_900)],
    ),
    (
        "I12",
        "it started again 24500 ms later",
        [
            *lived_through_a_death(again=25_000),
            *fault("kill_keeper", "keeper-0", 1_000, 9_000),
            *fault("kill_keeper", "keeper-1", 1_000, 9_000),
        ],
    ),
    (
        "I12",
        "it started again 24950 ms later",
        [
            *lived_through_a_death(again=25_000),
            *fault("kill_keeper", "keeper-0", 100, 6_000),
            *fault("latency", "keeper-1:redis", 100, 9_000),
            *fault("kill_keeper", "keeper-1", 6_100, 12_000),
        ],
    ),
    ("I13", "claimed 5 ms after the time by which it was to start", start_by(claims=1_005, began=1_100)),
    ("I13", "claimed 2999 ms after", start_by(claims=900, began=950, again=4_000, is_seen=False)),
    ("I13", "ended as too late, 400 ms before its time", hurried(ended=600)),
    ("I18", "which nothing had silenced", taken_from_the_living()),
    ("I12", "it started again 33000 ms later", stepped(lived_through_a_death(again=33_050), at=17_000, seconds=60)),
    ("I18", "which nothing had silenced", stepped(taken_from_the_living(), at=100, seconds=60)),
    (
        "I18",
        "which nothing had silenced",
        [*taken_from_the_living(), *fault("partition", "director-1:redis", 50, 15_000)],
    ),
    (
        "I18",
        "which nothing had silenced for that long",
        [*taken_from_the_living(), *fault("partition", "director-0:redis", 15_000, 19_000)],
    ),
    ("I13", "77.9% of the model servers' time", too_long(ended=9_000)),
    ("I14", "an index of 0.9", rush(39, 39, 24)),
    ("I14", "an index of 0.8", [*rush(39, 39, 15), *fault("kill_director", "director-0", 900, 1_100)]),
    ("I14", "an index of 0.8", [*rush(39, 39, 15), *fault("stop_director", "director-0", 1_505, 3_900)]),
    ("I14", "an index of 0.9", held_by_a_freeze(until=1_900)),
    ("I14", "an index of 0.9", held_by_a_freeze("black_hole", "director-2:cog", until=1_900)),
    ("I14", "an index of 0.8", held_by_a_freeze("black_hole", "director-2:redis")),
    (
        "I14",
        "light tenants waited for 37 turns of others, the heavy one for 18",
        rush(39, 39, 39, light_ms=1_200, heavy_ms=600),
    ),
    (
        "I17",
        "its end was written 19910 ms later",
        [*altered("succeeded", *ended_well("a", "r-a", at=20_000)), *fault("narrow", "all:redis", 50, 19_000)],
    ),
    ("I19", "its creates took 5 ms alone, 2001 ms beside neighbours", watched(create_ms=2_001)),
    ("I19", "its streams took 60 ms alone, 2001 ms beside neighbours", watched(stream_ms=2_001)),
    ("I19", "its webhooks took 40 ms alone, 2001 ms beside neighbours", watched(webhook_ms=2_001)),
    ("I19", "and may take 2500 ms", watched(alone_ms=500, webhook_ms=2_501)),
    ("I19", "its create beside neighbours was answered 503", watched(is_refused=True)),
    ("I20", "processing by get, which was asked at 1800000000130, but", [*good(), looked("get", 130, "processing")]),
    ("I20", "but succeeded by webhook", [*good(), looked("list", 130, "failed")]),
    ("I20", "but succeeded by list", [*good(), looked("list", 90, "succeeded"), looked("get", 100, "processing")]),
    ("I20", "but succeeded by stream", [*misheard(ONE, DONE), looked("get", 60, "processing")]),
    ("I20", "but canceled by the answer to cancel", [*canceled(), replace(looked("get", 210, "processing"), id="c")]),
    ("I20", "missing by list, which was asked at 1800000000010", [*good(), looked("list", 10, "")]),
    ("evidence", "no neighbour had the plan dead", watched(without="dead")),
    ("evidence", "fewer than 32 connections of neighbours were held open: slow", watched(held=31)),
    ("evidence", "the hoarder was never at its limit of bytes", watched(hoarded=503)),
    (
        "evidence",
        "too few streams of the bystander, beside",
        [line for line in watched() if getattr(line, "id", "") != "beside-0" or not isinstance(line, Followed)],
    ),
    ("evidence", "the server's log has no claim of it", [*without(good(), Claimed), *good("b", "k-b")]),
    ("I22", "it is on no list", on_list_of("")),
    ("I22", "it is on the list of other", on_list_of("other")),
    ("I21", "never got its changes of 2.1 s", [*good(), *(unmade(at) for at in (0, 700, 1_400, 2_100))]),
    ("evidence", "the server says", [*good(), claimed("a", 9, delivered=1_010)]),
    (
        "evidence",
        "the rush of tenants saturated no queue",
        plain("a", 0, 10, 110, plan="rush", server="cog-0", pid=90),
    ),
]
STALE: dict[str, Events] = {
    "progress of the old run in the new attempt": [("output", 15_600, item("r1"))],
    "outputs of both in one attempt": [("output", 16_040, item("r2")), ("output", 16_050, item("r1"))],
}
LEFT: list[tuple[str, str, dict[str, Any]]] = [
    ("I7", "1 entries", {"entries": 1}),
    ("I7", "2 pending", {"pending": 2}),
    ("I7", "1 leases", {"lease": 1}),
    ("I7", "1 delayed", {"delayed": 1}),
    ("I7", "1 deadlines", {"deadline": 1}),
    ("I7", "1 predictions on the list", {"live": 1}),
    ("I7", "1 webhooks still owed", {"owed": 1}),
    ("I7", "nothing will ever remove", {"endless": ["{p1}:rec:x"]}),
    ("I16", "a director serves it, but it is missing in the queues", {"lost_by": ["the queues"]}),
]
# (runs, output tokens) that were counted of one run with seven
COUNTED: list[tuple[str, tuple[int, int]]] = [
    ("0 runs were counted, and its servers had 1 to 1", (0, 7)),
    ("2 runs were counted, and its servers had 1 to 1", (2, 7)),
    ("6 output tokens were counted, and its servers had 7 to 7", (1, 6)),
    ("14 output tokens were counted, and its servers had 7 to 7", (1, 14)),
]


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., Report]:
    """Return a function that judges journals with exactly these lines, each party in its own file."""

    def judge(lines: list[Line], leftovers: Leftovers | None = EMPTY, *, healed: bool = True) -> Report:
        for line in [*lines, *([Healed(at=T + 60_000)] if healed else [])]:
            journal = Journal(tmp_path / f"{type(line).__name__}.jsonl")
            journal.write(line)
            journal.close()
        return check(tmp_path, RULES, leftovers=leftovers)

    return judge


def broken(report: Report) -> set[str]:
    return {name for name, count in report.counts.items() if count}


@pytest.mark.parametrize("story", KEPT)
def test_a_run_that_kept_its_promises_passes(judged: Callable[..., Report], story: str) -> None:
    report = judged(KEPT[story])
    assert broken(report) == set(), text(report)
    assert report.ok


@pytest.mark.parametrize(("invariant", "what", "lines"), BROKEN, ids=[f"{name}: {what}" for name, what, _ in BROKEN])
def test_only_the_broken_promise_is_reported(
    judged: Callable[..., Report], invariant: str, what: str, lines: list[Line]
) -> None:
    report = judged(lines)
    assert broken(report) == {invariant}, text(report)
    assert any(what in breach.what for breach in report.breaches[invariant]), text(report)
    assert not report.ok


@pytest.mark.parametrize("story", STALE)
def test_a_write_of_a_run_without_its_claim_is_found(judged: Callable[..., Report], story: str) -> None:
    [_, rest] = over("b", "succeeded", 16_100, RETRIED_EVENT, *STALE[story], by="r2")
    report = judged([*without(lived_through_a_death(), Final), rest])
    assert broken(report) == {"I4"}
    assert report.stale == 1


@pytest.mark.parametrize(("invariant", "what", "left"), LEFT, ids=[what for _, what, _ in LEFT])
def test_leftovers_in_redis_are_reported(
    judged: Callable[..., Report], invariant: str, what: str, left: dict[str, Any]
) -> None:
    wide = {name: left[name] for name in ("owed", "endless") if name in left}
    queues = [] if wide else [QueueRest(queue="q", **left)]
    report = judged(good(), Leftovers(**{"queues": queues, "owed": 0, "endless": [], **wide}))
    assert broken(report) == {invariant}
    assert what in report.breaches[invariant][0].what


@pytest.mark.parametrize(("what", "counted"), COUNTED, ids=[what for what, _ in COUNTED])
def test_counts_that_differ_from_the_servers_are_reported(tmp_path: Path, what: str, counted: tuple[int, int]) -> None:
    report = judged_by_counts(tmp_path, good(), counted)
    assert broken(report) == {"I26"}
    assert what in report.breaches["I26"][0].what


@pytest.mark.parametrize("counted", [(1, 7), (2, 7), (2, 14)])
def test_a_lost_run_may_count_or_not(tmp_path: Path, counted: tuple[int, int]) -> None:
    assert not broken(judged_by_counts(tmp_path, lived_through_a_death(), counted))


def judged_by_counts(folder: Path, lines: list[Line], counted: tuple[int, int]) -> Report:
    for line in [*lines, Healed(at=T + 60_000)]:
        journal = Journal(folder / f"{type(line).__name__}.jsonl")
        journal.write(replace(line, tokens=7) if isinstance(line, CogEnded) else line)
        journal.close()
    left = Leftovers(queues=[], owed=0, endless=[], used_by={"t ": counted})
    return check(folder, replace(RULES, is_counted=True), leftovers=left)


# The server sent three tokens, of which the caller was shown one
@pytest.mark.parametrize(
    ("lines", "counted", "is_kept"),
    [
        (called(P0, P1, P2, "[DONE]"), (1, 3), True),
        (called(P0, P1, P2, "[DONE]"), (1, 2), False),
        (called(P0, ERROR, outcome="failed"), (1, 1), True),
        (called(P0, ERROR, outcome="failed"), (1, 3), True),
        (called(P0, ERROR, outcome="failed"), (1, 0), False),
        (called(P0, ERROR, outcome="failed"), (0, 1), False),
        (called(P0, ERROR, outcome="failed"), (1, 4), False),
    ],
)
def test_what_a_caller_was_shown_is_counted(
    judged: Callable[..., Report], tmp_path: Path, lines: list[Line], counted: tuple[int, int], is_kept: bool
) -> None:
    judged(lines)
    left = Leftovers(queues=[], owed=0, endless=[], used_by={"t ": counted})
    report = check(tmp_path, replace(RULES, is_counted=True), leftovers=left)
    assert broken(report) == (set() if is_kept else {"I26"})


@pytest.mark.parametrize("other", ["t acme/other", "u "])
def test_what_another_account_or_model_counted_does_not_make_up_for_it(tmp_path: Path, other: str) -> None:
    judged_by_counts(tmp_path, good(), (0, 0))
    left = Leftovers(queues=[], owed=0, endless=[], used_by={other: (1, 7)})
    report = check(tmp_path, replace(RULES, is_counted=True), leftovers=left)
    assert [(each.id, each.what.split(" were")[0]) for each in report.breaches["I26"]] == [
        ("t ", "0 runs"),
        ("t ", "0 output tokens"),
        (other, "1 runs"),
        (other, "7 output tokens"),
    ]


def stepped_through(*rows: tuple[int, dict[str, Any], str]) -> list[Line]:
    """Return a good prediction with these steps in the server's log: (at, what was written, code)."""
    return [
        *good(),
        *(
            Stepped(at=T + at, now=T + at, number=place, id="a", wrote=tuple(wrote.items()), code=code)
            for place, (at, wrote, code) in enumerate(rows)
        ),
    ]


Row = tuple[int, dict[str, Any], str]
ASKED: Row = (1, {"status": "open", "wants": True}, "")
FREE: dict[str, Any] = {"token": "", "lease": None}


def claims_as(token: str, at: int = 9) -> Row:
    return at, {"token": token, "lease": T + at + 15_000}, ""


def ends_as(by: str, at: int = 100, **otherwise: Any) -> Row:
    return at, {"status": "ended", "ended": by, "owed": True, **FREE, **otherwise}, ""


LOST_AT: Row = (15_010, FREE, "director_lost")
DELIVERED: Row = (120, {"owed": False, "told": True}, "")
CANCELED: dict[str, Any] = {"status": "ended", "owed": True}
REVIVED: Row = (200, {"status": "open", "ended": "", "owed": False, "told": False}, "")
ALLOWED: dict[str, list[Row]] = {
    "one run": [ASKED, claims_as("x"), ends_as("x"), DELIVERED],
    "a run whose lease was extended": [ASKED, claims_as("x"), (5_000, {"lease": T + 20_000}, ""), ends_as("x", 18_000)],
    "a claim that was given back": [ASKED, claims_as("x"), (50, FREE, "refused"), claims_as("y", 60), ends_as("y")],
    "a claim that was lost": [ASKED, claims_as("x"), LOST_AT, claims_as("y", 15_100), ends_as("y", 15_200)],
    "a lease from before the clock went back": [ASKED, (9, {"token": "x", "lease": T + 615_000}, ""), LOST_AT],
    "a dead letter that is revived": [ASKED, claims_as("x"), ends_as("x"), DELIVERED, REVIVED, claims_as("y", 210)],
    "a cancel of what waits": [ASKED, (50, CANCELED, "")],
}
FORBIDDEN: list[tuple[str, list[Row]]] = [
    ("finish, and it does not hold that the token is that of its claim", [ASKED, claims_as("x"), ends_as("w")]),
    (
        "finish, and it does not hold that the token is that of its claim",
        [ASKED, claims_as("x"), LOST_AT, claims_as("y", 15_100), ends_as("y", 15_200), ends_as("x", 15_300)],
    ),
    ("take back, and it does not hold that its lease is over, or lost", [ASKED, claims_as("x"), (5_000, *LOST_AT[1:])]),
    ("claim, and it does not hold that no claim has it", [ASKED, claims_as("x"), claims_as("y", 60)]),
    ("claim, and it does not hold that it has not ended", [ASKED, claims_as("x"), ends_as("x"), claims_as("y", 110)]),
    (
        "claim, and it does not hold that the token is new",
        [ASKED, claims_as("x"), (50, FREE, "refused"), claims_as("x", 60)],
    ),
    ("no action changes status, token, lease, ended", [ASKED, claims_as("x"), ends_as("x", owed=False)]),
    ("no action changes status, ended", [ASKED, claims_as("x"), ends_as("x", owed=False, token="x", lease=T + 15_009)]),
    ("no action changes token, used", [ASKED, (9, {"token": "x"}, "")]),
    ("deliver, and it does not hold that its webhook is owed", [ASKED, claims_as("x"), (50, {"told": True}, "")]),
    ("claim, and it does not hold that it has not ended", [claims_as("x"), ends_as("x")]),
    ("no action changes owed", [ASKED, claims_as("x"), ends_as("x"), (110, {"owed": False}, "")]),
    (
        "extend, and it does not hold that the token is that of its claim",
        [ASKED, (5, {"lease": T + 100}, "")],
    ),
    ("end, and it does not hold that no claim has it", [ASKED, claims_as("x"), (50, CANCELED, "")]),
    ("owe again, and it does not hold that it has ended", [ASKED, (5, {"owed": True}, "")]),
    (
        "owe again, and it does not hold that a webhook is wanted",
        [(1, {"status": "open"}, ""), (50, {"status": "ended"}, ""), (60, {"owed": True}, "")],
    ),
    ("erase, and it does not hold that it has ended", [ASKED, (5, {"status": "", "wants": False}, "")]),
    ("enqueue, and it does not hold that it is not there", [ASKED, (5, {"status": "open", "wants": False}, "")]),
]


@pytest.mark.parametrize("story", ALLOWED)
def test_steps_that_the_specification_allows_pass(tmp_path: Path, story: str) -> None:
    report = judged_by_steps(tmp_path, ALLOWED[story])
    assert not broken(report), text(report)


@pytest.mark.parametrize(
    ("what", "rows"), FORBIDDEN, ids=[f"{place}: {what}" for place, (what, _) in enumerate(FORBIDDEN)]
)
def test_a_step_that_the_specification_forbids_is_a_breach(tmp_path: Path, what: str, rows: list[Row]) -> None:
    report = judged_by_steps(tmp_path, rows)
    assert broken(report) == {"I32"}, text(report)
    assert any(what in breach.what for breach in report.breaches["I32"]), text(report)


def test_each_check_of_the_specification_that_a_log_can_show_has_one() -> None:
    """In a log a claim whose lease was lost looks as one that was extended."""
    assert {check for check in CHECKS if not any(f"not hold that {check}" in what for what, _ in FORBIDDEN)} == {
        "its claim has no lease"
    }


@pytest.mark.parametrize(("kind", "breaches"), [(SINGLE, {"I32"}), (SENTINEL, set()), (CLUSTER, set())])
def test_a_step_without_a_time_is_judged_in_the_log_of_one_server_only(
    tmp_path: Path, kind: ServerKind, breaches: set[str]
) -> None:
    """A replica's log starts after a resync, and the steps before its first time have none that can be joined."""
    undated = Stepped(at=0, now=0, number=0, id="a", wrote=(("lease", T + 20_000),))
    report = judged_by_steps(tmp_path, [ASKED], undated, kind=kind)
    assert broken(report) & {"I32"} == breaches, text(report)


def test_a_log_of_claims_without_their_steps_is_no_evidence(tmp_path: Path) -> None:
    assert broken(judged_by_steps(tmp_path, [])) == {"evidence"}


def judged_by_steps(folder: Path, rows: list[Row], *others: Stepped, kind: ServerKind = SINGLE) -> Report:
    with closing(Journal(folder / "all.jsonl")) as journal:
        for line in [*others, *stepped_through(*rows), Healed(at=T + 60_000)]:
            journal.write(line)
    return check(folder, replace(RULES, has_steps=True, kind=kind), leftovers=EMPTY)


@pytest.mark.parametrize(("ended", "missing"), [(110, []), (15, ["it had 1 runs at once, of predictions for 2 slots"])])
def test_a_slot_that_is_not_free_at_rest_is_reported(tmp_path: Path, ended: int, missing: list[str]) -> None:
    lines = [*plain("a", 0, 10, ended, plan="full"), *plain("b", 0, 20, 110, plan="full")]
    with closing(Journal(tmp_path / "all.jsonl")) as journal:
        for line in [*lines, Healed(at=T + 60_000)]:
            journal.write(line)
    report = check(tmp_path, replace(RULES, slots_of={"cog-1": 2}), leftovers=EMPTY)
    assert [each.what for each in report.breaches.get("I27", [])] == missing
    assert broken(report) == ({"I27"} if missing else set())


def test_every_invariant_is_shown_to_bite() -> None:
    assert {name for name, _, _ in [*BROKEN, *LEFT]} - {"evidence"} == set(INVARIANTS) - {"I26", "I27", "I32"}


def test_a_run_without_evidence_fails(judged: Callable[..., Report], tmp_path: Path) -> None:
    report = judged([], None, healed=False)
    assert not report.ok
    assert report.counts["evidence"] == 5
    assert check(tmp_path, replace(RULES, has_calls=True, has_batches=True)).counts["evidence"] == 7
    assert report.counts["I7"] == 1


@pytest.mark.parametrize(("clients", "is_whole"), [((), False), (BOTH[:1], False), (BOTH[1:], False), (BOTH, True)])
def test_a_run_of_thousands_in_which_a_client_never_looked_fails(
    judged: Callable[..., Report], clients: tuple[Literal["get", "list"], ...], is_whole: bool
) -> None:
    lines = [line for number in range(1_000) for line in create(f"k{number}", "", status=503)]
    report = judged([*lines, *[looked(by, 10, "processing") for by in clients]])
    what = [breach.what for breach in report.breaches["evidence"]]
    assert ("no prediction was seen by several clients" not in what) is is_whole


def test_a_step_of_the_clock_excuses_no_time_after_the_retry(judged: Callable[..., Report]) -> None:
    """After this step the product may hold off until 29,050. It put the prediction back at 15,500."""
    report = judged(stepped(lived_through_a_death(), at=14_050, seconds=-600))
    assert report.recovery_ms == [15_500]


def test_a_report_counts_predictions_and_a_breach_has_its_timeline(judged: Callable[..., Report]) -> None:
    lines = [*lived_through_a_death(), *good(), *without(good("z", "k-z"), Final)]
    report = judged(lines)
    assert (report.sent, report.acked, report.terminal, report.lost) == (3, 3, 2, 1)
    assert (report.duplicate_runs, report.runs_per_prediction) == (1, {1: 2, 2: 1})
    assert (report.recovery_ms, report.recovery_p50_ms, report.recovery_p99_ms) == ([15_950], 15_950, 15_950)
    [breach] = report.breaches["I1"]
    assert [line.partition(" ")[2] for line in breach.evidence] == [
        "client: sends create, key k-z, plan 'plain'",
        "server: accepted for t, q normal",
        "client: receives 201 starting",
        f"server: claimed from stream 0 by {HOLDER}",
        "cog-0: run r-z begins in process 90",
        "cog-0: run r-z ends, succeeded",
        "sink: receives succeeded as msg_z_completed, answers 200",
    ]


def test_only_the_first_breaches_are_shown_and_all_are_counted(judged: Callable[..., Report]) -> None:
    report = judged([line for number in range(30) for line in create(f"k{number}", f"p{number}")])
    assert report.counts["I1"] == report.lost == 30
    assert len(report.breaches["I1"]) == 20


def test_the_verdict_for_people_names_every_promise(judged: Callable[..., Report]) -> None:
    shown = text(judged(without(good(), Delivered)))
    for name, (sentence, _) in INVARIANTS.items():
        assert f"  {name} " in shown
        assert sentence in shown
    assert "1 breach\n" in shown
    assert "missing: it succeeded, but no webhook that says so arrived" in shown
    assert shown.endswith("BROKEN PROMISES  (seed 7)")


def test_the_verdict_says_which_faults_the_run_could_not_have(tmp_path: Path) -> None:
    why = "clock steps left out: libfaketime is not installed"
    report = check(tmp_path, replace(RULES, left_out=why), leftovers=EMPTY)
    assert report.left_out == why
    assert why in text(report).splitlines()


def test_the_run_of_a_killed_server_ends_with_it(judged: Callable[..., Report]) -> None:
    """Two more runs on the same slots after the kill are not a third and fourth at once."""
    lines = [
        *[line for number in range(2) for line in run(f"e{number}", f"old{number}", began=1, ended=None, pid=80)],
        *fault("kill_cog", "cog-0", 5, 8, pid=80),
        *beside(2),
    ]
    report = judged(lines)
    assert report.counts["I9"] == 0


def test_the_verdict_can_be_read_again_from_the_folder_alone(judged: Callable[..., Report], tmp_path: Path) -> None:
    (tmp_path / "leftovers.json").write_bytes(msgspec.json.encode(EMPTY))
    first = judged(good(), None)
    assert first.ok
    (tmp_path / "rules.json").write_bytes(msgspec.json.encode(RULES))
    for path in tmp_path.glob("*.jsonl"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert check(tmp_path) == first
    assert msgspec.json.decode(msgspec.json.encode(first), type=Report) == first
