"""Answer OpenAI's API as its document says, for what a tiny model cannot do: tool calls, answers by a schema, images,
refusals, reasoning. A text such as `hold:a1` is a command (see `COMMANDS`). `/control/…` tells a script in another
process what came.
"""

import asyncio
import base64
import hashlib
import json
import re
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from director.lab.chaos.wire import BROKEN, Answer, Request, listening
from tests.support.eventually import eventually

COMMANDS: Final = re.compile(rb"\b(hold|bad|fail|break|think|refuse|count):([\w-]+)")
"""`hold`: wait until the mark is released, after the first piece of a stream. `bad`: refuse the body. `fail`: answer
500. `break`: end a stream with an error in it. `think`: reason before the answer. `refuse`: the model will not answer.
`count`: nothing.
"""
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
)
USAGE: Final = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 8},
}
CITIES: Final = ("Paris", "Rome")
SCHEMA_ANSWER: Final = '{"city":"Paris","degrees":21}'
SHOWN: Final = 3  # chunks of a journaled stream before it waits
CHUNKS: Final = 8  # of a journaled answer: the last one has the finish_reason
VECTOR: Final = (0.5, -0.25, 0.125)  # these are the same as 32-bit floats


class Call(Struct, kw_only=True, eq=False):
    """One request as it came. `is_open` until it was answered or its caller hung up."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    is_open: bool = True

    @property
    def mark(self) -> tuple[str, str]:
        """The command in its texts and the mark of it, or two empty strings."""
        found = COMMANDS.search(self.body)
        return (found[1].decode(), found[2].decode()) if found else ("", "")


def error(status: int, message: str, code: str, param: str | None = None, **headers: str) -> Answer:
    kind = "invalid_request_error" if status < 500 else "server_error"
    about = {"message": message, "type": kind, "param": param, "code": code}
    return Answer(status, json.dumps({"error": about}).encode(), headers)


class OpenAiServer:
    """`model` is its own name for the model. With a `key` it keeps a door of its own: it wants this key and takes as
    many calls at once as `most`: another one is refused, or if it `queues`, a stream waits with comments.
    `counts` tells how many calls were refused for want of a place, and how many heads of streams were sent.
    """

    def __init__(self, *, model: str, key: str = "", most: int = 100, queues: bool = False) -> None:
        self.url = ""
        self.model = model
        self.calls: list[Call] = []
        self.counts: Callable[[], Awaitable[dict[str, int]]] = self._own_counts
        self._refused = self._heads = 0
        self._key = key
        self._most = most
        self._queues = queues
        self._released: dict[str, asyncio.Event] = {}

    async def _own_counts(self) -> dict[str, int]:
        return {"refused": self._refused, "heads": self._heads}

    @property
    def _is_full(self) -> bool:
        return bool(self._key) and sum(call.is_open for call in self.calls) >= self._most

    async def serve(self, request: Request) -> Answer:
        if request.path.startswith("/control/"):
            return Answer(body=json.dumps(await self._control(*request.path.split("/")[2:])).encode())
        if denial := self._denial(request):
            return denial
        if request.method == "GET":
            listed = {"id": self.model, "object": "model", "created": 1, "owned_by": "tests"}
            is_list = request.path in ("/health", "/v1/models")
            return Answer(body=json.dumps({"object": "list", "data": [listed]} if is_list else listed).encode())
        if self._is_full and not self._queues:
            self._refused += 1
            return error(429, "The server takes no more", "no_capacity", **{"retry-after": "1"})
        call = Call(path=request.path, headers=request.headers, body=request.body)
        self.calls.append(call)
        try:
            return await self._answer(request, call)
        finally:
            call.is_open = False

    def release(self, mark: str) -> None:
        """Let the calls with this mark go on that wait, and those that will."""
        self._gate(mark).set()

    async def _control(self, what: str, mark: str = "") -> Any:
        if what == "release":
            self.release(mark)
        calls = [call for call in self.calls if call.mark[1] == mark]
        seen = {"calls": len(calls), "open": sum(call.is_open for call in calls)}
        return await self.counts() if what == "counts" else seen

    def _gate(self, mark: str) -> asyncio.Event:
        return self._released.setdefault(mark, asyncio.Event())

    def _denial(self, request: Request) -> Answer | None:
        if self._key and request.headers.get("authorization") != f"Bearer {self._key}":
            return error(401, "Incorrect API key provided", "invalid_api_key")
        return None

    async def _answer(self, request: Request, call: Call) -> Answer:
        asked = msgspec.json.decode(call.body)
        command, mark = call.mark
        if asked["model"] != self.model:
            return error(404, f"The model `{asked['model']}` does not exist", "model_not_found", "model")
        if command == "bad":
            return error(400, "It is too warm for this model", "too_warm", "temperature")
        if command == "fail":
            return error(500, "It went wrong", "broken", **{"x-should-retry": "false"})
        if call.path == "/v1/embeddings":
            return Answer(body=json.dumps(_embeddings(asked)).encode())
        if call.path != "/v1/chat/completions":
            return error(404, "There is no such path", "not_found")
        choices = [_message(asked, command) for _ in range(asked.get("n") or 1)]
        if asked.get("stream"):
            await self._stream(request, asked, choices, command, mark)
            return BROKEN
        if command == "hold":
            await self._until_released(request, mark)
        return Answer(body=json.dumps(_completion(asked, choices)).encode())

    async def _stream(
        self, request: Request, asked: Mapping[str, Any], choices: Sequence[dict[str, Any]], command: str, mark: str
    ) -> None:
        await request.write(HEAD)
        self._heads += 1
        while sum(call.is_open for call in self.calls) > self._most:
            await request.write(_frame(b": 1 ahead, about 3 s\n\n"))
            await asyncio.sleep(0.05)  # until the next comment
        for number, chunk in enumerate(_chunks(asked, choices)):
            if number == 2 and command == "hold":
                await self._until_released(request, mark)
            if number == 2 and command == "break":
                chunk = {"error": {"message": "It broke", "type": "server_error", "param": None, "code": "broken"}}
            if request.gone.is_set():
                return
            await request.write(_chunk(json.dumps(chunk).encode()))
            if "error" in chunk:
                break
        else:
            await request.write(_chunk(b"[DONE]"))
        await request.write(b"0\r\n\r\n")

    async def _until_released(self, request: Request, mark: str) -> None:
        waits = [asyncio.ensure_future(each.wait()) for each in (self._gate(mark), request.gone)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


class Journaled:
    """A server of OpenAI's API that keeps what it sent, by stream and run. Each chunk names both. A run waits for `go`
    before the first chunk, or after `SHOWN` if its stream is in `shown`.
    """

    def __init__(self) -> None:
        self.sent: dict[str, list[list[bytes]]] = {}
        self.shown: set[str] = set()
        self.open = self.port = 0
        self.go = False
        self._up = AsyncExitStack()

    async def start(self) -> None:
        self.port = await self._up.enter_async_context(listening(self.serve, self.port))

    async def kill(self) -> None:
        await self._up.aclose()

    async def serve(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer(body=b'{"data":[{"id":"m"}]}')
        tag = json.loads(request.body)["messages"][0]["content"]
        run: list[bytes] = []
        self.sent.setdefault(tag, []).append(run)
        self.open += 1
        try:
            await self._stream(request, tag, run)
        finally:
            self.open -= 1
        return BROKEN

    async def _stream(self, request: Request, tag: str, run: list[bytes]) -> None:
        name = f"{tag}.{len(self.sent[tag])}"
        await request.write(HEAD)
        for number in range(CHUNKS):
            if number == (SHOWN if tag in self.shown else 0):
                await eventually(lambda: self.go or request.gone.is_set(), "it may go on", limit_s=60)
            if request.gone.is_set():
                return
            end = "stop" if number == CHUNKS - 1 else None
            delta = {} if end else {"content": f"{name}.{number} "}
            run.append(
                json.dumps({"id": name, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}).encode()
            )
            await request.write(_chunk(run[-1]))
        usage = {"prompt_tokens": 1, "completion_tokens": tokens(run), "total_tokens": 1 + tokens(run)}
        await request.write(_chunk(json.dumps({"choices": [], "usage": usage}).encode()))
        await request.write(_chunk(b"[DONE]") + b"0\r\n\r\n")


def tokens(chunks: list[bytes]) -> int:
    return sum(b'"content"' in chunk for chunk in chunks)


def _chunk(data: bytes) -> bytes:
    return _frame(b"data: %s\n\n" % data)


def _frame(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def _message(asked: Mapping[str, Any], command: str) -> dict[str, Any]:
    last = asked["messages"][-1]
    if command == "refuse":
        return {"role": "assistant", "content": None, "refusal": "That I will not say"}
    if command == "think":
        return {"role": "assistant", "content": "one two", "reasoning_content": "Let me see"}
    if image := next((part["image_url"]["url"] for part in _parts(last) if part["type"] == "image_url"), ""):
        return {"role": "assistant", "content": hashlib.sha256(image.encode()).hexdigest()}
    if answers := [each for each in asked["messages"] if each["role"] == "tool"]:
        known = [call["id"] for each in asked["messages"] for call in each.get("tool_calls") or ()]
        assert [each["tool_call_id"] for each in answers] == known
        return {"role": "assistant", "content": " ".join(map(_text, answers))}
    if tools := asked.get("tools"):
        return {"role": "assistant", "content": None, "tool_calls": list(_tool_calls(tools[0]["function"]["name"]))}
    if (asked.get("response_format") or {}).get("type") == "json_schema":
        assert asked["response_format"]["json_schema"]["schema"]["properties"]
        return {"role": "assistant", "content": SCHEMA_ANSWER}
    return {"role": "assistant", "content": "one two"}


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(message: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in _parts(message) if part["type"] == "text")


def _tool_calls(name: str) -> Iterator[dict[str, Any]]:
    for number, city in enumerate(CITIES):
        about = {"name": name, "arguments": json.dumps({"city": city})}
        yield {"id": f"call_{number}", "type": "function", "function": about}


def _completion(asked: Mapping[str, Any], choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **_about(asked, "chat.completion"),
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": _finish(message)}
            for index, message in enumerate(choices)
        ],
        "usage": USAGE,
    }


def _about(asked: Mapping[str, Any], what: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": what, "created": 1, "model": asked["model"]}


def _finish(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _chunks(asked: Mapping[str, Any], choices: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    about = _about(asked, "chat.completion.chunk")
    for index, message in enumerate(choices):
        for delta in ({"role": "assistant", "content": ""}, *_deltas(message)):
            yield {**about, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
        yield {**about, "choices": [{"index": index, "delta": {}, "logprobs": None, "finish_reason": _finish(message)}]}
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield {**about, "choices": [], "usage": USAGE}


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Take a message apart as OpenAI does: the arguments of a tool call come in pieces, after its id and name."""
    for name in ("reasoning_content", "refusal", "content"):
        for piece in re.findall(r"\S+\s*", message.get(name) or ""):
            yield {name: piece}
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]}
        for piece in (arguments[:4], arguments[4:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _embeddings(asked: Mapping[str, Any]) -> dict[str, Any]:
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    packed = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()
    vector = packed if asked.get("encoding_format") == "base64" else list(VECTOR)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(len(texts))]
    return {"object": "list", "data": data, "model": asked["model"], "usage": {"prompt_tokens": 3, "total_tokens": 3}}


@asynccontextmanager
async def openai_server(
    *, model: str = "its-own-name", key: str = "", most: int = 100, queues: bool = False
) -> AsyncGenerator[OpenAiServer]:
    server = OpenAiServer(model=model, key=key, most=most, queues=queues)
    async with listening(server.serve) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server
