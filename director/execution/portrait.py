"""What a director says of itself with each beat: its release, since when it is there, how each of its servers stands.

Bounded, whatever servers say. Nothing is decided by it: it is for operators.
"""

from typing import Final

import msgspec

from director import __version__
from director.core.clock import Clock
from director.servers.servers import Server, Servers
from director.store.directors import About, ServerFound

__all__ = ("Portrait",)

MOST_SERVERS: Final = 16
LONGEST_DETAIL: Final = 200


class Portrait:
    """Of one director. How long a server is in its state is known to a beat."""

    def __init__(self, servers: Servers, clock: Clock) -> None:
        self._servers = servers
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._states: dict[str, tuple[str, int]] = {}  # by address: the state, and since when it was seen

    def about(self, *, held: int) -> bytes:
        """As it goes with a beat. `held`: claims that it extends."""
        servers = self._servers.all
        self._note(servers)
        about = About(
            version=__version__,
            now_ms=self._clock.now_ms(),
            since_ms=self._since_ms,
            held=held,
            servers=tuple(map(self._found, servers[:MOST_SERVERS])),
            more=max(0, len(servers) - MOST_SERVERS),
        )
        return msgspec.json.encode(about)

    def _note(self, servers: list[Server]) -> None:
        known, now_ms = self._states, self._clock.now_ms()
        self._states = {}
        for server in servers:
            url, state = server.runner.url, _state(server)
            before = known.get(url)
            self._states[url] = before if before is not None and before[0] == state else (state, now_ms)

    def _found(self, server: Server) -> ServerFound:
        state, since_ms = self._states[server.runner.url]
        return ServerFound(
            url=server.runner.url,
            state=state,
            since_ms=since_ms,
            slots=server.usable,
            detail=server.trouble[:LONGEST_DETAIL],
            failed_starts=server.failed_starts,
        )


def _state(server: Server) -> str:
    """As its health was seen, unless it is given no work for another reason."""
    if server.is_resting:
        return "resting"
    return "doubted" if server.health.can_run and server.doubt.is_set() else server.health.status.value
