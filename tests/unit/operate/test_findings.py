from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from director import __version__
from director.broker.replies import QueueStats
from director.core.data_bytes import Fullness
from director.core.ids import PredictionId, QueueName
from director.core.policy import Objective
from director.core.samples import Burn
from director.core.view import iso
from director.operate.findings import (
    MOST,
    Closer,
    Expiry,
    Failure,
    Finding,
    Heaviest,
    Letter,
    Neglected,
    Situation,
    Usual,
    away,
    find,
    writes_to_disk,
)
from director.store.account_data import Holder
from director.store.directors import About, DirectorFound, EndsFound, HeartbeatFound, RunFound, ServerFound
from director.store.owed import FailingHost
from director.store.processes import Process

NOW = 1_800_000_000_000
Q = QueueName("acme/echo:0123456789ab")
WELL = QueueStats(
    high=0, normal=3, low=0, claimed=1, delayed=0, dead=0, live=4, oldest_ms=90_000, directors=1, streams=16, read=16,
    paused=False, slots=2, service_ms=500, service_cost=1, mode="", max_queued=None, breaker="", starting=0,
    setup_failed=0, server_auth=0, leaving=0, tally={},
)  # fmt: skip
SERVER = ServerFound(url="http://gpu-1:5000", state="ready", since_ms=NOW - 60_000, slots=2)


def director(name: str = "d1", *servers: ServerFound, silent_s: float = 1, **said: Any) -> DirectorFound:
    about = About(since_ms=NOW - 3_600_000, held=1, servers=servers or (SERVER,), version=__version__)
    of_about = ("now_ms", "since_ms", "held", "version", "oldest", "ends", "files")
    about = replace(about, **{key: said.pop(key) for key in of_about if key in said})
    state, silent_ms = said.pop("state", "ready"), int(silent_s * 1000)
    last = HeartbeatFound(queue=Q, at_ms=NOW - silent_ms, slots=2, state=state, about=about)
    return DirectorFound(name=name, heartbeats=(last,), silent_ms=silent_ms)


def situation(
    *directors: DirectorFound, closer: Mapping[str, Any] | None = None, owed_late: int = 0, **stats: Any
) -> Situation:
    return Situation(
        queues={Q: replace(WELL, **stats)},
        directors=directors or (director(),),
        owed_late=owed_late,
        closer=Closer(**{"now_ms": NOW, "redis_ms": 0.4, **(closer or {})}),
    )


def found(*directors: DirectorFound, **facts: Any) -> list[tuple[str, str]]:
    return [(one.code, one.level) for one in find(situation(*directors, **facts))]


def only(*directors: DirectorFound, **facts: Any) -> Finding:
    [finding] = find(situation(*directors, **facts))
    return finding


def test_healthy_service_has_no_findings() -> None:
    assert find(situation()) == []


def test_queue_with_work_but_no_director_is_bad() -> None:
    finding = only(directors=0, slots=0)
    assert (finding.code, finding.level, finding.queue) == ("queue_not_served", "bad", Q)
    assert "3 waiting, the oldest for 90 s" in finding.detail
    assert finding.ask == "director run --model acme/echo"
    assert found(directors=0, slots=0, normal=0) == []
    assert "all of its directors are about to end" in only(director(state="draining"), slots=0).detail


def test_silent_director_is_found_with_its_claims() -> None:
    finding = only(director(), director("d2", silent_s=40, held=3))
    assert (finding.code, finding.level) == ("director_gone", "bad")
    assert "d2, 40 s ago, with 3 claims in hand. 1 director left: another one runs again" in finding.detail
    assert found(director(), director("d2", silent_s=40, held=0)) == [("director_gone", "warn")]


