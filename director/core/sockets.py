"""The options of a connection by which the kernel finds out that the machine at its other end is gone.

A machine that vanishes resets nothing. Without these options an idle connection to it lasts for ever, and one with
bytes that were not acknowledged for a quarter of an hour.
"""

import socket
from typing import Final

IDLE_S: Final = 5
EVERY_S: Final = 5
UNANSWERED: Final = 3
GONE_S: Final = IDLE_S + EVERY_S * UNANSWERED

Option = tuple[int, int, int]


def probes() -> list[Option]:
    """Return options for `setsockopt` that end an idle connection after GONE_S."""
    named = (
        ("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE", IDLE_S),  # Linux; macOS
        ("TCP_KEEPINTVL", EVERY_S),
        ("TCP_KEEPCNT", UNANSWERED),
    )
    known = [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in named if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def limit_unacknowledged(limit_s: float) -> list[Option]:
    """Return the option that ends a connection whose bytes are not acknowledged for `limit_s`; 0: the kernel's default.

    It also ends one to a machine that is alive, if its process reads nothing and its buffers are full. It holds in
    place of the number of probes, so a limit above GONE_S delays the end of an idle connection too. Only Linux has it.
    """
    number = getattr(socket, "TCP_USER_TIMEOUT", None)
    return [] if number is None else [(socket.IPPROTO_TCP, number, round(limit_s * 1000))]
