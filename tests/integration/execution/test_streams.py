"""Test the stream of a real run while every process on its way dies."""

import os
import signal
from contextlib import aclosing
from pathlib import Path

import anyio
import httpx
import pytest

from director.execution.tracker import MOST_EVENTS
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.integration.execution.conftest import INPUTS
from tests.support.api import live_api
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.event_stream import Comment, Told, read_events
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, Tally
from tests.support.queue_driver import ACCOUNT, VERSION

pytestmark = pytest.mark.cog

TOKENS = 120_000
LEAVES_AFTER = (5_000, 110_000)  # events: during the run, and those of the end that exceed the log
LONGEST_S = 300
# Not at full speed: coglet drops what a director on a busy machine has not read in time, and the run is sent again
SOURCE = """
    import time
    from typing import Iterator
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, n: int = 3) -> Iterator[str]:
            for i in range(n):
                yield f"a{i}"
                if i % 50 == 0:
                    time.sleep(0.01)  # see above
"""


class Reader:
    """Reads a stream, and resumes after the last event whenever the connection breaks."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self.told: list[Told | Comment] = []
        self.breaks = 0

    @property
    def events(self) -> list[Told]:
        return [one for one in self.told if isinstance(one, Told)]

    async def read(self) -> None:
        while not (self.events and self.events[-1].event == "done"):
            try:
                async for one in read_events(self._http, self._url, after=self.events[-1].id if self.events else ""):
                    self.told.append(one)
            except httpx.ConnectError:
                await anyio.sleep(0.02)  # there is no director yet
            except httpx.TransportError:
                self.breaks += 1

    async def has_outputs(self, count: int) -> None:
        await eventually(
            lambda: [one.data for one in self.events if one.event == "output"],
            f"{count} outputs came",
            until=lambda outputs: len(outputs) >= count,
        )


@pytest.mark.faults
async def test_reader_gets_every_event_once_although_processes_are_killed(
    caller: Caller, live: Live, gate: Gate, tally: Tally
) -> None:
    token, port = await Accounts(caller.redis).create_token(ACCOUNT), free_port()
    asked = {"version": VERSION, "input": {"n": 3, "gate": str(gate), "count": str(tally)}}
    async with (
        httpx.AsyncClient(timeout=30, trust_env=False) as http,
        live.keeper(lease_s=1),
        anyio.create_task_group() as tasks,
    ):
        async with live.process(lease_s=1) as first:
            async with live_api(live.url, port=port) as api:
                headers = {"Authorization": f"Bearer {token}"}
                made = (await http.post(f"{api.url}/v1/predictions", json=asked, headers=headers)).json()
                reader = Reader(http, made["urls"]["stream"])
                tasks.start_soon(reader.read)
                await reader.has_outputs(3)
                os.kill(api.process.pid, signal.SIGKILL)
            first.send(signal.SIGKILL)
            await first.exit_code()
        async with live.director(lease_s=1):
            async with live_api(live.url, port=port) as api:
                await reader.has_outputs(6)
                os.kill(api.process.pid, signal.SIGKILL)
            gate.open()
            await caller.ended(made["id"])
            async with live_api(live.url, port=port):
                await eventually(lambda: reader.events[-1].event, "it is done", until=lambda event: event == "done")
    assert reader.breaks >= 2
    said = [one if isinstance(one, Comment) else one.data for one in reader.told if getattr(one, "event", "") != "logs"]
    attempt = ["a0", "a1", "a2"]
    assert said == [*attempt, Comment("retried"), *attempt, "{}"]
    logs = "".join(one.data for one in reader.events if one.event == "logs")
    assert logs == "token 0\ntoken 1\ntoken 2\n" * 2
    places = [one.place for one in reader.events]
    assert places == sorted(set(places))


async def read_leaving(http: httpx.AsyncClient, url: str) -> list[Told]:
    """Return all events of a stream, as read by a client that disconnects now and then and resumes."""
    told: list[Told] = []
    while not (told and told[-1].event == "done"):
        async with aclosing(read_events(http, url, after=told[-1].id if told else "")) as events:
            async for one in events:
                if isinstance(one, Told):
                    told.append(one)
                    if len(told) in LEAVES_AFTER:
                        break
    return told


@pytest.mark.heavy
async def test_run_longer_than_the_log_is_streamed_whole_within_its_bound(
    caller: Caller, live: Live, tmp_path: Path
) -> None:
    token = await Accounts(caller.redis).create_token(ACCOUNT)
    asked = {"version": VERSION, "input": {"n": TOKENS}}
    model = write_model(tmp_path / "model", SOURCE, cog_schema(INPUTS, streams=True))
    began = anyio.current_time()
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
        cog_server(model) as cog_url,
        live.keeper(),
        live.process(cog_url),
        live_api(live.url) as api,
    ):
        headers = {"Authorization": f"Bearer {token}"}
        made = (await http.post(f"{api.url}/v1/predictions", json=asked, headers=headers)).json()
        with anyio.fail_after(LONGEST_S):
            told = await read_leaving(http, made["urls"]["stream"])
    took_s = anyio.current_time() - began
    kinds = await caller.kinds(made["id"])
    print(f"{TOKENS:,} tokens were read in {took_s:.1f} s; the log kept {len(kinds):,} events")
    assert [one.data for one in told] == [*(f"a{number}" for number in range(TOKENS)), "{}"]
    assert len(kinds) == MOST_EVENTS + 3, "accepted, started, so much of it, ended"
    places = [one.place for one in told]
    assert places == sorted(set(places))
