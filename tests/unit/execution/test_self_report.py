import msgspec
import pytest

from director.core.ids import PredictionId
from director.core.states import Status
from director.execution.heartbeat import LONGEST_DETAIL, MOST_SERVERS, SelfReport
from director.execution.metering import RECENT, RECENT_MS, RecentEnds
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Server, Servers
from director.store.directors import About, EndsFound, RunFound, about_of
from tests.support.clock import FakeClock
from tests.support.scripted_runner import ScriptedRunner


def server(url: str = "http://127.0.0.1:5000", status: HealthStatus = HealthStatus.READY, detail: str = "") -> Server:
    runner = ScriptedRunner()
    runner.url = url
    return Server(runner, 2, health=Health(status=status, detail=detail))


def told(report: SelfReport, held: int = 0) -> About:
    return msgspec.json.decode(report.encode(held=held), type=About)


def test_a_state_has_the_time_at_which_it_began() -> None:
    clock, one = FakeClock(), server(status=HealthStatus.STARTING)
    report, began_ms = SelfReport(Servers([one]), clock), clock.now_ms()
    assert told(report).servers[0].since_ms == began_ms
    clock.pass_time(30)
    assert told(report).servers[0].since_ms == began_ms
    one.health = Health(status=HealthStatus.READY)
    [found] = told(report).servers
    assert (found.state, found.since_ms) == ("ready", began_ms + 30_000)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_reported_times_follow_the_clock_of_redis(ahead_ms: int) -> None:
    clock = FakeClock()
    report = SelfReport(Servers([server()]), clock)
    clock.pass_time(60)
    report.encode(held=0)
    clock.pass_time(30)
    at_ms = clock.now_ms() - ahead_ms
    about = about_of(report.encode(held=0), at_ms=at_ms)
    assert (about.since_ms, about.servers[0].since_ms) == (at_ms - 90_000, at_ms - 30_000)


def test_report_of_another_release_is_read_or_empty() -> None:
    assert about_of(b'{"since_ms": 7}', at_ms=1_000_000).since_ms == 7
    assert about_of(b"of another release", at_ms=1) == about_of(None, at_ms=1) == About()


def test_a_server_that_is_given_no_work_says_why() -> None:
    one = server()
    report = SelfReport(Servers([one]), FakeClock())
    one.doubt.set()
    assert told(report).servers[0].state == "doubted"
    one.is_resting = True
    [found] = told(report).servers
    assert found.state == "resting"
    assert found.detail.startswith("resting: ")


def test_whatever_servers_say_it_stays_small() -> None:
    many = [server(f"http://127.0.0.1:{port}", HealthStatus.UNHEALTHY, "é" * 5_000) for port in range(5_000, 5_100)]
    report = SelfReport(Servers(many), FakeClock())
    about = told(report)
    assert (len(about.servers), about.more) == (MOST_SERVERS, 100 - MOST_SERVERS)
    assert {len(each.detail) for each in about.servers} == {LONGEST_DETAIL}
    assert len(report.encode(held=0)) < 16_384


def test_oldest_run_follows_the_clock_of_redis() -> None:
    clock = FakeClock()
    report, at_ms = SelfReport(Servers([server()]), clock), clock.now_ms() - 3_600_000
    oldest = RunFound(id=PredictionId("a"), since_ms=clock.now_ms() - 40_000, limit_s=60)
    about = about_of(report.encode(held=1, oldest=oldest, ends=EndsFound(ended=3)), at_ms=at_ms)
    assert about.oldest == RunFound(id=PredictionId("a"), since_ms=at_ms - 40_000, limit_s=60)
    assert about.ends == EndsFound(ended=3)


def test_recent_ends_count_failures_and_the_last_time_outs() -> None:
    ends, now_ms = RecentEnds(), 1_800_000_000_000
    assert ends.find(now_ms) == EndsFound()
    for number, code in enumerate(["model_failed", "timed_out", "", "timed_out", "timed_out"]):
        ends.add(str(number), Status.FAILED if code else Status.SUCCEEDED, code, now_ms + number)
    ends.add("5", Status.CANCELED, "", now_ms + 5)
    assert ends.find(now_ms) == EndsFound(ended=5, failed=4, timed_out_in_a_row=2, failed_id="4", failed_ms=now_ms + 4)
    later = ends.find(now_ms + RECENT_MS + 4)
    assert (later.ended, later.failed) == (1, 1), "older ends do not count"
    assert (later.timed_out_in_a_row, later.failed_id) == (2, "4"), "a run limit may be longer"
    ends.add("6", Status.FAILED, "invalid_input", now_ms + 6)
    assert ends.find(now_ms + 6).ended == 5, "its caller's fault"
    for number in range(2 * RECENT):
        ends.add(str(number), Status.SUCCEEDED, "", now_ms)
    assert ends.find(now_ms) == EndsFound(ended=RECENT)


def test_longest_run_is_forgotten_slowly() -> None:
    ends = RecentEnds()
    ends.add("0", Status.SUCCEEDED, "", 0, run_s=60)
    for number in range(100):
        ends.add(str(number), Status.SUCCEEDED, "", 0, run_s=1)
    ends.add("1", Status.FAILED, "timed_out", 0, run_s=1800)
    assert 45 < ends.find(0).longest_s < 50
    for number in range(5_000):
        ends.add(str(number), Status.SUCCEEDED, "", 0, run_s=1)
    assert ends.find(0).longest_s == 1
