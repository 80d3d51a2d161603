"""A call of OpenAI's API on a live director: its chunks, its end, and that no second text follows the first."""

import json
import signal
from typing import Any, Final

import pytest

from director.core.ids import PredictionId
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.model_server import ModelServer, model_server
from tests.support.runner_conformance import CONFIGS

OPENAI: Final = {"runner": "openai", "runner_config": json.dumps(CONFIGS["openai"])}


@pytest.fixture
def model_url(model: ModelServer) -> str:
    return model.url


async def call(caller: Caller, *, is_streamed: bool = True, once_shown: bool = True, **given: Any) -> PredictionId:
    message = {"role": "user", "content": json.dumps(given)}
    options: dict[str, Any] = {"endpoint": "chat", "once_shown": once_shown}
    return await caller.submit(model="acme/llm", messages=[message], stream=is_streamed, **options)


def text_of(chunks: list[Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def shows_text(caller: Caller, prediction_id: PredictionId, text: str) -> list[Any]:
    shown = await eventually(
        lambda: caller.get(prediction_id),
        f"it shows {text}",
        until=lambda shown: shown["status"] == "processing" and text_of(shown["output"] or []) == text,
    )
    chunks: list[Any] = shown["output"]
    return chunks


async def test_output_is_the_chunks_and_then_the_answer(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director(**OPENAI):
        asked = await call(caller, n=2, gate=str(gate))
        chunks = await shows_text(caller, asked, "a0a1")
        assert {chunk["model"] for chunk in chunks} == {"tiny"}, "the server's own"
        gate.open()
        ended = await caller.ended(asked)
    assert ended["status"] == "succeeded"
    assert ended["output"] == {
        "id": "c",
        "model": "tiny",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a0a1"}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    assert ended["metrics"].items() >= {"input_tokens": 5, "output_tokens": 2}.items()
    assert await caller.record(asked) is not None


async def test_canceled_call_keeps_the_answer_so_far(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director(**OPENAI):
        asked = await call(caller, n=2, gate=str(gate))
        await shows_text(caller, asked, "a0a1")
        await caller.cancel(asked)
        ended = await caller.ended(asked)
    assert (ended["status"], ended.get("code", "")) == ("canceled", "")
    assert ended["output"]["choices"] == [
        {"index": 0, "finish_reason": None, "message": {"role": "assistant", "content": "a0a1"}}
    ]


async def test_refused_call_has_the_status_and_the_body_of_the_server(caller: Caller, live: Live) -> None:
    async with live.director(**OPENAI):
        ended = await caller.ended(await call(caller, then="invalid"))
    assert (ended["status"], ended["code"], ended["error"]) == ("failed", "invalid_input", "not now, not this")
    assert ended["output"] == {"error": {"message": "not now, not this"}}
    assert ended["metrics"]["http_status"] == 422


@pytest.mark.faults
@pytest.mark.parametrize("once_shown", [True, False])
async def test_director_that_dies_after_a_chunk_ends_the_call(
    caller: Caller, live: Live, gate: Gate, once_shown: bool
) -> None:
    async with live.keeper(lease_s=1):
        async with live.process(lease_s=1, **OPENAI) as first:
            asked = await call(caller, once_shown=once_shown, n=2, gate=str(gate))
            await shows_text(caller, asked, "a0a1")
            first.send(signal.SIGKILL)
            await first.exit_code()
        gate.open()
        async with live.director(**OPENAI):
            ended = await caller.ended(asked)
    if once_shown:
        assert (ended["status"], ended["code"]) == ("failed", "director_lost")
        assert (await caller.kinds(asked)).count("started") == 1
    else:
        assert (ended["status"], (await caller.record(asked)).attempt) == ("succeeded", 2)


@pytest.mark.faults
async def test_server_that_dies_after_a_chunk_ends_the_call(caller: Caller, live: Live, gate: Gate) -> None:
    async with model_server() as dying, live.director(dying.url, **OPENAI):
        asked = await call(caller, n=2, gate=str(gate))
        await shows_text(caller, asked, "a0a1")
        dying.kill()
        ended = await caller.ended(asked)
    assert (ended["status"], ended["code"]) == ("failed", "server_lost")


@pytest.mark.faults
async def test_server_that_dies_before_a_chunk_is_not_noticed(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.keeper(lease_s=1):
        async with model_server() as dying, live.director(dying.url, lease_s=1, **OPENAI):
            asked = await call(caller, is_streamed=False, n=2, gate=str(gate))
            await caller.shows(asked, status="processing")
            dying.kill()
            await eventually(lambda: caller.kinds(asked), "its attempt is lost", until=lambda kinds: "retried" in kinds)
        gate.open()
        async with live.director(lease_s=1, **OPENAI):
            ended = await caller.ended(asked)
    assert (ended["status"], ended["output"]["choices"][0]["message"]["content"]) == ("succeeded", "a0a1")


@pytest.mark.faults
async def test_server_that_dies_after_the_role_is_not_noticed(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.keeper(lease_s=1):
        async with model_server() as dying, live.director(dying.url, lease_s=1, **OPENAI):
            asked = await call(caller, n=0, gate=str(gate))
            await eventually(lambda: caller.get(asked), "it shows the role", until=lambda shown: shown["output"])
            dying.kill()
            await eventually(lambda: caller.kinds(asked), "its attempt is lost", until=lambda kinds: "retried" in kinds)
        gate.open()
        async with live.director(lease_s=1, **OPENAI):
            ended = await caller.ended(asked)
    assert (ended["status"], (await caller.record(asked)).attempt) == ("succeeded", 2)
    assert (await caller.kinds(asked)).count("role") == 2


async def test_drained_call_ends_once_it_has_shown_a_chunk(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.process(drain_s=0, **OPENAI) as director:
        asked = await call(caller, n=2, gate=str(gate))
        await shows_text(caller, asked, "a0a1")
        director.send(signal.SIGTERM)
        assert await director.exit_code() == 0
    ended = await caller.ended(asked)
    assert (ended["status"], ended["code"]) == ("failed", "drained")
