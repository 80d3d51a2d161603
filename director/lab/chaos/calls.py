"""Call a model with OpenAI's API, as its official clients do: a call that breaks off or is refused before its answer
began is sent again, up to twice, and nothing says that it is the same. Each try has a tag of its own.
"""

import math
import random
from collections.abc import AsyncIterator
from typing import Final, Literal

import anyio
import msgspec

from director.lab.chaos.journal import Answered, Called, Journal, Sent, now_ms
from director.lab.chaos.plan import GO_ON, LEAVES, WHOLE, Order
from director.lab.chaos.wire import Answer, Caller, Unanswered

PATH: Final = "/openai/v1/chat/completions"
TIERS: Final = {"high": "priority", "normal": "default", "low": "flex"}
TRIES: Final = 3
ANSWER_S: Final = 120.0
TRY_S: Final = 5.0  # for an answer that needs no run
SILENT_S: Final = 30.0  # three of the comments that keep a silent stream alive
PAUSE_S: Final = (0.1, 0.5)
REPEATED: Final = (0, 408, 409, 429)


async def call(api: Caller, order: Order, key: str, token: str, journal: Journal) -> None:
    for number in range(TRIES):
        head = await _try(api, order, f"{key}-{number}", token, journal)
        is_final = head.headers.get("x-should-retry") == "false" or not (head.status in REPEATED or head.status >= 500)
        if is_final:
            return
        await anyio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads tries, plans nothing


async def _try(api: Caller, order: Order, tag: str, token: str, journal: Journal) -> Answer:
    """Return the answer, without what was streamed. A caller that left has one, so that it does not try again."""
    headers = {"authorization": f"Bearer {token}"} | ({"x-on-disconnect": "continue"} if order.plan == GO_ON else {})
    head, chunks = Answer(0), list[str]()
    end: Literal["whole", "broken", "silent", "left"] = "left"

    def note_answer() -> str:
        prediction_id = head.headers.get("x-request-id", "")
        journal.write(Answered(at=now_ms(), key=tag, action="create", status=head.status, id=prediction_id))
        return prediction_id

    tenant, prediction_id = f"tenant-{order.tenant}", ""
    journal.write(Sent(at=now_ms(), key=tag, action="create", tenant=tenant, model=order.model, plan=order.plan))
    try:
        with anyio.move_on_after(order.then_ms / 1000 if order.plan in LEAVES else math.inf):
            async with api.follow(
                PATH, method="POST", body=encode_call(order, tag), headers=headers, within_s=ANSWER_S, silent_s=SILENT_S
            ) as (head, pieces):
                prediction_id = note_answer()
                chunks += [head.body.decode()] if head.body else []
                async for data in _datas(pieces):
                    chunks.append(data)
            end = "whole"
    except Unanswered as exc:
        end = "silent" if isinstance(exc.__cause__, TimeoutError) and order.plan != WHOLE else "broken"
    if not head.status:
        note_answer()
    plan, status = order.plan, head.status
    journal.write(Called(at=now_ms(), key=tag, id=prediction_id, plan=plan, status=status, chunks=chunks, end=end))
    return Answer(200) if end == "left" else head


def encode_call(order: Order, tag: str) -> bytes:
    said = {"role": "user", "content": msgspec.json.encode(order.script).decode()}
    body = {"user": tag, "model": order.model, "messages": [said], "service_tier": TIERS[order.lane]}
    return msgspec.json.encode(body if order.plan == WHOLE else body | {"stream": True})


async def _datas(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the data of each event. Comments are skipped."""
    rest = b""
    async for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: "):
                yield block.removeprefix(b"data: ").decode()
