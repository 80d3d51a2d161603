"""Test that operators see each running director: its release, its servers and its claims, for each of its queues."""

import pytest

from director import __version__
from director.core.ids import queue_name
from director.store.directors import DirectorFound, Directors
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live
from tests.support.queue_driver import MODEL, VERSION

pytestmark = [pytest.mark.anyio, pytest.mark.cog]


async def test_heartbeat_reports_what_operators_need(caller: Caller, live: Live, cog_url: str, gate: Gate) -> None:
    async def found() -> DirectorFound | None:
        return next(iter(await Directors(caller.redis).of([queue_name(MODEL, VERSION)])), None)

    async with live.director(lease_s=0.6) as director:
        held = await caller.submit(n=1, gate=str(gate))
        one = await eventually(found, "it tells what it holds", until=lambda one: one is not None and one.held == 1)
        about = one.last.about
        assert (one.name, one.is_alive, one.last.state, about.version) == (director.name, True, "ready", __version__)
        [shown] = about.servers
        assert (shown.url, shown.state, shown.slots, shown.detail) == (cog_url, "ready", 1, "")
        assert about.since_ms is not None
        assert about.since_ms <= shown.since_ms
        gate.open()
        assert (await caller.ended(held))["status"] == "succeeded"
