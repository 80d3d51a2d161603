"""Test many predictions in one request to a server for embeddings: each has its own end, independent of the others."""

import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from director.broker import keys
from director.core.ids import PredictionId
from director.local.launcher.processes import free_port
from tests.support.embedding_server import embedding, embedding_server, tokens
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.model_server import ModelServer

TEXTS = [f"text {number}" for number in range(8)]


@pytest.fixture
async def model() -> AsyncGenerator[ModelServer, None]:
    async with embedding_server() as server:
        yield server


@pytest.fixture
def model_url(model: ModelServer) -> str:
    return model.url


def driven(template: str = "tei_batch", **given: Any) -> dict[str, str]:
    return {"runner": "http", "runner_config": json.dumps({"template": template, **given})}


async def told(model: ModelServer, what: str = "asked") -> list[list[str]]:
    async with httpx.AsyncClient(trust_env=False) as client:
        requests: list[list[str]] = (await client.get(f"{model.url}/requests")).json()[what]
        return requests


async def submitted(caller: Caller, texts: Sequence[str], **options: Any) -> list[PredictionId]:
    return [await caller.submit(inputs=text, **options) for text in texts]


async def given_back(caller: Caller, asked: PredictionId) -> None:
    await eventually(lambda: caller.record(asked), "it is given back", until=lambda record: record.token == "")


async def ended(caller: Caller, asked: Sequence[PredictionId]) -> list[dict[str, Any]]:
    return [await caller.ended(each) for each in asked]


async def test_one_claim_is_one_request_and_each_prediction_gets_its_output(
    caller: Caller, live: Live, model: ModelServer
) -> None:
    asked = await submitted(caller, TEXTS)
    async with live.director(**driven()) as director:
        shown = await ended(caller, asked)
        assert await told(model) == [TEXTS]
        await eventually(lambda: director.servers.permits.busy, "the slot is free", until=lambda busy: busy == 0)
    assert [each["output"] for each in shown] == [embedding(text) for text in TEXTS]
    assert {each["status"] for each in shown} == {"succeeded"}
    await caller.nothing_is_left()


@pytest.mark.parametrize(("template", "name"), [("tei_batch", "inputs"), ("openai_embeddings", "input")])
async def test_usage_of_a_request_is_split_by_cost(
    caller: Caller, live: Live, model: ModelServer, template: str, name: str
) -> None:
    asked = [await caller.submit(cost=cost, **{name: text}) for text, cost in zip(TEXTS[:3], (1, 1, 3), strict=True)]
    async with live.director(**driven(template)):
        shown = await ended(caller, asked)
    assert [len(texts) for texts in await told(model)] == [3]
    assert [each["metrics"]["input_tokens"] for each in shown] == [2, 2, 6]
    assert sum(each["metrics"]["input_tokens"] for each in shown) == tokens(TEXTS[:3])


async def test_answers_in_another_order_reach_their_predictions(caller: Caller, live: Live) -> None:
    asked = [await caller.submit(input=text) for text in TEXTS]
    async with live.director(**driven("openai_embeddings")):
        shown = await ended(caller, asked)
    assert [each["output"] for each in shown] == [embedding(text) for text in TEXTS]


async def test_request_stays_within_the_batch_number_and_cost(caller: Caller, live: Live, model: ModelServer) -> None:
    asked = await submitted(caller, TEXTS[:4], cost=1)
    asked += await submitted(caller, ["large"], cost=9)
    asked += await submitted(caller, TEXTS[4:7], cost=3)
    async with live.director(batch_cost=6, batch_size=3, **driven()):
        await ended(caller, asked)
    assert await told(model) == [TEXTS[:3], TEXTS[3:4], ["large"], TEXTS[4:6], TEXTS[6:7]]


async def test_each_slot_has_one_request_and_slots_are_never_exceeded(
    caller: Caller, live: Live, model: ModelServer, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path / str(number)) for number in range(3)]
    asked = await submitted(caller, [f"gate:{gate}" for gate in gates])
    given = {"concurrent_predictions": 2, "batch_size": 1, **driven()}
    async with live.director(**given) as director:
        await eventually(lambda: told(model), "two requests", until=lambda requests: len(requests) == 2)
        assert director.servers.permits.busy == 2
        assert [bool((await caller.record(each)).token) for each in asked] == [True, True, False]
        for gate in gates:
            gate.open()
        await ended(caller, asked)


