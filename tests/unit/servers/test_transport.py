import httpx
import pytest

from director.servers.runners.runner import Outcome
from director.servers.runners.transport import connection_lost

BROKEN = [httpx.ReadError("broke"), httpx.WriteError("broke"), httpx.RemoteProtocolError("hung up")]


@pytest.mark.parametrize(
    ("exc", "is_dead"), [(httpx.ConnectError("refused"), True), (httpx.ConnectTimeout("slow"), False)]
)
def test_unsent_run_is_refused_and_a_gone_server_is_dead(exc: httpx.TransportError, is_dead: bool) -> None:
    ended = connection_lost(exc, has_begun=False)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.REFUSED, is_dead)


def test_begun_run_is_lost_if_its_server_is_gone_on_retry() -> None:
    ended = connection_lost(httpx.ConnectError("refused"), has_begun=True)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)


@pytest.mark.parametrize("exc", BROKEN, ids=["read", "write", "protocol"])
def test_a_run_whose_connection_broke_may_have_begun_and_is_lost(exc: httpx.TransportError) -> None:
    ended = connection_lost(exc, has_begun=False)
    assert (ended.outcome, ended.server_is_dead) == (Outcome.LOST, True)
