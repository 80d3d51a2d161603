import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from director.lab.chaos import campaign as module
from director.lab.chaos.campaign import Campaign, CampaignReport, campaign, check_again, keep, outcomes, text
from director.lab.chaos.checker import Report, check
from director.lab.chaos.journal import Delivered, Healed, Journal, Reign, Unmade
from director.lab.chaos.run import chaos
from director.lab.chaos.scene import Options
from director.local.launcher.processes import UpError
from tests.unit.lab.chaos.test_checker import EMPTY, RULES, T, create, fault, good, lived_through_a_death, without

WANTED = Campaign(seeds=(1, 2, 3), predictions=4, leases=(15.0, 3.0))


def play(home: Path, options: Options, *, is_broken: bool = False) -> Report:
    """Leave the home of a run with two predictions, and return its verdict."""
    lines = [*lived_through_a_death(), *(without(good(), Delivered) if is_broken else good())]
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "api-0.log").write_text("{}\n")
    journal = Journal(home / "journals" / "all.jsonl")
    if options.kind == "sentinel":
        lines += [*create("k-gone", "gone"), Unmade(at=T, id="gone", server="redis-0", promoted=T + 70_001)]
        lines += [Reign(at=T + 70_001, server="redis-1")]
    for line in [*lines, *fault("kill_redis", "redis-0", 70_000, 70_001), Healed(at=T + 60_000)]:
        journal.write(line)
    journal.close()
    rules = msgspec.structs.replace(RULES, seed=options.seed, lease_s=options.lease_s, kind=options.kind)
    (home / "journals" / "rules.json").write_bytes(msgspec.json.encode(rules))
    (home / "journals" / "leftovers.json").write_bytes(msgspec.json.encode(EMPTY))
    return check(home / "journals")


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for a campaign whose runs are played."""
    monkeypatch.setattr(module, "machine", lambda: MACHINE)
    return tmp_path / "out"


MACHINE = module.Machine(cpu="c", cores=2, kernel="k", python="p", server="s", version="0", commit="abc")


def carried_out(
    out: Path, monkeypatch: pytest.MonkeyPatch, *, wanted: Campaign = WANTED, second: Any = None, disk_gb: float = 20.0
) -> CampaignReport:
    """Return the last report. The run of seed 2 is broken, raises `second`, or is as the others."""

    def chaos(options: Options, say: Callable[[str], None]) -> Report:
        assert options.home is not None
        report = play(options.home, options, is_broken=options.seed == 2 and second == "broken")
        if options.seed == 2 and isinstance(second, BaseException):
            raise second
        return report

    monkeypatch.setattr(module, "chaos", chaos)
    *_, last = campaign(wanted, out, disk_gb=disk_gb, faketime="", say=lambda line: None)
    return last


def test_a_campaign_runs_each_seed_once_with_the_leases_in_turn(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = carried_out(out, monkeypatch)
    assert [(each.seed, each.lease_s, each.what) for each in report.outcomes] == [
        (1, 15.0, "judged"),
        (2, 3.0, "judged"),
        (3, 15.0, "judged"),
    ]
    assert msgspec.json.decode((out / "campaign.json").read_bytes(), type=Campaign) == WANTED
    assert report.totals["acked"] == 6
    assert report.faults == {"kill_director": 3, "kill_redis": 3}
    found = [(each.lease_s, each.count, (each.slowest_ms or 0) // 1000, each.most_ms) for each in report.recoveries]
    assert found == [(3.0, 1, 15, 4_000), (15.0, 2, 15, 20_000)]


def test_a_campaign_on_sentinel_counts_its_failovers(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "failovers" not in text(carried_out(out, monkeypatch))
    report = carried_out(out / "sentinel", monkeypatch, wanted=msgspec.structs.replace(WANTED, kind="sentinel"))
    assert "failovers 3  unmade 3  lost in failovers 3  this explains I1 × 3" in text(report)
    assert "I1" not in report.breaches


def test_a_campaign_on_several_servers_without_faults_of_their_own_fails(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = msgspec.structs.replace(WANTED, leases=(15.0,))
    assert carried_out(out, monkeypatch, wanted=wanted).ok
    for kind, lacking in (("sentinel", "no failover"), ("cluster", "no slot moved")):
        report = module.report_on(msgspec.structs.replace(wanted, kind=kind), outcomes(out))
        assert report.lacks == [lacking]


def test_a_broken_promise_fails_the_campaign_and_keeps_its_logs(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = msgspec.structs.replace(WANTED, leases=(15.0,))
    assert carried_out(out, monkeypatch, wanted=wanted).ok
    shutil.rmtree(out)
    report = carried_out(out, monkeypatch, wanted=wanted, second="broken")
    assert report.lacks == ["seed 2 broke I3"]
    assert [path.name for path in sorted((out / "runs").glob("*/logs/*"))] == ["api-0.log.gz"]
    assert not (out / "run").exists()
    assert "missing: it succeeded, but no webhook" in text(report)
    assert "The campaign did not pass." in text(report)


def test_a_run_that_broke_off_is_reported_and_the_next_one_is_made(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = carried_out(out, monkeypatch, second=UpError("cog-1 does not work again after the faults."))
    assert [each.what for each in report.outcomes] == ["judged", "broke off", "judged"]
    assert "seed 2 broke off: cog-1 does not work again after the faults." in report.lacks
    assert len(carried_out(out, monkeypatch).outcomes) == 3, "it is not tried until it passes"


def test_an_interrupted_campaign_goes_on_and_still_shows_the_interrupted_run(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        carried_out(out, monkeypatch, second=KeyboardInterrupt())
    assert [each.what for each in outcomes(out)] == ["judged", "interrupted"]
    report = carried_out(out, monkeypatch)
    assert "4 runs, 1 of them interrupted and not judged" in text(report)
    assert [(each.seed, each.what) for each in report.outcomes] == [
        (1, "judged"),
        (2, "interrupted"),
        (2, "judged"),
        (3, "judged"),
    ]
    assert (out / "runs" / "02" / "journals" / "all.jsonl.gz").exists()


def test_the_home_of_a_killed_campaign_is_packed_by_the_next_one(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_pack", lambda home, folder: None)
    with pytest.raises(KeyboardInterrupt):
        carried_out(out, monkeypatch, wanted=msgspec.structs.replace(WANTED, seeds=(2,)), second=KeyboardInterrupt())
    assert (out / "run" / "journals" / "all.jsonl").exists()
    monkeypatch.undo()
    monkeypatch.setattr(module, "machine", lambda: MACHINE)
    report = carried_out(out, monkeypatch, wanted=msgspec.structs.replace(WANTED, seeds=(2,)))
    assert [each.what for each in report.outcomes] == ["interrupted", "judged"]
    assert (out / "runs" / "01" / "journals" / "all.jsonl.gz").exists()


def test_a_folder_keeps_its_seeds(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out(out, monkeypatch)
    with pytest.raises(UpError, match="other seeds"):
        carried_out(out, monkeypatch, wanted=msgspec.structs.replace(WANTED, seeds=(1, 2, 4)))


def test_a_campaign_without_room_makes_no_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_sentinel = msgspec.structs.replace(WANTED, kind="sentinel")
    with pytest.raises(UpError, match=r"may take 12 GB.* has 0\.0 of 11 GB"):
        carried_out(out / "sentinel", monkeypatch, wanted=on_sentinel, disk_gb=11.0)
    with pytest.raises(UpError, match=r"has 0\.0 of 3 GB"):
        carried_out(out, monkeypatch, disk_gb=3.0)
    assert outcomes(out) == []


def test_too_few_predictions_fail_the_campaign(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = msgspec.structs.replace(WANTED, leases=(15.0,), predictions=7)
    assert carried_out(out, monkeypatch, wanted=wanted).lacks == ["6 predictions of 7"]


def test_the_checker_alone_finds_what_the_runs_found(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = msgspec.structs.replace(WANTED, leases=(15.0,))
    report = carried_out(out, monkeypatch, wanted=wanted, second="broken")
    said: list[str] = []
    assert check_again(out, said.append) == report
    assert said[1] == "run 2, seed 2: broke I3, as the run said"
    journal = out / "runs" / "01" / "journals" / "all.jsonl.gz"
    shutil.copy(out / "runs" / "02" / "journals" / "all.jsonl.gz", journal)
    assert check_again(out, said.append).lacks[0] == "seed 1 broke I3"
    assert "THE RUN SAID SOMETHING ELSE" in said[3]


def test_a_run_that_reported_something_else_fails_the_check(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out(out, monkeypatch, wanted=msgspec.structs.replace(WANTED, leases=(15.0,)))
    file = out / "runs" / "02" / "outcome.json"
    outcome = outcomes(out)[1]
    assert outcome.report is not None
    module.write(file, msgspec.structs.replace(outcome, report=msgspec.structs.replace(outcome.report, lost=1)))
    report = check_again(out, lambda line: None)
    assert (report.ok, report.lacks) == (False, ["run 2 reported something else than its journals show"])


def test_journals_of_another_seed_do_not_stand_for_a_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried_out(out, monkeypatch, wanted=msgspec.structs.replace(WANTED, leases=(15.0,))).ok
    for path in (out / "runs" / "01" / "journals").iterdir():
        shutil.copy(path, out / "runs" / "02" / "journals")
    report = check_again(out, lambda line: None)
    assert report.lacks[0] == "run 2 was of seed 2, lease 15 s, and its journals are of seed 1, lease 15 s"


def test_a_campaign_that_goes_on_with_another_build_does_not_pass(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = msgspec.structs.replace(WANTED, leases=(15.0,))
    with pytest.raises(KeyboardInterrupt):
        carried_out(out, monkeypatch, wanted=wanted, second=KeyboardInterrupt())
    monkeypatch.setattr(module, "machine", lambda: msgspec.structs.replace(MACHINE, commit="def"))
    assert carried_out(out, monkeypatch, wanted=wanted).lacks == ["runs of several builds: 0 abc, 0 def"]


@pytest.mark.parametrize("packed", ["", "runs/01"])
def test_a_run_names_the_folder_in_which_its_journals_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str
) -> None:
    options = Options(seed=1, seconds=1, home=tmp_path / "run", kept_in=tmp_path / packed if packed else None)
    said: list[str] = []
    monkeypatch.setattr("director.lab.chaos.run.anyio.run", lambda *given, **named: SimpleNamespace(ok=False))
    chaos(options, said.append)
    assert said[-1] == f"journals and logs stay in {tmp_path / (packed or 'run')}"


def test_the_report_is_kept_beside_the_runs(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = carried_out(out, monkeypatch)
    keep(report, out)
    assert sorted(path.name for path in out.iterdir()) == ["campaign.json", "report.json", "runs"]
    assert msgspec.json.decode((out / "report.json").read_bytes(), type=CampaignReport) == report


def test_the_report_of_a_campaign_before_its_first_run_can_be_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(iter(campaign(WANTED, out, disk_gb=20, faketime="", say=print)))
    assert "not judged: 1, 2, 3" in text(first)
    assert "The campaign is not over." in text(first)
    assert "0 runs, 0 faults of 0 kinds" in text(first)
