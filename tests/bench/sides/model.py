"""Serve a model that costs next to nothing, on one core: `python -m tests.bench.sides.model PORT`."""

import asyncio
import json
import os
import sys
import time
from collections import deque
from typing import Any, Final, cast

import uvloop

ANSWER: Final = b'{"output":"x"}'
JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
COMPLETION: Final = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
MODELS: Final = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'

# bounded, or it would be what grows in a soak; no bench asks for more at once
TIMES: deque[float] = deque(maxlen=30_000)


class Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class differs
        self._read = b""
        self._streaming: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            whole = end + 4 + (int(length) if length else 0)
            if len(self._read) < whole:
                return
            body, self._read = self._read[end + 4 : whole], self._read[whole:]
            method, path, _ = head.split(b" ", 2)
            self._answer(method, path, body)

    def _answer(self, method: bytes, path: bytes, body: bytes) -> None:
        if path == b"/times":
            self._send(json.dumps(list(TIMES)).encode())
            if method == b"delete":
                TIMES.clear()
        elif path == b"/count":
            self._send(b"%d" % len(TIMES))
        elif method != b"post":
            self._send(MODELS)
        else:
            TIMES.append(time.monotonic())
            if path == b"/v1/chat/completions":
                asked = json.loads(body)
                if asked.get("stream"):
                    self._streaming = asyncio.get_running_loop().create_task(self._stream(asked))
                else:
                    self._send(COMPLETION)
            elif path != b"/hold":
                self._send(ANSWER)

    def _send(self, body: bytes) -> None:
        self._transport.write(JSON_HEAD % (len(body), body))

    async def _stream(self, asked: dict[str, Any]) -> None:
        """Stream the tokens that the prompt asks for, at its pace in seconds: "100 0.02"."""
        many, pause_s = asked["messages"][-1]["content"].split()
        self._transport.write(STREAM_HEAD)
        self._token({"role": "assistant", "content": ""})
        began = time.monotonic()
        for number in range(int(many)):
            if float(pause_s):
                await asyncio.sleep(began + number * float(pause_s) - time.monotonic())  # the model's own rate
            elif number % 32 == 0:
                await asyncio.sleep(0)  # others have their turn
            self._token({"content": f"{time.time()!r} "})
        self._token({}, "stop")
        self._chunk(b"data: [DONE]\n\n")
        self._transport.write(b"0\r\n\r\n")

    def _token(self, delta: dict[str, str], reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        self._chunk(b"data: %s\n\n" % json.dumps({"id": "c", "model": "tiny", "choices": [choice]}).encode())

    def _chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%s\r\n" % (len(data), data))


async def serve(port: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
