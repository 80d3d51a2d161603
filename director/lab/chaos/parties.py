"""Serve a scripted model, or receive webhooks: `python -m director.lab.chaos.parties cog PORT JOURNAL NAME SLOTS`,
`talker` with the same arguments, or `sink PORT JOURNAL SECRETS`. A model server speaks the part of Cog, or of OpenAI's
API for chat, that a director depends on. It records each run before anything of it can be seen, and its end before the
answer leaves. The sink checks signatures with its own implementation of Standard Webhooks.
"""

import asyncio
import base64
import hmac
import itertools
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director.core.states import TERMINAL
from director.lab.chaos.journal import CogEnded, CogStarted, Delivered, Fault, Journal, Spoken, now_ms
from director.lab.chaos.wire import BROKEN, Answer, Caller, Handler, Request, Unanswered, listening

STARTED_AT: Final = f"{now_ms()}"
SLOW_CANCEL_S: Final = 1.0
CALLBACK_S: Final = 2.0
CRASHED: Final = 139
FILL: Final = "x" * 1_000
JSON_OBJECT: Final = {"type": "object"}
# an iterator, so that predictions have event streams
ITERATOR: Final = {"type": "array", "items": JSON_OBJECT, "x-cog-array-type": "iterator"}
SCHEMA: Final = {
    "openapi": "3.0.2",
    "info": {"title": "Cog", "version": "0.1.0"},
    "paths": {"/predictions": {"post": {}}},
    "components": {"schemas": {"Input": JSON_OBJECT, "Output": ITERATOR}},
}

MODES: Final = {"ok": Answer(200), "error": Answer(500), "reset": BROKEN}
OK: Final = 200
TOLERANCE_S: Final = 300
MISSING_S: Final = 12.0  # four attempts of the schedule, after 0, 2, 7 and 22 s

FAILED: Final = "Prediction failed: as scripted"
SICK: Final = "CUDA error: device-side assert triggered"
FROZEN_S: Final = 2.0
FROZEN: Final = "stop_by_input"

STREAM: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
)
LAST: Final = b"0\r\n\r\n"
BROKE: Final = msgspec.json.encode({"error": {"message": FAILED}})

Ending = Literal["succeeded", "failed", "canceled"]
Outcome = Literal["ok", "fail", "crash", "hang", "slow_cancel", "sick", "freeze"]


class Odd(Struct, frozen=True):
    """An odd answer of a server that is ready, and what it must come to: docs/reference/outcomes.md. OUTPUT in `body`
    stands for the run's output.
    """

    body: bytes
    outcome: Literal["succeeded", "failed"] = "failed"
    status: int = OK
    type: str = "application/json"


ODD: Final = {
    "no JSON": Odd(b"Internal Server Error"),
    "plain text": Odd(b"done", type="text/plain"),
    "NaN": Odd(b'{"status": "succeeded", "output": NaN}'),
    "empty": Odd(b""),
    "a list": Odd(b"[1]"),
    "status of another type": Odd(b'{"status": 5, "output": OUTPUT}'),
    "500 of a ready server": Odd(b"Internal Server Error", status=500, type="text/plain"),
    "half a surrogate pair": Odd(b'{"status": "succeeded", "output": OUTPUT, "logs": "\\ud83d"}', "succeeded"),
    "logs of another type": Odd(b'{"status": "succeeded", "output": OUTPUT, "logs": ["a"]}', "succeeded"),
}


class Script(Struct, frozen=True):
    """Runs with the same `until_ms` end at the same moment. `fill` is bytes in each output. A `sick` run fails with the
    words of a sick accelerator. A `freeze` stops the whole server for a moment. `odd`: its answer, one of `ODD`.
    """

    ms: float = 0.0
    outcome: Outcome = "ok"
    outputs: int = 1
    until_ms: int = 0
    fill: int = 0
    odd: str = ""


class Create(Struct, frozen=True):
    input: Script
    webhook: str = ""
    webhook_events_filter: tuple[str, ...] = ()


