"""A run is counted whatever becomes of it, as far as its server reported tokens or its output was seen."""

import json
import signal
from typing import Any, Final

import pytest

from director.broker import keys
from director.core.ids import PredictionId, partition_of_model
from director.core.usage import NOTHING, Used
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.model_server import ModelServer
from tests.support.queue_driver import ACCOUNT, MODEL
from tests.support.runner_conformance import CONFIGS


@pytest.fixture
def model_url(model: ModelServer) -> str:
    return model.url


OPENAI = {"runner": "openai", "runner_config": json.dumps(CONFIGS["openai"])}


async def used(caller: Caller) -> Used:
    """Return what is counted, without the time."""
    total = NOTHING
    for key in await caller.redis.keys(f"{{p{partition_of_model(MODEL)}}}:ledger:*:{ACCOUNT}"):
        for packed in (await caller.redis.hgetall(key)).values():
            total += Used.unpack(packed.decode())
    return Used(
        runs=total.runs,
        input_tokens=total.input_tokens,
        cached_tokens=total.cached_tokens,
        output_tokens=total.output_tokens,
    )


FORMS: Final = ("input", "call")


def asked(form: str = "input", **given: Any) -> dict[str, Any]:
    """Return what is submitted: an input in the form of Replicate's API, or a streamed call of OpenAI's API."""
    if form == "input":
        return {"prompt": json.dumps(given)}
    return {"model": MODEL, "messages": [{"content": json.dumps(given)}], "stream": True, "endpoint": "chat"}


async def shows(caller: Caller, prediction_id: PredictionId, *texts: str) -> None:
    """Wait until a run has shown these texts, whatever stands around them."""
    await eventually(
        lambda: caller.get(prediction_id),
        f"it shows {texts}",
        until=lambda shown: (
            shown["status"] == "processing" and all(f'"{text}"' in json.dumps(shown["output"]) for text in texts)
        ),
    )


@pytest.mark.parametrize("form", FORMS)
async def test_tokens_are_those_that_the_server_reported(caller: Caller, live: Live, form: str) -> None:
    async with live.director(**OPENAI):
        await caller.ended(await caller.submit(**asked(form, n=2)))
        await caller.ended(await caller.submit(**asked(form, n=3)))
    assert await used(caller) == Used(runs=2, input_tokens=10, output_tokens=5)


@pytest.mark.parametrize("form", FORMS)
async def test_a_failed_run_counts_the_output_that_came(caller: Caller, live: Live, form: str) -> None:
    async with live.director(**OPENAI):
        failed = await caller.ended(await caller.submit(**asked(form, n=4, then="raise")))
    assert failed["status"] == "failed"
    assert await used(caller) == Used(runs=1, output_tokens=4)


@pytest.mark.parametrize("form", FORMS)
async def test_a_canceled_run_counts_the_output_that_came(caller: Caller, live: Live, gate: Gate, form: str) -> None:
    async with live.director(**OPENAI):
        prediction_id = await caller.submit(**asked(form, n=2, gate=str(gate)))
        await shows(caller, prediction_id, "a0", "a1")
        await caller.cancel(prediction_id)
        assert (await caller.ended(prediction_id))["status"] == "canceled"
    assert await used(caller) == Used(runs=1, output_tokens=2)


async def test_a_refused_input_is_no_run(caller: Caller, live: Live) -> None:
    async with live.director(**OPENAI):
        refused = await caller.ended(await caller.submit(**asked(then="invalid")))
    assert refused["code"] == "invalid_input"
    assert await used(caller) == NOTHING


@pytest.mark.faults
@pytest.mark.parametrize("form", FORMS)
async def test_a_lost_run_counts_the_output_that_was_written(caller: Caller, live: Live, gate: Gate, form: str) -> None:
    async with live.keeper(lease_s=1):
        async with live.process(lease_s=1, **OPENAI) as first:
            prediction_id = await caller.submit(**asked(form, n=2, gate=str(gate)))
            await shows(caller, prediction_id, "a0", "a1")
            first.send(signal.SIGKILL)
            await first.exit_code()
        await eventually(
            lambda: used(caller), "the lost run", until=lambda found: found == Used(runs=1, output_tokens=2)
        )
        gate.open()
        async with live.director(**OPENAI):
            await caller.ended(prediction_id)
    assert await used(caller) == Used(runs=2, input_tokens=5, output_tokens=4)
    assert await caller.redis.hget(keys.record(prediction_id), "used") is None
