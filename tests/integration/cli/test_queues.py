"""Test `director queues` and `director directors`: operators see queues, directors and servers, and change queues."""

import json
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.cli.queues import report, table
from director.cli.status import director_lines
from director.core.errors import QueueRefused
from director.core.policy import Objective, Objectives, Policy
from director.core.samples import Burn, Burns
from director.operate import overview
from director.operate.views import director_view
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import About, DirectorFound, HeartbeatFound, ServerFound
from director.store.queues import Queues, Tenant
from tests.integration.cli.conftest import Operator
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.typed import Typed

Run = Callable[..., Awaitable[Typed]]


@pytest.fixture
def run(operator: Operator) -> Run:
    return partial(operator.tries, "queues")


async def said(run: Run, *line: str) -> str:
    ended = await run(*line)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


async def alive(driver: QueueDriver, *, slots: int = 2) -> None:
    """Report a director by the server's own clock, which the commands use."""
    await driver.scripts.extend(driver.queue, consumer="d1", lease_s=60, claims=[], slots=slots)


async def test_migrate_moves_waiting_predictions_and_dry_run_moves_nothing(
    run: Run, driver: QueueDriver, catalog: Catalog
) -> None:
    ids = [await driver.submit() for _ in range(3)]
    to = await catalog.register(MODEL, "b2" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await driver.claim_one()
    assert await said(run, "migrate", driver.queue, MODEL, "--dry-run") == (
        f"2 would be moved from {driver.queue} to {to}\n"
        "1 still running; they finish in the former queue. Repeat the command if some return to it\n"
    )
    assert (await driver.stats()).waiting == 2
    told = json.loads(await said(run, "migrate", driver.queue, to, "--json"))
    assert told == {"queue": driver.queue, "to": to, "dry_run": False, "moved": 2, "claimed": 1, "held": 0}
    assert [await driver.field(each, "queue") for each in ids] == [driver.queue, to, to]
    other = await catalog.register("acme/other", "c3" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    for wrong in (driver.queue, other, "acme/none"):
        ended = await run("migrate", driver.queue, wrong)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)


async def test_each_queue_is_a_line(run: Run, driver: QueueDriver) -> None:
    await alive(driver)
    for lane, count in (("high", 1), ("normal", 2), ("low", 3)):
        for _ in range(count):
            await driver.submit(lane=lane)
    await driver.claim_one()
    names, row = [line.split() for line in (await said(run)).splitlines()]
    seen = dict(zip(names, row, strict=False))
    assert seen["queue"] == driver.queue
    assert [seen[name] for name in ("high", "normal", "low", "running", "slots")] == ["0", "2", "3", "1", "2"]
    assert [seen[name] for name in ("delayed", "dead", "mode", "state")] == ["0", "0", "absorb", "serving"]
    [facts] = json.loads(await said(run, "--json"))["results"]
    assert (facts["queue"], facts["normal"], facts["slots"]) == (driver.queue, 2, 2)


async def test_slots_of_lost_directors_are_not_counted(run: Run, driver: QueueDriver) -> None:
    await driver.scripts.extend(driver.queue, consumer="d1", lease_s=60, claims=[], slots=4, now_ms=driver.now_ms)
    driver.pass_time(60)
    stats = await driver.scripts.stats(driver.queue, now_ms=driver.now_ms)
    assert stats.slots == 4
    names, row = table([(driver.queue, stats)])
    assert dict(zip(names.split(), row.split(), strict=False))["slots"] == "0"


async def test_one_queue_is_shown_with_its_accounts(run: Run, driver: QueueDriver) -> None:
    await alive(driver)
    for account, count in (("small", 1), ("large", 3)):
        for _ in range(count):
            await driver.submit(account=account)
    shown = await said(run, "show", MODEL)
    assert shown.splitlines()[0] == driver.queue
    assert "  waiting    high 0, normal 4, low 0; oldest " in shown
    assert "  running    0 in 2 slots; directors: 1" in shown
    assert shown.splitlines()[-2:] == [
        "  account    large: 3 waiting, 0 running",
        "  account    small: 1 waiting, 0 running",
    ]
    facts = json.loads(await said(run, "show", driver.queue, "--json"))
    assert facts["tenants"][0] == {
        "name": "large",
        "waiting": 3,
        "running": 0,
        "is_paused": False,
        "is_suspended": False,
        "weight": 1.0,
        "max_running": None,
    }


async def test_quality_of_estimates_is_shown(driver: QueueDriver, redis: Redis) -> None:
    lines = report(driver.queue, await driver.scripts.stats(driver.queue), [])
    assert {"  estimates  none yet", "  warm hits  none yet", "  batches    none"} <= set(lines)
    counters = {"eta_kept": 9, "eta_missed": 1, "eta_error:inf": 1, "eta_error:15": 2, "eta_error:0.5": 7}
    await redis.hset(keys.tally(driver.queue), mapping={**counters, "warm": 3, "cold": 1, "batch_budget": 5})
    lines = report(driver.queue, await driver.scripts.stats(driver.queue), [])
    assert "  estimates  9 of 10 (90 %) began within the p90; off by at most 0.5 s: 7, 15 s: 2, more: 1" in lines
    assert "  warm hits  3 of 4 (75 %)" in lines
    assert "  batches    budget: 5" in lines


async def test_objectives_are_shown_with_burn_rates(driver: QueueDriver) -> None:
    objectives: Objectives = {"normal": Objective(share=0.9, within_s=10)}
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(objectives=objectives))
    burnt: Burns = {"normal": {"5m": Burn(met=1, missed=1, rate=5), "1h": Burn(met=9, missed=1, rate=1)}}
    lines = report(driver.queue, await driver.stats(), [], burnt=burnt)
    assert "  objectives normal: 90 % start within 10 s; burn rate 5.0 over 5m, 1.0 over 1h" in lines


