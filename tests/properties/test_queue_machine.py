"""Nothing accepted is lost, doubled or stranded, whatever happens in whatever order: the scripts against a model."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from director.broker import linker
from tests.properties.queue_machine import QueueMachine
from tests.support.kinds import Cut, Mortal, started
from tests.support.servers import Kind, redis_server

SCAN: Final = 64
FEW: Final = 5


@pytest.fixture(scope="module", params=["valkey", pytest.param("redis7", marks=pytest.mark.redis7)])
def own_server(request: pytest.FixtureRequest) -> Iterator[Mortal]:
    """Start a server for this module alone: tests kill it. The kernel has its writes by then, synced or not."""
    named = request.config.getoption("redis_kind")
    if named in ("cluster", "sentinel"):
        with started(named) as several:
            yield Cut(several)
    else:
        kind: Kind = named if request.param == "valkey" else request.param
        with redis_server(kind, config={"appendfsync": "no"}) as alone:
            yield alone


def places(wanted: str, script: str) -> int:
    """Return how often the text is in a script, or in what the scripts share. They ship only what they reach."""
    found = {linker.link(name).count(wanted) for name in ([script] if script else ("claim", "enqueue"))}
    return max(found)


def edit(monkeypatch: pytest.MonkeyPatch, wanted: str, instead: str, *, script: str = "") -> None:
    """Run one script, or all that contain the text, with another text in one place."""
    if places(wanted, script) != 1:
        pytest.fail(f"{script or 'lua/lib'} has changed: what is to be replaced is not there once")
    link: Callable[[str], str] = linker.link
    monkeypatch.setattr(
        linker, "link", lambda name: link(name).replace(wanted, instead) if script in ("", name) else link(name)
    )


def look_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the number of entries that a claim looks at, so that short walks reach that bound."""
    edit(monkeypatch, f"local SCAN = {SCAN}\n", f"local SCAN = {FEW}\n", script="claim")


BOUNDED = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(
    params=[pytest.param(SCAN, id="as it is"), pytest.param(FEW, id="few at a time", marks=pytest.mark.faults)]
)
def scan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many entries one claim looks at."""
    bound: int = request.param
    if bound == FEW:
        look_at_few(monkeypatch)
    return bound


def test_no_order_of_steps_loses_doubles_or_strands_a_prediction(own_server: Mortal, scan: int) -> None:
    run_state_machine_as_test(lambda: QueueMachine(own_server, scan=scan), settings=BOUNDED)


@pytest.mark.heavy
def test_no_long_order_of_steps_loses_doubles_or_strands_a_prediction(own_server: Mortal, scan: int) -> None:
    """Take another random walk in each run."""
    longer = settings(BOUNDED, max_examples=200, stateful_step_count=80, derandomize=False, print_blob=True)
    run_state_machine_as_test(lambda: QueueMachine(own_server, scan=scan), settings=longer)


class Fault(NamedTuple):
    """A text of the scripts and its faulty replacement. `script`: in one script alone. `scan`: as the machine's."""

    wanted: str
    instead: str = ""
    script: str = ""
    scan: int = SCAN


