"""Test that an operator's receiver gets one signed report of each setup of a real server, and that nothing waits for
it.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from standardwebhooks import Webhook

from director.core import signing
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.schema import SetupRun, setup_run
from director.core.settings import DirectorSettings
from director.servers import setup_webhook
from director.servers.setup_webhook import SetupWebhook
from director.webhooks.addresses import AllowList
from director.webhooks.sender import Sender
from tests.support.cog import cog_server
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Live
from tests.support.queue_driver import MODEL, VERSION
from tests.support.sink import Answer, sink

pytestmark = [pytest.mark.anyio, pytest.mark.cog]

SECRET = signing.new_secret()


def settings(url: str, **given: Any) -> dict[str, Any]:
    return {"setup_webhook": url, "setup_webhook_secret": SECRET, "webhook_allow": "loopback", **given}


def ended(status: Any = "succeeded", started_at: str = "2026-01-01T00:00:00Z") -> SetupRun:
    return setup_run(status, started_at=started_at, completed_at="", logs="ready", server="http://127.0.0.1:5000")


@asynccontextmanager
async def running(url: str, *, allow: str = "loopback") -> AsyncGenerator[SetupWebhook]:
    """Run one setup webhook by itself."""
    sender = Sender(AllowList.parse(allow))
    webhook = SetupWebhook(url, secret=SECRET, sender=sender, clock=SystemClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(webhook.run)
        yield webhook
        tasks.cancel_scope.cancel()
    await sender.aclose()


async def test_successful_setup_is_reported_with_its_logs(live: Live, caller: Caller, cog_url: str) -> None:
    async with sink() as receiver, live.director(**settings(receiver.url)):
        await receiver.arrived(1)
        await caller.ended(await caller.submit())
        [(headers, body)] = receiver.received
    Webhook(SECRET).verify(body, dict(headers))
    told = json.loads(body)
    assert {name: told[name] for name in ("model", "version", "server", "status")} == {
        "model": MODEL,
        "version": VERSION,
        "server": cog_url,
        "status": "succeeded",
    }
    assert told["started_at"] < told["completed_at"]
    assert "Server ready" in told["logs"]


async def test_failed_setup_is_reported_too(live: Live, folder: Path) -> None:
    async with (
        sink() as receiver,
        cog_server(folder, stub="predict.py:Broken", until="SETUP_FAILED") as url,
        live.director(url, **settings(receiver.url)),
    ):
        await receiver.arrived(1)
        [(_, body)] = receiver.received
    told = json.loads(body)
    assert told["status"] == "failed"
    assert "no weights" in told["logs"]


async def test_silent_receiver_delays_nothing(live: Live, caller: Caller, cog_url: str) -> None:
    async with sink() as receiver:
        receiver.answer = Answer(delay_s=3600)
        async with live.director(**settings(receiver.url)):
            await receiver.arrived(1)
            assert (await caller.ended(await caller.submit()))["status"] == "succeeded"


async def test_report_is_retried_with_the_same_id_until_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_webhook, "PAUSES_S", (0.0, 0.0, 0.0))
    async with sink() as receiver, running(receiver.url) as webhook:
        receiver.answers.extend([Answer(status=500), Answer(reset=True)])
        webhook.add(ended(), model=MODEL, version="")
        webhook.add(ended(), model=MODEL, version="")  # another watch that must record it again
        await receiver.arrived(3)
        webhook.add(ended(started_at="2026-01-02T00:00:00Z"), model=MODEL, version=VERSION)
        await receiver.arrived(4)
        ids = [headers["webhook-id"] for headers, _ in receiver.received]
        assert json.loads(receiver.received[0].body)["version"] is None
    assert ids[0] == ids[1] == ids[2] != ids[3]


async def test_refusing_or_forbidden_receiver_is_given_up_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(setup_webhook, "PAUSES_S", (0.0,))
    said = "the end of a setup was not delivered: see DIRECTOR_SETUP_WEBHOOK"
    async with sink() as receiver, running(receiver.url) as webhook:
        receiver.answer = Answer(status=500)
        webhook.add(ended(), model=MODEL, version="")
        await eventually(lambda: caplog.messages.count(said), "it gives up")
        assert len(receiver.received) == 2
    async with sink() as receiver, running(receiver.url, allow="") as webhook:
        webhook.add(ended(), model=MODEL, version="")
        await eventually(lambda: caplog.messages.count(said) == 2, "it gives up at once")
        assert receiver.received == []


@pytest.mark.parametrize(
    ("url", "secret", "named"),
    [
        ("nonsense", SECRET, "DIRECTOR_SETUP_WEBHOOK:"),
        ("https://a.example/hook", "", "DIRECTOR_SETUP_WEBHOOK_SECRET:"),
        ("https://a.example/hook", "whsec_short", "DIRECTOR_SETUP_WEBHOOK_SECRET:"),
    ],
    ids=["no URL", "no secret", "an invalid secret"],
)
def test_impossible_receiver_is_refused_at_the_start(url: str, secret: str, named: str) -> None:
    given = DirectorSettings(setup_webhook=url, setup_webhook_secret=secret)
    with pytest.raises(SettingsError, match=named):
        SetupWebhook.of(given, Sender(AllowList.parse("")), SystemClock())
