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


def test_wait_doubles_up_to_a_limit_until_the_server_recovers() -> None:
    recovery, now = Recovery({HealthStatus.SETUP_FAILED: WAIT_S}), 0.0
    waits = []
    for start in range(8):
        waits.append(due_after(recovery, failed(str(start)), now))
        now += 10_000
    assert waits == [10, 20, 40, 80, 160, 320, LONGEST_S, LONGEST_S]
    assert not recovery.is_due(READY, now, is_idle=True)
    assert due_after(recovery, failed("again"), now) == WAIT_S
    assert due_after(Recovery({HealthStatus.SETUP_FAILED: 2000}), failed("0"), 0) == 2000, "a longer setting is kept"


def test_busy_server_starts_the_wait_again() -> None:
    recovery = Recovery({HealthStatus.SETUP_FAILED: WAIT_S})
    assert not recovery.is_due(failed("0"), 0, is_idle=True)
    assert not recovery.is_due(failed("0"), 100, is_idle=False)
    assert due_after(recovery, failed("0"), 200) == WAIT_S