FAULTS = {
    "a stale claim may finish": Fault("if r.token ~= token then return 'lost' end", script="finish"),
    "what is taken back keeps its old entry": Fault(
        "    redis.call('XACK', stream, 'directors', unpack(mids))\n    redis.call('XDEL', stream, unpack(mids))\n",
        script="reap",
    ),
    "claims are not told of a new entry": Fault("    ready_offer(queue, lane, number, look.mask)\n"),
    "no wakeup is sent for a turn": Fault("    ready_ring(queue)\n  end\n  return '', ''", "  end\n  return '', ''"),
    "an end forgets its deadline": Fault("  if r.deadline ~= '' or r.start_by ~= '' then", "  if false then"),
    "a paused queue hands out": Fault("if paused == '1' then return { 'paused' } end", script="claim"),
    "a revived one keeps its lifetime": Fault("redis.call('PERSIST', KEYS[1])", script="revive"),
    "a due retry is promoted twice": Fault("redis.call('ZREM', KEYS[1], id)", script="promote"),
    "what runs is not counted": Fault("  pending_count('running', r.account, 1)\n", script="claim"),
    "what ends is still counted": Fault(
        "was_claimed and 'running' or 'queued', r.account, -1)",
        "was_claimed and 'running' or 'queued', r.account, 0)",
    ),
    "a retry does not count as waiting": Fault(
        "  share_count_now(r.queue, 'queued', r.account, 1)\n", script="release"
    ),
    "what leaves a stream is still counted there": Fault("  if r.token == '' then pending_count_ready(r, -1) end\n"),
    "what leaves a backlog is still counted there": Fault("  pending_count('meta', 'backlogged:' .. r.lane, -1)\n"),
    "what is let in is still counted in its backlog": Fault(
        "      pending_count('meta', 'backlogged:' .. lane, -1)\n", script="claim"
    ),
    "what is counted of many is not written": Fault("end\nshare_flush(queue)\n", "end\n", "claim"),
    "what is handed out has no lease": Fault("if #leases > 0 then", "if false then", "claim"),
    "who has come to a limit keeps its turns": Fault("  share_note_running(queue, r.account)\n", script="claim"),
    "who has room again gets no turns": Fault("    share_note_running(queue, account)\n", script="finish"),
    "who may run again is not called": Fault(
        "share_join_turns(queue, lane, account) then\n      ready_ring(queue)\n",
        "share_join_turns(queue, lane, account) then\n",
    ),
    "a limit counts at the door of the lane alone": Fault(
        "elseif not share_may_run(queue, r.account) then", "elseif false then", "claim"
    ),
    "what is put back is nowhere": Fault(
        "  pending_add_to_backlog(share_backlog(queue, r.lane, r.account), id, r)\n", "", "claim"
    ),
    "what is put back is in two places": Fault(
        "  share_take_away(id, r)\n  pending_add_to_backlog(", "  pending_add_to_backlog(", "claim"
    ),
    "what is let in stays in its backlog": Fault(
        "  if #turn.admitted > 0 then redis.call('ZREM', turn.backlog, unpack(turn.admitted)) end\n"
    ),
    "the turn is another one's": Fault("turn.own < best.own or", "turn.own > best.own or", "claim"),
    "the last of a line goes first": Fault(
        "redis.call('ZRANGE', turn.backlog", "redis.call('ZREVRANGE', turn.backlog", "claim"
    ),
    "who comes again has two virtual times": Fault("  if own then redis.call('ZREM', debt, account) end\n"),
    "a budget bounds nothing": Fault("if not budget or not cost", "if true or not cost", "claim"),
    "most_queued lets one more in": Fault(">= tonumber(most_queued)", "> tonumber(most_queued)", "enqueue"),
    "a bounded queue takes one more": Fault("m.claimed >= most", "m.claimed > most", "enqueue"),
    "an open breaker hands out": Fault(
        "if not is_probe and (breaker_state or '') ~= '' then return { 'open' } end", script="claim"
    ),
    "several try an open breaker": Fault("if is_probe then count = math.min(count, 1) end", script="claim"),
    "an older change of limits applies": Fault(
        " or tonumber(string.match(known, '%S+$')) > tonumber(revision)", "", "enqueue"
    ),
    "a lane that may not run saves turns up": Fault(
        "return backlogged[lane] ~= '0' and redis.call(", "return backlogged[lane] ~= '0' or redis.call(", "claim"
    ),
    "what leaves is still counted": Fault("  share_count_now(r.queue, 'queued', r.account, -1)\n", script="depart"),
    "what leaves is still looked for": Fault("'live', 'deadline', 'delayed'", "'live', 'delayed'", "depart"),
    "what is put back still leaves": Fault("'leaving', '', 'due'", "'due'", "stay"),
    "a cancel on the way is forgotten": Fault(
        "if r.cancel == 'user' and not canceled then return 'cancel' end", script="vacate"
    ),
    "what arrives is not counted": Fault(
        "  share_count_now(r.queue, 'queued', r.account, 1)\n  return", "  return", script="arrive"
    ),
    "a bound of one claim strands the rest": Fault("(scanned >= SCAN or stopped)", "stopped", "claim", scan=FEW),
    "what may run once runs again": Fault("(may_have_run and policy[2] == 'fail')", "false", "release"),
    "what has shown output runs again": Fault(" or r.shown ~= ''", script="release"),
    "what has shown output may be shown again": Fault("if has_output and r[6]", "if false and r[6]", "advance"),
    "what items share is not written": Fault("  write_shared()\n", script="enqueue"),
    "what ends share is not written": Fault("  write_shared()\n", script="finish"),
    "an end of a batch writes nothing of its own": Fault("    if owns[i] then", "    if false then", "finish"),
    "an item at fault ends its batch": Fault(
        "pcall(step, key, arg, last)", "true, step(key, arg, last)", script="finish"
    ),
    "an item at fault is written nevertheless": Fault(
        "  if may_be_known then redis.call('LLEN', keys_events(id)) end", "", "enqueue"
    ),
    "a create is repeated in its batch": Fault(
        "accepted[id] or (may_be_known and redis.call('HGET', record, 'created'))", "accepted[id]", "enqueue"
    ),
    "an end that was repeated is lost": Fault(
        "if r.ended == token or ended[id] == token then return 'finished' end", script="finish"
    ),
    "a budget without room sends no wakeup": Fault("(scanned >= SCAN or stopped)", "scanned >= SCAN", "claim"),
}

QUICK = (
    "claims are not told of a new entry",
    "what runs is not counted",
    "what is put back is nowhere",
    "what is let in stays in its backlog",
    "who may run again is not called",
)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_fault_changes_one_place_of_the_scripts(fault: Fault) -> None:
    assert places(fault.wanted, fault.script) == 1


@pytest.mark.faults
@pytest.mark.not_on("cluster", "sentinel", why="whether this test finds a fault is no question of the server")
@pytest.mark.parametrize(
    "fault", [*QUICK, *(pytest.param(name, marks=pytest.mark.heavy) for name in FAULTS if name not in QUICK)]
)
def test_the_model_finds_each_seeded_fault(own_server: Mortal, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    wanted, instead, script, scan = FAULTS[fault]
    edit(monkeypatch, wanted, instead, script=script)
    if scan == FEW:
        look_at_few(monkeypatch)
    quick = settings(BOUNDED, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, Flaky)):
        run_state_machine_as_test(lambda: QueueMachine(own_server, scan=scan), settings=quick)
