"""Test that a machine vanishes without a reset, and comes back with its connections."""

import socket

import pytest

from tests.support.far_host import FarHost
from tests.support.servers import far_host

pytestmark = pytest.mark.faults
LIMIT_S = 10.0


def connected(host: FarHost) -> tuple[socket.socket, socket.socket]:
    with host.listen() as listener:
        near = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
        far, _ = listener.accept()
    far.settimeout(LIMIT_S)
    return near, far


def test_vanished_machine_resets_nothing_and_takes_no_connection() -> None:
    with far_host() as host, host.listen() as listener:
        near, far = connected(host)
        with near, far:
            host.vanish()
            near.send(b"lost")
            near.settimeout(0.3)
            with pytest.raises(TimeoutError):
                near.recv(1)
            with pytest.raises(TimeoutError):
                socket.create_connection(listener.getsockname(), timeout=0.3)


def test_bytes_sent_meanwhile_arrive_when_the_machine_is_back() -> None:
    with far_host() as host:
        near, far = connected(host)
        with near, far:
            host.vanish()
            near.send(b"late")
            host.come_back()
            assert far.recv(4) == b"late"
            far.send(b"answer")
            assert near.recv(6) == b"answer"


def test_socket_of_a_vanished_machine_ends_with_etimedout() -> None:
    with far_host() as host:
        near, far = connected(host)
        with near, far:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
            host.vanish()
            near.send(b"lost")
            with pytest.raises(TimeoutError, match="Connection timed out"):
                near.recv(1)