async def test_incompatible_inputs_are_sent_one_after_the_other(caller: Caller, live: Live, model: ModelServer) -> None:
    asked = [await caller.submit(inputs=text, normalize=number % 2 == 0) for number, text in enumerate(TEXTS)]
    async with live.director(**driven()):
        shown = await ended(caller, asked)
    assert [each["output"] for each in shown] == [embedding(text) for text in TEXTS]
    assert await told(model) == [TEXTS[::2], TEXTS[1::2]]


@pytest.mark.parametrize(
    ("poison", "code", "why"),
    [
        ("empty", "invalid_input", "a text is empty"),
        ("broken", "model_failed", "a text is broken"),
        ("bad", "model_failed", "this one"),
    ],
)
async def test_only_the_faulty_prediction_fails(caller: Caller, live: Live, poison: str, code: str, why: str) -> None:
    texts = [*TEXTS[:5], poison, *TEXTS[5:]]
    asked = await submitted(caller, texts)
    async with live.director(max_failures=2, **driven()) as director:
        shown = dict(zip(texts, await ended(caller, asked), strict=True))
        assert not director.servers.all[0].is_resting
    failed = shown.pop(poison)
    assert (failed["status"], failed["code"]) == ("failed", code)
    assert why in failed["error"]
    assert {text: each["output"] for text, each in shown.items()} == {text: embedding(text) for text in TEXTS}
    assert {(await caller.record(each)).attempt for each in asked} == {1}


async def test_input_with_nothing_to_send_is_not_sent(caller: Caller, live: Live, model: ModelServer) -> None:
    asked = [await caller.submit(text="elsewhere"), *await submitted(caller, TEXTS)]
    async with live.director(**driven()):
        failed, *shown = await ended(caller, asked)
    assert (failed["code"], failed["error"]) == ("invalid_input", "The input has nothing at /inputs")
    assert {each["status"] for each in shown} == {"succeeded"}
    assert await told(model) == [TEXTS]


@pytest.mark.parametrize(
    ("template", "name", "odd"), [("tei_batch", "inputs", "short"), ("openai_embeddings", "input", "twice")]
)
async def test_ambiguous_outputs_reach_no_prediction(
    caller: Caller, live: Live, model: ModelServer, template: str, name: str, odd: str
) -> None:
    asked = [await caller.submit(**{name: text}) for text in [*TEXTS, odd]]
    async with live.director(**driven(template)):
        shown = await ended(caller, asked)
    assert {(each["status"], each["code"], each["output"]) for each in shown} == {("failed", "batch_mismatch", None)}
    assert len(await told(model)) == 1


async def test_canceling_one_prediction_leaves_the_others(
    caller: Caller, live: Live, model: ModelServer, gate: Gate
) -> None:
    texts = [*TEXTS, f"gate:{gate}"]
    asked = await submitted(caller, texts)
    async with live.director(lease_s=2, **driven()) as director:
        for each in asked:
            await caller.shows(each, status="processing")
        await caller.cancel(asked[0])
        assert (await caller.ended(asked[0]))["status"] == "canceled"
        assert director.servers.permits.busy == 1, "the slot is still in use"
        gate.open()
        shown = await ended(caller, asked[1:])
        assert (await told(model), await told(model, "let_go")) == ([texts], [])
    assert [each["output"] for each in shown] == [embedding(text) for text in texts[1:]]


async def test_request_is_closed_with_its_last_prediction(
    caller: Caller, live: Live, model: ModelServer, gate: Gate
) -> None:
    texts = ["a", f"gate:{gate}"]
    asked = await submitted(caller, texts)
    async with live.director(**driven()) as director:
        for each in asked:
            await caller.shows(each, status="processing")
            await caller.cancel(each)
        assert [each["status"] for each in await ended(caller, asked)] == ["canceled", "canceled"]
        await eventually(lambda: told(model, "let_go"), "it was hung up on", until=lambda let_go: let_go == [texts])
        await eventually(lambda: director.servers.permits.busy, "the slot is free", until=lambda busy: busy == 0)


