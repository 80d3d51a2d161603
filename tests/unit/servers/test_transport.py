import httpx
import pytest

from director.servers.runners.runner import Outcome
from director.servers.runners.transport import connection_lost

CASES = {
    "unsent to a server that is gone": (httpx.ConnectError, False, Outcome.REFUSED, True),
    "unsent to a slow server": (httpx.ConnectTimeout, False, Outcome.REFUSED, False),
    "begun, and gone on a retry": (httpx.ConnectError, True, Outcome.LOST, True),
    "broken while it was read": (httpx.ReadError, False, Outcome.LOST, True),
    "broken while it was sent": (httpx.WriteError, False, Outcome.LOST, True),
    "hung up": (httpx.RemoteProtocolError, False, Outcome.LOST, True),
}


@pytest.mark.parametrize(("exc", "has_begun", "outcome", "is_dead"), CASES.values(), ids=list(CASES))
def test_run_that_may_have_begun_is_lost_with_its_connection(
    exc: type[httpx.TransportError], has_begun: bool, outcome: Outcome, is_dead: bool
) -> None:
    ended = connection_lost(exc("why"), has_begun=has_begun)
    assert (ended.outcome, ended.server_is_dead) == (outcome, is_dead)
