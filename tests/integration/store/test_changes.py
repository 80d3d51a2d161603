"""Test the log of operator changes: each is recorded with author and time before it is made, and may be voided."""

from typing import Any

import msgspec
import pytest
from redis import exceptions
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import QueueName
from director.operate.audit.feeder import Fed, Feeder
from director.store.accounts import Accounts
from director.store.administration import Administration, Suspensions
from director.store.catalog import Catalog
from director.store.changes import FIRST, Changes
from director.store.dead import Asked, DeadLetters
from director.store.logs import CHANGES, AuditLog
from tests.support.audit import KeptSink
from tests.support.clock import FakeClock
from tests.support.queue_driver import QueueDriver

BY = "cli:root"


@pytest.fixture
def changes(redis: Redis, scripts: Scripts) -> Changes:
    return Changes(redis, scripts, FakeClock())


@pytest.fixture
def administration(redis: Redis, scripts: Scripts, catalog: Catalog, changes: Changes) -> Administration:
    accounts, clock = Accounts(redis), SystemClock()
    return Administration(accounts, catalog, scripts, Suspensions(redis, accounts, catalog, scripts, clock), changes)


async def told(changes: Changes) -> list[tuple[str, str, Any]]:
    found = await changes.after(FIRST, count=100)
    return [(change.kind, change.account, msgspec.json.decode(change.detail)) for change in found]


async def test_account_changes_are_recorded_in_order_without_secrets(
    administration: Administration, changes: Changes, queue: QueueName
) -> None:
    await administration.create("acme", "user", by=BY)
    made = await administration.create_token("acme", scopes=["run"], lanes=["low"], label="ci", expires_ms=None, by=BY)
    await administration.set_limits("acme", {"rate": "5", "weight": "default"}, by=BY)
    await administration.set_type("acme", "organization", by=BY)
    await administration.suspend("acme", "hold", "unpaid", by=BY, within_s=1)
    await administration.resume("acme", by=BY)
    await administration.rotate_secret("acme", keep_s=60, by=BY)
    await administration.revoke(made.token, by=BY)
    token = {"token": made.token.id, "label": "ci"}
    assert await told(changes) == [
        ("account_created", "acme", {"type": "user"}),
        ("token_created", "acme", {**token, "expires_ms": None, "may": {"scopes": ["run"], "lanes": ["low"]}}),
        ("limits_set", "acme", {"limits": {"rate": "5", "weight": "default"}}),
        ("account_type_set", "acme", {"type": "organization"}),
        ("account_suspended", "acme", {"policy": "hold", "reason": "unpaid"}),
        ("account_resumed", "acme", {}),
        ("secret_rotated", "acme", {"keep_s": 60}),
        ("token_revoked", "acme", token),
    ]
    found = await changes.after(FIRST, count=100)
    assert {change.by for change in found} == {BY}
    assert {change.at for change in found} == {FakeClock().now_ms()}
    secrets = [made.secret, *await administration.accounts.webhook_secrets("acme")]
    assert not [secret for secret in secrets if secret in str(found)]


async def test_refused_or_ineffective_change_is_void(administration: Administration, changes: Changes) -> None:
    assert await administration.create("acme", "user", by=BY)
    assert not await administration.create("acme", "organization", by=BY)
    with pytest.raises(SettingsError):
        await administration.set_limits("acme", {"rate": "none at all"}, by=BY)
    found = await changes.after(FIRST, count=100)
    assert [change.kind for change in found] == ["account_created", "account_created", "void", "limits_set", "void"]
    ids = [change.id for change in found]
    assert (ids[1], ids[3]) == (ids[2], ids[4])
    assert len(set(ids)) == 3


async def test_change_of_limits_stands_though_a_listed_queue_is_gone(
    administration: Administration, changes: Changes, scripts: Scripts, queue: QueueName
) -> None:
    await administration.create("acme", "user", by=BY)
    assert await scripts.unregister(queue) == "done"  # as a deletion that was cut short leaves it
    written = await administration.set_limits("acme", {"max_running": "3"}, by=BY)
    assert written.limits == {"max_running": "3"}
    assert [kind for kind, _, _ in await told(changes)] == ["account_created", "limits_set"]


async def test_revocation_whose_reply_was_lost_is_not_void(
    administration: Administration, changes: Changes, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await administration.create_token("acme", scopes=["run"], lanes=["low"], label="", expires_ms=None, by=BY)
    delete, lost = redis.delete, [exceptions.ConnectionError("lost")]

    async def delete_and_lose_the_reply(*names: str) -> int:
        gone: int = await delete(*names)
        if lost:
            raise lost.pop()
        return gone

    monkeypatch.setattr(redis, "delete", delete_and_lose_the_reply)
    assert await administration.revoke(made.token, by=BY)
    assert not await administration.revoke(made.token, by=BY), "it is gone by now"
    assert [kind for kind, _, _ in await told(changes)] == ["token_created", *["token_revoked"] * 2, "void"]


async def test_change_with_an_unknown_outcome_stands(changes: Changes) -> None:
    with pytest.raises(BackendUnavailable):
        async with changes.noting("account_created", by=BY, account="acme"):
            raise BackendUnavailable("Redis is away")
    assert [kind for kind, _, _ in await told(changes)] == ["account_created"]


async def test_change_that_is_done_in_part_stands(changes: Changes) -> None:
    async def fail(*, is_begun: bool) -> None:
        async with changes.noting("queue_migrated", by=BY) as noted:
            if is_begun:
                noted.begin()
            raise SettingsError("the other queue is gone")

    for is_begun in (True, False):
        with pytest.raises(SettingsError):
            await fail(is_begun=is_begun)
    assert [kind for kind, _, _ in await told(changes)] == ["queue_migrated"] * 2 + ["void"]


async def test_change_that_cannot_be_recorded_is_not_made(
    changes: Changes, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any, **options: Any) -> bool:
        raise BackendUnavailable("Redis is away")

    monkeypatch.setattr(scripts, "note", away)
    with pytest.raises(BackendUnavailable):
        async with changes.noting("account_created", by=BY, account="acme"):
            pytest.fail("it was done")


async def test_dead_letter_changes_name_at_most_twenty_ids(changes: Changes, driver: QueueDriver) -> None:
    dead = DeadLetters(driver.redis, driver.scripts, SystemClock())
    letter = await driver.die()
    await dead.revive(dead.every([driver.queue]), by=BY, asked=Asked(queue=driver.queue))
    await dead.drop(dead.every([driver.queue]), by=BY, asked=Asked(ids=[letter] * 50))
    assert await told(changes) == [
        ("letters_revived", "", {"all": True}),
        ("letters_dropped", "", {"ids": [letter] * 20, "count": 50}),
        ("void", "", {"ids": [letter] * 20, "count": 50}),
    ]


async def test_audit_delivers_changes_beside_the_logs_of_the_partitions(
    administration: Administration, redis: Redis
) -> None:
    kept = KeptSink()
    await administration.create("acme", "user", by=BY)
    assert await Feeder(AuditLog(redis), kept, SystemClock()).run_once() == Fed(entries=1)
    [batch] = kept.batches
    assert batch.partition == CHANGES
    [entry] = batch.entries
    assert (entry.kind, entry.by, entry.account, entry.detail) == ("account_created", BY, "acme", '{"type":"user"}')
