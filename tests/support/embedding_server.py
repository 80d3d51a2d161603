"""Embed texts: 5 ms a request and 0.2 ms a text, one at a time. Some texts are commands (see `_Model.refused`)."""

import asyncio
import hashlib
import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.model_server import LOOK_S, ModelServer, left, model_server, ok

REQUEST_S: Final = 0.005
ITEM_S: Final = 0.0002
REFUSALS: Final = {"empty": 422, "broken": 500, "busy": 503}


def embedding(text: str) -> list[float]:
    return [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:8]]


def tokens(texts: list[str]) -> int:
    return 3 * len(texts) + 1


def embedding_server(*, port: int | None = None) -> AbstractAsyncContextManager[ModelServer]:
    return model_server(port=port, module=__name__)


class _Model:
    """One GPU. `asked`: the texts of each request, in order of arrival."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self.asked: list[list[str]] = []
        self.let_go: list[list[str]] = []

    async def refused(self, request: Request, texts: list[str]) -> Response | None:
        self.asked.append(texts)
        computing = asyncio.create_task(self._compute(texts))
        leaving = asyncio.create_task(left(request))
        await asyncio.wait({computing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not computing.done():
            self.let_go.append(texts)
        for task in (computing, leaving):
            task.cancel()
        await asyncio.wait({computing, leaving})
        for what, status in REFUSALS.items():
            if what in texts:
                return JSONResponse({"error": f"a text is {what}"}, status, headers={"retry-after": "1"})
        return Response(b"{") if "garbage" in texts else None

    async def _compute(self, texts: list[str]) -> None:
        async with self._one:
            for gate in (Path(text.removeprefix("gate:")) for text in texts if text.startswith("gate:")):
                while not gate.exists():  # noqa: ASYNC110 - another process makes the file
                    await asyncio.sleep(LOOK_S)  # another process makes the file
            await asyncio.sleep(REQUEST_S + ITEM_S * len(texts))  # the model's own time
        if "exit" in texts:
            os._exit(1)

    async def embed(self, request: Request) -> Response:
        texts = (await request.json())["inputs"]
        if refusal := await self.refused(request, texts):
            return refusal
        items: list[Any] = [{"error": "this one"} if text == "bad" else embedding(text) for text in texts]
        headers = {"x-compute-tokens": str(tokens(texts))}
        return JSONResponse(items[1:] if "short" in texts else items, headers=headers)

    async def embeddings(self, request: Request) -> Response:
        body = await request.json()
        texts = body["input"]
        if refusal := await self.refused(request, texts):
            return refusal
        data = [
            {"object": "embedding", "index": 0 if "twice" in texts else index, "embedding": embedding(text)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": tokens(texts), "total_tokens": tokens(texts)}
        model = body.get("model", "tiny")
        return JSONResponse({"object": "list", "data": data[::-1], "model": model, "usage": usage})

    async def requests(self, _: Request) -> Response:
        return JSONResponse({"asked": self.asked, "let_go": self.let_go})


def _app() -> Starlette:
    model = _Model()
    return Starlette(
        routes=[
            Route("/health", ok),
            Route("/embed", model.embed, methods=["POST"]),
            Route("/v1/embeddings", model.embeddings, methods=["POST"]),
            Route("/requests", model.requests),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(_app(), host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", ws="none", log_level="warning")
