"""Test the table of what answers come to, and the question for the server's health that decides the rest."""

import pytest
from msgspec import Raw

from director.servers.runners import outcomes
from director.servers.runners.http_base import HttpBase, Reporter, RunnerOptions
from director.servers.runners.outcomes import MOST_ASKED, Observation
from director.servers.runners.runner import Ended, Health, HealthStatus, Outcome, RunRequest

READY = Health(status=HealthStatus.READY)
SILENT = Health(status=HealthStatus.UNREACHABLE, detail="It did not answer", is_silent=True)
GONE = Health(status=HealthStatus.UNREACHABLE, detail="Connection refused")


class Asked(HttpBase):
    """Ends each run with a 500, and has these health checks."""

    def __init__(self, *looks: Health) -> None:
        super().__init__(RunnerOptions(url="http://127.0.0.1:9"), name="asked")
        self.looks = list(looks)

    async def health(self) -> Health:
        return self.looks.pop(0)

    async def _follow(self, request: RunRequest, feed: Reporter) -> Ended:
        return outcomes.end(Observation.FAULT, "shape mismatch")


@pytest.mark.parametrize(
    ("looks", "outcome", "is_dead", "left"),
    [
        ((SILENT, READY), Outcome.FAILED, False, 0),
        ((SILENT, SILENT, GONE), Outcome.LOST, True, 0),
        ((SILENT,) * (MOST_ASKED + 1), Outcome.FAILED, False, 1),
        ((GONE, READY), Outcome.LOST, True, 1),
    ],
)
async def test_silent_health_after_a_whole_answer_is_asked_again(
    looks: tuple[Health, ...], outcome: Outcome, is_dead: bool, left: int
) -> None:
    runner = Asked(*looks)
    [*_, end] = [event async for event in runner.run(RunRequest(id="a" * 26, input=Raw(b"{}")))]
    assert isinstance(end, Ended)
    assert (end.outcome, end.server_is_dead, end.in_doubt, len(runner.looks)) == (outcome, is_dead, False, left)
    await runner.aclose()


def test_only_words_of_a_dead_engine_are_told_apart() -> None:
    told = {seen: outcomes.end(seen, "").by_words for seen in Observation}
    assert [seen for seen, by_words in told.items() if by_words] == [Observation.DEAD_WORDS]


@pytest.mark.parametrize(("code", "outcome"), [(504, Outcome.FAILED), (408, Outcome.FAILED), (502, Outcome.LOST)])
def test_time_limit_of_a_server_is_no_death(code: int, outcome: Outcome) -> None:
    for seen in (outcomes.read_status(code, "late"), outcomes.read_stream_error(code, "late")):
        assert outcomes.settle(outcomes.end(seen, "late"), READY, restarts=False, lets_in=True).outcome is outcome
