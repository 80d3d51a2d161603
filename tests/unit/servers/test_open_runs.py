import asyncio
from collections.abc import Callable

import pytest
from msgspec import Raw

from director.servers.runners.http_base import HUNG_UP, OpenRuns, Reporter
from director.servers.runners.runner import Began, Ended, Outcome, RunEvent, RunRequest

REQUEST = RunRequest(id="abc", input=Raw(b"{}"))  # type: ignore[arg-type]
DONE = Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"1"))


class Heard:
    """A run that waits for `answers`, and releases its server once `is_clean` is set."""

    def __init__(self) -> None:
        self.runs = OpenRuns(read_ahead=1)
        self.events: list[RunEvent] = []
        self.answers = asyncio.Event()
        self.started = asyncio.Event()
        self.cleans_up = asyncio.Event()
        self.is_clean = asyncio.Event()
        self.fault: Exception | None = None
        self.let_go = False
        self.reporter: Reporter | None = None
        self.task = asyncio.create_task(self.runs.hear(REQUEST, self._follow, self.events.append))

    async def _follow(self, _request: RunRequest, reporter: Reporter) -> Ended:
        self.reporter = reporter
        self.started.set()
        try:
            await self.answers.wait()
        finally:
            self.cleans_up.set()
            await self.is_clean.wait()
            self.let_go = True
            if self.fault is not None:
                raise self.fault
        return DONE

    async def after(self, *does: Callable[[], object]) -> None:
        """Once it waits for its answer, all of these happen in the same moment; then it is cleaned up."""
        await self.started.wait()
        for do in does:
            do()
        await self.cleans_up.wait()
        self.is_clean.set()
        await asyncio.wait({self.task})

    def hang_up(self) -> None:
        assert self.runs.hang_up(REQUEST.id)


async def test_caller_goes_on_after_its_run_was_hung_up() -> None:
    heard = Heard()
    await heard.after(heard.hang_up)
    assert heard.events == [Began(), HUNG_UP]
    assert (heard.task.cancelled(), heard.task.cancelling(), heard.let_go) == (False, 0, True)
    assert not heard.runs.hang_up(REQUEST.id)


async def test_second_hang_up_does_not_interrupt_the_release_of_the_server() -> None:
    heard = Heard()
    await heard.started.wait()
    heard.hang_up()
    await heard.cleans_up.wait()
    heard.hang_up()
    await heard.after(heard.hang_up)
    assert (heard.events, heard.let_go) == ([Began(), HUNG_UP], True)


async def test_hang_up_does_not_hide_a_cancel_of_the_same_moment() -> None:
    for first_hung_up in (True, False):
        heard = Heard()
        both = [heard.hang_up, heard.task.cancel]
        await heard.after(*(both if first_hung_up else reversed(both)))
        assert heard.task.cancelled(), f"hung up first: {first_hung_up}"
        assert (heard.task.cancelling(), heard.events, heard.let_go) == (1, [], True)


async def test_answer_at_the_moment_of_a_hang_up_leaves_no_cancel() -> None:
    for does in (["answers", "hang_up"], ["hang_up", "answers"]):
        heard = Heard()
        await heard.after(*({"answers": heard.answers.set, "hang_up": heard.hang_up}[name] for name in does))
        assert heard.events == [Began(), HUNG_UP], does
        assert (heard.task.exception(), heard.task.cancelling()) == (None, 0), does


@pytest.mark.parametrize(
    ("fault", "is_answered", "outcome"),
    [
        (TypeError("no"), True, Outcome.FAILED),
        (RecursionError("no"), True, Outcome.FAILED),
        (TypeError("no"), False, Outcome.LOST),
        (OSError("no"), True, Outcome.LOST),
    ],
)
async def test_fault_after_an_answer_is_not_tried_again(fault: Exception, is_answered: bool, outcome: Outcome) -> None:
    heard = Heard()
    heard.fault = fault

    def answer() -> None:
        assert heard.reporter is not None
        heard.reporter.note_sent()
        if is_answered:
            heard.reporter.note_answered()

    await heard.after(answer, heard.answers.set)
    end = heard.events[-1]
    assert isinstance(end, Ended)
    assert (end.outcome, type(fault).__name__ in (end.error or "")) == (outcome, True)


async def test_fault_during_a_hang_up_is_an_end() -> None:
    heard = Heard()
    heard.fault = RuntimeError("no")
    await heard.after(heard.hang_up)
    (end,) = heard.events
    assert isinstance(end, Ended)
    assert (end.outcome, heard.task.cancelling()) == (Outcome.LOST, 0)


async def test_canceled_caller_gets_no_more_events() -> None:
    """One request may be that of several runs: it is sent, and answered, for the others."""
    heard = Heard()
    await heard.after(heard.task.cancel)
    assert heard.reporter is not None
    heard.reporter.begin()
    assert heard.events == []
    other = Heard()
    await other.started.wait()
    assert other.reporter is not None
    other.reporter.begin()
    assert other.events == [Began()]
    await other.after(other.task.cancel)


async def test_closing_runner_waits_until_each_run_is_cleaned_up() -> None:
    heard = Heard()
    await heard.started.wait()
    closing = asyncio.create_task(heard.runs.aclose())
    await heard.cleans_up.wait()
    assert not closing.done()
    heard.is_clean.set()
    await asyncio.wait_for(closing, 10)
    await heard.task
    (end,) = heard.events
    assert isinstance(end, Ended)
    assert (end.outcome, heard.let_go, heard.task.cancelling()) == (Outcome.LOST, True, 0)
