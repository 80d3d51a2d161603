"""Test the moderation of outputs: the request, what callers see meanwhile, and the effect of each answer."""

import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook

from director.broker import keys
from director.core.errors import SettingsError
from director.core.webhooks import new_secret
from director.execution import moderation
from director.execution.tracker import Stop
from director.local.launcher.processes import free_port
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, settings_for
from tests.support.queue_driver import MODEL
from tests.support.servers import RedisServer
from tests.support.sink import Answer, Sink, sink

pytestmark = pytest.mark.cog

SECRET = new_secret()
ALLOWED = Answer(body=b'{"allowed": true}')
REFUSED = Answer(body=b'{"allowed": false, "reason": "too\\n cheerful"}')


@pytest.fixture
async def judge(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Sink]:
    """Serve an endpoint that allows everything, unless the test changes it."""
    monkeypatch.setattr(moderation, "PAUSES_S", (0.02,))
    async with sink() as endpoint:
        endpoint.answer = ALLOWED
        yield endpoint


def asking(judge: Sink, **given: Any) -> dict[str, Any]:
    return {"moderation_url": judge.url, "moderation_secret": SECRET, **given}


async def test_output_is_moderated_once_and_shown_when_allowed(caller: Caller, live: Live, judge: Sink) -> None:
    async with live.director(**asking(judge)):
        asked = await caller.submit(n=2)
        ended = await caller.ended(asked)
    assert (ended["status"], ended["output"]) == ("succeeded", ["a0", "a1"])
    [question] = judge.received
    assert Webhook(SECRET).verify(question.body, dict(question.headers))
    assert msgspec.json.decode(question.body) == {"id": asked, "model": MODEL, "output": ["a0", "a1"]}
    assert "output" not in await caller.kinds(asked)


async def test_output_is_hidden_before_moderation(caller: Caller, live: Live, judge: Sink, gate: Gate) -> None:
    async with sink() as receiver, live.director(webhook_allow="loopback", **asking(judge)):
        asked = await caller.submit(
            n=2, gate=str(gate), webhook=receiver.url, webhook_events="start,output,logs,completed"
        )
        running = await caller.shows(asked, logs="token 0\ntoken 1\n")
        assert (running["status"], running["output"]) == ("processing", None)
        gate.open()
        await caller.ended(asked)
        await eventually(lambda: "completed" in str(receiver.received[-1:]), "the end is told")
    *before, completed = [json.loads(each.body)["output"] for each in receiver.received]
    assert before
    assert set(before) == {None}
    assert completed == ["a0", "a1"]


def left(folder: Path) -> list[str]:
    # unlike rglob, it does not mind folders that are deleted meanwhile
    return [name for _, _, names in os.walk(folder) for name in names if name.endswith(".png")]


async def test_refused_output_fails_the_prediction_and_its_files_are_deleted(
    caller: Caller, live: Live, judge: Sink, tmp_path: Path
) -> None:
    judge.answer = REFUSED
    files: dict[str, Any] = {"files_dir": str(tmp_path / "files")}
    async with live.director(**asking(judge, **files)):
        ended = await caller.ended(await caller.submit(n=1, text="data:image/png;base64,AAA"))
        assert (ended["status"], ended["code"], ended["error"]) == ("failed", "moderation_refused", "too cheerful")
        assert ended["output"] is None
        [question] = judge.received
        assert "/v1/outputs/" in msgspec.json.decode(question.body)["output"][0]
        await eventually(lambda: not left(tmp_path), "its file is deleted")
    assert await caller.redis.hget(keys.output_data(ended["id"]), "output") in (None, b"")


async def test_held_output_is_asked_about_until_an_answer_comes(caller: Caller, live: Live, judge: Sink) -> None:
    strange = [
        Answer(status=500),
        Answer(status=201, body=ALLOWED.body),
        Answer(status=302, headers={"location": judge.url}),
        Answer(body=b"yes"),
        Answer(body=b"{}"),
        Answer(body=b'{"allowed": "yes"}'),
        Answer(body=b'{"allowed": true}' + b" " * 100_000),
        Answer(reset=True),
    ]
    judge.answers.extend(strange)
    async with live.director(**asking(judge)) as director:
        asked = await caller.submit(n=1)
        await judge.arrived(2)
        await eventually(lambda: director.servers.permits.busy, "the permit is left", until=lambda busy: busy == 0)
        assert (await caller.ended(asked))["status"] == "succeeded"
    assert len(judge.received) == len(strange) + 1
    assert len({each.headers["webhook-id"] for each in judge.received}) == 1


async def test_held_output_fails_at_the_run_limit(caller: Caller, live: Live, judge: Sink) -> None:
    judge.answer = Answer(status=503)
    async with live.director(**asking(judge, run_limit_s=0.5)):
        ended = await caller.ended(await caller.submit(n=1))
    assert (ended["status"], ended["code"], ended["output"]) == ("failed", "moderation_unavailable", None)
    assert ended["error"] == "No verdict on the output came in time."


async def test_held_output_ends_when_its_caller_cancels(caller: Caller, live: Live, judge: Sink) -> None:
    judge.answer = Answer(status=503)
    async with live.director(**asking(judge)):
        asked = await caller.submit(n=1)
        await judge.arrived(1)
        await caller.cancel(asked)
        ended = await caller.ended(asked)
    assert (ended["status"], ended["output"]) == ("canceled", None)


async def test_departing_director_releases_a_held_output_unspent(caller: Caller, live: Live, judge: Sink) -> None:
    judge.answer = Answer(status=503)
    async with live.director(**asking(judge)) as director:
        asked = await caller.submit(n=1)
        await judge.arrived(1)
        judge.answer = ALLOWED
        judge.answers.append(Answer(status=503))
        director.claims.stop_all(Stop.DRAIN)
        director.claims._stopped = None
        assert (await caller.ended(asked))["status"] == "succeeded"
    record = await caller.record(asked)
    assert (record.attempt, record.claims) == (1, 2)


async def test_silence_that_approves_delays_no_output(caller: Caller, live: Live, judge: Sink) -> None:
    dead = f"http://127.0.0.1:{free_port()}/"
    given = asking(judge, moderation_url=dead, moderation_on_failure="release")
    async with live.director(**given):
        assert (await caller.ended(await caller.submit(n=1)))["output"] == ["a0"]
    judge.answer = Answer(delay_s=60, body=REFUSED.body)
    given = asking(judge, moderation_timeout_s=0.05, moderation_on_failure="release")
    async with live.director(**given):
        assert (await caller.ended(await caller.submit(n=1)))["output"] == ["a0"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"moderation_url": "ftp://x"}, "DIRECTOR_MODERATION_URL is no http"),
        ({"moderation_url": "http://x:y"}, "DIRECTOR_MODERATION_URL is no http"),
        ({"moderation_secret": ""}, "DIRECTOR_MODERATION_SECRET: a webhook secret begins with whsec_"),
        ({"moderation_secret": "whsec_aGk="}, "DIRECTOR_MODERATION_SECRET: .* 24 to 64 bytes"),
    ],
)
async def test_unreachable_moderation_is_reported_at_the_start(
    server: RedisServer, given: dict[str, Any], why: str
) -> None:
    given = {"moderation_url": "http://x", "moderation_secret": SECRET, **given}
    settings = settings_for(server.url, ["http://127.0.0.1:1"], **given)
    with pytest.raises(SettingsError, match=why):
        moderation.Moderator.of(settings, None)  # type: ignore[arg-type]