def test_queue_whose_last_director_went_silent_has_one_finding() -> None:
    gone = director("d2", silent_s=40)
    finding = only(gone, directors=0, slots=0)
    assert (finding.code, finding.level) == ("director_gone", "bad")
    assert "None is left: 3 waiting, the oldest for 90 s." in finding.detail
    idle = [director("d2", silent_s=40, held=0), director("d3", state="draining")]
    assert found(*idle, directors=1, slots=0) == [("director_gone", "bad")], "no other one takes work"


@pytest.mark.parametrize(
    "other",
    [director("d2", silent_s=40, state="draining"), director("d2", silent_s=700), director("d2", silent_s=20)],
    ids=["drained", "long ago", "not silent yet"],
)
def test_drained_or_long_silent_director_is_no_finding(other: DirectorFound) -> None:
    assert found(director(), other) == []


def test_new_director_replaces_exactly_one_silent_director() -> None:
    came = director("d3", since_ms=NOW - 10_000)
    assert found(came, director("d2", silent_s=40)) == []
    finding = only(came, director("d2", silent_s=40), director("d4", silent_s=50))
    assert finding.title == "1 director went silent"


BROKEN = replace(SERVER, state="setup_failed", detail="setup_failed: no weights", failed_starts=1)
FAULTS_OF_SERVERS: dict[str, tuple[ServerFound, str]] = {
    "its setup failed": (BROKEN, "setup_failed"),
    "it starts again and again": (replace(BROKEN, state="starting", failed_starts=7), "setup_loop"),
    "it refuses the key": (replace(SERVER, state="resting", detail="server_auth: 401"), "server_auth"),
    "it is away": (replace(SERVER, state="unreachable", detail="unreachable: refused"), "servers_unwell"),
}


@pytest.mark.parametrize(("server", "code"), FAULTS_OF_SERVERS.values(), ids=list(FAULTS_OF_SERVERS))
def test_server_that_cannot_run_is_found_under_its_cause(server: ServerFound, code: str) -> None:
    finding = only(director("d1", SERVER, server))
    assert (finding.code, finding.level) == (code, "warn")
    assert f"1 of 2 servers: {server.url} is {server.state} for 60 s" in finding.detail
    assert server.detail.removeprefix(f"{server.state}: ") in finding.detail
    told = {"setup_loop": "setup_failed", "servers_unwell": "starting"}.get(code, code)
    assert found(director("d1", server), slots=0, **{told: 1}) == [(code, "bad")]


def test_failed_setup_is_told_once() -> None:
    slot = "worker setup failed (slot adf33c15-d711-4ee4): Setup failed: setup failed: "
    broken = replace(BROKEN, detail=f"setup_failed: worker setup failed: {slot}FileNotFoundError: no weights")
    assert "for 60 s (FileNotFoundError: no weights)." in only(director("d1", broken)).detail


def test_setup_loop_counts_failed_starts() -> None:
    assert "7 starts in a row failed" in only(director("d1", replace(BROKEN, failed_starts=7))).detail


def test_briefly_unreachable_server_is_not_unwell() -> None:
    assert found(director("d1", replace(SERVER, state="unreachable", since_ms=NOW - 5_000))) == []


def test_setup_of_more_than_a_minute_is_found_with_its_likely_cause() -> None:
    slow = replace(SERVER, state="starting", since_ms=NOW - 61_000)
    finding = only(director("d1", slow))
    assert (finding.code, finding.level) == ("setup_slow", "warn")
    assert "PATH must have cog" in finding.detail
    assert found(director("d1", replace(slow, since_ms=NOW - 59_000))) == []


def test_missing_schema_is_found() -> None:
    finding = only(director("d1", SERVER, replace(SERVER, has_schema=False)))
    assert (finding.code, finding.level) == ("no_schema", "warn")
    assert finding.ask == "director schema FOLDER"


def test_failed_setup_is_found_without_details_from_old_directors() -> None:
    last = HeartbeatFound(queue=Q, at_ms=NOW, slots=0, state="setup_failed", about=About())
    old = DirectorFound(name="d1", heartbeats=(last,), silent_ms=0)
    assert found(old, slots=0, setup_failed=1) == [("setup_failed", "bad")]


