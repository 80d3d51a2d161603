import json
import os
import threading
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.cli import trials as command
from director.cli.main import main
from director.core.errors import SettingsError
from director.lab.simulate import trace as traces
from director.lab.simulate.play import FAIR, NEVER, REFUSED, PlayResult, try_policy
from director.lab.simulate.reading import read
from director.lab.simulate.report import Report, fair_shares, fairness, report, trace_report
from director.lab.simulate.show import check, plot, tables
from director.lab.simulate.trace import SHAPES, Builder, MadeOptions, Trace, make_trace

pytestmark = pytest.mark.tools

QUEUE = "acme/echo:a1a1a1a1a1a1"


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "what-came.jsonl"


def columns(trace: Trace) -> list[tuple[int, str, int, int]]:
    return [
        (at, trace.accounts[account], lane, run)
        for at, account, lane, run in zip(trace.at_ms, trace.account, trace.lane, trace.run_ms, strict=True)
    ]


def test_trace_is_sorted_by_time_from_its_first_arrival(file: Path) -> None:
    write(file, {"at_s": 9.5, "account": "b", "lane": "low", "run_s": 1}, {"at_s": 7, "account": "a", "run_s": 0.25})
    assert columns(read(file)) == [(0, "a", 1, 250), (2500, "b", 2, 1000)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"at_s": -1, "run_s": 1}', "at_s"),
        ('{"at_s": 1, "run_s": 1e99}', "run_s"),
        ('{"at_s": 1, "run_s": 1, "lane": "fast"}', "lane"),
        ('{"at_s": 1, "run_s": 1, "cost": 0}', "cost"),
        ('{"at_s": 1, "run_s": 1, "cots": 2}', "cots"),
        ('{"at_s": 1}', "run_s"),
        ("no JSON", "malformed"),
        ('{"at_s": 1, "run_s": 1, "account": "\udcff"}', "line 2"),
        ("[" * 100_000, "line 2 is longer"),
    ],
)
def test_a_wrong_line_is_named(file: Path, line: str, says: str) -> None:
    file.write_bytes(b'{"at_s": 0, "run_s": 1}\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(SettingsError, match=says) as caught:
        read(file)
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize(("last", "count"), [('"ru', 1), ('"run_s": 1}', 2)], ids=["still written", "whole"])
def test_last_line_without_a_newline_counts_if_whole(file: Path, last: str, count: int) -> None:
    file.write_text('{"at_s": 0, "run_s": 1}\n{"at_s": 1, ' + last)
    assert len(read(file)) == count


def test_a_pipe_is_read_as_a_file_is(file: Path, log: "Logged") -> None:
    log.whole("x", 1000, 1500, 1900)
    os.mkfifo(file)
    writer = threading.Thread(target=write, args=(file, {"kind": "missed", "count": 3}, *log.lines))
    writer.start()
    trace = read(file)
    writer.join()
    assert (list(trace.run_ms), trace.missed) == ([400], 3)


@pytest.mark.parametrize("at", [-1, 10**14 + 1, 10**30])
def test_a_step_at_no_time_is_a_wrong_line(file: Path, log: "Logged", at: int) -> None:
    log.whole("x", 1000, 1500, at)
    write(file, *log.lines)
    with pytest.raises(SettingsError, match=r"line 3: .*at"):
        read(file)


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"", "no run time is known"), (b"\n\n", "no run time is known"), (b"\x1f\x8b\x08 no line", "line 1")],
    ids=["empty", "empty lines", "no lines"],
)
def test_a_file_with_nothing_in_it_is_refused(file: Path, data: bytes, says: str) -> None:
    file.write_bytes(data)
    with pytest.raises(SettingsError, match=says):
        read(file)


def test_memory_has_a_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST", 2)
    write(file, *({"at_s": n, "run_s": 1} for n in range(3)))
    with pytest.raises(SettingsError, match="more than 2"):
        read(file)


