"""Test the promises of every runner, each on a real server of its kind."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec import Raw

from director.core.view import join
from director.local.launcher.processes import free_port
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import Began, Ended, Health, HealthStatus, Outcome, Produced, RunEvent, Runner
from tests.support.eventually import eventually, every
from tests.support.inbox import serving
from tests.support.runner_conformance import MOST_BYTES, OLD_COGS, SUBJECTS, Kind, LiveServer, follow, opened, the_end
from tests.support.scripted_cog import answer, scripted_cog

pytestmark = pytest.mark.cog

ID = "a" * 26
INBOX = Inbox("")  # the server starts below


# each gets its own environment
HEAVY = {f"cog {version}" for version in OLD_COGS}
PARAMS = [pytest.param(name, marks=[pytest.mark.heavy] if name in HEAVY else []) for name in SUBJECTS]


@pytest.fixture(scope="module", params=PARAMS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return SUBJECTS[request.param]


@pytest.fixture(scope="module", autouse=True)
async def served() -> AsyncGenerator[None, None]:
    async with serving(INBOX):
        yield


@pytest.fixture(scope="module")
async def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LiveServer, None]:
    async with kind.serve(folder=tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
async def runner(kind: Kind, server: LiveServer) -> AsyncGenerator[Runner, None]:
    async with opened(kind.runner(server.url, INBOX)) as runner:
        await healthy(runner)
        yield runner


async def healthy(runner: Runner) -> Health:
    return await eventually(runner.health, "it is ready", until=lambda health: health.status is HealthStatus.READY)


def output(events: list[RunEvent]) -> Raw | None:
    """Return the output as the tracker takes it: from the end, or else from the events before it."""
    ended = the_end(events)
    produced = [bytes(event.item) for event in events if isinstance(event, Produced)]
    return ended.output if ended.output is not None else join(produced)


def is_well_formed(events: list[RunEvent]) -> bool:
    """Return whether Began comes at most once and first, the one end comes last, and items have consecutive numbers."""
    ends = [index for index, event in enumerate(events) if isinstance(event, Ended)]
    begins = [index for index, event in enumerate(events) if isinstance(event, Began)]
    indexes = [event.index for event in events if isinstance(event, Produced)]
    in_order = begins == ([0] if len(events) > 1 or begins else [])
    return ends == [len(events) - 1] and in_order and indexes == list(range(len(indexes)))


async def test_server_is_the_expected_one(kind: Kind, runner: Runner) -> None:
    assert (await healthy(runner)).server.startswith(kind.server)


async def test_run_begins_and_ends_once_with_its_output(kind: Kind, runner: Runner) -> None:
    events = await follow(runner, kind.request(n=3, text='ü\u2028"'))
    assert is_well_formed(events)
    assert events[0] == Began()
    ended = the_end(events)
    assert (ended.outcome, ended.error) == (Outcome.SUCCEEDED, None)
    assert msgspec.json.decode(output(events) or b"") == [f'ü\u2028"{n}' for n in range(3)]
    found = {name: msgspec.json.decode(value) for name, value in ended.metrics.items() if name in kind.metrics}
    assert found == kind.metrics


async def test_start_and_where_possible_output_are_seen_before_the_end(kind: Kind, runner: Runner, gate: Path) -> None:
    with anyio.fail_after(30):
        async with aclosing(runner.run(kind.request(n=2, gate=str(gate)))) as events:
            seen = [await anext(events)]
            assert seen == [Began()]
            if runner.capabilities.streams:
                while not isinstance(event := await anext(events), Produced) or event.index < 1:
                    seen.append(event)
                seen.append(event)
            gate.touch()  # the run can only end now
            seen += [event async for event in events]
    assert is_well_formed(seen)
    assert msgspec.json.decode(output(seen) or b"") == ["a0", "a1"]


async def test_model_that_raises_fails_and_says_why(kind: Kind, runner: Runner) -> None:
    events = await follow(runner, kind.request(then="raise"))
    assert is_well_formed(events)
    ended = the_end(events)
    assert ended.outcome is Outcome.FAILED
    assert "it went wrong" in (ended.error or "")
    assert not ended.server_is_dead


async def test_refused_input_is_invalid_and_says_why(kind: Kind, runner: Runner) -> None:
    ended = the_end(await follow(runner, kind.request(**kind.invalid)))
    assert ended.outcome is Outcome.INVALID
    assert ended.error


@pytest.mark.parametrize("then", ["full", "busy", "conflict"])
async def test_full_server_refuses_the_run_with_retry_after(kind: Kind, runner: Runner, then: str) -> None:
    if not kind.refuses:
        pytest.skip("its server refuses by the number of its runs, which its own tests show")
    # whether it began is not checked: a busy machine may refuse after the run already counts as begun
    ended = the_end(await follow(runner, kind.request(then=then)))
    assert (ended.outcome, ended.retry_after_s, ended.server_is_dead) == (Outcome.REFUSED, 7.0, False)
    assert "not now" in (ended.error or "")


async def test_too_large_output_is_not_read_to_its_end(kind: Kind, runner: Runner) -> None:
    if kind.name.startswith("cog"):
        pytest.skip("what is read of Cog has a bound of its own, for files in outputs")
    events = await follow(runner, kind.request(size=4 * MOST_BYTES))
    assert is_well_formed(events)
    ended = the_end(events)
    assert ended.outcome is Outcome.FAILED
    assert f"larger than {MOST_BYTES}" in (ended.error or "")
    assert (await follow(runner, kind.request(n=1)))[-1] != ended, "the next run is not disturbed"


async def test_canceled_run_stops_on_the_server_and_ends_as_canceled(kind: Kind, runner: Runner, gate: Path) -> None:
    events: list[RunEvent] = []
    with anyio.fail_after(30):
        async with aclosing(runner.run(kind.request(gate=str(gate)))) as run:
            events.append(await anext(run))
            canceling = asyncio.create_task(cancel_until_canceled(runner))
            events += [event async for event in run]
            canceling.cancel()
            await asyncio.wait({canceling})
    assert is_well_formed(events)
    assert the_end(events).outcome is Outcome.CANCELED
    await eventually(gate.with_name("gate.stopped").exists, "the server stopped it")


async def cancel_until_canceled(runner: Runner) -> None:
    async for _ in every(0.1):
        await runner.cancel(ID)


async def test_unknown_run_cannot_be_canceled(kind: Kind, runner: Runner) -> None:
    assert await runner.cancel("b" * 26) is False


async def test_abandoned_run_stops_or_waits_for_a_successor(kind: Kind, runner: Runner, gate: Path) -> None:
    async with aclosing(runner.run(kind.request(gate=str(gate)))) as run:
        assert await anext(run) == Began()
        await anyio.sleep(0.05)  # coglet does not hear a cancel in a run's first milliseconds
    if not runner.capabilities.resumes:
        await eventually(gate.with_name("gate.stopped").exists, "the server stopped it")
    gate.touch()


async def test_closing_the_runner_loses_open_runs(kind: Kind, server: LiveServer, gate: Path) -> None:
    runner = kind.runner(server.url, INBOX)
    await healthy(runner)
    run = runner.run(kind.request(gate=str(gate)))
    assert await anext(run) == Began()
    await runner.aclose()
    with anyio.fail_after(30):
        rest = [event async for event in run]
    gate.touch()
    assert the_end(rest).outcome is Outcome.LOST
    assert [type(event) for event in rest].count(Ended) == 1
    (ended,) = await follow(runner, kind.request())
    assert ended.outcome is Outcome.LOST


async def test_run_without_a_listening_server_never_begins_and_health_reports_it(kind: Kind) -> None:
    async with opened(kind.runner(f"http://127.0.0.1:{free_port()}", INBOX)) as runner:
        assert (await runner.health()).status is HealthStatus.UNREACHABLE
        (ended,) = await follow(runner, kind.request())
        assert (ended.outcome, ended.server_is_dead) == (Outcome.REFUSED, True)
        assert await runner.cancel(ID) is False
        assert await runner.shutdown() is False


async def test_starting_server_gets_no_work(kind: Kind) -> None:
    async with scripted_cog() as scripted, opened(kind.runner(scripted.url, INBOX)) as runner:
        scripted.on("GET", kind.health_path, answer(*kind.starting))
        health = await runner.health()
    assert (health.status, health.can_run) == (HealthStatus.STARTING, False)
    assert health.detail


async def test_server_with_an_invalid_health_answer_is_unhealthy(kind: Kind) -> None:
    async with scripted_cog() as scripted, opened(kind.runner(scripted.url, INBOX)) as runner:
        scripted.on("GET", kind.health_path, answer(500, b"<html>\xff"))
        assert (await runner.health()).status is HealthStatus.UNHEALTHY


@pytest.mark.faults
async def test_killed_server_loses_its_run_and_returns_as_another(kind: Kind, tmp_path: Path, gate: Path) -> None:
    port = free_port()
    async with opened(kind.runner(f"http://127.0.0.1:{port}", INBOX)) as runner:
        async with kind.serve(folder=tmp_path, port=port) as server:
            before = await healthy(runner)
            with anyio.fail_after(60):
                async with aclosing(runner.run(kind.request(gate=str(gate)))) as run:
                    events = [await anext(run)]
                    server.kill()
                    events += [event async for event in run]
        assert is_well_formed(events)
        ended = the_end(events)
        assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)
        assert (await runner.health()).status is HealthStatus.UNREACHABLE
        async with kind.serve(folder=tmp_path, port=port):
            after = await healthy(runner)
            assert before.since
            assert after.since not in ("", before.since)
            assert the_end(await follow(runner, kind.request(n=1))).outcome is Outcome.SUCCEEDED


@pytest.mark.faults
async def test_model_that_ends_its_process_loses_run_and_server(kind: Kind, tmp_path: Path) -> None:
    if kind.name == "cog 0.10.0a27":
        pytest.xfail("it holds both ends of its worker's pipe, never sees the death, and stays BUSY")
    async with kind.serve(folder=tmp_path) as server, opened(kind.runner(server.url, INBOX)) as runner:
        await healthy(runner)
        events = await follow(runner, kind.request(n=1, then="exit"))
        stays = kind.name.startswith("cog")  # on a Cog server only the worker ends
        expected = HealthStatus.DEFUNCT if stays else HealthStatus.UNREACHABLE
        await eventually(runner.health, "its end shows", until=lambda health: health.status is expected)
    assert is_well_formed(events)
    assert (the_end(events).outcome, the_end(events).server_is_dead) == (Outcome.LOST, True)


@asynccontextmanager
async def speaking(said: bytes) -> AsyncGenerator[str, None]:
    """Serve these bytes as the answer to each request, then close the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


GARBAGE = {
    "no HTTP": b"\x00\x01garbage\r\n\r\n",
    "nothing": b"",
    "a page": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
    "no text": b'HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"\xff\xfe"',
    "cut off": b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"status":',
    "too deep": b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"[" * 100_000,
    "endless": b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n" + b" " * 4 * MOST_BYTES,
    "empty stream": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
    "odd stream": b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 16\r\n\r\ndata: {"a": [}\n\n',
    "elsewhere": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
    "an empty object": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
async def test_invalid_answer_is_no_success_and_breaks_nothing(kind: Kind, said: bytes) -> None:
    async with speaking(said) as url, opened(kind.runner(url, INBOX)) as runner:
        with anyio.fail_after(30):
            await runner.health()
            events = await follow(runner, kind.request())
        assert is_well_formed(events)
        ended = the_end(events)
        assert ended.outcome in (Outcome.LOST, Outcome.FAILED)
        assert ended.error
        assert len(ended.error) < 2000
        assert "\n" not in ended.error
