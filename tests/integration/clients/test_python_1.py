"""Test the unmodified official Python client 1.0.7 with the whole service: runs, files, webhooks and trainings.

tests/integration/api/test_official_client.py covers the calls that need no model.
"""

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import replicate
from anyio import to_thread
from replicate.exceptions import ModelError, ReplicateError
from replicate.helpers import FileOutput
from replicate.webhook import InvalidSignatureError, Webhooks

from tests.integration.clients.conftest import Caller
from tests.support.live_director import Gate
from tests.support.models import CAPTIONER, DREAMER, PAINTER, TRAINER, WRITER
from tests.support.sink import Sink

pytestmark = pytest.mark.cog


@pytest.fixture
async def client(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[replicate.Client]:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.05")
    monkeypatch.setenv("SSL_CERT_FILE", str(caller.authority))
    client = replicate.Client(api_token=caller.token, base_url=caller.url)
    yield client
    client._client.close()  # the client has no close method
    await client._async_client.aclose()


async def play(script: Callable[[], Any]) -> Any:
    """Run the synchronous client in a thread, since the directors run in the loop of the test."""
    return await to_thread.run_sync(script)


def picture(name: str = "cat.png", data: bytes = b"a cat") -> io.BytesIO:
    file = io.BytesIO(data)
    file.name = name
    return file


async def test_create_reload_wait_get_and_list(client: replicate.Client, caller: Caller, gate: Gate) -> None:
    def script() -> None:
        version = client.models.get(WRITER.name).versions.get(WRITER.version)
        made = client.predictions.create(version=version, input={"prompt": "llamas", "gate": str(gate)})
        assert (made.status, made.output, made.model, made.version) == ("starting", None, WRITER.name, WRITER.version)
        while not made.output:
            made.reload()
        assert (made.status, made.output[0]) == ("processing", "About ")
        assert made.logs is not None
        assert made.logs.startswith("iteration: 0")
        gate.open()
        made.wait()
        assert (made.status, made.output, made.error) == ("succeeded", ["About ", "llamas", "."], None)
        assert (made.metrics or {}).keys() >= {"predict_time", "total_time"}
        got = client.predictions.get(made.id)
        assert got.dict() == made.dict()
        assert [listed.id for listed in client.predictions.list()] == [made.id]
        assert client.accounts.current().username == caller.account

    await play(script)


async def test_running_prediction_is_canceled(client: replicate.Client, gate: Gate) -> None:
    def script() -> None:
        made = client.predictions.create(model=CAPTIONER.name, input={"gate": str(gate)})
        while made.status != "processing":
            made.reload()
        made.cancel()
        made.wait()
        assert (made.status, made.output, made.error) == ("canceled", None, None)

    await play(script)


@pytest.mark.parametrize("ref", [CAPTIONER.name, CAPTIONER.ref], ids=["latest", "version"])
@pytest.mark.parametrize("wait", [True, 5, False], ids=["blocking", "five", "polling"])
async def test_run_returns_the_output(client: replicate.Client, ref: str, wait: bool | int) -> None:
    output = await play(lambda: client.run(ref, input={"prompt": "an astronaut"}, wait=wait))
    assert output == "an astronaut"


@pytest.mark.parametrize("wait", [True, False], ids=["blocking", "polling"])
async def test_run_of_an_iterator_yields_every_piece_once(client: replicate.Client, wait: bool) -> None:
    pieces = await play(lambda: list(client.run(WRITER.ref, input={"prompt": "llamas"}, wait=wait)))
    assert pieces == ["About ", "llamas", "."]
    assert await play(lambda: client.run(WRITER.name, input={"prompt": "llamas"}, wait=wait)) == pieces


@pytest.mark.parametrize("ref", [WRITER.name, WRITER.ref], ids=["latest", "version"])
async def test_model_slower_than_the_wait_gives_no_truncated_output(
    client: replicate.Client, gate: Gate, ref: str
) -> None:
    """The model has shown two of three pieces at the end of the wait."""

    def script() -> list[str]:
        threading.Timer(1.6, gate.open).start()
        return list(client.run(ref, input={"prompt": "llamas", "gate": str(gate)}, wait=1))

    assert await play(script) == ["About ", "llamas", "."]


@pytest.mark.parametrize("wait", [True, False], ids=["blocking", "polling"])
async def test_failure_is_raised_with_its_prediction(client: replicate.Client, wait: bool) -> None:
    with pytest.raises(ModelError, match="it went wrong") as failed:
        await play(lambda: client.run(CAPTIONER.name, input={"then": "raise"}, wait=wait))
    prediction = failed.value.prediction
    assert (prediction.status, prediction.model, prediction.version) == ("failed", CAPTIONER.name, CAPTIONER.version)
    assert (prediction.error, "looking\n" in (prediction.logs or "")) == ("ValueError: it went wrong", True)


async def test_refusal_has_a_status_a_title_and_a_detail(client: replicate.Client, caller: Caller) -> None:
    with pytest.raises(ReplicateError) as refused:
        await play(lambda: client.predictions.create(version=CAPTIONER.version, input={"prompt": 7}))
    told = refused.value
    assert (told.status, told.title) == (422, "Input validation failed")
    assert told.detail == "- input.prompt: Invalid type. Expected: string, given: integer\n"
    with pytest.raises(ReplicateError) as unknown:
        await play(lambda: client.predictions.create(version="f" * 64, input={}))
    assert (unknown.value.status, unknown.value.title) == (422, "Invalid version or not permitted")
    with pytest.raises(ReplicateError) as missing:
        await play(lambda: client.run("other/nothing", input={}))
    assert missing.value.status == 404
    stranger = replicate.Client(api_token="r8_wrong", base_url=caller.url)
    with pytest.raises(ReplicateError) as unauthenticated:
        await play(lambda: stranger.predictions.get("x" * 26))
    assert (unauthenticated.value.status, unauthenticated.value.title) == (401, "Unauthenticated")
    stranger._client.close()


async def test_asynchronous_calls_behave_the_same(client: replicate.Client, gate: Gate) -> None:
    runs = [client.async_run(CAPTIONER.name, input={"prompt": str(n)}) for n in range(3)]
    assert await asyncio.gather(*runs) == ["0", "1", "2"]
    pieces = await client.async_run(WRITER.ref, input={"prompt": "llamas"})
    assert [piece async for piece in pieces] == ["About ", "llamas", "."]

    made = await client.predictions.async_create(model=WRITER.name, input={"prompt": "llamas", "gate": str(gate)})
    await made.async_reload()
    gate.open()
    await made.async_wait()
    assert (made.status, made.output) == ("succeeded", ["About ", "llamas", "."])
    assert (await client.predictions.async_get(made.id)).output == made.output
    assert len((await client.predictions.async_list()).results) == 5

    waiting = await client.predictions.async_create(model=CAPTIONER.name, input={"gate": str(gate) + "never"})
    await waiting.async_cancel()
    await waiting.async_wait()
    assert waiting.status == "canceled"


async def test_model_streams(client: replicate.Client) -> None:
    def script() -> tuple[str, list[str]]:
        events = list(client.stream(WRITER.name, input={"prompt": "llamas"}))
        return "".join(map(str, events)), [event.event.value for event in events if event.event.value != "logs"]

    assert await play(script) == ("About llamas.", ["output", "output", "output", "done"])
    said = [event async for event in await client.async_stream(WRITER.ref, input={"prompt": "llamas"})]
    assert "".join(map(str, said)) == "About llamas."


async def test_model_that_cannot_stream_says_so(client: replicate.Client) -> None:
    with pytest.raises(ReplicateError, match="does not support streaming"):
        await play(lambda: list(client.stream(CAPTIONER.name, input={"prompt": "llamas"})))


async def test_clients_own_function_validates_a_webhook(client: replicate.Client, receiver: Sink) -> None:
    made = await play(
        lambda: client.predictions.create(
            model=CAPTIONER.name,
            input={"prompt": "ünïcödé"},
            webhook=receiver.url + "?my=id",
            webhook_events_filter=["completed"],
        )
    )
    await receiver.arrived(1)
    headers, body = receiver.received[0]
    secret = await play(client.webhooks.default.secret)
    Webhooks.validate(headers=dict(headers), body=body.decode(), secret=secret, tolerance=300)
    request = httpx.Request("POST", receiver.url, headers=headers, content=body)
    Webhooks.validate(request=request, secret=secret)
    with pytest.raises(InvalidSignatureError):
        Webhooks.validate(headers=dict(headers), body=body.decode() + " ", secret=secret)
    told = json.loads(body)
    assert (told["id"], told["status"], told["output"]) == (made.id, "succeeded", "ünïcödé")
    assert receiver.targets[0].endswith("?my=id")


@pytest.mark.parametrize("strategy", ["url", "base64"])
async def test_open_file_is_an_input(client: replicate.Client, strategy: Any) -> None:
    output = await play(lambda: client.run(CAPTIONER.name, input={"image": picture()}, file_encoding_strategy=strategy))
    assert output == "a cat"


async def test_files_of_an_output_are_read(client: replicate.Client) -> None:
    def script() -> None:
        first, second = client.run(PAINTER.name, input={"prompt": "a raccoon"})
        assert isinstance(first, FileOutput)
        assert first.url.startswith("https://")
        assert first.read() == b"a raccoon0"
        assert b"".join(second) == b"a raccoon1"
        plain = client.run(PAINTER.name, input={"prompt": "a raccoon"}, use_file_output=False)
        assert all(isinstance(url, str) for url in plain)
        again = client.run(PAINTER.ref, input={"image": first.url})
        assert again[0].read() == b"a raccoon00"

    await play(script)


async def test_files_of_an_iterator_arrive_while_it_runs(client: replicate.Client, gate: Gate) -> None:
    def script() -> list[bytes]:
        read = []
        for file in client.run(DREAMER.ref, input={"prompts": "sunset", "gate": str(gate)}, wait=False):
            read.append(file.read())
            gate.open()
        return read

    assert await play(script) == [b"sunset", b"sunset"]


async def test_files_are_read_asynchronously(client: replicate.Client) -> None:
    outputs = await client.async_run(PAINTER.name, input={"prompt": "a raccoon", "image": picture()})
    assert [await file.aread() for file in outputs] == [b"a cat0", b"a cat1"]
    assert b"".join([chunk async for chunk in outputs[0]]) == b"a cat0"


async def test_training_adds_a_version_to_its_destination(client: replicate.Client, caller: Caller, gate: Gate) -> None:
    def script() -> None:
        tuned = client.models.create(owner=caller.account, name="tuned", visibility="private", hardware="cpu")
        training = client.trainings.create(
            version=TRAINER.ref,
            input={"input_images": "https://my-domain/images.zip", "token_string": "TOK", "gate": str(gate)},
            destination=f"{caller.account}/tuned",
        )
        assert (training.status, training.destination) == ("starting", f"{caller.account}/tuned")
        assert client.trainings.get(training.id).id == training.id
        gate.open()
        while training.status not in ("succeeded", "failed", "canceled"):
            training.reload()
        assert (training.status, training.error) == ("succeeded", None)
        assert training.output is not None
        [version] = tuned.versions.list()
        assert training.output["version"] == f"{caller.account}/tuned:{version.id}"
        assert [listed.id for listed in client.trainings.list()] == [training.id]
        assert list(client.predictions.list()) == []

    await play(script)


async def test_training_is_canceled_and_refused_without_a_destination(
    client: replicate.Client, caller: Caller, gate: Gate
) -> None:
    def script() -> None:
        client.models.create(owner=caller.account, name="tuned", visibility="private", hardware="cpu")
        training = client.trainings.create(
            model=TRAINER.name,
            version=TRAINER.version,
            input={"gate": str(gate)},
            destination=f"{caller.account}/tuned",
        )
        training.cancel()
        while training.status not in ("succeeded", "failed", "canceled"):
            training.reload()
        assert training.status == "canceled"
        with pytest.raises(ReplicateError) as refused:
            client.trainings.create(version=TRAINER.ref, input={}, destination=f"{caller.account}/missing")
        assert refused.value.status == 404
        assert refused.value.detail == "The specified training destination does not exist"

    await play(script)