class Logged:
    """Lines of an audit log, one step after the other."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def step(self, at: int, kind: str, which: str, detail: str = "", *, queue: str = QUEUE) -> None:
        entry = f"1800000000000-{len(self.lines)}"
        told = {"partition": 7, "entry": entry, "at": at, "kind": kind, "id": which, "queue": queue}
        self.lines.append({**told, "account": f"of-{which}", "detail": detail})

    def whole(self, which: str, accepted: int, claimed: int, ended: int, lane: str = "normal") -> None:
        self.step(accepted, "accepted", which, lane)
        self.step(claimed, "claimed", which, "d1 1")
        self.step(ended, "ended", which, "succeeded")


@pytest.fixture
def log() -> Logged:
    return Logged()


def test_log_gives_arrivals_accounts_and_slot_times(file: Path, log: Logged) -> None:
    log.whole("x", 1000, 1500, 1900, "high")
    log.whole("y", 2000, 2100, 2200)
    assert columns(read(write(file, *log.lines))) == [(0, "of-x", 0, 400), (1000, "of-y", 1, 100)]


def test_all_attempts_count_for_the_time_in_a_slot(file: Path, log: Logged) -> None:
    log.step(0, "accepted", "x", "normal")
    log.step(10, "claimed", "x", "d1 1")
    log.step(110, "retried", "x", "crashed d1")
    log.step(500, "claimed", "x", "d1 2")
    log.step(530, "released", "x", "draining d1")
    log.step(600, "claimed", "x", "d2 2")
    log.step(640, "ended", "x", "succeeded")
    assert list(read(write(file, *log.lines)).run_ms) == [100 + 30 + 40]


def test_what_has_not_ended_takes_the_mean_and_is_counted(file: Path, log: Logged) -> None:
    log.whole("x", 0, 0, 100)
    log.whole("y", 1, 100, 400)
    log.step(500, "accepted", "z", "normal")
    log.step(600, "claimed", "z", "d1 1")
    trace = read(write(file, *log.lines))
    assert (list(trace.run_ms), trace.guessed) == ([100, 300, 200], 1)


def test_predictions_without_a_slot_or_moved_are_left_out_and_counted(file: Path, log: Logged) -> None:
    log.whole("x", 0, 0, 100)
    log.step(200, "accepted", "canceled", "normal")
    log.step(300, "ended", "canceled", "canceled")
    log.step(400, "accepted", "elsewhere", "normal")
    log.step(500, "moved", "elsewhere", "acme/echo:b2b2b2b2b2b2")
    log.step(600, "claimed", "older than the log", "d1 1")
    log.step(700, "ended", "older than the log", "succeeded")
    trace = read(write(file, *log.lines))
    assert (columns(trace), trace.left_out) == ([(0, "of-x", 1, 100)], 2)


def test_repeated_entries_count_once_and_missed_ones_are_reported(file: Path, log: Logged) -> None:
    log.whole("x", 0, 0, 100)
    missed = {"kind": "missed", "partition": 7, "count": 12}
    trace = read(write(file, *log.lines, missed, *log.lines))
    assert (len(trace), trace.missed) == (1, 12)


def test_log_with_several_queues_needs_a_choice(file: Path, log: Logged) -> None:
    log.whole("x", 0, 0, 100)
    for at, kind in ((0, "accepted"), (1, "claimed"), (9, "ended")):
        log.step(at + 200, kind, "y", queue="acme/other:a1a1a1a1a1a1")
    write(file, *log.lines)
    with pytest.raises(SettingsError, match=r"acme/other:a1a1a1a1a1a1 too: choose one with --queue"):
        read(file)
    assert len(read(file, queue=QUEUE)) == 1
    with pytest.raises(SettingsError, match="no prediction of the queue"):
        read(file, queue="acme/none:a1a1a1a1a1a1")


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - {"turns"}))  # without models, nothing in it is left to chance
def test_the_same_seed_makes_the_same_and_another_another(shape: str) -> None:
    first, again, other = (make_trace(MadeOptions(shape=shape, seed=seed, minutes=5)) for seed in (1, 1, 2))
    assert columns(first) == columns(again) != columns(other)


@pytest.mark.parametrize("shape", SHAPES)
def test_as_much_work_comes_as_was_asked_for(shape: str) -> None:
    trace = make_trace(MadeOptions(shape=shape, minutes=240, slots=8, load=0.9))
    assert sum(trace.run_ms) / 1000 == pytest.approx(0.9 * 8 * 240 * 60, rel=0.05)


def test_the_heavy_account_sends_three_fifths() -> None:
    trace = make_trace(MadeOptions(shape="heavy-light", minutes=240))
    heavy = sum(ms for ms, who in zip(trace.run_ms, trace.account, strict=True) if trace.accounts[who] == "heavy")
    assert heavy / sum(trace.run_ms) == pytest.approx(0.6, abs=0.05)


def test_policy_file_sets_the_queue_and_the_limits_of_accounts(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    path.write_text('streams = 8\naccounts.acme = { weight = 3, max_running = 2 }\naccounts."*" = { max_queued = 5 }\n')
    read = try_policy(str(path))
    assert (read.name, read.policy.streams, read.share_of("acme").weight) == ("weights", 8, 3)
    assert (read.share_of("acme").max_queued, read.share_of("anybody").max_queued) == (None, 5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("streams = 33", "streams"),
        ("shards = 2", "shards"),
        ("streams = 2\nsize = 3", "does not fit"),
        ('mode = "bounded"', "max_queued"),
        ("max_queued = 5", "max_queued"),
        ("fifo = true\naccounts.acme = { weight = 3 }", "one line"),
        ("accounts.acme = { weight = 0 }", "weight"),
        ("[objectives.urgent]\nwithin_s = 1", "objectives"),
        ("streams = ", "Invalid value"),
    ],
)
def test_a_wrong_policy_is_refused_with_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(SettingsError, match=says):
        try_policy(str(tmp_path / "wrong.toml"))


def test_policy_that_is_neither_known_nor_a_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="fair and fifo"):
        try_policy("unfair")


def test_what_one_leaves_goes_to_the_others_by_weight() -> None:
    shares = fair_shares({0: 10.0, 1: 100.0, 2: 100.0}, weights=[1.0, 1.0, 2.0], capacity=100.0)
    assert shares == pytest.approx({0: 10.0, 1: 30.0, 2: 60.0})


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.001, 1000)), min_size=1, max_size=20), st.floats(1.0, 1e6))
def test_fair_shares_exceed_neither_wishes_nor_capacity(wants: list[tuple[float, float]], capacity: float) -> None:
    wanted = {number: want for number, (want, _) in enumerate(wants)}
    shares = fair_shares(wanted, weights=[weight for _, weight in wants], capacity=capacity)
    assert all(shares[number] <= want * 1.000001 for number, want in wanted.items())
    assert sum(shares.values()) == pytest.approx(min(capacity, sum(wanted.values())))


def of(*came: tuple[int, str, int]) -> Trace:
    builder = Builder()
    for at, account, run in came:
        builder.add(at_ms=at, account=account, lane="normal", run_ms=run)
    return builder.build()


@pytest.mark.parametrize(("order", "index"), [("aabb", "less"), ("abab", "all")])
def test_turns_are_fairer_than_one_after_the_other(order: str, index: str) -> None:
    each = 100
    trace = of(*((0, account, 1000) for account in "ab" for _ in range(each)))
    turns = {"aabb": [*range(2 * each)], "abab": [n // 2 + each * (n % 2) for n in range(2 * each)]}[order]
    started = array("q", [0] * (2 * each))
    for place, number in enumerate(turns):
        started[number] = 1000 * place
    found = fairness(trace, started, weights=[1, 1], limits=[None, None], slots=1)
    assert found is not None
    assert found > 0.99 if index == "all" else found < 0.7


def test_fairness_is_undefined_while_slots_suffice() -> None:
    trace = of((0, "a", 100), (0, "b", 100))
    assert fairness(trace, array("q", [0, 0]), weights=[1, 1], limits=[None, None], slots=2) is None


def played(*started: int, codes: Sequence[str] = ()) -> PlayResult:
    return PlayResult(started_ms=array("q", started), order=array("q"), refused=Counter(codes))


def a_report(slots: int = 2) -> Report:
    trace = of((0, "a", 1000), (0, "a", 1000), (0, "b", 2000), (500, "b", 1000), (600, "c", 1), (700, "c", 1))
    return report(trace, FAIR, played(0, 0, 1000, 1000, REFUSED, NEVER, codes=["queue_full"]), slots=slots)


def test_a_report_has_the_figures_of_the_play() -> None:
    found = a_report()
    assert (found.started, found.refused, found.never) == (4, {"queue_full": 1}, 1)
    assert found.span_s == 3.0
    assert found.utilisation == pytest.approx(5000 / 6000, abs=0.001)
    assert found.per_minute == 80.0
    assert (found.waiting_mean, found.waiting_most) == (0.5, 2)
    assert (found.waits["all"].p50, found.waits["all"].p90, found.waits["all"].most) == (0.0, 1.0, 1.0)
    accounts = [(each.account, each.predictions, each.served) for each in found.accounts]
    assert accounts == [("b", 2, 0.6), ("a", 2, 0.4), ("c", 2, 0.0)]


def test_over_time_all_adds_up_to_the_whole() -> None:
    found = a_report()
    bins = len(found.series.at_s)
    assert sum(found.series.utilisation) / bins == pytest.approx(found.utilisation, abs=0.001)
    assert sum(found.series.waiting) / bins == pytest.approx(found.waiting_mean, abs=0.001)
    assert max(found.series.utilisation) == 1.0


def test_everything_at_one_moment_is_a_report_too() -> None:
    found = report(of((0, "a", 0)), FAIR, played(0), slots=1)
    assert (found.started, found.utilisation) == (1, 0.0)


def test_nothing_started_is_a_report_too() -> None:
    found = report(of((0, "a", 5), (9, "b", 5)), FAIR, played(REFUSED, REFUSED, codes=["no_capacity"] * 2), slots=1)
    assert (found.started, found.waits, found.jain) == (0, {}, None)
    assert "no_capacity" in tables(trace_report(of((0, "a", 5))), [found])


@pytest.mark.parametrize("plays", [1, 2, 12])
def test_a_table_fits(plays: int) -> None:
    text = tables(trace_report(of((0, "a", 5))), [a_report(slots) for slots in range(1, plays + 1)])
    assert max(map(len, text.splitlines())) <= 100
    assert all(f"fair × {slots}" in text for slots in range(1, plays + 1))


def test_a_picture_is_a_png_where_its_name_says_so(tmp_path: Path) -> None:
    plot(tmp_path / "waits.png", [a_report()])
    assert (tmp_path / "waits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "says"), [("waits.gif", "svg or .png"), ("none/waits.svg", "no folder")])
def test_where_no_picture_can_be_is_said_before_the_play(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        check(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ((), "either a FILE or --made"),
        (("x.jsonl", "--made", "even"), "either a FILE or --made"),
        (("x.jsonl",), "cannot be read"),
        (("--made", "even", "--minutes", "0"), "minutes"),
        (("--made", "even", "--minutes", "nan"), "minutes"),
        (("--made", "even", "--load", "-1"), "load"),
        (("--made", "even", "--policy", "none.toml"), "cannot be read"),
        (("--made", "even", "--slots", "1,2,3,4,5,6,7", "--policy", "fair", "--policy", "fifo"), "14 replays"),
    ],
)
def test_a_wrong_line_is_refused_in_one_line(line: tuple[str, ...], says: str, capsys: Any) -> None:
    assert main(["simulate", *line]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("slots", ["0", "4,", "x", "5000", "-1"])
def test_slots_are_numbers(slots: str) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--made", "even", f"--slots={slots}"])


def test_the_help_names_every_shape() -> None:
    assert tuple(command.MADE) == tuple(SHAPES)
