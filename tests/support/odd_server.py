"""A model server of any kind that answers each run with the bytes of the row that its input names."""

import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from msgspec import Struct, field

from director.lab.chaos.wire import BROKEN, Answer, Request, listening
from tests.support.odd_answers import STATE, Row, whole
from tests.support.scripted_cog import HEALTHY

BETWEEN_S: Final = 0.001  # two pieces, so that the second one is read by itself
GOOD: Final = "good"
# Answers to a good prediction, by kind
GOODS: Final = {
    "http": whole(b'"fine"'),
    "mapped": whole(b'{"out": "fine"}'),
    "cog": whole(b'{"status": "succeeded", "output": "fine"}'),
    "streamed cog": whole(b'{"status": "succeeded", "output": "fine"}'),
    "openai": whole(b'{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}'),
    "polling": whole(b'{"job": {"id": "ok"}}'),
    "polled": whole(b'{"job": {"id": "ok"}}'),
}


class OddServer(Struct):
    """Sends the bytes of the row that the input of a run names."""

    rows: dict[str, Row]
    kind: str
    health: int = 200
    runs: Counter[str] = field(default_factory=Counter)
    shutdowns: int = 0

    async def __call__(self, request: Request) -> Answer:
        match request.method, *request.path.strip("/").split("/"):
            case "GET", "health" | "health-check":
                return Answer(self.health, json.dumps(HEALTHY).encode())
            case "GET", "openapi.json":
                streams = self.kind == "streamed cog"
                output = {"type": "array"} if streams else {"type": "string"}
                document = {
                    "paths": {"/predictions": {"post": {"x-cog-streaming": streams}}},
                    "components": {"schemas": {"Output": output}},
                }
                return Answer(200, json.dumps(document).encode())
            case "GET", "jobs", name:
                return await self._say(
                    request, self.rows[name].said if self.kind == "polled" and name != "ok" else (whole(STATE),)
                )
            case "GET", *_:
                return Answer(404)
            case "POST", "shutdown":
                self.shutdowns += 1
                return Answer()
            case ("POST", "predictions", _, "cancel") | ("POST", "cancel", _):
                return Answer(404)
        name = self._named(request.body)
        self.runs[name] += 1
        if self.kind == "polled" and name != GOOD:
            return await self._say(request, (whole(json.dumps({"job": {"id": name}}).encode()),))
        return await self._say(request, (GOODS[self.kind],) if name == GOOD else self.rows[name].said)

    def _named(self, body: bytes) -> str:
        given = json.loads(body)
        match self.kind:
            case "cog" | "streamed cog":
                return str(given["input"]["prompt"])
            case "openai":
                return str(given["messages"][0]["content"])
            case _:
                return str(given["prompt"])

    async def _say(self, request: Request, said: tuple[bytes, ...]) -> Answer:
        with suppress(ConnectionError):
            for piece in said:
                await request.write(piece)
                if len(said) > 1:
                    await anyio.sleep(BETWEEN_S)  # so that each piece arrives by itself
        return BROKEN


@asynccontextmanager
async def odd_server(kind: str, *rows: Row, health: int = 200) -> AsyncGenerator[tuple[OddServer, str]]:
    # a name may be a part of a path
    server = OddServer({f"{number}": row for number, row in enumerate(rows)}, kind, health)
    async with listening(server) as port:
        yield server, f"http://127.0.0.1:{port}"
