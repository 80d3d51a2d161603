"""Play failovers: what a successor never got is found in the logs, and explains only promises about a prediction."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from director.lab.chaos.checker import Report, check, text
from director.lab.chaos.failovers import EXCUSED, master_at, reigns, unmade
from director.lab.chaos.journal import Arrived, Claimed, Delivered, Final, Healed, Journal, Line, Reign, Unmade
from director.lab.chaos.rest import FOLDER, join
from tests.unit.lab.chaos.test_checker import (
    EMPTY,
    RETRIED_EVENT,
    RULES,
    STALE,
    T,
    altered,
    arrived,
    broken,
    claimed,
    create,
    ended_well,
    fault,
    good,
    lived_through_a_death,
    over,
    run,
    start_by,
    told,
    without,
)

LAG = replace(RULES, kind="sentinel", lag_s=2)


def gone(prediction: str, *, at: int = 0) -> Line:
    return Unmade(at=T + at, id=prediction, server="redis-0", promoted=T + 5_000)


@pytest.fixture
def judged(tmp_path: Path) -> Any:
    def judge(*lines: Line) -> Report:
        journal = Journal(tmp_path / "all.jsonl")
        for line in [*lines, Healed(at=T + 60_000)]:
            journal.write(line)
        journal.close()
        return check(tmp_path, LAG, leftovers=EMPTY)

    return judge


def test_only_what_a_failover_lost_is_explained_by_it(judged: Any) -> None:
    both = [*without(good(), Final), *without(good("z", "k-z"), Final)]
    report = judged(*both, Reign(at=T + 5_000, server="redis-1"), gone("a"))
    assert (report.lost, report.lost_in_failovers, report.failed_over) == (1, 1, {"I1": 1})
    assert [breach.id for breach in report.breaches["I1"]] == ["z"]
    assert "1 failovers lost the last changes of 1 predictions, 1 of them whole. This explains I1 × 1" in text(report)
    assert not report.ok


def test_a_key_whose_prediction_a_failover_lost_may_stand_for_another_one(judged: Any) -> None:
    again = [*create("k-a", "b", at=200), *good("b")[2:]]
    lines = [
        *without(good(), Final),
        *[line for line in again if not isinstance(line, Final)],
        *over("b", "succeeded", 100),
    ]
    assert "I8" in broken(judged(*lines))
    report = judged(gone("a"))
    assert report.counts["I8"] == 0
    assert report.failed_over["I8"] == 1


NOT_EXPLAINED: dict[str, list[Line]] = {
    "I1": altered("processing", ("created", 1, ""), ("started", 20, "")),
    "I2": altered("succeeded", *ended_well("a", "r-a"), ("completed", 110, "succeeded")),
    "I3": without(good(), Delivered),
}


@pytest.mark.parametrize("name", NOT_EXPLAINED)
def test_no_failover_explains_a_record_without_one_end_and_its_webhook(judged: Any, name: str) -> None:
    report = judged(*NOT_EXPLAINED[name], Reign(at=T + 5_000, server="redis-1"), gone("a"))
    assert name in broken(report)
    assert report.lost_in_failovers == 0


def test_a_failover_without_a_promotion_in_the_logs_is_no_evidence(judged: Any) -> None:
    struck = fault("kill_master", "redis-0", 200, 9_000)
    assert broken(judged(*good(), *struck)) == {"evidence"}
    assert judged(Reign(at=T + 5_000, server="redis-1")).ok


@pytest.mark.parametrize("story", STALE)
def test_no_failover_explains_a_write_without_the_claim(judged: Any, story: str) -> None:
    [_, rest] = over("b", "succeeded", 16_100, RETRIED_EVENT, *STALE[story], by="r2")
    report = judged(*without(lived_through_a_death(), Final), rest, gone("b"))
    assert broken(report) == {"I4"}
    assert not {"I4", "I7", "I9", "I21"} & EXCUSED


def test_a_master_that_is_cut_off_explains_a_late_recovery(judged: Any) -> None:
    late = lived_through_a_death(again=40_000)
    assert "I12" in broken(judged(*late))
    assert "I12" not in broken(judged(*fault("cut_master", "redis-0", 100, 39_000)))


def test_a_moved_slot_explains_no_webhook_after_the_end(judged: Any) -> None:
    late = [*good(), told("a", "processing", at=300)]
    assert "I3" in broken(judged(*late, *fault("move_slot", "slots", 250, 250)))
    assert "I3" not in broken(judged(*fault("partition", "director-0:redis", 250, 260)))


def test_a_frozen_master_explains_no_late_claim(judged: Any) -> None:
    late = start_by(claims=900, began=950, again=4_000, is_seen=False)
    assert "I13" in broken(judged(*late, *fault("stop_master", "redis-0", 940, 1_900)))
    assert "I13" not in broken(judged(*fault("stop_by_input", "cog-0", 940, 1_900)))


def test_the_run_of_a_lost_prediction_is_no_second_one_of_a_key(judged: Any) -> None:
    unheard = [*create("k-u", "", status=0), *run("again", "r-again", began=10, ended=90)]
    assert judged(*good(), *unheard).counts["I8"] == 0
    assert judged(*run("again-lost", "r-lost", began=10, ended=90)).counts["I8"] == 1
    assert judged(gone("again")).counts["I8"] == 0


@pytest.mark.parametrize(("seconds", "is_kept"), [(5, True), (6, False)])
def test_a_failover_loses_no_more_than_the_last_seconds(judged: Any, seconds: int, is_kept: bool) -> None:
    report = judged(*good(), *[gone(f"p{n}", at=n * 1_000) for n in range(seconds)])
    assert broken(report) == (set() if is_kept else {"I21"})


def test_the_pause_of_a_frozen_master_counts_for_no_loss(judged: Any) -> None:
    assert judged(*good(), gone("p0"), gone("p1", at=100), gone("p2", at=30_000)).ok


def test_what_a_stale_master_accepted_and_claimed_overtakes_nothing(judged: Any) -> None:
    pairs = [
        arrived("x", 1, number=1),
        claimed("x", 80, number=8),
        arrived("w", 2, number=2),
        claimed("w", 70, number=7),
    ]
    assert judged(*pairs).counts["I11"] == 1
    assert judged(gone("w")).counts["I11"] == 0


def test_promotions_are_read_from_the_servers_logs(tmp_path: Path) -> None:
    said = "1:M 23 Nov 2026 14:09:50.476 * Ready\n7:M 23 Nov 2026 14:09:{}.500 * {} MODE enabled (user request)\n"
    for name, second, word in (("redis-0", 59, "MASTER"), ("redis-1", 51, "PRIMARY")):
        (tmp_path / name).write_text(said.format(second, word))
    found = reigns({name: tmp_path / name for name in ("redis-0", "redis-1")})
    assert [reign.server for reign in found] == ["redis-1", "redis-0"]
    assert found[1].at - found[0].at == 8_000
    assert [master_at(found, found[0].at + ms) for ms in (-1, 0, 8_000)] == ["redis-0", "redis-1", "redis-0"]


Record = tuple[str, dict[str, object]]


def log(folder: Path, *files: Sequence[Record]) -> Path:
    """Write the log of a server: each file has changes of records."""
    (folder / FOLDER).mkdir(parents=True)
    names = [f"a.{number}.incr.aof" for number, _ in enumerate(files)]
    for name, records in zip(names, files, strict=True):
        commands = [["HSET", f"{{p1}}:rec:{each:0>26}", *map(str, sum(fields.items(), ()))] for each, fields in records]
        (folder / FOLDER / name).write_text("".join(_packed(command) for command in commands))
    manifest = "".join(f"file {name} seq {number} type i\n" for number, name in enumerate(names))
    (folder / FOLDER / "a.manifest").write_text(manifest)
    return folder


def _packed(command: Sequence[str]) -> str:
    return f"*{len(command)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in command)


def ended(prediction: str, at: int) -> Record:
    return prediction, {"status": "succeeded", "completed": T + at}


def lost(data: Mapping[str, Path], *promotions: Reign) -> dict[str, int]:
    return {line.id.lstrip("0"): line.at - T for line in unmade(data, promotions)}


FAILOVER = Reign(at=T + 1_000, server="redis-1")
PROGRESS: Record = ("b", {"seq": 3})


def test_changes_behind_the_last_one_that_the_successor_has_are_gone(tmp_path: Path) -> None:
    old = [ended("a", 100), ended("b", 200), ("b", {"seq": 4}), ended("c", 300)]
    data = {
        "redis-0": log(tmp_path / "0", old, [ended("d", 2_000)]),
        "redis-1": log(tmp_path / "1", [ended("a", 100), ended("d", 2_000)]),
    }
    assert lost(data, FAILOVER) == {"b": 200, "c": 300}
    assert lost(data) == {}


def test_a_change_without_a_time_is_gone_even_if_the_successor_made_the_same(tmp_path: Path) -> None:
    data = {
        "redis-0": log(tmp_path / "0", [ended("a", 100), ended("c", 200), PROGRESS]),
        "redis-1": log(tmp_path / "1", [ended("a", 100), PROGRESS]),
    }
    assert lost(data, FAILOVER) == {"c": 200, "b": 200}


def test_a_change_without_a_time_that_the_successor_has_is_not_gone(tmp_path: Path) -> None:
    data = {
        "redis-0": log(tmp_path / "0", [ended("a", 100), PROGRESS, ("c", {"seq": 2})]),
        "redis-1": log(tmp_path / "1", [ended("a", 100), PROGRESS]),
    }
    assert lost(data, FAILOVER) == {"c": 100}


def test_nothing_is_gone_where_a_log_was_rewritten_or_another_server_made_it(tmp_path: Path) -> None:
    data = {
        "redis-0": log(tmp_path / "0", [ended("a", 100)], [ended("b", 200)], [ended("d", 2_000)]),
        "redis-1": log(tmp_path / "1", [ended("a", 100), ended("b", 200)], [ended("d", 2_000), ended("e", 3_000)]),
        "redis-2": log(tmp_path / "2", [ended("d", 2_000)]),
    }
    assert lost(data, FAILOVER) == {}


def test_what_a_former_master_got_as_a_replica_is_not_gone(tmp_path: Path) -> None:
    data = {
        "redis-0": log(tmp_path / "0", [ended("a", 100), ended("b", 900)], [ended("c", 3_500)], [ended("d", 4_000)]),
        "redis-1": log(tmp_path / "1", [ended("a", 100), ended("e", 2_000)], [ended("d", 4_000)]),
        "redis-2": log(tmp_path / "2", [ended("e", 2_000), ended("c", 3_500), ended("d", 4_000)]),
    }
    assert lost(data, FAILOVER, Reign(at=T + 3_000, server="redis-2")) == {"b": 900}


def test_each_reign_is_compared_with_the_next_one(tmp_path: Path) -> None:
    data = {
        "redis-0": log(tmp_path / "0", [ended("a", 100), ended("b", 900)], [ended("c", 3_500), ended("d", 3_600)]),
        "redis-1": log(tmp_path / "1", [ended("a", 100), ended("e", 2_000), ended("f", 2_100)], [ended("c", 3_500)]),
    }
    back = [FAILOVER, Reign(at=T + 3_000, server="redis-0")]
    assert lost(data, *back) == {"b": 900, "e": 2_000, "f": 2_100}


def test_logs_of_several_servers_become_one_in_order_of_time() -> None:
    master = [
        arrived("a", 10, number=1),
        arrived("b", 10, number=2),
        claimed("b", 20, number=3),
        arrived("c", 30, number=4),
    ]
    copy = [arrived("b", 10, number=1), replace(claimed("b", 20, number=2), stream=-1, delivered=0)]
    successor = [arrived("d", 40, number=3), arrived("c", 30, number=9)]
    lines = join(
        {"redis-1": [*copy, *successor], "redis-0": master}, lambda at: "redis-0" if at < T + 40 else "redis-1"
    )
    assert [(type(line), getattr(line, "id", "")) for line in lines] == [
        (Arrived, "a"),
        (Arrived, "b"),
        (Claimed, "b"),
        (Arrived, "c"),
        (Arrived, "d"),
    ]
    assert [line.number for line in lines] == [0, 1, 2, 3, 4]
    assert isinstance(lines[2], Claimed)
    assert lines[2].stream == 0