def test_paused_queue_is_found_only_with_work() -> None:
    finding = only(paused=True)
    assert (finding.code, finding.level, finding.ask) == ("queue_paused", "warn", f"director queues resume {Q}")
    assert found(paused=True, normal=0) == []


def flood(waiting: int, of: int, accounts: int = 3) -> list[tuple[str, str]]:
    heaviest = {Q: Heaviest(account="noisy", waiting=waiting, accounts=accounts)}
    return found(normal=of, closer={"heaviest": heaviest})


def test_account_with_four_fifths_of_a_crowd_is_named() -> None:
    heaviest = {Q: Heaviest(account="noisy", waiting=850, accounts=3)}
    finding = only(normal=900, closer={"heaviest": heaviest})
    assert (finding.code, finding.level) == ("tenant_flooding", "warn")
    assert "noisy has 850 of the 900 that wait. The 2 other accounts still start in turn." in finding.detail
    assert (flood(700, 900), flood(99, 99), flood(900, 900, accounts=1)) == ([], [], [])


def test_dead_letters_say_how_the_newest_attempts_ended() -> None:
    letter = Letter(id="abc", at_ms=NOW - 30_000, codes=("server_died", "server_died"))
    finding = only(dead=2, closer={"letters": {Q: letter}})
    assert (finding.code, finding.level, finding.ask) == ("dead_letters", "warn", "director dead show abc")
    assert "2 predictions" in finding.detail
    assert "abc, 30 s ago: server_died, server_died" in finding.detail


def test_failing_receiver_is_named_by_host() -> None:
    host = FailingHost(
        host="hooks.example", count=12, id="abc", attempts=5, oldest_at=iso(NOW - 600_000), last="with status 500"
    )
    finding = only(closer={"failing": [host]})
    assert (finding.code, finding.queue) == ("receiver_dead", None)
    assert finding.title == "hooks.example takes no webhooks"
    assert (
        "12 webhooks owed there, the oldest for 10 min, tried 5 times, the last time with status 500: see abc."
        in finding.detail
    )


def test_late_webhooks_are_a_warning() -> None:
    assert found(owed_late=3) == [("webhooks_late", "warn")]


def test_neglected_leases_and_deadlines_mean_no_keeper() -> None:
    finding = only(closer={"neglected": {Q: Neglected(expired_leases=2, due_deadlines=1)}})
    assert (finding.code, finding.level) == ("keeper_silent", "bad")
    assert f"2 expired leases in {Q}, 1 passed deadline in {Q}" in finding.detail


def test_slow_and_absent_redis_are_found() -> None:
    slow = only(closer={"redis_ms": 120.0})
    assert (slow.code, slow.level) == ("redis_slow", "warn")
    assert "after 120 ms" in slow.detail
    assert (away("Redis is away: TimeoutError").code, away("x").level) == ("redis_away", "bad")


BURNING = [("objective_burning", "bad")]
MISSED = [("objective_missed", "warn")]


@pytest.mark.parametrize(
    ("share", "soon", "hour", "codes"),
    [
        (0.95, 20.0, 15.0, BURNING),
        (0.95, 20.0, 2.0, MISSED),
        (0.95, 20.0, 0.9, []),
        (0.9, 9.75, 9.75, BURNING),
        (0.9, 5.0, 5.0, MISSED),
        (0.5, 2.0, 2.0, BURNING),
        (0.5, 1.4, 1.4, MISSED),
        (0.999, 12.0, 11.0, BURNING),
    ],
)
def test_objective_of_any_share_burns_only_over_both_windows(
    share: float, soon: float, hour: float, codes: list[tuple[str, str]]
) -> None:
    windows = {"5m": Burn(met=0, missed=40, rate=soon), "1h": Burn(met=0, missed=90, rate=hour)}
    objectives = {"normal": Objective(share=share, within_s=1)}
    assert found(objectives=objectives, closer={"burns": {Q: {"normal": windows}}}) == codes


