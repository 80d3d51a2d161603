"""Ports of this machine: a free one, and whether a wanted one is."""

import errno
import os
import socket

from director.local.errors import UpError

__all__ = ("claimable", "free_port")


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now."""
    return _bind(host, 0)


def claimable(host: str, port: int) -> int:
    """This port, or a free one for 0. Raises UpError with the next step where it cannot be listened on."""
    try:
        return _bind(host, port)
    except socket.gaierror as exc:
        raise UpError(f"{host} is no address of this machine. Choose one with --host, such as 127.0.0.1.") from exc
    except PermissionError as exc:
        raise UpError(f"Port {port} is reserved for the system. Choose one above 1023 with --port.") from exc
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise UpError(
                f"Port {port} of {host} is taken. Stop what listens there, or choose another with --port."
            ) from exc
        raise UpError(f"Cannot listen on {host}:{port}: {os.strerror(exc.errno or 0)}. Choose with --host.") from exc


def _bind(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the API will: a port just left is free
        probe.bind(address)
        probe.listen()  # on Linux, bind alone succeeds beside a socket that has not begun to listen
        return int(probe.getsockname()[1])
