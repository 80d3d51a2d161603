"""`director bench fairness`, small: what it prints, and that an unfair queue does not pass."""

from typing import Any

import pytest

from director.bench.fairness import FairnessOptions, fairness
from director.broker.scripts import Accepted, Claims, Scripts
from director.cli.main import main
from director.core.ids import PredictionId

pytestmark = pytest.mark.heavy

OVER_ALL = "worst wait of a light"


class OneLine(Scripts):
    """Takes everybody for the same tenant."""

    async def enqueue(self, prediction_id: PredictionId, **given: Any) -> Accepted:
        return await super().enqueue(prediction_id, **(given | {"account": "everybody"}))


class NoClaims(Scripts):
    """Keeps everything."""

    async def claim(self, *_: Any, **__: Any) -> Claims:
        return Claims()


def verdicts_of(lines: list[str]) -> dict[str, str]:
    """What was judged → PASS or FAIL."""
    judged = [line for line in lines if line.startswith(("PASS", "FAIL"))]
    return {line[6:].partition("   ")[0]: line[:4] for line in judged}


def test_the_queue_passes_and_a_light_without_a_stream_of_its_own_was_among_them(capsys: Any) -> None:
    assert main(["bench", "fairness", "--salts", "2", "--batch", "500"]) == 0
    verdicts = verdicts_of(capsys.readouterr().out.splitlines())
    assert set(verdicts.values()) == {"PASS"}
    for judged in (OVER_ALL, "… of one with no stream", "salts with such", "Jain's", "error of a share", "oldest low"):
        assert any(name.startswith(judged) for name in verdicts), judged


async def judged(scripts: type[Scripts]) -> dict[str, str]:
    """The verdicts on a queue with these scripts, which does not pass."""
    lines: list[str] = []

    def say(text: str) -> None:
        lines.extend(text.splitlines())

    assert not await fairness(FairnessOptions(salts=1, batch=500), say, scripts)
    return verdicts_of(lines)


@pytest.mark.anyio
async def test_one_line_for_all_fails_where_somebody_waits_behind_a_batch_or_has_a_weight() -> None:
    failed = {name for name, verdict in (await judged(OneLine)).items() if verdict == "FAIL"}
    assert any(name.startswith(OVER_ALL) for name in failed)
    assert any(name.startswith("error of a share") for name in failed)


@pytest.mark.anyio
async def test_a_queue_that_hands_nothing_out_passes_nowhere() -> None:
    verdicts = await judged(NoClaims)
    assert {name for name, verdict in verdicts.items() if verdict == "PASS"} == {"salts with such a light"}
