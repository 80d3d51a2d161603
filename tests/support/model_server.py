"""A small real model server other than Cog: one model over a POST, over polling, and as OpenAI has it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from director.local.launcher.processes import free_port
from tests.support.eventually import eventually

START_LIMIT_S: Final = 30.0
LOOK_S: Final = 0.005
REFUSALS: Final = {"full": 503, "busy": 429, "conflict": 409, "invalid": 422, "too big": 413}


class ModelServer(Struct, frozen=True, kw_only=True):
    url: str
    pid: int

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@asynccontextmanager
async def model_server(*, port: int | None = None, module: str = __name__) -> AsyncGenerator[ModelServer, None]:
    """Serve on loopback until the test ends. `module`: a server like this one."""
    port = port or free_port()
    with tempfile.TemporaryFile() as log:
        process = await anyio.open_process(
            [sys.executable, "-m", module, str(port)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            server = ModelServer(url=f"http://127.0.0.1:{port}", pid=process.pid)
            await _wait_for(server.url)
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                with suppress(ProcessLookupError):
                    process.kill()
                await process.aclose()


async def _wait_for(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def answers() -> bool:
            with suppress(httpx.TransportError):
                await client.get(f"{url}/health")
                return True
            return False

        await eventually(answers, "it answers", limit_s=START_LIMIT_S)


class _Raised(Exception):
    """The model raised."""


async def _play(given: dict[str, Any]) -> AsyncIterator[str]:
    gate = given.get("gate", "")
    try:
        for number in range(given.get("n", 3)):
            yield f"{given.get('text', 'a')}{number}"
        if size := given.get("size", 0):
            yield "x" * size
        while gate and not Path(gate).exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(LOOK_S)  # another process makes the file
    except (asyncio.CancelledError, GeneratorExit):
        Path(f"{gate}.stopped").touch()
        raise
    if given.get("then") == "raise":
        raise _Raised("it went wrong")
    if given.get("then") == "exit":
        os._exit(1)


def _refusal(given: dict[str, Any]) -> Response | None:
    if (status := REFUSALS.get(given.get("then", ""))) is None:
        return None
    return JSONResponse({"error": {"message": "not now, not this"}}, status, headers={"retry-after": "7"})


# ---- answered at once ----


async def _predict(request: Request) -> Response:
    return await _predicted(request, (await request.json())["args"])


async def _predict_all(request: Request) -> Response:
    [given] = (await request.json())["args"]
    answer = await _predicted(request, given)
    return JSONResponse([json.loads(bytes(answer.body))]) if answer.status_code == 200 and answer.body else answer


async def _predicted(request: Request, given: dict[str, Any]) -> Response:
    if refusal := _refusal(given):
        return refusal
    if given.get("then") == "say failed":
        return JSONResponse({"problem": "it went wrong"})
    playing = asyncio.create_task(_all_of(given))
    leaving = asyncio.create_task(left(request))
    await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, leaving):
        task.cancel()
    await asyncio.wait({playing, leaving})
    if playing.cancelled():
        return Response()
    if exc := playing.exception():
        return JSONResponse({"problem": str(exc)}, 500)
    source = request.headers.get("x-source")
    return JSONResponse({"result": {"items": playing.result()}, "usage": {"units": 3}, "source": source})


async def _all_of(given: dict[str, Any]) -> list[str]:
    return [item async for item in _play(given)]


async def left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---- polled ----


class _Jobs:
    """The accepted jobs. Their ids contain characters that must be escaped in a path."""

    def __init__(self) -> None:
        self._jobs: dict[str, asyncio.Task[list[str]]] = {}

    async def submit(self, request: Request) -> Response:
        given = (await request.json())["args"]
        if refusal := _refusal(given):
            return refusal
        job = f"job/{len(self._jobs)} ?#"
        self._jobs[job] = asyncio.create_task(_all_of(given))
        return JSONResponse({"job": {"id": job}}, 202)

    async def poll(self, request: Request) -> Response:
        task = self._jobs.get(request.path_params["id"])
        if task is None:
            return JSONResponse({"detail": "no such job"}, 404)
        return JSONResponse(_told(task))

    async def cancel(self, request: Request) -> Response:
        task = self._jobs.get(request.path_params["id"])
        return Response(status_code=204 if task is not None and task.cancel() else 404)

    async def count(self, _: Request) -> Response:
        return JSONResponse({"jobs": len(self._jobs)})


def _told(task: "asyncio.Task[list[str]]") -> dict[str, Any]:
    if not task.done():
        return {"state": "IN_PROGRESS"}
    if task.cancelled():
        return {"state": "Cancelled"}
    if exc := task.exception():
        return {"state": "ERROR", "problem": str(exc)}
    return {"state": "Completed", "result": {"items": task.result()}, "usage": {"units": 3}}


# ---- as OpenAI has it ----


async def _complete(request: Request) -> Response:
    asked = await request.json()
    text = asked["messages"][-1]["content"] if "messages" in asked else asked["prompt"]
    given = json.loads(text)
    if refusal := _refusal(given):
        return refusal
    return StreamingResponse(_chunks(asked, given), media_type="text/event-stream")


async def _chunks(asked: dict[str, Any], given: dict[str, Any]) -> AsyncIterator[str]:
    def chunk(**fields: Any) -> str:
        return f"data: {json.dumps({'id': 'c', 'model': asked['model'], **fields})}\n\n"

    is_chat = "messages" in asked
    count = 0
    if is_chat:
        yield chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    try:
        async for item in _play(given):
            count += 1
            part = {"delta": {"content": item}} if is_chat else {"text": item}
            yield chunk(choices=[{"index": 0, "finish_reason": None, **part}])
    except _Raised as exc:
        yield f"data: {json.dumps({'error': {'message': str(exc), 'code': 500}})}\n\n"
        return
    end: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    yield chunk(choices=[{"index": 0, "finish_reason": "stop", **end}])
    if asked.get("stream_options", {}).get("include_usage"):
        yield chunk(choices=[], usage={"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count})
    yield "data: [DONE]\n\n"


async def _models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "tiny", "object": "model"}]})


# ---- what TEI, OpenAI and KServe have beside it ----


async def _embed(request: Request) -> Response:
    inputs = (await request.json())["inputs"]
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not all(texts):
        return JSONResponse({"error": "`inputs` cannot be empty", "error_type": "Validation"}, 422)
    return JSONResponse([[len(text), 0.5] for text in texts])


async def _embeddings(request: Request) -> Response:
    texts = (await request.json())["input"]
    if not all(texts):
        return JSONResponse({"error": {"message": "input cannot be empty", "code": 400}}, 400)
    data = [{"object": "embedding", "index": index, "embedding": [len(text), 0.5]} for index, text in enumerate(texts)]
    return JSONResponse({"object": "list", "data": data, "usage": {"prompt_tokens": 5, "total_tokens": 5}})


async def _infer(request: Request) -> Response:
    if request.path_params["model"] != "my model":
        return JSONResponse({"error": f"Request for unknown model: '{request.path_params['model']}'"}, 404)
    first = (await request.json())["inputs"][0]
    doubled = {**first, "name": "doubled", "data": [2 * value for value in first["data"]]}
    return JSONResponse({"model_name": "my model", "model_version": "1", "outputs": [doubled]})


async def ok(_: Request) -> Response:
    return Response()


def _app() -> Starlette:
    jobs = _Jobs()
    return Starlette(
        routes=[
            Route("/health", ok),
            Route("/v2/health/ready", ok),
            Route("/predict", _predict, methods=["POST"]),
            Route("/predict_all", _predict_all, methods=["POST"]),
            Route("/jobs", jobs.submit, methods=["POST"]),
            Route("/jobs", jobs.count),
            Route("/jobs/{id:path}", jobs.poll),
            Route("/cancel/{id:path}", jobs.cancel, methods=["POST"]),
            Route("/v1/models", _models),
            Route("/v1/chat/completions", _complete, methods=["POST"]),
            Route("/v1/completions", _complete, methods=["POST"]),
            Route("/embed", _embed, methods=["POST"]),
            Route("/v1/embeddings", _embeddings, methods=["POST"]),
            Route("/v2/models/{model}/infer", _infer, methods=["POST"]),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(_app(), host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", ws="none", log_level="warning")
