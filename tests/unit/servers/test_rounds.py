import asyncio
from collections.abc import Sequence

import pytest
from msgspec import Raw

from director.core.ids import PredictionId
from director.core.runner_config import HttpConfig, decode_runner_config
from director.servers.runners import RunnerOptions
from director.servers.runners.http import BatchRun, HttpBatchRunner, Rounds
from director.servers.runners.http_base import Feed
from director.servers.runners.runner import Batch, Ended, Outcome, RunRequest
from tests.support.eventually import eventually, turns

DONE = Ended(outcome=Outcome.SUCCEEDED)
FAILED = Ended(outcome=Outcome.FAILED, error="one of them")
LOST = Ended(outcome=Outcome.LOST, error="it died")


class Slot:
    """A server that fails what has a poison in it. `sent`: what it was asked. It answers while `answers` is set."""

    def __init__(self, places: int, *, poison: str = "", end: Ended = FAILED) -> None:
        self.batch = Batch(places)
        self.rounds = Rounds(self.batch, self._send)
        self.sent: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self._poison, self._end = poison, end
        self._now = 0

    async def _send(self, runs: Sequence[BatchRun]) -> Sequence[Ended] | Ended:
        self.sent.append("".join(run.request.id for run in runs))
        self._now += 1
        try:
            assert self._now == 1, "two requests at once"
            await self.answers.wait()
        finally:
            self._now -= 1
        return self._end if self._poison and self._poison in self.sent[-1] else [DONE] * len(runs)

    async def run(self, name: str, *, shared: str | None = "same", place: int) -> Ended:
        feed, end = Feed(read_ahead=1), asyncio.get_running_loop().create_future()
        run = BatchRun(RunRequest(id=name, input=Raw(b"{}")), feed, shared, end)
        self.batch.places[place].come()
        try:
            return await self.rounds.end_of(run)
        finally:
            await self.rounds.leave(run)

    def start(self, names: str, *, first: int = 0, **given: str | None) -> list[asyncio.Task[Ended]]:
        return [asyncio.create_task(self.run(name, place=first + at, **given)) for at, name in enumerate(names)]


async def ends(runs: Sequence[asyncio.Task[Ended]]) -> list[Ended]:
    found = await asyncio.wait_for(asyncio.gather(*runs), 10)
    own = asyncio.current_task()
    await eventually(
        lambda: [task for task in asyncio.all_tasks() if task is not own and "Rounds" in repr(task)],
        "nothing goes on",
        until=lambda left: not left,
    )
    return found


async def test_halving_finds_the_failing_run_and_the_others_succeed() -> None:
    slot = Slot(8, poison="f")
    found = await ends(slot.start("abcdefgh"))
    assert slot.sent == ["abcdefgh", "abcd", "efgh", "ef", "e", "f", "gh"]
    assert found == [DONE] * 5 + [FAILED] + [DONE] * 2


async def test_refusal_of_several_runs_does_not_blame_their_inputs() -> None:
    refused = Ended(outcome=Outcome.REFUSED, error="503", may_be_input=True)
    shared, alone = Slot(2, poison="a", end=refused), Slot(1, poison="a", end=refused)
    assert [end.may_be_input for end in await ends(shared.start("ab"))] == [False, False]
    assert [end.may_be_input for end in await ends(alone.start("a"))] == [True]
    assert (shared.sent, alone.sent) == (["ab"], ["a"])


async def test_run_that_goes_alone_goes_after_the_others() -> None:
    slot = Slot(5)
    runs = [*slot.start("ab", shared=None), *slot.start("cde", first=2)]
    assert await ends(runs) == [DONE] * 5
    assert slot.sent == ["cde", "a", "b"]


async def test_request_waits_only_for_runs_that_will_come() -> None:
    slot = Slot(3)
    first = slot.start("a")
    await turns(10)
    assert slot.sent == []
    slot.batch.places[1].leave()
    second = slot.start("b", first=2)
    await ends([*first, *second])
    assert slot.sent == ["ab"]


async def test_late_run_goes_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("director.servers.runners.http.LATE_S", 0)
    slot = Slot(2)
    slot.answers.clear()
    first = slot.start("a")
    await eventually(lambda: slot.sent, "it did not wait", until=["a"].__eq__)
    second = slot.start("b", first=1)
    await turns(10)
    assert slot.sent == ["a"]
    slot.answers.set()
    await ends([*first, *second])
    assert slot.sent == ["a", "b"]


async def test_own_fault_reaches_every_waiting_run(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot(2)

    async def broken() -> bool:
        raise ValueError("an unexpected fault")

    monkeypatch.setattr(slot.answers, "wait", broken)
    for run in slot.start("ab"):
        with pytest.raises(ValueError, match="an unexpected fault"):
            await run


async def test_unsent_runs_are_not_sent_to_a_dead_server() -> None:
    slot = Slot(4, poison="a", end=Ended(outcome=Outcome.LOST, error="it died", server_is_dead=True))
    slot.answers.clear()
    runs = [*slot.start("a", shared=None), *slot.start("bc", first=1, shared=None), *slot.start("d", first=3)]
    await eventually(lambda: slot.sent, "one is sent")
    slot.answers.set()
    found = await ends(runs)
    died = slot.sent.index("a")
    assert [end.outcome for end in found].count(Outcome.LOST) == 1
    assert len(slot.sent) == died + 1
    assert [end.outcome for end in found].count(Outcome.REFUSED) == 4 - len("".join(slot.sent))


async def test_claim_lost_during_a_hang_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    given = '{"kind": "http", "path": "/", "input": {"$each": ""}, "output": "/out", "batch": {}}'
    config = decode_runner_config(given)
    assert isinstance(config, HttpConfig)
    runner = HttpBatchRunner(config, RunnerOptions(url="http://127.0.0.1:1", max_body=1))
    asked, lets_go, is_gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(_: Sequence[BatchRun]) -> Sequence[Ended]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            lets_go.set()
            await is_gone.wait()
        return []

    monkeypatch.setattr(runner, "_send", send)
    request = RunRequest(id=PredictionId("abc"), input=Raw(b'{"text":"a"}'))
    hearing = asyncio.create_task(runner.hear(request, lambda event: None))
    await asked.wait()
    await runner.cancel(request.id)
    await lets_go.wait()
    hearing.cancel()
    await asyncio.wait({hearing})
    assert hearing.cancelled()
    assert not runner._rounds
    is_gone.set()
