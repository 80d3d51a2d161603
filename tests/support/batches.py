"""Make batches for tests: lines, a model server that counts the runs of each, and an engine in the test's loop."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from httpx import AsyncClient
from msgspec.structs import replace

from api.batches.engine import Engine
from api.batches.notify import Notifier
from api.services.meters import Meters
from api.sites.sites import Plan, all_running
from api.web.errors import Code
from director.core.clock import Clock, SystemClock
from director.core.settings import ApiSettings
from director.lab.chaos.wire import Answer, Request, listening
from director.runtime.tracing import OFF
from director.webhooks.delivery import Schedule
from director.webhooks.sender import AllowList, Sender
from tests.support.eventually import eventually
from tests.support.queue_driver import MODEL
from tests.support.servers import as_user

FILES: Final = "/openai/v1/files"
BATCHES: Final = "/openai/v1/batches"
CHAT: Final = "/v1/chat/completions"
ENDED: Final = ("completed", "failed", "expired", "cancelled")


class EchoServer:
    """A server of OpenAI's API that answers with the text that it got. It refuses a text that begins with `bad`. Runs
    wait until `go`, and take `pause_s`.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self.url = ""
        self.port = 0
        self.runs: Counter[str] = Counter()
        self.canceled = 0
        self.pause_s = pause_s
        self.go = asyncio.Event()
        self.go.set()

    async def serve(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer(body=b'{"data":[{"id":"m"}]}')
        text = json.loads(request.body)["messages"][0]["content"]
        self.runs[text.partition(" ")[0]] += 1
        await asyncio.sleep(self.pause_s)
        while not self.go.is_set() and not request.gone.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.go.wait(), 0.05)
        self.canceled += request.gone.is_set()
        if text.startswith("bad"):
            return Answer(400, b'{"error":{"message":"no","type":"BadRequest","param":null,"code":"no"}}')
        said = {"role": "assistant", "content": text}
        body = {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": said}]}
        head = {"content-type": "application/json"}
        return Answer(body=json.dumps(body, indent=1).encode(), headers=head)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["EchoServer"]:
        async with listening(self.serve, self.port) as port:
            self.port, self.url = port, f"http://127.0.0.1:{port}"
            yield self


def line(custom_id: str, text: str | None = None, *, model: str = MODEL, url: str = CHAT, **more: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": text or custom_id}], **more}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode()


def call(custom_id: str, version: str) -> bytes:
    """Return a line of `/v1/predictions`."""
    body = {"version": version, "input": {"text": custom_id}}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/predictions", "body": body}).encode()


def lines(names: Iterable[str]) -> bytes:
    return b"".join(line(name) + b"\n" for name in names)


async def upload(http: AsyncClient, content: bytes, *, purpose: str = "batch") -> str:
    answer = await http.post(FILES, data={"purpose": purpose}, files={"file": ("in.jsonl", content)}, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def create(http: AsyncClient, file_id: str, *, endpoint: str = CHAT, **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", {})
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **more}
    answer = await http.post(BATCHES, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def get(http: AsyncClient, batch_id: str) -> dict[str, Any]:
    answer = await http.get(f"{BATCHES}/{batch_id}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def ended(http: AsyncClient, batch_id: str, *, limit_s: float = 60) -> dict[str, Any]:
    await eventually(
        lambda: get(http, batch_id), "the batch ended", until=lambda shown: shown["status"] in ENDED, limit_s=limit_s
    )
    return await get(http, batch_id)


async def read(http: AsyncClient, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    answer = await http.get(f"{FILES}/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return [json.loads(one) for one in answer.text.splitlines()]


async def results(http: AsyncClient, shown: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    return await read(http, shown["output_file_id"]), await read(http, shown["error_file_id"])


class ShiftedClock(SystemClock):
    """The clock of the machine, and `ahead_ms`."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@asynccontextmanager
async def engine(
    settings: ApiSettings, *, allow: str = "loopback", clock: Clock | None = None
) -> AsyncGenerator[Engine]:
    """An engine as a keeper's process has it. The test calls `run_once`, or starts `run`."""
    settings, clock = replace(settings, redis_url=as_user("api", settings.redis_url)), clock or SystemClock()
    sender = Sender(AllowList.parse(allow))
    running = all_running(
        Plan.of(settings), Meters(Code), clock=clock, on_unsafe=lambda exc: print(exc), tracing=OFF, serves=False
    )
    async with running as state:
        yield Engine(state, Notifier(sender, state["services"].accounts, clock, Schedule.parse("1s,1s")))
    await sender.aclose()
