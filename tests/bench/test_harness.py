"""Every bench runs at its smallest, finds its figures and ends its processes."""

from pathlib import Path

import pytest

from tests.bench.benches.options import Options
from tests.bench.capacity import INPUTS
from tests.bench.deaths.command import judge_again, named, try_all
from tests.bench.deaths.trial import Trial
from tests.bench.processes import ROOT
from tests.bench.results import OURS, Result
from tests.bench.sides.peers import NotInstalled, Peer, installed
from tests.bench.soak import SoakOptions, soak
from tests.bench.suite import BENCHES, PAIRED, run
from tests.bench.targets import TARGETS

pytestmark = pytest.mark.heavy

SMALL = Options(say=lambda _: None, rounds=1, part=0.02, with_peers=False, waiting=1_000)


@pytest.fixture(autouse=True)
def of_this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def found(name: str, tmp_path: Path) -> Result:
    lines: list[str] = []
    asked = Options(say=lines.append, rounds=1, part=SMALL.part, with_peers=False, waiting=SMALL.waiting)
    results = run([name], asked, tmp_path / "results.jsonl")
    assert name in results, lines
    return results[name]


@pytest.mark.parametrize("name", sorted({*BENCHES} - {"fairness"}))  # that one has tests of its own
def test_a_bench_finds_what_its_targets_and_the_arithmetic_need(name: str, tmp_path: Path) -> None:
    result = found(name, tmp_path)
    wanted = {target.figure for target in TARGETS if target.bench == name}
    wanted |= {figure for bench, figure in INPUTS.values() if bench == name}
    assert wanted <= {figure.name for figure in result.figures}
    assert result.durability
    if name in PAIRED:
        assert all(figure.rounds[OURS] for figure in result.figures)
        assert any(figure.references for figure in result.figures)


def test_a_peer_that_cannot_be_installed_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match="nowhere"):
        installed(Peer(name="peer", version="1", needs=(str(tmp_path / "nowhere"),), work=()))


def test_a_killed_and_a_frozen_director_lose_nothing_and_the_journal_says_so(tmp_path: Path) -> None:
    trial = Trial(jobs=60, kinds=("kill",), freeze_s=2, limit_s=60)
    report = try_all(named(OURS), trial, tmp_path, lambda _: None)
    [verdict] = [tried.verdict for tried in report.sides]
    assert verdict.faults == {"kill": 1, "freeze": 1}
    assert (verdict.accepted, verdict.lost, verdict.late, verdict.changed, verdict.unfounded) == (60, 0, 0, 0, 0)
    assert verdict.begun_twice >= verdict.cut_off > 0
    assert judge_again(tmp_path).sides == report.sides


async def test_a_soak_looks_at_every_process_and_at_redis() -> None:
    lines: list[str] = []
    await soak(SoakOptions(say=lines.append, minutes=0.4))
    looked_at = {line.split("  ")[2].strip().partition(",")[0] for line in lines if " an hour" in line}
    assert looked_at == {"api", "director", "keeper", "model server", "redis"}