class Snapshot(Struct, omit_defaults=True, kw_only=True):
    id: str
    status: str
    output: list[dict[str, str | int]] | None = None
    error: str | None = None
    metrics: dict[str, int] | None = None


class Run(Struct, kw_only=True, eq=False):
    """`asked` is the time at which it learned that it should stop, or 0."""

    id: str
    name: str
    script: Script
    gone: asyncio.Event
    cancel: asyncio.Event
    output: list[dict[str, str | int]]
    asked: int = 0

    @property
    def pause_s(self) -> float:
        """The time until its next output."""
        script = self.script
        return max(script.ms / 1000 / max(1, script.outputs), (script.until_ms - now_ms()) / 1000)


class ModelServer:
    def __init__(self, name: str, slots: int, journal: Journal) -> None:
        self._name, self._slots, self._journal = name, slots, journal
        self._runs: dict[str, Run] = {}
        self._numbers = itertools.count(1)

    @contextmanager
    def _running(self, run_id: str, script: Script, request: Request) -> Iterator[Run]:
        run = Run(
            id=run_id,
            name=f"{self._name}-{os.getpid()}-{next(self._numbers)}",
            script=script,
            gone=request.gone,
            cancel=asyncio.Event(),
            output=[],
        )
        self._runs[run_id] = run
        self._journal.write(CogStarted(at=now_ms(), id=run.id, run=run.name, server=self._name, pid=os.getpid()))
        try:
            yield run
        finally:
            del self._runs[run_id]


