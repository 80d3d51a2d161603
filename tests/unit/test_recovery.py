"""When a server that does not get well by itself is asked to end."""

from director.servers.fleet import LONGEST_S, Recovery
from director.servers.runners.runner import Health, HealthStatus

READY = Health(status=HealthStatus.READY, since="0")
WAIT_S = 10.0


def failed(since: str) -> Health:
    return Health(status=HealthStatus.SETUP_FAILED, since=since)


def due_after(recovery: Recovery, health: Health, now: float) -> float:
    """How long after `now`, which is the first look, it is due."""
    assert not recovery.is_due(health, now, is_idle=True)
    waited = 0
    while not recovery.is_due(health, now + waited, is_idle=True):
        waited += 1
    return waited


def test_each_start_that_did_not_help_doubles_the_wait_up_to_a_bound_and_one_that_did_begins_anew() -> None:
    recovery, now = Recovery({HealthStatus.SETUP_FAILED: WAIT_S}), 0.0
    waits = []
    for start in range(8):
        waits.append(due_after(recovery, failed(str(start)), now))
        now += 10_000
    assert waits == [10, 20, 40, 80, 160, 320, LONGEST_S, LONGEST_S]
    assert not recovery.is_due(READY, now, is_idle=True)
    assert due_after(recovery, failed("again"), now) == WAIT_S


def test_a_wait_that_is_longer_than_the_bound_is_what_it_is() -> None:
    assert due_after(Recovery({HealthStatus.SETUP_FAILED: 2000}), failed("0"), 0) == 2000


def test_one_that_runs_something_is_left_and_waited_for_anew() -> None:
    recovery = Recovery({HealthStatus.SETUP_FAILED: WAIT_S})
    assert not recovery.is_due(failed("0"), 0, is_idle=True)
    assert not recovery.is_due(failed("0"), 100, is_idle=False)
    assert due_after(recovery, failed("0"), 200) == WAIT_S


def test_a_state_without_a_wait_lasts_as_long_as_it_likes() -> None:
    recovery = Recovery({HealthStatus.SETUP_FAILED: 0})
    starting = Health(status=HealthStatus.STARTING, since="0")
    assert not any(recovery.is_due(health, 1e9, is_idle=True) for health in (failed("0"), starting))
