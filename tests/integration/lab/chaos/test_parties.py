"""Check the scripted parties of a fault-injection run: the model server, the sink, and the links between processes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from director.core.runner_config import CogConfig, OpenAiConfig
from director.core.webhooks import new_secret, sign_headers
from director.lab.chaos import client
from director.lab.chaos.calls import call
from director.lab.chaos.client import Reader, talk
from director.lab.chaos.journal import (
    Answered,
    Called,
    CogEnded,
    Delivered,
    Fault,
    Journal,
    Line,
    Sent,
    Spoken,
    Visited,
    read,
)
from director.lab.chaos.parties import FAILED, ODD, Cog, Script, Sink, Talker
from director.lab.chaos.plan import Order, calls
from director.lab.chaos.proxy import Link
from director.lab.chaos.wire import BROKEN, Answer, Caller, Handler, Request, Unanswered, listening
from director.servers.runners import RunnerOptions
from director.servers.runners.cog import CogRunner
from director.servers.runners.openai import OpenAiRunner
from director.servers.runners.runner import Ended, HealthStatus, Outcome, Runner, RunRequest
from director.servers.servers import SICKNESS
from tests.support.eventually import eventually, turns


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async with listening(handler) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def cog(folder: Path, *, slots: int = 2) -> AsyncIterator[CogRunner]:
    with closing(Journal(folder / "cog-0.jsonl")) as journal:
        async with serving(Cog("cog-0", slots, journal)) as url:
            runner = CogRunner(CogConfig(), RunnerOptions(url=url, slots=slots))
            try:
                yield runner
            finally:
                await runner.aclose()


async def end_of(runner: Runner, prediction_id: str, **script: object) -> Ended:
    request = RunRequest(id=prediction_id, input=msgspec.Raw(msgspec.json.encode(script)), wants_progress=False)
    async for event in runner.run(request):
        if isinstance(event, Ended):
            return event
    raise AssertionError("a run has an end")


def lines(folder: Path) -> list[Line]:
    return list(read(folder / "cog-0.jsonl"))


async def test_a_director_finds_the_scripted_server_ready(tmp_path: Path):
    async with cog(tmp_path) as runner:
        assert (await runner.health()).status is HealthStatus.READY


async def test_a_run_is_recorded_and_its_outputs_name_it(tmp_path: Path):
    async with cog(tmp_path) as runner:
        ended = await end_of(runner, "one", outputs=2)
    assert ended.outcome is Outcome.SUCCEEDED
    start, end = lines(tmp_path)
    assert (start.id, start.run, end.outcome) == ("one", end.run, "succeeded")
    assert msgspec.json.decode(ended.output) == [{"run": start.run, "i": 0}, {"run": start.run, "i": 1}]


async def test_a_scripted_failure_is_the_models(tmp_path: Path):
    async with cog(tmp_path) as runner:
        assert (await end_of(runner, "one", outcome="fail")).outcome is Outcome.FAILED


async def test_a_sick_run_fails_with_the_words_of_a_sick_accelerator(tmp_path: Path):
    async with cog(tmp_path) as runner:
        ended = await end_of(runner, "one", outcome="sick")
    assert ended.outcome is Outcome.FAILED
    assert SICKNESS.search(ended.error)


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_answer_comes_to_the_end_that_it_must(tmp_path: Path, odd: str):
    async with cog(tmp_path) as runner:
        ended = await end_of(runner, "one", odd=odd)
        assert (await runner.health()).status is HealthStatus.READY
    [line] = [line for line in lines(tmp_path) if isinstance(line, CogEnded)]
    assert (line.odd, line.outcome) == (odd, ended.outcome) == (odd, ODD[odd].outcome)
    if ended.outcome is Outcome.SUCCEEDED:
        assert msgspec.json.decode(ended.output) == [{"run": line.run, "i": 0}]


async def test_a_frozen_server_records_its_freeze_as_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("director.lab.chaos.parties.FROZEN_S", 0.05)
    async with cog(tmp_path) as runner:
        assert (await end_of(runner, "one", outcome="freeze")).outcome is Outcome.SUCCEEDED
    begin, end = (line for line in lines(tmp_path) if isinstance(line, Fault))
    assert (begin.target, begin.phase, end.phase, end.at - begin.at) == ("cog-0", "begin", "end", 50)
    [ended] = [line for line in lines(tmp_path) if isinstance(line, CogEnded)]
    assert ended.at >= end.at


async def test_a_run_that_hangs_ends_when_it_is_canceled(tmp_path: Path):
    async with cog(tmp_path) as runner:
        running = asyncio.create_task(end_of(runner, "one", outcome="hang"))
        await eventually(lambda: runner.cancel("one"), "a cancel that is heard")
        assert (await running).outcome is Outcome.CANCELED


async def test_a_run_ends_when_its_client_hangs_up(tmp_path: Path):
    async with cog(tmp_path) as runner:
        caller = Caller(runner.url)
        with pytest.raises(Unanswered):
            await caller.ask("PUT", "/predictions/one", b'{"input":{"outcome":"hang"}}', within_s=0.2)
        ended = await eventually(lambda: lines(tmp_path)[1:], "its end")
        assert [line.outcome for line in ended if isinstance(line, CogEnded)] == ["canceled"]


async def test_a_full_server_refuses_and_an_id_runs_only_once(tmp_path: Path):
    async with cog(tmp_path, slots=1) as runner:
        running = asyncio.create_task(end_of(runner, "one", outcome="hang"))
        await eventually(lambda: lines(tmp_path), "its start")
        caller = Caller(runner.url)
        body = b'{"input":{}}'
        assert (await caller.ask("PUT", "/predictions/two", body, within_s=5)).status == 409
        assert (await caller.ask("PUT", "/predictions/one", body, within_s=5)).status == 202
        caller.close()
        await runner.cancel("one")
        await running


@asynccontextmanager
async def talker(folder: Path, *, slots: int = 2) -> AsyncIterator[tuple[OpenAiRunner, str]]:
    with closing(Journal(folder / "cog-0.jsonl")) as journal:
        async with serving(Talker("cog-0", slots, journal)) as url:
            runner = OpenAiRunner(OpenAiConfig(passed=("user",), model="talker"), RunnerOptions(url=url, slots=slots))
            try:
                yield runner, url
            finally:
                await runner.aclose()


def spoken(folder: Path) -> list[str]:
    return [line.data for line in lines(folder) if isinstance(line, Spoken)]


async def test_a_talker_records_each_piece_of_a_text_that_names_its_run(tmp_path: Path):
    async with talker(tmp_path) as (runner, _):
        assert (await runner.health()).status is HealthStatus.READY
        ended = await end_of(runner, "one", **talk(Script(outputs=3), "tag"))
    assert ended.outcome is Outcome.SUCCEEDED
    start, *_, end = lines(tmp_path)
    pieces = [f"{start.run}/{number} " for number in range(3)]
    assert (start.id, end.outcome, msgspec.json.decode(ended.output)) == ("tag", "succeeded", pieces)
    assert [msgspec.json.decode(data)["choices"][0]["delta"]["content"] for data in spoken(tmp_path)] == [*pieces, ""]
    assert msgspec.json.decode(ended.metrics["output_tokens"]) == 3


async def test_a_talker_that_does_not_stream_records_its_whole_answer(tmp_path: Path):
    async with talker(tmp_path) as (_, url):
        with closing(Caller(url)) as caller:
            answer = await caller.ask("POST", "/v1/chat/completions", chat(Script(outputs=2), "tag"), within_s=5)
    assert spoken(tmp_path) == [answer.body.decode()]
    assert [line.tokens for line in lines(tmp_path) if isinstance(line, Spoken)] == [2]


async def test_a_talker_fails_in_the_middle_of_its_text(tmp_path: Path):
    async with talker(tmp_path) as (runner, _):
        ended = await end_of(runner, "one", **talk(Script(outputs=4, outcome="fail"), "tag"))
        assert (ended.outcome, ended.error, len(spoken(tmp_path))) == (Outcome.FAILED, FAILED, 2)


async def test_a_talker_stops_when_its_client_hangs_up_and_refuses_what_is_too_much(tmp_path: Path):
    body = chat(Script(ms=60_000), "tag")
    async with talker(tmp_path, slots=1) as (_, url):
        with closing(Caller(url)) as caller:
            waits = asyncio.create_task(caller.ask("POST", "/v1/chat/completions", body, within_s=60))
            await eventually(lambda: lines(tmp_path), "its start")
            assert (await caller.ask("POST", "/v1/chat/completions", body, within_s=5)).status == 429
            waits.cancel()
            [ended] = await eventually(lambda: lines(tmp_path)[1:], "its end")
    assert isinstance(ended, CogEnded)
    assert (ended.outcome, ended.asked > 0) == ("canceled", True)


def chat(script: Script, tag: str) -> bytes:
    said = {"role": "user", "content": msgspec.json.encode(script).decode()}
    return msgspec.json.encode({"user": tag, "messages": [said]})


@asynccontextmanager
async def sink(folder: Path, secret: str) -> AsyncIterator[str]:
    with closing(Journal(folder / "sink.jsonl")) as journal:
        async with serving(Sink(journal, {"3": secret})) as url:
            yield url


async def deliver(url: str, secret: str, *, body: bytes = b'{"id":"one","status":"succeeded"}') -> int:
    headers = sign_headers([secret], message_id="msg_one_completed", timestamp_s=int(time.time()), body=body)
    caller = Caller(url)
    try:
        return (await caller.ask("POST", "/hook/3", body, headers=headers, within_s=5)).status
    finally:
        caller.close()


async def test_the_sink_recognises_a_valid_signature(tmp_path: Path):
    secret = new_secret()
    async with sink(tmp_path, secret) as url:
        assert await deliver(url, secret) == 200
        assert await deliver(url, new_secret()) == 200
    delivered = [line for line in read(tmp_path / "sink.jsonl") if isinstance(line, Delivered)]
    assert [line.signed for line in delivered] == [True, False]
    assert {(line.id, line.webhook_id, line.status) for line in delivered} == {
        ("one", "msg_one_completed", "succeeded")
    }


async def test_the_sink_fails_and_breaks_connections_on_request(tmp_path: Path):
    secret = new_secret()
    async with sink(tmp_path, secret) as url:
        orders = Caller(url)
        await orders.ask("PUT", "/mode/error", within_s=5)
        assert await deliver(url, secret) == 500
        await orders.ask("PUT", "/mode/reset", within_s=5)
        with pytest.raises(Unanswered):
            await deliver(url, secret)
        await orders.ask("PUT", "/mode/ok", within_s=5)
        assert await deliver(url, secret) == 200
        orders.close()


async def test_a_dead_receiver_of_the_sinks_host_never_answers(tmp_path: Path):
    async with sink(tmp_path, new_secret()) as url:
        caller = Caller(url)
        with pytest.raises(Unanswered, match="Timeout"):
            await caller.ask("POST", "/dead", b"{}", within_s=0.05)
    assert not list(read(tmp_path / "sink.jsonl"))


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that answers each line with the same line, and remembers it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line)
        except ConnectionError:
            pass
        finally:
            self.hung_up.set()
            writer.close()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Echo]]:
    echo = Echo()
    async with await asyncio.start_server(echo.serve, "127.0.0.1", 0, limit=1 << 20) as server:
        port = server.sockets[0].getsockname()[1]
        link = Link("a:b", seed=1)
        await link.listen(lambda: asyncio.open_connection("127.0.0.1", port))
        try:
            yield link, echo
        finally:
            await link.stop()


@asynccontextmanager
async def connected(link: Link) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def say(ends: Ends, line: bytes) -> bytes:
    ends[1].write(line)
    return await ends[0].readline()


async def test_a_link_passes_on_every_byte_both_ways():
    async with linked() as (link, echo), connected(link) as ends:
        long = b"x" * 200_000 + b"\n"
        ends[1].write(long)
        assert await ends[0].readexactly(len(long)) == long
        assert echo.heard == [long]


async def test_a_slow_link_delivers_every_byte_in_order():
    async with linked() as (link, _), connected(link) as ends:
        link.delay_s = (0.001, 0.005)
        for number in range(20):
            ends[1].write(b"%d\n" % number)
        assert [await ends[0].readline() for _ in range(20)] == [b"%d\n" % number for number in range(20)]


async def test_connections_of_a_narrow_link_share_its_bytes_per_second():
    async with linked() as (link, _), connected(link) as ends, connected(link) as others:
        link.bytes_s = 1_000_000
        began = asyncio.get_running_loop().time()
        lines = [b"x" * 150_000 + b"\n", b"y" * 150_000 + b"\n"]
        for (_, writer), line in zip((ends, others), lines, strict=True):
            writer.write(line)
        heard = [await reader.readexactly(len(line)) for (reader, _), line in zip((ends, others), lines, strict=True)]
        assert heard == lines
        assert asyncio.get_running_loop().time() - began > 0.25
        assert link.carried == {False: 300_002, True: 300_002}


async def test_a_cut_link_delivers_its_bytes_once_it_is_mended():
    async with linked() as (link, echo), connected(link) as ends:
        assert await say(ends, b"before\n") == b"before\n"
        link.cut()
        ends[1].write(b"meanwhile\n")
        async with connected(link) as others:
            others[1].write(b"new\n")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ends[0].readline(), 0.1)
            assert echo.heard == [b"before\n"]
            link.mend()
            assert await ends[0].readline() == b"meanwhile\n"
            assert await others[0].readline() == b"new\n"


async def test_held_replies_arrive_though_the_link_was_mended_meanwhile():
    async with linked() as (link, echo), connected(link) as ends:
        link.hold_replies()
        ends[1].write(b"one\n")
        link.mend()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ends[0].readline(), 0.1)
        assert echo.heard == [b"one\n"]
        link.pass_replies()
        assert await ends[0].readline() == b"one\n"


async def test_a_lost_reply_does_not_arrive_though_its_request_did():
    async with linked() as (link, echo), connected(link) as ends, connected(link) as others:
        losing = asyncio.create_task(link.lose_reply(b"secret"))
        await turns()
        assert await say(ends, b"harmless\n") == b"harmless\n"
        with suppress(ConnectionError):
            assert await say(ends, b"secret\n") == b""
        await losing
        assert echo.heard == [b"harmless\n", b"secret\n"]
        assert await say(others, b"secret\n") == b"secret\n"


async def test_a_link_works_after_no_reply_to_lose_came():
    async with linked() as (link, _), connected(link) as ends:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.lose_reply(b"secret"), 0.01)
        assert await say(ends, b"secret\n") == b"secret\n"


async def test_a_reset_breaks_only_open_connections():
    async with linked() as (link, _), connected(link) as ends:
        assert await say(ends, b"before\n") == b"before\n"
        link.reset()
        with suppress(ConnectionError):
            assert await ends[0].read() == b""
        async with connected(link) as others:
            assert await say(others, b"after\n") == b"after\n"


async def test_a_link_passes_on_a_hang_up():
    async with linked() as (link, echo), connected(link) as ends:
        assert await say(ends, b"last\n") == b"last\n"
        ends[1].close()
        await asyncio.wait_for(echo.hung_up.wait(), 20)


STREAM = b"HTTP/1.1 200 OK\r\nx-request-id: one\r\ntransfer-encoding: chunked\r\n\r\n"
ORDER = next(order for order in calls(1, tenants=3) if order.plan == "chat")
PIECES = (b": 3 ahead\n\ndata: a", b"\n\ndata: b\n\n", b"data: [DONE]\n\n")


async def stream(request: Request) -> None:
    await request.write(STREAM + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in PIECES))


async def call_and_read(folder: Path, answer: Handler, *, order: Order = ORDER) -> list[tuple[str, str, list[str]]]:
    """Return the tag, the end and the chunks of each try."""
    with closing(Journal(folder / "cog-0.jsonl")) as journal:
        async with serving(answer) as url:
            await call(Caller(url), order, "k", "token", journal)
    asked = [line for line in lines(folder) if isinstance(line, Sent | Answered | Called)]
    assert [type(line) for line in asked] == [Sent, Answered, Called] * (len(asked) // 3)
    return [(line.key, line.end, line.chunks) for line in asked if isinstance(line, Called)]


async def test_a_caller_repeats_what_was_refused_and_reads_the_stream(tmp_path: Path):
    refused = iter([Answer(503, b"{}")])

    async def answer(request: Request) -> Answer:
        if refusal := next(refused, None):
            return refusal
        await stream(request)
        await request.write(b"0\r\n\r\n")
        return BROKEN

    assert await call_and_read(tmp_path, answer) == [("k-0", "whole", ["{}"]), ("k-1", "whole", ["a", "b", "[DONE]"])]


async def test_a_caller_does_not_repeat_what_broke_off_or_is_of_no_use_to_repeat(tmp_path: Path):
    async def answer(request: Request) -> Answer:
        await stream(request)
        return BROKEN

    async def refuse(_: Request) -> Answer:
        return Answer(500, b"{}", {"x-should-retry": "false"})

    (tmp_path / "refused").mkdir()
    assert await call_and_read(tmp_path, answer) == [("k-0", "broken", ["a", "b", "[DONE]"])]
    assert await call_and_read(tmp_path / "refused", refuse) == [("k-0", "whole", ["{}"])]


async def test_a_caller_leaves_in_the_middle_of_a_stream(tmp_path: Path):
    async def answer(request: Request) -> Answer:
        await stream(request)
        await request.gone.wait()
        return BROKEN

    came = await call_and_read(tmp_path, answer, order=replace(ORDER, plan="leave", then_ms=300))
    assert came == [("k-0", "left", ["a", "b", "[DONE]"])]


@pytest.mark.parametrize(("breaks", "end"), [(False, "silent"), (True, "broken")])
async def test_a_reader_tells_a_silent_stream_from_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: bool, end: str
):
    monkeypatch.setattr(client, "SILENT_S", 0.2)

    async def answer(request: Request) -> Answer:
        if request.path.startswith("/v1/"):
            return Answer(200, b'{"urls":{"stream":"http://api/x/stream"}}')
        await request.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        if not breaks:
            await request.gone.wait()
        return BROKEN

    with closing(Journal(tmp_path / "client.jsonl")) as journal:
        async with serving(answer) as url:
            with closing(Caller(url)) as api, suppress(TimeoutError):
                async with asyncio.timeout(0.6):
                    await Reader(api, "p", journal, "token", leaves_after=()).follow()
    first = next(line for line in read(tmp_path / "client.jsonl") if isinstance(line, Visited))
    assert (first.status, first.end) == (200, end)
    assert first.until >= first.at
