"""Look up the addresses of a server's name, and keep those of the last good answer while the name servers are away.

In a cluster a name server may vanish with the machine that it ran on, together with the Redis that clients must leave
just then. Each connection to the next one would wait for a lookup that fails: a failover of 8 s took 53 s. The names of
servers are Services there, whose addresses stay. A lookup cannot be canceled, so it has a thread of its own, and one
name has one lookup at a time.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Final

# How long a lookup keeps a connection waiting if an earlier answer is known. A Sentinel has 1 s for the whole connect
WAIT_S: Final = 0.3

Failure = OSError | UnicodeError


class Names:
    """The names that one process connects to. They are those of its settings, and those that servers announce."""

    def __init__(self) -> None:
        self._names: dict[str, Name] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host, most preferred first. Raises OSError or UnicodeError if none is known."""
        try:
            return [str(ip_address(host))]
        except ValueError:
            pass
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = Name(host)
        return await name.addresses()


class Name:
    def __init__(self, host: str) -> None:
        self._host = host
        self._known: Sequence[str] = ()
        self._asked_at = 0.0
        self._lookup: Future[Failure | None] | None = None

    async def addresses(self) -> Sequence[str]:
        if self._lookup is None or self._lookup.done():
            self._lookup = self._ask()
        left_s = max(0.0, self._asked_at + WAIT_S - time.monotonic()) if self._known else None
        ended = asyncio.wrap_future(self._lookup)
        try:
            await asyncio.wait([ended], timeout=left_s)
            failure = ended.result() if ended.done() else None
        finally:
            ended.cancel()
        if failure is not None and not self._known:
            raise failure.with_traceback(None)
        return self._known

    def _ask(self) -> Future[Failure | None]:
        self._asked_at = time.monotonic()
        lookup: Future[Failure | None] = Future()
        lookup.set_running_or_notify_cancel()  # from now on nothing cancels it
        # a daemon, since a lookup may take half a minute, and a process that ends does not wait for it
        threading.Thread(target=self._look, args=[lookup], name="redis-lookup", daemon=True).start()
        return lookup

    def _look(self, lookup: Future[Failure | None]) -> None:
        try:
            found = socket.getaddrinfo(self._host, 0, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            lookup.set_result(exc)  # as a result: an exception that nothing retrieves would be logged
        else:
            self._known = [str(address[0]) for *_, address in found]  # also if it comes later than any call waits
            lookup.set_result(None)


NAMES: Final = Names()