async def test_heartbeat_extends_the_leases_of_all_predictions(caller: Caller, live: Live, gate: Gate) -> None:
    asked = await submitted(caller, [*TEXTS, f"gate:{gate}"])
    given = {"lease_s": 1, **driven()}
    async with live.keeper(lease_s=1), live.director(**given):
        for each in asked:
            await caller.shows(each, status="processing")
        claimed_ms = (await caller.record(asked[0])).claimed or 0

        async def soonest() -> float:
            leases = await caller.redis.zrange(keys.lease(caller.queue), 0, -1, withscores=True)
            assert len(leases) == len(asked)
            return min(end_ms for _, end_ms in leases)

        await eventually(soonest, "each is extended twice", until=lambda end_ms: end_ms > claimed_ms + 2500)
        gate.open()
        shown = await ended(caller, asked)
    assert {each["status"] for each in shown} == {"succeeded"}
    assert {(await caller.record(each)).attempt for each in asked} == {1}


async def test_full_server_costs_no_attempt(caller: Caller, live: Live, model: ModelServer) -> None:
    asked = await submitted(caller, [*TEXTS, "busy"])
    async with live.director(**driven()) as director:
        await eventually(lambda: told(model), "it was asked", until=bool)
        for each in asked:
            await given_back(caller, each)
        assert director.servers.all[0].trust.failures <= 1
    assert {(await caller.record(each)).attempt for each in asked} == {0}


@pytest.mark.faults
async def test_killed_server_gives_all_predictions_another_attempt(caller: Caller, live: Live, gate: Gate) -> None:
    port = free_port()
    asked = await submitted(caller, [*TEXTS, f"gate:{gate}"])
    async with (
        live.director(f"http://127.0.0.1:{port}", backoff_s=0, **driven()) as director,
        live.keeper(),
    ):
        async with embedding_server(port=port) as model:
            for each in asked:
                await caller.shows(each, status="processing")
            model.kill()
            for each in asked:
                await given_back(caller, each)
            assert director.servers.all[0].trust.failures == 1
        gate.open()
        async with embedding_server(port=port) as model:
            shown = await ended(caller, asked)
    assert {each["status"] for each in shown} == {"succeeded"}
    assert {(await caller.record(each)).attempt for each in asked} == {2}


@pytest.mark.faults
async def test_prediction_that_kills_its_server_affects_the_others_only_once(caller: Caller, live: Live) -> None:
    port = free_port()
    texts = [*TEXTS[:4], "exit", *TEXTS[4:]]
    asked = await submitted(caller, texts)
    async with anyio.create_task_group() as tasks:

        async def supervise() -> None:
            while True:
                async with embedding_server(port=port) as model:
                    await eventually(lambda pid=model.pid: has_ended(pid), "it ended", limit_s=600)

        tasks.start_soon(supervise)
        async with (
            live.director(f"http://127.0.0.1:{port}", attempts=2, backoff_s=0, max_failures=0, **driven()),
            live.keeper(),
        ):
            shown = dict(zip(texts, await ended(caller, asked), strict=True))
        tasks.cancel_scope.cancel()
    poison = shown.pop("exit")
    assert (poison["status"], poison["code"]) == ("failed", "server_lost")
    assert {text: each["output"] for text, each in shown.items()} == {text: embedding(text) for text in TEXTS}


def has_ended(pid: int) -> bool:
    """Return whether the process has ended, even before its parent has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_drain_releases_all_predictions_without_counting_an_attempt(
    caller: Caller, live: Live, gate: Gate
) -> None:
    asked = await submitted(caller, [*TEXTS, f"gate:{gate}"])
    async with live.director(drain_s=0, **driven()) as director:
        for each in asked:
            await caller.shows(each, status="processing")
        await director.drain()
    assert {(await caller.record(each)).attempt for each in asked} == {0}