def test_few_late_starts_of_an_hour_miss_no_objective() -> None:
    windows = dict.fromkeys(("5m", "1h"), Burn(met=9, missed=1, rate=2.0))
    objectives = {"normal": Objective(share=0.95, within_s=1)}
    assert found(objectives=objectives, closer={"burns": {Q: {"normal": windows}}}) == []


USUAL = Usual(mean_s=2.0, deviation_s=5.0, runs=50)  # at most 32 s


def running(since_s: float, limit_s: float = 1800) -> DirectorFound:
    oldest = RunFound(id=PredictionId("abc"), since_ms=NOW - int(since_s * 1000), limit_s=limit_s)
    return director(oldest=oldest)


def test_run_that_takes_far_longer_than_usual_is_found() -> None:
    finding = only(running(75), slots=1, closer={"usual": {Q: USUAL}})
    assert (finding.code, finding.level, finding.ask) == ("run_hangs", "bad", "director explain abc")
    assert "abc has run for 75 s at d1, whose server looks healthy" in finding.detail
    assert "that succeed take 2.0 s on average. It is stopped after 30 min" in finding.detail
    assert found(running(75), slots=2, closer={"usual": {Q: USUAL}}) == [("run_hangs", "warn")], "another slot is free"
    assert found(running(31), closer={"usual": {Q: USUAL}}) == []


def test_finding_of_a_hung_run_proposes_a_limit_by_the_usual_time() -> None:
    finding = only(running(75), closer={"usual": {Q: USUAL}})
    assert "`director model config acme/echo --set run_limit_s=120`" in finding.detail
    assert "model config" not in only(running(75, limit_s=100), closer={"usual": {Q: USUAL}}).detail


def test_run_of_an_unknown_model_hangs_after_half_of_its_limit() -> None:
    usual = {"usual": {Q: Usual(mean_s=0.1, runs=4)}}
    assert found(running(75), closer=usual) == []
    assert "Too few runs have succeeded" in only(running(75, limit_s=120), closer=usual).detail


def frozen(*servers: ServerFound) -> DirectorFound:
    oldest = RunFound(id=PredictionId("abc"), since_ms=NOW - 75_000, limit_s=1800)
    return director("d1", replace(SERVER, state="unreachable"), *servers, oldest=oldest)


def test_run_on_a_frozen_server_is_the_fault_of_the_server() -> None:
    usual = {"usual": {Q: USUAL}}
    assert found(frozen(), slots=0, starting=1, closer=usual) == [("servers_unwell", "bad")]
    hangs = [one for one in find(situation(frozen(SERVER), closer=usual)) if one.code == "run_hangs"]
    assert [" at d1. " in one.detail for one in hangs] == [True], "it may be on the other server"


def test_rare_long_runs_are_usual_while_a_director_remembers_them() -> None:
    rare = director("d2", ends=EndsFound(ended=50, longest_s=60))
    assert found(running(75), rare, closer={"usual": {Q: USUAL}}) == []
    assert found(running(121), rare, closer={"usual": {Q: USUAL}}) == [("run_hangs", "warn")]


def test_run_of_a_higher_declared_cost_may_take_as_much_longer() -> None:
    oldest = RunFound(id=PredictionId("abc"), since_ms=NOW - 75_000, limit_s=1800, cost=10)
    assert found(director(oldest=oldest), closer={"usual": {Q: replace(USUAL, cost=2.0)}}) == []
    assert found(director(oldest=oldest), closer={"usual": {Q: replace(USUAL, cost=9.0)}}) == [("run_hangs", "warn")]


