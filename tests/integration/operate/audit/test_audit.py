"""Test that every log reaches a file or a receiver completely, although processes die or are unavailable."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from redis.asyncio import Redis
from standardwebhooks import Webhook

from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.ids import partition_of
from director.core.settings import AuditSettings
from director.core.webhooks import new_secret
from director.operate.audit.feeder import Fed, Feeder, FileReceiver, ReceiverAway, feeding, receiver_name
from director.store.logs import AuditLog
from tests.support.audit import STEPS, cut, live
from tests.support.eventually import eventually
from tests.support.queue_driver import QueueDriver
from tests.support.servers import RedisServer
from tests.support.sink import Answer, sink

SECRET = new_secret()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
async def to_file(redis: Redis, file: Path) -> Any:
    """Write the log to a file with a new process each time."""

    async def feed() -> Fed:
        async with aclosing(FileReceiver(file)) as sink:
            return await Feeder(AuditLog(redis), sink, SystemClock()).run_once()

    return feed


async def test_file_gets_a_line_per_entry_and_continues_where_it_ended(
    to_file: Any, file: Path, driver: QueueDriver
) -> None:
    first = await live(driver)
    assert await to_file() == Fed(entries=3)
    assert await to_file() == Fed()
    second = await live(driver)
    assert await to_file() == Fed(entries=3)
    assert [(line["id"], line["kind"]) for line in lines(file)] == [
        (prediction_id, step) for prediction_id in (first, second) for step in STEPS
    ]
    assert len({(line["partition"], line["entry"]) for line in lines(file)}) == 6


async def test_lost_entries_become_a_line_of_their_own(to_file: Any, file: Path, driver: QueueDriver) -> None:
    await live(driver)
    await to_file()
    await live(driver)
    await cut(driver, to=1)
    await to_file()
    assert lines(file)[3] == {"partition": partition_of(driver.new_id()), "kind": "missed", "count": 2}
    assert lines(file)[4]["kind"] == "ended"


async def test_unfinished_line_of_a_crash_is_removed(to_file: Any, file: Path, driver: QueueDriver) -> None:
    await live(driver)
    await to_file()
    for rest in (b'{"partition":72', b"1" * 100_000):
        file.write_bytes(file.read_bytes() + rest)
        await live(driver)
        assert await to_file() == Fed(entries=3)
    file.write_bytes(b"1" * 100_000)
    await live(driver)
    await to_file()
    assert [line["kind"] for line in lines(file)] == [*STEPS], "and no line of it was whole"


async def test_moved_file_is_started_again_without_repeating_entries(
    to_file: Any, file: Path, driver: QueueDriver
) -> None:
    await live(driver)
    await to_file()
    file.rename(f"{file}.1")
    after = await live(driver)
    await to_file()
    assert [line["id"] for line in lines(file)] == [after] * 3


async def test_unfinished_line_of_a_full_disk_is_cut_off(redis: Redis, file: Path, driver: QueueDriver) -> None:
    async with aclosing(FileReceiver(file)) as sink:
        feeder = Feeder(AuditLog(redis), sink, SystemClock())
        await live(driver)
        await feeder.run_once()
        await live(driver)
        with no_file_longer_than(file.stat().st_size + 50), pytest.raises(ReceiverAway, match="too large"):
            await feeder.run_once()
        assert not file.read_bytes().endswith(b"\n")
        assert await feeder.run_once() == Fed(entries=3)
    assert [line["kind"] for line in lines(file)] == [*STEPS, *STEPS]


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Limit the file size of this process, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_file_has_one_writer(redis: Redis, to_file: Any, file: Path) -> None:
    async with aclosing(FileReceiver(file)) as sink:
        await Feeder(AuditLog(redis), sink, SystemClock()).run_once()
        with pytest.raises(SettingsError, match="being written by another process"):
            await to_file()
    assert await to_file() == Fed()


async def test_foreign_file_is_not_touched(to_file: Any, file: Path, driver: QueueDriver) -> None:
    await live(driver)
    file.write_bytes(b"no line of ours")
    with pytest.raises(SettingsError, match="is not ours"):
        await to_file()
    assert file.read_bytes() == b"no line of ours"


async def test_unwritable_file_is_reported_in_one_line(redis: Redis, tmp_path: Path) -> None:
    (tmp_path / "a.cursor").write_text("nonsense")
    os.mkfifo(tmp_path / "pipe")
    for name, what in (
        ("", "cannot be written"),
        ("no/file", "cannot be written"),
        ("pipe", "no plain file"),
        ("a", "is not ours"),
    ):
        async with aclosing(FileReceiver(tmp_path / name)) as sink:
            with pytest.raises(SettingsError, match=what):
                await Feeder(AuditLog(redis), sink, SystemClock()).run_once()


def to(server: RedisServer, url: str, **given: Any) -> AuditSettings:
    given = {"audit_secret": SECRET, "webhook_allow": "loopback", **given}
    return AuditSettings(redis_url=server.url, audit_to=url, **given)


async def fed(settings: AuditSettings) -> Fed:
    """Deliver once, as a new process does."""
    async with feeding(settings, SystemClock()) as feeder:
        return await feeder.run_once()


async def test_receiver_gets_signed_batches_and_its_cursor_survives_the_process(
    server: RedisServer, driver: QueueDriver
) -> None:
    async with sink() as receiver:
        prediction_id, _ = await live(driver), await live(driver)
        for _ in range(2):
            await fed(to(server, receiver.url))
        [first] = receiver.received
        Webhook(SECRET).verify(first.body, dict(first.headers))
        body = json.loads(first.body)
        assert (body["partition"], body["missed"]) == (partition_of(prediction_id), 0)
        assert [entry["kind"] for entry in body["entries"]] == [*STEPS, *STEPS]
        names = [entry["entry"] for entry in body["entries"]]
        assert first.headers["webhook-id"] == f"audit_{body['partition']}_{names[0]}_{names[-1]}"
        await live(driver)
        assert await fed(to(server, receiver.url)) == Fed(entries=3)
        assert await fed(to(server, receiver.url, audit_name="another")) == Fed(entries=9)


async def test_failing_receiver_gets_the_same_batch_with_the_same_id(server: RedisServer, driver: QueueDriver) -> None:
    async with sink() as receiver, feeding(to(server, receiver.url), SystemClock()) as feeder:
        receiver.answers.append(Answer(status=500))
        await live(driver)
        with pytest.raises(ReceiverAway, match="answered 500"):
            await feeder.run_once()
        assert await feeder.run_once() == Fed(entries=3)
        first, second = receiver.received
        assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])


async def test_too_large_batch_comes_in_halves_in_order(server: RedisServer, driver: QueueDriver) -> None:
    async with sink() as receiver:
        receiver.answers.extend(Answer(status=413) for _ in range(2))
        for _ in range(2):
            await live(driver)
        await cut(driver, to=5)
        assert await fed(to(server, receiver.url)) == Fed(entries=5, missed=0)
        [five, two, *taken] = [json.loads(one.body)["entries"] for one in receiver.received]
        assert (len(five), len(two), [len(entries) for entries in taken]) == (5, 2, [1, 1, 3])
        assert [entry for entries in taken for entry in entries] == five
        assert len({one.headers["webhook-id"] for one in receiver.received}) == 5
        await live(driver)
        assert await fed(to(server, receiver.url)) == Fed(entries=3), "the cursor stands behind the last of them"


async def test_accepted_half_counts_as_read_without_the_other(server: RedisServer, driver: QueueDriver) -> None:
    async with sink() as receiver:
        receiver.answers.extend(Answer(status=status) for status in (413, 200, 500))
        for _ in range(2):
            await live(driver)
        with pytest.raises(ReceiverAway, match="answered 500"):
            await fed(to(server, receiver.url))
        await cut(driver, to=1)
        assert await fed(to(server, receiver.url)) == Fed(entries=1, missed=2)


async def test_receiver_that_refuses_even_one_entry_is_waited_for(server: RedisServer, driver: QueueDriver) -> None:
    async with sink() as receiver, feeding(to(server, receiver.url), SystemClock()) as feeder:
        receiver.answer = Answer(status=413)
        await live(driver)
        with pytest.raises(ReceiverAway, match="answered 413"):
            await feeder.run_once()


async def test_log_is_sent_to_no_forbidden_address(server: RedisServer, driver: QueueDriver) -> None:
    await live(driver)
    async with feeding(to(server, "http://10.0.0.1/?token=secret"), SystemClock()) as feeder:
        with pytest.raises(SettingsError, match="may not go there") as caught:
            await feeder.run_once()
    assert "secret" not in str(caught.value)


async def test_nothing_is_sent_unsigned(server: RedisServer) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_AUDIT_SECRET"):
        async with feeding(to(server, "https://receiver.example", audit_secret=""), SystemClock()):
            pass


def test_sinks_of_two_urls_have_two_names_that_hide_the_url() -> None:
    one, other = (receiver_name(f"https://receiver.example/{secret}") for secret in ("secret1", "secret2"))
    assert one != other
    assert one.startswith("receiver.example-")
    assert "secret" not in one


@asynccontextmanager
async def command(server: RedisServer, *line: str) -> AsyncGenerator[Process]:
    process = await anyio.open_process(
        [sys.executable, "-m", "director", "audit", *line],
        env={
            **os.environ,
            "DIRECTOR_REDIS_URL": server.url,
            "DIRECTOR_AUDIT_SECRET": SECRET,
            "DIRECTOR_WEBHOOK_ALLOW": "loopback",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def ended(process: Process) -> tuple[int, str]:
    with anyio.fail_after(20):
        said = b"".join([part async for part in process.stderr])
        return await process.wait(), said.decode().strip().rpartition("\n")[2]


async def test_command_delivers_existing_entries(server: RedisServer, driver: QueueDriver, file: Path) -> None:
    await live(driver)
    async with command(server, "--to", str(file), "--once") as process:
        code, said = await ended(process)
    assert (code, json.loads(said)["entries"]) == (0, 3)
    assert [line["kind"] for line in lines(file)] == list(STEPS)


@pytest.mark.faults
async def test_kill_between_file_and_cursor_repeats_entries_and_loses_none(
    server: RedisServer, driver: QueueDriver, file: Path, to_file: Any
) -> None:
    await live(driver)
    await to_file()
    await live(driver)
    os.mkfifo(cursor := Path(f"{file}.cursor.new"))  # opening it for writing waits for a reader
    async with command(server, "--to", str(file)) as process:
        await eventually(lambda: len(lines(file)) == 6, "the lines are there")
        process.kill()
        await process.wait()
    cursor.unlink()
    await live(driver)
    assert await to_file() == Fed(entries=6)
    names = [line["entry"] for line in lines(file)]
    assert (len(names), len(set(names))) == (12, 9)


@pytest.mark.faults
async def test_kill_before_the_answer_repeats_the_batch(server: RedisServer, driver: QueueDriver) -> None:
    async with sink() as receiver:
        await live(driver)
        receiver.answers.append(Answer(delay_s=60))
        async with command(server, "--to", receiver.url) as process:
            await receiver.arrived(1)
            process.kill()
            await process.wait()
        receiver.close()
        async with command(server, "--to", receiver.url, "--once") as process:
            assert (await ended(process))[0] == 0
        first, second = receiver.received
        assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])


@pytest.mark.faults
async def test_shutdown_does_not_wait_for_a_silent_receiver(server: RedisServer, driver: QueueDriver) -> None:
    async with sink() as receiver:
        await live(driver)
        receiver.answer = Answer(delay_s=60)
        for once in ([], ["--once"]):
            already = len(receiver.received)
            async with command(server, "--to", receiver.url, *once) as process:
                await receiver.arrived(already + 1)
                process.send_signal(signal.SIGTERM)
                assert (await ended(process))[0] == 0
        receiver.close()


async def test_returning_receiver_gets_everything_and_no_log_has_its_url(
    server: RedisServer, driver: QueueDriver
) -> None:
    await live(driver)
    async with sink() as receiver:
        receiver.answers.append(Answer(status=500))
        async with command(server, "--to", f"{receiver.url}?token=hidden") as process:
            await receiver.arrived(1)
            await live(driver)
            await receiver.arrived(2)
            process.send_signal(signal.SIGTERM)
            said = b"".join([part async for part in process.stderr])
        assert [entry["kind"] for entry in json.loads(receiver.received[-1].body)["entries"]] == [*STEPS, *STEPS]
    assert b"answered 500" in said
    for secret in (b"hidden", SECRET.encode(), receiver.url.encode()):
        assert secret not in said


async def test_command_without_a_destination_is_refused_in_one_line(server: RedisServer) -> None:
    async with command(server, "--once") as process:
        code, said = await ended(process)
    assert (code, said) == (1, "director audit: say where the log goes: --to FILE or --to https://…")
