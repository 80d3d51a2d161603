"""llama-server answers calls of OpenAI's API through the runner byte for byte, as recorded on its own side."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from anyio import to_thread
from msgspec import Raw

from director.core.runner_config import Endpoint, decode_runner_config
from director.local.launcher.processes import free_port
from director.servers.runners import RunnerOptions
from director.servers.runners.openai import OpenAiRunner
from director.servers.runners.runner import Outcome, Produced, RunEvent, RunRequest
from tests.support.eventually import eventually
from tests.support.real_servers import APPS, SERVERS, python_with
from tests.support.runner_conformance import follow, opened, the_end

pytestmark = pytest.mark.real_servers
LLAMA: Final = next(server for server in SERVERS if server.name == "llama-server")
UNKNOWN: Final = ', "field_a" : {"é\\u00e9": 1.50}, "metadata":{"model":"mine"}'
BODY: Final = '{ "model":"acme/llm", "messages":[{"role":"user","content":"H\\u0069 ü"}],"max_tokens":12, "seed":7%s}'


class Relay:
    """Passes bytes on, and keeps them. `asked` and `said`: of the last connection that carried a POST."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked, self.said = bytearray(), bytearray()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_on(reader, to_server, is_request=True))
            tasks.create_task(self._pass_on(from_server, writer, is_request=False))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if data.startswith(b"POST "):
                    self.asked, self.said = bytearray(), bytearray()
                (self.asked if is_request else self.said).extend(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    @property
    def answer(self) -> bytes:
        """The body of the server's answer, without the framing of its chunks."""
        head, _, rest = bytes(self.said).partition(b"\r\n\r\n")
        if b"chunked" not in head.lower():
            return rest
        found = bytearray()
        while (size := re.match(rb"([0-9a-fA-F]+)\r\n", rest)) and int(size[1], 16):
            found += rest[size.end() :][: int(size[1], 16)]
            rest = rest[size.end() + int(size[1], 16) + 2 :]
        return bytes(found)

    @property
    def body(self) -> bytes:
        return bytes(self.asked).partition(b"\r\n\r\n")[2]


@asynccontextmanager
async def llama(model: Path, python: Path, *options: str) -> AsyncGenerator[int]:
    port = free_port()
    program = str(python.parent / "llama-server-vulkan")
    line = [program, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *options]
    async with (
        await anyio.open_process(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):

        async def is_ready() -> bool:
            try:
                return (await http.get("/health")).is_success
            except httpx.TransportError:
                return False

        try:
            await eventually(is_ready, "llama-server is ready", limit_s=LLAMA.ready_s)
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module")
async def python() -> Path:
    return await to_thread.run_sync(python_with, LLAMA.name, tuple(LLAMA.packages))


@pytest.fixture(scope="module")
async def model(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    await anyio.run_process([str(python), str(APPS / "tiny_gguf.py"), str(path)])
    return path


@pytest.fixture(scope="module")
async def server(python: Path, model: Path) -> AsyncGenerator[int]:
    async with llama(model, python) as port:
        yield port


@asynccontextmanager
async def relayed(port: int) -> AsyncGenerator[tuple[Relay, OpenAiRunner]]:
    relay = Relay(port)
    async with await asyncio.start_server(relay.carry, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        config = decode_runner_config(json.dumps({"kind": "openai", "model": "tiny.gguf"}))
        runner = OpenAiRunner(config, RunnerOptions(url=url))  # type: ignore[arg-type]
        async with opened(runner):
            yield relay, runner


async def made(runner: OpenAiRunner, body: str, endpoint: Endpoint = "chat") -> list[RunEvent]:
    return await follow(runner, RunRequest(id="a" * 26, input=Raw(body.encode()), endpoint=endpoint))


def events_in(stream: bytes) -> list[bytes]:
    """Return the data of each event, read in the plainest way."""
    return [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: ")]


@pytest.mark.parametrize("asks", [False, True], ids=["no usage", "usage"])
@pytest.mark.parametrize("more", ["", ', "logprobs": true, "top_logprobs": 2'], ids=["text", "logprobs"])
async def test_chunks_of_a_real_server_come_as_it_sent_them(server: int, asks: bool, more: str) -> None:
    options = ', "stream_options": {"include_usage": true}' if asks else ""
    async with relayed(server) as (relay, runner):
        events = await made(runner, BODY % (f'{UNKNOWN}{more},\n\t"stream" : true{options}'))
        sent = events_in(relay.answer)
        body = relay.body
    shown = [bytes(event.item) for event in events if isinstance(event, Produced)]
    assert sent.pop() == b"[DONE]"
    usage = [chunk for chunk in sent if not json.loads(chunk)["choices"]]
    assert len(usage) == 1
    assert shown == (sent if asks else [chunk for chunk in sent if chunk not in usage])
    added = "" if asks else ',"stream_options":{"include_usage":true}'
    expected = BODY % (f'{UNKNOWN}{more},\n\t"stream" : true{options}{added}')
    assert body == expected.replace('"acme/llm"', '"tiny.gguf"').encode()
    ended = the_end(events)
    assert ended.outcome is Outcome.SUCCEEDED
    answer: dict[str, Any] = json.loads(bytes(ended.output or b""))
    texts = (json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in sent if chunk not in usage)
    assert answer["choices"][0]["message"]["content"] == "".join(texts)
    assert json.loads(bytes(ended.metrics["output_tokens"])) == answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    "more", ["", ', "logprobs": true, "top_logprobs": 2', ', "n": 2'], ids=["text", "logprobs", "n"]
)
async def test_answer_of_a_real_server_comes_as_it_sent_it(server: int, more: str) -> None:
    async with relayed(server) as (relay, runner):
        ended = the_end(await made(runner, BODY % (UNKNOWN + more)))
        assert (ended.outcome, bytes(ended.output or b"")) == (Outcome.SUCCEEDED, relay.answer)
        assert relay.body == (BODY % (UNKNOWN + more)).replace('"acme/llm"', '"tiny.gguf"').encode()


async def test_stream_of_a_real_server_adds_up_to_its_whole_answer(server: int) -> None:
    async with relayed(server) as (_, runner):
        whole, streamed = [
            json.loads(bytes(the_end(await made(runner, BODY % f', "temperature": 0{more}')).output or b""))
            for more in ("", ', "stream": true')
        ]
    for name in ("object", "model", "system_fingerprint"):
        assert streamed[name] == whole[name]
    [one], [other] = streamed["choices"], whole["choices"]
    assert (one["message"]["content"], one["finish_reason"]) == (other["message"]["content"], other["finish_reason"])
    assert streamed["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_refusal_of_a_real_server_comes_with_its_body(server: int) -> None:
    async with relayed(server) as (relay, runner):
        ended = the_end(await made(runner, '{"model": "acme/llm", "messages": [{"role": "none", "content": {}}]}'))
        assert (ended.outcome, bytes(ended.output or b"")) == (Outcome.INVALID, relay.answer)
        assert json.loads(relay.answer)["error"]["code"] == json.loads(bytes(ended.metrics["http_status"]))
        vectors = the_end(await made(runner, '{"model": "acme/llm", "input": "a"}', "embeddings"))
        assert (vectors.outcome, json.loads(bytes(vectors.metrics["http_status"]))) == (Outcome.INVALID, 501)


@pytest.mark.parametrize("more", ["", ', "encoding_format": "base64"'], ids=["numbers", "base64"])
async def test_embeddings_of_a_real_server_come_as_it_sent_them(python: Path, model: Path, more: str) -> None:
    body = f'{{"model": "acme/llm", "input": ["a", "b"]{more}}}'
    async with llama(model, python, "--embeddings", "--pooling", "mean") as port, relayed(port) as (relay, runner):
        ended = the_end(await made(runner, body, "embeddings"))
        assert (ended.outcome, bytes(ended.output or b"")) == (Outcome.SUCCEEDED, relay.answer)
        assert json.loads(bytes(ended.metrics["input_tokens"])) > 0