def test_runs_of_milliseconds_hang_only_after_some_seconds() -> None:
    usual = {"usual": {Q: Usual(mean_s=0.01, runs=50)}}
    assert found(running(19), closer=usual) == []
    assert found(running(21), closer=usual) == [("run_hangs", "warn")]


def ended(name: str = "d1", **counts: Any) -> DirectorFound:
    return director(name, ends=EndsFound(**{"failed_id": name, "failed_ms": NOW, **counts}))


def test_runs_that_time_out_in_a_row_are_counted_at_each_director() -> None:
    each = [ended(f"d{number}", ended=9, failed=1, timed_out_in_a_row=2) for number in range(5)]
    assert found(*each) == [], "in many directors some last run took too long"
    finding = only(*each, ended("d9", ended=3, failed=3, timed_out_in_a_row=3))
    assert (finding.code, finding.level, finding.ask) == ("runs_time_out", "bad", "director explain d9")
    assert "The last 3 runs at d9 were stopped by the run limit" in finding.detail


def test_runs_that_timed_out_long_ago_count_while_there_is_work() -> None:
    long_ago = ended(timed_out_in_a_row=3)
    assert found(long_ago, live=1) == [("runs_time_out", "bad")]
    assert found(long_ago, live=0) == []


@pytest.mark.parametrize(
    ("runs", "failed", "codes"),
    [
        (40, 23, [("model_failing", "warn")]),
        (10, 10, [("model_failing", "bad")]),
        (20, 16, [("model_failing", "bad")]),
        (20, 15, [("model_failing", "warn")]),
        (5, 5, [("model_failing", "warn")]),
        (9, 5, []),
        (40, 22, []),
        (4, 4, []),
        (0, 0, []),
    ],
)
def test_model_that_fails_most_runs_is_found(runs: int, failed: int, codes: list[tuple[str, str]]) -> None:
    assert found(ended(ended=runs, failed=failed)) == codes


def test_failing_model_is_quoted_in_few_words() -> None:
    def said(error: str) -> str:
        return only(ended(ended=9, failed=9), closer={"failures": {"d1": Failure(error=error)}}).detail

    assert "the newest is d1: “ValueError: 3 rows”. Correct the model" in said("ValueError: 3 rows\nsecond line")
    assert "the newest is d1. Correct the model" in said("")
    assert len(said("x" * 10_000)) < 400


def test_runs_at_the_limit_are_told_with_the_usual_time() -> None:
    timed_out = ended(ended=3, failed=3, timed_out_in_a_row=3)
    finding = only(timed_out, closer={"failures": {"d1": Failure(error="late", ran_s=4.0)}})
    assert "the newest, d1, after 4.0 s. Runs of this model that succeed take 0.5 s on average." in finding.detail
    assert "Too few runs have succeeded" in only(timed_out, service_ms=0).detail


@pytest.mark.parametrize(
    ("used", "codes"),
    [(70, []), (80, [("redis_filling", "warn")]), (95, [("redis_filling", "bad")]), (101, [("redis_full", "bad")])],
)
def test_redis_that_fills_is_found(used: int, codes: list[tuple[str, str]]) -> None:
    assert found(closer={"memory": Fullness(used << 20, 100 << 20)}) == codes
    assert found(closer={"memory": Fullness(used << 20, 0)}) == [], "it may have all memory"


def test_account_with_most_of_the_data_is_found_once_memory_is_used() -> None:
    holder = Holder(account="noisy", bytes=60 << 20, total=100 << 20, accounts=3)
    memory, fills = Fullness(160 << 20, 200 << 20), ("redis_filling", "warn")
    assert found(closer={"holder": holder, "memory": memory}) == [fills, ("account_holds_most", "warn")]
    filling, finding = find(situation(closer={"holder": holder, "memory": memory}))
    assert "160 MB of 200 MB are used, 60 MB of them by noisy." in filling.detail
    assert "noisy has 60 MB of the 100 MB that 3 accounts keep in Redis, and 80%" in finding.detail
    assert found(closer={"holder": holder, "memory": memory._replace(used=100 << 20)}) == [], "there is room"
    alone, less, little = {"accounts": 1}, {"bytes": 40 << 20}, {"bytes": 6 << 20, "total": 9 << 20}
    for other in (replace(holder, **facts) for facts in (alone, less, little)):
        assert found(closer={"holder": other, "memory": memory}) == [fills], other