async def test_largest_and_all_paused_accounts_are_shown(redis: Redis, catalog: Catalog, driver: QueueDriver) -> None:
    for number in range(5):
        for _ in range(number + 1):
            await driver.submit(account=f"t{number}")
    for account in ("t0", "absent"):
        await driver.scripts.pause(driver.queue, paused=True, account=account)
    claim = await driver.claim_one()
    assert claim.record.account != "t0"
    tenants = {
        tenant.name: tenant for tenant in await Queues(redis, catalog, driver.scripts).tenants(driver.queue, most=2)
    }
    assert list(tenants)[2:] == ["absent", "t0"]
    assert set(tenants) == {"t4", "t3", "absent", "t0"}
    assert (tenants["t0"], tenants["absent"]) == (Tenant("t0", 1, 0, True), Tenant("absent", 0, 0, True))


async def test_suspended_accounts_with_predictions_are_shown_and_marked(
    run: Run, redis: Redis, catalog: Catalog, driver: QueueDriver
) -> None:
    for account in ("large", "large", "small"):
        await driver.submit(account=account)
    for account in ("small", "absent"):
        await driver.pause(account=account, revision=1)
    await driver.pause(account="small")
    assert "account    small (paused, suspended): 1 waiting, 0 running" in await said(run, "show", driver.queue)
    tenants = await Queues(redis, catalog, driver.scripts).tenants(driver.queue, most=1)
    assert tenants == [Tenant("large", 2, 0, False), Tenant("small", 1, 0, True, True)]
    await driver.pause(paused=False, account="small", revision=2)
    assert "account    small (paused): 1 waiting, 0 running" in await said(run, "show", driver.queue)


async def test_unfinished_resize_says_so_and_can_be_repeated(run: Run, driver: QueueDriver) -> None:
    await driver.submit(streams=[9])
    unfinished = await said(run, "resize", driver.queue, "4")
    assert "new predictions go to 4 streams" in unfinished
    assert "so 10 are read" in unfinished
    assert "Repeat the command once they are empty" in unfinished
    assert "  streams    4, and 6 above them until they are empty" in await said(run, "show", driver.queue)
    await driver.finish(await driver.claim_one())
    assert await said(run, "resize", MODEL, "4") == f"{driver.queue}: 4 streams in each lane\n"
    assert json.loads(await said(run, "resize", MODEL, "4", "--json"))["read"] == 4


async def test_queue_is_paused_and_resumed(run: Run, driver: QueueDriver) -> None:
    await driver.submit()
    assert await said(run, "pause", driver.queue) == f"{driver.queue} is paused\n"
    assert await driver.claim() == []
    assert [line.split()[:2] for line in (await said(run)).splitlines()][1] == [driver.queue, "paused"]
    assert await said(run, "resume", MODEL) == f"{driver.queue} is resumed\n"
    assert await driver.claim_one()


async def test_drain_waits_for_running_predictions_and_keeps_waiting_ones(run: Run, driver: QueueDriver) -> None:
    for _ in range(2):
        await driver.submit()
    claim = await driver.claim_one()
    ended = await run("drain", driver.queue, "--timeout", "1")
    assert (ended.returncode, ended.stdout) == (
        1,
        f"{driver.queue} is paused, and 1 still running. Repeat the command to wait longer\n",
    )
    assert await driver.claim() == []
    await driver.finish(claim)
    facts = json.loads(await said(run, "drain", driver.queue, "--json"))
    assert facts == {"queue": driver.queue, "drained": True, "claimed": 0, "waiting": 1}
    assert (await said(run, "drain", driver.queue)).endswith(f"`director queues resume {driver.queue}`\n")


