"""Serve a bare handler with one call to Redis: `python -m tests.bench.sides.bare REDIS_URL PORT`."""

import sys

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from director.broker.redis_client import client, text


def app(redis_url: str) -> Starlette:
    redis = client(redis_url)

    async def one(request: Request) -> Response:
        given = msgspec.json.decode(await request.body())
        entry = await redis.xadd("bare", {"input": msgspec.json.encode(given["input"])})
        return Response(msgspec.json.encode({"id": text(entry)}), status_code=201, media_type="application/json")

    async def hold(request: Request) -> Response:
        await request.body()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return Response()

    return Starlette(routes=[Route("/one", one, methods=["POST"]), Route("/hold", hold, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