class Cog(ModelServer):
    async def __call__(self, request: Request) -> Answer:
        match request.method, *request.path.strip("/").split("/"):
            case "GET", "health-check":
                return _json({"status": "READY", "setup": {"started_at": STARTED_AT}, "version": {"coglet": "0.23.1"}})
            case "GET", "openapi.json":
                return _json(SCHEMA)
            case "PUT", "predictions", prediction_id:
                return await self._predict(prediction_id, request)
            case "POST", "predictions", prediction_id, "cancel" if prediction_id in self._runs:
                self._runs[prediction_id].cancel.set()
                return _json({})
            case "POST", "shutdown":
                asyncio.get_running_loop().call_later(0.05, os._exit, 0)
                return _json({})
            case _:
                return _json({}, status=404)

    async def _predict(self, prediction_id: str, request: Request) -> Answer:
        if prediction_id in self._runs:
            return _json(Snapshot(id=prediction_id, status="processing"), status=202)
        if len(self._runs) >= self._slots:
            return _json({"error": "no slot"}, status=409)
        create = msgspec.json.decode(request.body, type=Create)
        with self._running(prediction_id, create.input, request) as run:
            ended = await self._play(run, create)
        odd = "" if ended == "canceled" else run.script.odd
        tokens = 0 if odd else count_tokens(run.name)
        self._journal.write(
            CogEnded(at=now_ms(), id=run.id, run=run.name, outcome=ended, asked=run.asked, odd=odd, tokens=tokens)
        )
        if odd:
            return _odd(ODD[odd], run)
        metrics = {"output_token_count": tokens}
        snapshot = Snapshot(id=run.id, status=ended, output=run.output or None, metrics=metrics)
        if ended == "failed":
            snapshot.error = SICK if run.script.outcome == "sick" else FAILED
        await _call_back(create, "completed", snapshot)
        return _json(snapshot)

    async def _play(self, run: Run, create: Create) -> Ending:
        script = run.script
        if script.outcome == "hang":
            await _wait_for_stop(run, None)
            return "canceled"
        for number in range(script.outputs):
            if await _wait_for_stop(run, run.pause_s):
                if script.outcome == "slow_cancel":
                    await asyncio.sleep(SLOW_CANCEL_S)
                return "canceled"
            fill = {"fill": FILL * (script.fill // len(FILL))} if script.fill else {}
            run.output.append({"run": run.name, "i": number, **fill})
            if number + 1 < script.outputs:
                await _call_back(create, "output", Snapshot(id=run.id, status="processing", output=run.output))
        if script.outcome == "freeze":
            self._freeze()
        if script.outcome == "crash":
            self._journal.write(CogEnded(at=now_ms(), id=run.id, run=run.name, outcome="crashed"))
            os._exit(CRASHED)
        if script.odd:
            return ODD[script.odd].outcome
        return "failed" if script.outcome in ("fail", "sick") else "succeeded"

    def _freeze(self) -> None:
        """Stop the whole server, as a run can that never yields. It is recorded as a fault, because others wait for it.
        Its end is recorded first: the server may be killed meanwhile.
        """
        line = Fault(at=now_ms(), kind=FROZEN, target=self._name, phase="begin", pid=os.getpid())
        self._journal.write(line)
        self._journal.write(replace(line, at=line.at + int(FROZEN_S * 1000), phase="end"))
        time.sleep(FROZEN_S)


async def _call_back(create: Create, event: str, snapshot: Snapshot) -> None:
    if create.webhook and event in create.webhook_events_filter:
        host, _, path = create.webhook.removeprefix("http://").partition("/")
        caller = Caller(host)
        with suppress(Unanswered), closing(caller):
            await caller.ask("POST", f"/{path}", msgspec.json.encode(snapshot), within_s=CALLBACK_S)


class Message(Struct, frozen=True):
    content: str
    role: str = "user"


class Chat(Struct, frozen=True):
    """The body of a call. Its last message is a `Script` as JSON, and `user` tells it from all others."""

    messages: list[Message]
    user: str
    stream: bool = False


class Talker(ModelServer):
    """A server with OpenAI's API for chat. Each piece of its text names its run, `<run>/<n> `, and is one token. A
    stream begins with the role alone, which is not recorded: a run that is lost then may be repeated.
    """

    async def __call__(self, request: Request) -> Answer:
        match request.method, request.path:
            case "GET", "/health":
                return Answer()
            case "POST", "/v1/chat/completions":
                return await self._talk(msgspec.json.decode(request.body, type=Chat), request)
            case _:
                return _json({}, status=404)

    async def _talk(self, chat: Chat, request: Request) -> Answer:
        if len(self._runs) >= self._slots:
            return _json({"error": {"message": "no slot"}}, status=429)
        script = msgspec.json.decode(chat.messages[-1].content, type=Script)
        with self._running(chat.user, script, request) as run:
            try:
                ended, last = await (self._stream(run, request) if chat.stream else self._answer(run))
            except ConnectionError:
                ended, last, run.asked = "canceled", BROKEN, now_ms()
        self._journal.write(CogEnded(at=now_ms(), id=run.id, run=run.name, outcome=ended, asked=run.asked))
        if chat.stream and ended != "canceled":
            await request.write(last.body)
        return BROKEN if chat.stream else last

    async def _stream(self, run: Run, request: Request) -> tuple[Ending, Answer]:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        await request.write(STREAM + _frames(msgspec.json.encode(_piece(run) | {"choices": [role]})))
        script = run.script
        for number in range(script.outputs):
            if await _wait_for_stop(run, run.pause_s):
                return "canceled", BROKEN
            if script.outcome == "fail" and number == script.outputs // 2:
                return "failed", Answer(body=_frames(BROKE) + LAST)
            await request.write(_frames(self._say(run, _piece(run, [number]))))
        await request.write(_frames(self._say(run, _piece(run), tokens=0)))
        usage = _piece(run) | {"choices": [], "usage": _usage(script.outputs)}
        return "succeeded", Answer(body=_frames(msgspec.json.encode(usage), b"[DONE]") + LAST)

    async def _answer(self, run: Run) -> tuple[Ending, Answer]:
        count = run.script.outputs
        for _ in range(count):
            if await _wait_for_stop(run, run.pause_s):
                return "canceled", BROKEN
        if run.script.outcome == "fail":
            return "failed", Answer(500, BROKE)
        whole = _piece(run, range(count), "message") | {"usage": _usage(count)}
        return "succeeded", Answer(200, self._say(run, whole, tokens=count))

    def _say(self, run: Run, piece: dict[str, Any], *, tokens: int = 1) -> bytes:
        """Record what is about to be sent, and return it."""
        data = msgspec.json.encode(piece)
        self._journal.write(Spoken(at=now_ms(), run=run.name, data=data.decode(), tokens=tokens))
        return data


def _piece(run: Run, numbers: Iterable[int] = (), part: str = "delta") -> dict[str, Any]:
    """Return these pieces of its text as one. One without text, or a whole message, has the reason to finish."""
    content = "".join(f"{run.name}/{number} " for number in numbers)
    is_last = not content or part == "message"
    choice = {"index": 0, part: {"content": content}, "finish_reason": "stop" if is_last else None}
    return {"id": run.name, "object": "chat.completion.chunk", "created": 1, "model": "talker", "choices": [choice]}


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}


def _frames(*datas: bytes) -> bytes:
    frames = b"".join(b"data: %s\n\n" % data for data in datas)
    return b"%x\r\n%s\r\n" % (len(frames), frames)


def count_tokens(run: str) -> int:
    """Return the tokens that a run reports, which differ from one to the next."""
    return 1 + zlib.crc32(run.encode()) % 1_000


async def _wait_for_stop(run: Run, within_s: float | None) -> bool:
    waits = [asyncio.create_task(event.wait()) for event in (run.cancel, run.gone)]
    done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if done:
        run.asked = now_ms()
    return bool(done)


def _json(body: object, *, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(body))


def _odd(odd: Odd, run: Run) -> Answer:
    body = odd.body.replace(b"OUTPUT", msgspec.json.encode(run.output))
    return Answer(odd.status, body, {"content-type": odd.type})


class Body(Struct, frozen=True):
    id: str
    status: str


class Sink:
    """`secrets` is by tenant. `PUT /mode/ok`, `/mode/error` (answer 500) and `/mode/reset` (break the connection) set
    how it answers. `/dead` is another receiver of the same host, which never answers. `/missing` is one that answers
    404 to each webhook for its first seconds.
    """

    def __init__(self, journal: Journal, secrets: dict[str, str]) -> None:
        self._journal = journal
        self._secrets = secrets
        self._answer = MODES["ok"]
        self._first: dict[str, float] = {}  # when each webhook came that is missing at first

    async def __call__(self, request: Request) -> Answer:
        match request.method, *request.path.strip("/").split("/"):
            case "POST", "hook" | "missing" as receiver, tenant:
                body, name = msgspec.json.decode(request.body, type=Body), request.headers.get("webhook-id", "")
                answer = self._answer
                if receiver == "missing" and body.status in TERMINAL and answer.status == OK:
                    now = time.monotonic()
                    answer = answer if now - self._first.setdefault(body.id, now) > MISSING_S else Answer(404)
                is_valid, answered = is_signed(request, self._secrets[tenant]), answer.status
                line = Delivered(
                    at=now_ms(), id=body.id, webhook_id=name, status=body.status, answered=answered, signed=is_valid
                )
                self._journal.write(line)
                return answer
            case "POST", "dead":
                await request.gone.wait()
                return BROKEN
            case "PUT", "mode", mode if mode in MODES:
                self._answer = MODES[mode]
                return Answer()
            case "GET", "health":
                return Answer()
            case _:
                return Answer(404)


def is_signed(request: Request, secret: str) -> bool:
    message_id = request.headers.get("webhook-id", "")
    timestamp = request.headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    signed = f"{message_id}.{timestamp}.".encode() + request.body
    key = base64.b64decode(secret.partition("_")[2])
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    given = request.headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(expected, signature) for signature in given)


def main() -> None:
    kind, port, journal, *rest = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    lines = Journal(Path(journal))
    if kind == "sink":
        party: Handler = Sink(lines, msgspec.json.decode(Path(rest[0]).read_bytes()))
    else:
        party = (Talker if kind == "talker" else Cog)(rest[0], int(rest[1]), lines)
    asyncio.run(_serve(party, int(port)))


async def _serve(handler: Handler, port: int) -> None:
    async with listening(handler, port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