async def test_one_account_is_paused_and_resumed(run: Run, driver: QueueDriver, redis: Redis) -> None:
    await Accounts(redis).create_token("team-a")
    mine = await driver.submit(account="team-a")
    other = await driver.submit(account="team-b")
    paused = await said(run, "pause", driver.queue, "--account", "team-a")
    assert paused == f"{driver.queue} is paused for team-a, which has 1 waiting and 0 running\n"
    assert [claim.id for claim in await driver.claim_all()] == [other]
    assert "account    team-a (paused): 1 waiting, 0 running" in await said(run, "show", driver.queue)
    await said(run, "resume", driver.queue, "--account", "team-a")
    assert [claim.id for claim in await driver.claim_all()] == [mine]


async def test_bound_limits_waiting_predictions(run: Run, driver: QueueDriver) -> None:
    bounded = await said(run, "bound", driver.queue, "bounded", "--max-queued", "1")
    assert bounded == f"{driver.queue}: bounded, at most 1 waiting\n"
    await driver.submit()
    with pytest.raises(QueueRefused):
        await driver.submit()
    assert "bounded 1" in await said(run)
    assert await said(run, "bound", driver.queue, "absorb") == f"{driver.queue}: absorb\n"
    await driver.submit()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["show", "no/such"], "there is no queue no/such: `director queues` shows them."),
        (["resize", "no/such:queue", "4"], "there is no queue"),
        (["pause", "acme/echo", "--account", "No Name"], "is no account name"),
        (["pause", "acme/echo", "--account", "nosuch"], "there is no account nosuch: `director account list` shows"),
        (["bound", "acme/echo", "bounded"], "--max-queued N goes with bounded"),
        (["bound", "acme/echo", "reject", "--max-queued", "5"], "--max-queued N goes with bounded"),
    ],
    ids=" ".join,
)
async def test_refused_command_is_reported_in_one_line(
    run: Run, driver: QueueDriver, line: list[str], says: str
) -> None:
    ended = await run(*line)
    assert ended.returncode == 1
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("streams", ["0", "33", "-1", "many"])
async def test_invalid_number_of_streams_is_a_usage_error(run: Run, streams: str) -> None:
    ended = await run("resize", MODEL, streams)
    assert ended.returncode == 2
    assert "usage: director queues resize" in ended.stderr


START_MS = 1_800_000_000_000
SERVER = ServerFound(
    url="http://gpu:5000", state="resting", since_ms=START_MS, slots=2, detail="\x1b[2Jits key is wrong"
)


async def test_each_director_is_a_line_of_its_last_heartbeat(operator: Operator, driver: QueueDriver) -> None:
    assert await operator.types("directors") == "no directors: `director run` starts one\n"
    about = msgspec.json.encode(About(version="1.2.3", since_ms=START_MS, held=1, servers=(SERVER,), more=2))
    await driver.scripts.extend(driver.queue, consumer="d1", lease_s=60, claims=[], slots=4, about=about)
    out = await operator.types("directors", "--queue", MODEL)
    names, row, *_ = out.splitlines()
    seen = dict(zip(names.replace("last sign", "sign").split(), row.split(), strict=False))
    wanted = {"director": "d1", "state": "ready", "slots": "4", "holds": "1", "version": "1.2.3"}
    assert seen | wanted == seen
    assert driver.queue in row
    assert "http://gpu:5000  resting for" in out
    assert "\x1b" not in out
    assert "d1  and 2 more" in out
    [found] = json.loads(await operator.types("directors", "--json"))["results"]
    assert (found["name"], found["alive"], found["slots"], found["held"]) == ("d1", True, 4, 1)
    assert found["servers"][0]["state"] == "resting"
    assert "there is no queue acme/none" in await operator.is_told("directors", "--queue", "acme/none")


def test_silent_director_is_marked() -> None:
    last = HeartbeatFound(queue=MODEL, at_ms=START_MS, slots=4, state="ready", about=About())  # type: ignore[arg-type]
    found = director_view(DirectorFound(name="d1", heartbeats=(last,), silent_ms=60_000))
    _, row = director_lines([found], now_ms=START_MS + 60_000, width=None)
    assert row.split()[1] == "silent"
    assert "60 s" in row


async def test_status_says_which_queues_and_directors_it_has_summed(
    operator: Operator, driver: QueueDriver, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    for name in ("d1", "d2"):
        await driver.scripts.extend(driver.queue, consumer=name, lease_s=60, claims=[], slots=2)
    whole = await operator.tries("status")
    assert "sums of the first" not in whole.stdout
    monkeypatch.setattr(overview, "MOST_QUEUES", 1)
    monkeypatch.setattr(overview, "MOST_DIRECTORS", 1)
    assert "(sums of the first 1)" in (await operator.tries("status")).stdout
    told = json.loads((await operator.tries("status", "--json")).stdout)
    assert (told["queues"]["count"], told["more_queues"]) == (2, 1)
    assert (told["directors"]["count"], told["more_directors"]) == (2, 1)