def test_tokens_that_expire_soon_are_one_finding() -> None:
    soon = [Expiry("zoo", "t2", NOW + 3 * 86_400_000), Expiry("acme", "t1", NOW + 7_200_000)]
    finding = only(closer={"expiring": soon})
    assert finding.code == "token_expires"
    assert "2 tokens of acme, zoo expire within 7 days, the first, t1, in 2 h" in finding.detail


def test_server_that_shows_another_schema_is_found() -> None:
    finding = only(director("d1", SERVER, replace(SERVER, is_other_version=True)))
    assert (finding.code, finding.level) == ("version_changed", "warn")


KEEPER = Process(name="k1", role="keeper", version=__version__, since_ms=NOW, ahead_s=0)


def test_processes_of_another_release_are_found() -> None:
    keepers = [KEEPER, replace(KEEPER, name="k2", version="0.0.8")]
    finding = only(director(), director("d2", version="0.0.9"), closer={"processes": keepers})
    assert finding.code == "former_release"
    assert "2 of 4 processes are not of this release" in finding.detail
    assert "d2 has 0.0.9, k2 has 0.0.8" in finding.detail
    assert found(director("d2", version="0.0.9", silent_s=700)) == []


def test_store_of_files_that_fails_at_a_director_is_found() -> None:
    finding = only(director(files="there is no such bucket"))
    assert finding.code == "files_away"
    assert finding.detail.startswith("The director d1: there is no such bucket. ")
    gone = director("d2", files="there is no such bucket", silent_s=30)
    assert "files_away" not in [code for code, _ in found(director(), gone)]


def test_clock_that_is_wrong_is_found() -> None:
    behind = only(director("d2", now_ms=NOW - 61_000), closer={"processes": [replace(KEEPER, ahead_s=4)]})
    assert behind.code == "clock_off"
    assert "The clock of the director d2 is 60 s behind Redis's." in behind.detail
    ahead = only(closer={"processes": [KEEPER, replace(KEEPER, name="k2", ahead_s=60)]})
    assert "The clock of the keeper k2 is 60 s ahead of Redis's." in ahead.detail
    assert found(director("d2", now_ms=NOW - 61_000, silent_s=700)) == []


def test_log_that_redis_cannot_write_is_found() -> None:
    assert found(closer={"writes_to_disk": False}) == [("redis_disk", "bad")]
    assert writes_to_disk({"aof_last_write_status": "ok"})
    assert not writes_to_disk({"aof_last_write_status": "err"})


def test_findings_are_bounded_and_no_kind_hides_another() -> None:
    stats = replace(WELL, directors=0, slots=0)
    queues = {QueueName(f"acme/m{number:03d}:0123456789ab"): stats for number in range(MOST)}
    queues |= {Q: replace(WELL, dead=1), QueueName("acme/z:0123456789ab"): replace(WELL, paused=True)}
    findings = find(Situation(queues=queues, directors=[director()], closer=Closer(now_ms=NOW)))
    assert len(findings) == MOST
    codes = [one.code for one in findings[:4]]
    assert codes == ["queue_not_served", "queue_paused", "dead_letters", "queue_not_served"]
    assert [one.queue for one in findings[3:]] == [queue for queue in sorted(queues) if "/m" in queue][1 : MOST - 2]


def test_open_breaker_does_not_hide_missing_directors() -> None:
    assert found(breaker="open", directors=0, slots=0) == [("queue_not_served", "bad"), ("breaker_open", "bad")]
