"""Check that the checker bites: each story passes with the scripts as they are, and fails with a broken script."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
from msgspec import Struct

from director.broker import linker
from director.core.states import Status
from director.lab.chaos.checker import text
from director.lab.chaos.plan import MISSING_AT_FIRST
from tests.support.chaos_play import Play, PlayedReader, PlayedRun
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer

Story = Callable[[Play], Awaitable[None]]


async def succeed(run: PlayedRun) -> None:
    run.ends()
    await run.is_finished()


async def run_all(play: Play, *, each_s: float = 0) -> None:
    """Claim and end what waits, one after the other."""
    number = 0
    while run := await play.run(f"r{number}", pid=41):
        number += 1
        play.driver.pass_time(each_s)
        await succeed(run)


async def plain(play: Play) -> None:
    """A prediction whose model server was full at first."""
    await play.ask()
    if full := await play.claim(pid=41):
        await play.driver.release(full, code="refused")
    run = await play.run("r1", pid=41)
    await run.shows()
    await succeed(run)
    await play.deliver()


async def an_answer_to_an_end_is_lost(play: Play) -> None:
    """The director writes the end of a run again, because it heard nothing."""
    await play.ask(has_webhook=False)
    run = await play.run("r1", pid=41)
    assert run is not None
    run.ends()
    for _ in range(2):
        assert await run.is_finished()


async def no_webhook_wanted(play: Play) -> None:
    await play.ask(has_webhook=False)
    run = await play.run("r1", pid=41)
    await succeed(run)


async def a_director_dies(play: Play) -> None:
    """A director dies, and another one claims its prediction as soon as possible."""
    await play.ask()
    left = await play.run("r1", pid=41)
    await left.shows()
    play.kill(41)
    left.ends("canceled")
    run = None
    for _ in range(60):
        await play.keep(1)
        if run := await play.run("r2", pid=42):
            break
    if run is not None:
        await run.shows()
        await succeed(run)
    await play.deliver()


async def a_director_dies_in_a_stream(play: Play) -> None:
    """The caller of a streamed call was shown a chunk before its director died."""
    asked = await play.ask(is_call=True)
    assert asked is not None
    left = await play.run("r1", pid=41)
    assert left is not None
    await left.shows()
    play.kill(41)
    left.ends("canceled")
    for _ in range(60):
        await play.keep(1)
        if heir := await play.run("r2", pid=42):
            await succeed(heir)
            break
    play.is_over(asked, left.item.decode(), '{"error":{"code":"director_lost"}}')
    await play.deliver()


async def a_director_freezes(play: Play) -> None:
    """A director freezes and another one ends its prediction. Then it wakes, and writes all that it had to write."""
    await play.ask()
    sleeper = await play.run("r1", pid=41)
    assert sleeper is not None
    play.freeze(41)
    await play.keep()
    heir = await play.run("r2", pid=42)
    await sleeper.shows()
    await heir.shows()
    heir.ends()
    sleeper.ends()
    await heir.is_finished()
    await sleeper.is_finished()
    await play.deliver()


async def a_director_extends_its_claim(play: Play) -> None:
    """A director extends its claim, and another one waits for work."""
    await play.ask()
    run = await play.run("r1", pid=41)
    await run.shows()
    for _ in range(16):
        await play.driver.extend(run.claim)
        await play.keep(1)
    run.ends()
    if not await run.is_finished():
        heir = await play.run("r2", pid=42)
        await succeed(heir)
    await play.deliver()


async def a_director_wakes_after_a_cancel(play: Play) -> None:
    """The claim was taken back, and the caller canceled the prediction while it waited."""
    asked = await play.ask()
    assert asked is not None
    sleeper = await play.run("r1", pid=41)
    await sleeper.shows()
    play.freeze(41)
    await play.keep()
    await play.cancel(asked)
    await succeed(sleeper)
    await play.deliver()


async def a_reader_comes_back(play: Play) -> None:
    """A reader resumes after each event. The director misses an answer, and writes one event twice."""
    asked = await play.ask(has_webhook=False)
    assert asked is not None
    reader = PlayedReader(play, asked)
    await reader.comes()
    run = await play.run("r1", pid=41)
    await run.shows()
    await reader.comes()
    await run.shows()
    await reader.comes()
    await succeed(run)
    await reader.comes()
    await reader.lists()


async def poison(play: Play) -> None:
    """A prediction that kills every server it runs on."""
    await play.ask()
    for number in range(6):
        await play.keep(60)
        if run := await play.run(f"r{number}", pid=50 + number):
            run.ends("crashed")
            await play.driver.release(run.claim, spent=True, code="server_lost", error="It died.")
    if run := await play.run("last", pid=60):
        run.ends("failed")
        await run.is_finished(Status.FAILED)
    await play.deliver()


async def an_answer_is_lost(play: Play) -> None:
    """The caller asks again under its key, and then with a different body."""
    await play.ask(is_heard=False)
    await play.ask()
    await play.ask()
    await play.ask(plan="other body")
    number = 0
    while run := await play.run(f"r{number}", pid=41):
        number += 1
        await run.shows()
        await succeed(run)
    await play.deliver()


async def a_receiver_is_down(play: Play) -> None:
    """The receiver is down at first, and up later."""
    await play.ask()
    run = await play.run("r1", pid=41)
    await succeed(run)
    await play.deliver(answered=500)
    await play.keep(3)
    await play.deliver()


async def a_receiver_is_missing(play: Play) -> None:
    """A receiver answers 404 at first. Meanwhile a webhook of the same account arrives at its host."""
    missing = await play.ask("missing", plan=MISSING_AT_FIRST)
    assert missing is not None
    await run_all(play)
    await play.deliver(otherwise={missing: 404})
    await play.ask("other")
    await run_all(play)
    for _ in range(2):
        await play.deliver(otherwise={missing: 404})
    await play.keep(3)
    await play.deliver()


async def one_after_the_other(play: Play) -> None:
    """A tenant submits more than can run, and each prediction runs in its turn."""
    for number in range(6):
        await play.ask(f"k{number}", has_webhook=False)
        play.driver.pass_time(0.001)
    await run_all(play)


async def too_late_to_start(play: Play) -> None:
    """The first director comes two seconds later, for a prediction that was to start within one. Another one has
    time.
    """
    await play.ask("in a hurry", start_by_s=1)
    await play.ask("patient")
    play.driver.pass_time(2)
    await run_all(play)
    await play.deliver()


async def a_caller_cancels(play: Play) -> None:
    """The caller cancels a running prediction. Its director looks after the claim all the time."""
    asked = await play.ask()
    assert asked is not None
    run = await play.run("r1", pid=41)
    await run.shows()
    play.driver.pass_time(1)
    await play.cancel(asked)
    for _ in range(5):
        if await run.is_to_stop():
            run.ends("canceled")
            await run.is_finished(Status.CANCELED)
            break
        play.driver.pass_time(1)
    else:
        await succeed(run)
    await play.deliver()


async def a_rush(play: Play) -> None:
    """Three tenants want the same, all at once."""
    for number in range(8):
        for account in ("ant", "bee", "cat"):
            await play.ask(f"{account}-{number}", account=account, plan="rush", has_webhook=False)
    await run_all(play, each_s=1)


class Fault(Struct, frozen=True):
    """A script broken on purpose: pattern, replacement, the story that shows it, the promises that it breaks."""

    old: str
    new: str
    story: Story
    breaks: str


LEASE: Final = r"leases\[#leases \+ 1\] = now \+ lease_ms\s+leases\[#leases \+ 1\] = id"
FINISH: Final = re.escape("if r.token ~= token then return 'lost' end")
ADVANCE: Final = re.escape("if token == '' or r[1] ~= token then return { 'lost' } end")
AT_MOST_ONCE: Final = "share_take_away(id, r) redis.call('ZREM', keys_queue(queue, 'live'), id)"

BACKLOG: Final = re.escape("redis.call('ZRANGE', turn.backlog, 0,")
TURN: Final = re.escape("redis.call('ZRANGE', keys_queue(queue, 'vtime:' .. lane), 0,")

FAULTS: Final = {
    "claim acknowledges what it hands out": Fault(LEASE, AT_MOST_ONCE, a_director_dies, "I1 I7 I32"),
    "claim writes no lease": Fault(LEASE, "", a_director_dies, "I12 I32"),
    "finish looks at no token": Fault(FINISH, "", a_director_freezes, "I2 I4 I32"),
    "finish revives what was canceled": Fault(FINISH, "", a_director_wakes_after_a_cancel, "I2 I4 I6 I26 I32"),
    "advance looks at no token": Fault(ADVANCE, "", a_director_freezes, "I4"),
    "advance does not note that output was shown": Fault(
        re.escape("redis.call('HSET', KEYS[1], 'shown', '1')"), "", a_director_dies_in_a_stream, "I29"
    ),
    "what was shown runs again": Fault(re.escape(" or r.shown ~= ''"), "", a_director_dies_in_a_stream, "I29"),
    "a heartbeat extends no lease": Fault(
        re.escape("redis.call('ZADD', keys_queue(queue, 'lease'), now + lease_ms, id)\n    local late"),
        "local late",
        a_director_extends_its_claim,
        "I18",
    ),
    "an attempt is never the last": Fault(re.escape("attempt >= tonumber(policy[1])"), "attempt >= 99", poison, "I5"),
    "what is acknowledged is not deleted": Fault(
        re.escape("redis.call('XDEL', stream, unpack(mids))"), "", plain, "I7"
    ),
    "an end gives no lifetime": Fault(r"redis.call\('PEXPIRE', keys_input\(id\), \S+\)", "", no_webhook_wanted, "I7"),
    "enqueue looks at no key": Fault(
        re.escape("fingerprint ~= '' and redis.call('GET', KEYS[key + 3])"), "false", an_answer_is_lost, "I8"
    ),
    "enqueue looks at no body": Fault(
        re.escape("print == fingerprint and { 'replayed', known }"), "{ 'replayed', known }", an_answer_is_lost, "I8"
    ),
    "an end owes no webhook": Fault(
        re.escape("redis.call('ZADD', keys_owed(), own.now + (end_.grace_ms or 0), id)"), "", plain, "I3 I32"
    ),
    "deliver drops what did not arrive": Fault(
        re.escape("redis.call('ZADD', keys_owed(), next_at, id)"),
        "redis.call('ZREM', keys_owed(), id)",
        a_receiver_is_down,
        "I3",
    ),
    "deliver lets forward have what a receiver refused": Fault(
        re.escape("if ARGV[6] == '1' and"), "if", a_receiver_is_missing, "I24"
    ),
    "replay shows again what is known": Fault(
        re.escape("local head = #reply"), "local head = #reply; at = math.max(0, at - 1)", a_reader_comes_back, "I10"
    ),
    "replay leaves one out": Fault(
        re.escape("local head = #reply"), "local head = #reply; at = at > 0 and at + 1 or 0", a_reader_comes_back, "I10"
    ),
    "advance writes again what was written": Fault(
        re.escape(" + 2 * math.max(0, seq - last_known), #ARGV, 2 do"), ", #ARGV, 2 do", a_reader_comes_back, "I10"
    ),
    "a backlog is served from its end": Fault(
        BACKLOG, "redis.call('ZREVRANGE', turn.backlog, 0,", one_after_the_other, "I11"
    ),
    "claim looks at no time to start by": Fault(
        re.escape("r.begun == '' and records_past(r.start_by, now)"), "false", too_late_to_start, "I13"
    ),
    "a holder is not told of a cancel": Fault(
        re.escape("(r[2] and r[2] ~= '') and r[2] or late"), "late", a_caller_cancels, "I6 I13"
    ),
    "the end of a run counts nothing": Fault(
        re.escape("if row then ledger_add(row, used) end"), "", no_webhook_wanted, "I26"
    ),
    "an end that is written again counts again": Fault(
        re.escape("if r.ended == token or ended[id] == token then"),
        "if r.ended == token or ended[id] == token then"
        " queue = r.queue; ledger_add(ledger_look_up(r, now), ARGV[arg + 16]);",
        an_answer_to_an_end_is_lost,
        "I26",
    ),
    "a run is counted for another account": Fault(
        re.escape("ledger_write_account(keys_ledger(day.month, account), rows)"),
        "ledger_write_account(keys_ledger(day.month, 'other'), rows)",
        no_webhook_wanted,
        "I26",
    ),
    "reap asks for no lease": Fault(
        re.escape("'-inf', now, 'LIMIT'"), "'-inf', '+inf', 'LIMIT'", a_director_extends_its_claim, "I18 I32"
    ),
    "it is always the turn of who was served most": Fault(
        TURN, "redis.call('ZREVRANGE', keys_queue(queue, 'vtime:' .. lane), 0,", a_rush, "I14"
    ),
}
STORIES: Final = {fault.story.__name__: fault.story for fault in FAULTS.values()}


@pytest.fixture
def play(driver: QueueDriver, tmp_path: Path, server: RedisServer) -> Play:
    return Play(driver, tmp_path, server.folder)


@pytest.mark.parametrize("story", STORIES)
async def test_every_story_passes_with_the_scripts_as_they_are(play: Play, story: str) -> None:
    await STORIES[story](play)
    report = await play.verdict()
    assert report.ok, text(report)
    assert report.acked == report.terminal > 0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_fault_changes_a_script(fault: Fault) -> None:
    assert any(re.search(fault.old, linker.link(path.stem)) for path in linker.LUA.glob("*.lua"))


@pytest.mark.faults
@pytest.mark.parametrize("broken", FAULTS)
async def test_a_broken_script_is_found(play: Play, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    fault = FAULTS[broken]
    whole, changed = linker.link, set[str]()

    def mutated(name: str) -> str:
        script, times = re.subn(fault.old, lambda _: fault.new, whole(name))
        changed.update([name] * times)
        return script

    monkeypatch.setattr(linker, "link", mutated)
    await fault.story(play)
    report = await play.verdict()
    assert changed, "no script that ran has this line"
    assert {name for name, count in report.counts.items() if count} == set(fault.breaks.split()), text(report)
    await play.driver.redis.flushall()  # some broken scripts leave keys behind that no test may leave
