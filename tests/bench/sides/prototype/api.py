"""Accept predictions for the prototype: `python -m tests.bench.sides.prototype.api REDIS_URL PORT`."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from director.broker.redis_client import blocking_client, client
from tests.bench.sides.prototype.gathered import Gathered
from tests.bench.sides.prototype.steps import ENQUEUE, STREAM, record, replies

ANSWER_S: Final = 60.0


class Front:
    def __init__(self, redis_url: str) -> None:
        self._redis = client(redis_url)
        self._listener = blocking_client(redis_url, block_s=60)
        self._calls = Gathered(self._redis)
        self._name = os.urandom(4).hex()
        self._ends: dict[str, asyncio.Future[bytes]] = {}
        self._enqueue = ""

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self._enqueue = await self._redis.script_load(ENQUEUE)
        ends = self._listener.pubsub()
        await ends.subscribe(replies(self._name))
        listening = asyncio.create_task(self._listen(ends))
        yield
        listening.cancel()

    async def _listen(self, ends: Any) -> None:
        async for told in ends.listen():
            if told["type"] == "message":
                prediction_id, _, output = told["data"].partition(b" ")
                if (end := self._ends.pop(prediction_id.decode(), None)) is not None:
                    end.set_result(output)

    async def predict(self, request: Request) -> Response:
        given = msgspec.json.decode(await request.body(), type=dict[str, msgspec.Raw])
        prediction_id = os.urandom(13).hex()
        waits = request.headers.get("prefer", "").startswith("wait")
        if waits:
            end = self._ends[prediction_id] = asyncio.get_running_loop().create_future()
        made = (
            record(prediction_id),
            STREAM,
            prediction_id,
            bytes(given["input"]),
            replies(self._name) if waits else "",
        )
        await self._calls.call("EVALSHA", self._enqueue, 2, *made)
        shown: dict[str, Any] = {"id": prediction_id, "status": "starting", "input": given["input"]}
        if waits:
            output = await asyncio.wait_for(end, ANSWER_S)
            shown |= {"status": "succeeded", "output": msgspec.Raw(output)}
        return Response(msgspec.json.encode(shown), status_code=201, media_type="application/json")


def app(redis_url: str) -> Starlette:
    front = Front(redis_url)
    return Starlette(routes=[Route("/predictions", front.predict, methods=["POST"])], lifespan=front.lifespan)


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
