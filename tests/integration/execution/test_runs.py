"""Test the outcome of a prediction for each behaviour of its model."""

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from redis import exceptions

from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable
from director.execution import active_claims
from director.servers.runners.runner import HealthStatus
from director.store.catalog import Catalog
from tests.support.cog import cog_server
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, Live, Tally, supervised_cog
from tests.support.queue_driver import MODEL, VERSION
from tests.support.scripted_cog import Exchange, Script, answer, frame, scripted_cog, stream

pytestmark = pytest.mark.cog


async def test_output_is_seen_during_the_run_and_complete_at_its_end(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director():
        asked = await caller.submit(n=3, gate=str(gate))
        running = await caller.shows(asked, output=["a0", "a1", "a2"], logs="token 0\ntoken 1\ntoken 2\n")
        assert running["status"] == "processing"
        assert running["started_at"] is not None
        gate.open()
        ended = await caller.ended(asked)
    assert ended["status"] == "succeeded"
    assert ended["output"] == ["a0", "a1", "a2"]
    assert ended["logs"] == "token 0\ntoken 1\ntoken 2\n"
    assert ended["error"] is None
    assert ended["started_at"] == running["started_at"]
    assert set(ended["metrics"]) >= {"predict_time", "total_time", "queue_time", "setup_wait_time", "run_time"}
    assert ended["metrics"]["output_count"] == 3
    assert 0 <= ended["metrics"]["time_to_first_output"] <= ended["metrics"]["run_time"]
    kinds = await caller.kinds(asked)
    assert (kinds[1], kinds.count("output")) == ("started", 3)
    await caller.nothing_is_left()


async def test_model_that_raises_fails_with_its_error_and_partial_output(
    caller: Caller, live: Live, cog_url: str, answered_cog_url: str
) -> None:
    for url in (cog_url, answered_cog_url):
        async with live.director(url):
            ended = await caller.ended(await caller.submit(n=2, then="raise"))
        assert (ended["status"], ended["code"]) == ("failed", "model_failed")
        assert ended["error"].endswith("it went wrong")
        assert (ended["output"], ended["logs"]) == (["a0", "a1"], "token 0\ntoken 1\n")
    assert await caller.dead() == []


@pytest.mark.parametrize("then", ["", "raise"])
async def test_megabyte_of_logs_is_kept_whole(
    caller: Caller, live: Live, cog_url: str, answered_cog_url: str, then: str
) -> None:
    # lines are long where they are streamed: Cog drops what is not read in time
    for url, width in ((cog_url, 2_000), (answered_cog_url, 100)):
        async with live.director(url):
            ended = await caller.ended(await caller.submit(n=0, log=1_000_000, width=width, then=then))
        assert ended["status"] == ("failed" if then else "succeeded")
        assert ended["logs"] == "".join(f"{line:0{width - 1}d}\n" for line in range(1_000_000 // width))


async def test_end_of_ten_megabytes_of_logs_is_kept(caller: Caller, live: Live, cog_url: str) -> None:
    async with live.director():
        ended = await caller.ended(await caller.submit(n=0, log=10_000_000, width=20_000))
    first, *rest = ended["logs"].splitlines()
    assert ended["status"] == "succeeded"
    assert first == "… earlier lines were dropped …"
    assert rest[-1] == f"{499:019999d}"
    assert (2 << 20) - 20_000 < sum(len(line) + 1 for line in rest) <= 2 << 20


@pytest.mark.parametrize(("size", "code"), [((8 << 20) - 4, None), ((8 << 20) - 3, "output_too_large")])
async def test_output_of_eight_mebibytes_is_the_largest_that_is_kept(
    caller: Caller, live: Live, size: int, code: str | None
) -> None:
    async with live.director():
        ended = await caller.ended(await caller.submit(n=0, size=size))
        assert ended.get("code") == code
        assert ended["status"] == ("failed" if code else "succeeded")
        assert ended["output"] == (None if code else ["x" * size])
        assert bool(ended["error"]) == bool(code)
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"  # the slot is free again


async def test_hanging_run_times_out_and_frees_its_slot(caller: Caller, live: Live, gate: Gate) -> None:
    async with live.director(run_limit_s=0.3):
        ended = await caller.ended(await caller.submit(n=1, gate=str(gate)))
        assert (ended["status"], ended["code"]) == ("failed", "timed_out")
        assert ended["error"] == "Prediction timed out"
        assert ended["output"] == ["a0"]
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"


@pytest.mark.faults
async def test_unstoppable_run_is_ended_and_its_server_restarted(
    caller: Caller, live: Live, folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_claims, "CANCEL_WAIT_S", 0.5)
    async with supervised_cog(folder) as cog, live.director(cog.url, run_limit_s=3):
        ended = await caller.ended(await caller.submit(n=1, gate=str(gate), then="stubborn"))
        assert (ended["status"], ended["error"]) == ("failed", "Prediction timed out")
        waiting = await caller.submit(n=1)
        gate.open()  # the server can only end now, as it was asked to
        assert (await caller.ended(waiting))["status"] == "succeeded"
        assert cog.starts == 2


@pytest.mark.faults
async def test_slot_held_by_a_foreign_client_restarts_the_server_without_an_attempt(
    caller: Caller, live: Live, folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.runners.cog.SLOT_PATIENCE_S", 0.1)
    async with supervised_cog(folder) as cog, live.director(cog.url) as director:
        await caller.ended(await caller.submit(n=1))
        async with httpx.AsyncClient(base_url=cog.url, trust_env=False) as stranger:
            body = {"input": {"n": 1, "gate": str(gate)}}
            put = await stranger.put("/predictions/strangers", json=body, headers={"prefer": "respond-async"})
            assert put.status_code == 202
        asked = await caller.submit(n=1)
        [one] = director.servers.all
        await eventually(lambda: one.health.status, "it is asked to end", until=HealthStatus.DEFUNCT.__eq__)
        gate.open()  # the server can only end now, as it was asked to
        async with live.keeper(lease_s=15):
            assert (await caller.ended(asked))["status"] == "succeeded"
        assert cog.starts == 2
        record = await caller.record(asked)
        assert (record.attempt, record.claims > 1) == (1, True)


@pytest.mark.parametrize(
    ("given", "runs"),
    [pytest.param({"attempts": 2}, 2, id="attempts"), pytest.param({"on_lost": "fail"}, 1, id="no retries")],
)
async def test_model_that_kills_its_server_fails_after_its_attempts_while_others_continue(
    caller: Caller, live: Live, folder: Path, tally: Tally, given: dict[str, Any], runs: int
) -> None:
    async with supervised_cog(folder) as cog, live.director(cog.url, **given), live.keeper():
        poison = await caller.submit(n=1, count=str(tally), then="exit")
        ended = await caller.ended(poison)
        assert (ended["status"], ended["code"]) == ("failed", "server_lost")
        assert ended["error"].startswith("The model server died while it ran, and it may not run again.")
        assert tally.runs == runs
        assert await caller.dead() == [poison]
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
        assert cog.starts == runs + 1


async def test_death_of_the_server_costs_one_attempt_and_no_prediction(
    caller: Caller, live: Live, folder: Path, tally: Tally
) -> None:
    async with supervised_cog(folder) as cog, live.director(cog.url):
        asked = await caller.submit(n=2, count=str(tally), then="exit once")
        async with live.keeper(lease_s=15):
            ended = await caller.ended(asked)
        assert (ended["status"], ended["output"], ended["logs"]) == ("succeeded", ["a0", "a1"], "token 0\ntoken 1\n")
        assert (await caller.record(asked)).attempt == 2
        assert "retried" in await caller.kinds(asked)
        assert cog.starts == 2


async def test_model_with_a_failed_setup_gets_no_prediction(caller: Caller, live: Live, folder: Path) -> None:
    asked = await caller.submit()
    async with (
        cog_server(folder, stub="predict.py:Broken", until="SETUP_FAILED") as url,
        live.director(url) as director,
    ):
        missing = await eventually(director.missing, "it says why", until=lambda missing: "no weights" in missing)
        assert missing.startswith("setup_failed: ")
    record = await caller.record(asked)
    assert (record.status, record.claims) == ("starting", 0)
    async with live.director(url):  # there is no server at all
        assert (await caller.record(asked)).claims == 0


async def test_invalid_input_missed_by_the_api_fails_without_a_start(caller: Caller, live: Live) -> None:
    async with live.director():
        asked = await caller.submit(n="three")
        ended = await caller.ended(asked)
    assert (ended["status"], ended["code"]) == ("failed", "invalid_input")
    assert ended["error"] == 'n: "three" is not of type "integer"'
    assert ended["started_at"] is None
    assert await caller.kinds(asked) == ["created", "completed"]


async def test_catalogue_shows_the_model_with_its_schema_and_server(
    caller: Caller, live: Live, catalog: Catalog
) -> None:
    async with live.director() as director:
        await eventually(lambda: director.servers.any_ready(), "the server is ready")
    version = await catalog.version(MODEL, VERSION)
    assert "Input" in json.loads(bytes(version.schema))["components"]["schemas"]
    assert version.server.startswith("coglet ")


async def test_least_busy_server_is_next_and_slots_are_never_exceeded(caller: Caller, live: Live) -> None:
    opened = anyio.Event()
    async with scripted_cog() as first, scripted_cog() as second:
        asked = [caller.new_id() for _ in range(9)]
        most = {first: 0, second: 0}
        running = {first: 0, second: 0}
        for cog in (first, second):
            for each in asked:
                cog.on("POST", f"/predictions/{each}/cancel", answer(404, b"{}"))
                cog.on("PUT", f"/predictions/{each}", _held(each, opened, cog, running, most))
        async with live.director(first.url, second.url, concurrent_predictions=3) as director:
            await eventually(lambda: all(each.can_run for each in director.servers.all), "both servers are ready")
            for number, each in enumerate(asked):
                await caller.submit(each)
                if number < 6:
                    await eventually(lambda: sum(running.values()), "it runs", until=(number + 1).__le__)
                    assert abs(running[first] - running[second]) <= 1
            opened.set()
            for each in asked:
                assert (await caller.ended(each))["status"] == "succeeded"
    assert most == {first: 3, second: 3}


def _held(prediction_id: str, opened: anyio.Event, cog: Any, running: dict[Any, int], most: dict[Any, int]) -> Script:
    last = frame("completed", {"id": prediction_id, "status": "succeeded", "output": ["x"]})

    async def then(exchange: Exchange) -> None:
        running[cog] += 1
        most[cog] = max(most[cog], running[cog])
        await opened.wait()
        running[cog] -= 1
        await exchange.write(b"%x\r\n%s\r\n" % (len(last), last))

    return stream(frame("start", {}), then=then)


async def test_lost_answer_of_a_claim_is_repeated_without_duplicates(
    caller: Caller, live: Live, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonces: list[str] = []
    claim = Scripts.claim

    async def lossy(scripts: Scripts, *args: Any, **options: Any) -> Any:
        claims = await claim(scripts, *args, **options)
        nonces.append(options["nonce"])
        if claims and len(set(nonces)) == len(nonces):
            is_behind_wakeup = options.get("send") is not None
            raise exceptions.ConnectionError if is_behind_wakeup else BackendUnavailable("the answer was lost")
        return claims

    # before the director starts: a call that waits behind the wakeup by then would bring the prediction unseen
    monkeypatch.setattr(Scripts, "claim", lossy)
    async with live.director():
        asked = await caller.submit(n=1, count=str(tally))
        assert (await caller.ended(asked))["status"] == "succeeded"
    assert len(set(nonces)) < len(nonces)
    assert tally.runs == 1
    assert (await caller.record(asked)).attempt == 1


async def test_lost_answer_of_a_finish_leads_to_one_webhook(
    caller: Caller, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    async with live.director() as director:
        finish = director._shared.services.scripts.finish

        async def lossy(*args: Any, **options: Any) -> Any:
            answers.append(await finish(*args, **options))
            if len(answers) == 1:
                raise BackendUnavailable("the answer was lost")
            return answers[-1]

        monkeypatch.setattr(director._shared.services.scripts, "finish", lossy)
        asked = await caller.submit(n=1)
        assert (await caller.ended(asked))["status"] == "succeeded"
        await eventually(lambda: answers, "it asked again", until=[True, True].__eq__)
    assert (await caller.kinds(asked)).count("completed") == 1
