from pathlib import Path

import msgspec
import pytest

from director.lab.chaos.campaign import Campaign, report_on
from director.lab.chaos.plan import SERVER_KINDS
from tests.bench import results_page
from tests.bench.results import Measured
from tests.bench.results_page import MISSING, PAGE, campaign_tables, figures_tables, missing_table
from tests.unit.bench.test_judgement import result

DRAIN = result(Measured(name="runs", unit="a second", rounds={"ours": [2.0, 4.0, 3.0]}), bench="drain")


def test_each_bench_is_shown_with_its_command_or_missing_with_a_reason() -> None:
    shown, missing = figures_tables({"drain": DRAIN}), missing_table({"drain": DRAIN})
    assert 'make bench ARGS="--only drain"' in shown
    assert "| runs, a second | ours | 3 | 2–4 |  |" in shown
    assert f"commit {DRAIN.commit}" in shown
    assert "--only drain" not in missing
    assert [bench.line for bench in PAGE if bench.name != "drain" and bench.line not in missing] == []
    assert [why for why in MISSING.values() if why not in missing] == []


def test_a_campaign_that_did_not_pass_says_why() -> None:
    wanted = Campaign(seeds=(1, 2), predictions=1_000, leases=(15.0, 3.0))
    shown = campaign_tables(report_on(wanted, []))
    assert "director chaos campaign --seeds 2 --predictions 1000 --leases 15,3 --out DIR" in shown
    assert "**The campaign did not pass:** not judged: 1, 2; 0 predictions of 1,000." in shown
    passed = msgspec.structs.replace(report_on(wanted, []), ok=True)
    assert "did not pass" not in campaign_tables(passed)


def test_without_a_campaign_the_page_says_that_none_was_measured() -> None:
    assert "**Not measured yet:**" in campaign_tables(None)
    assert "--kind cluster" in campaign_tables(None, "cluster")


def test_a_campaign_of_sentinel_says_so_and_what_its_failovers_lost() -> None:
    wanted = Campaign(seeds=(1,), predictions=1_000, leases=(15.0,), kind="sentinel")
    shown = campaign_tables(report_on(wanted, []))
    assert "director chaos campaign --kind sentinel --seeds 1 --predictions 1000 --leases 15 --out DIR" in shown
    assert "| predictions whose last changes a failover lost | 0 |" in shown


def test_a_kept_campaign_replaces_the_one_of_its_kind_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "KEPT", tmp_path)
    for seeds, kind in ((1,), "single"), ((2,), "cluster"), ((3,), "single"):
        made = report_on(Campaign(seeds=seeds, predictions=1, leases=(15.0,), kind=kind), [])
        (report := tmp_path / "report.json").write_bytes(msgspec.json.encode(made))
        results_page.keep_campaign(report)
    kept = {kind: results_page.read_campaign(kind) for kind in SERVER_KINDS}
    assert {kind: each and each.campaign.seeds for kind, each in kept.items()} == {
        "single": (3,),
        "sentinel": None,
        "cluster": (2,),
    }
