"""Which receivers are away: after some failures in a row an endpoint gets one attempt per interval, and no more.

Each keeper goes by what it has seen itself. Sends nothing: says only whether one may be sent now, and else when.
"""

import random
from itertools import count
from typing import Final

from msgspec import Struct, field

from director.core.clock import Clock

__all__ = ("AFTER", "INTERVAL_S", "LATEST_S", "MOST_HOSTS", "Breakers")

AFTER: Final = 5
INTERVAL_S: Final = 30.0
# Whoever is put off has an interval to himself, as far as this; the rest comes some time before it. A success brings
# all of them forward anyway
LATEST_S: Final = 600.0
# A moment of ours is one of the server's clock by the time it comes: not a moment too soon
LATER_S: Final = 0.05
MOST_HOSTS: Final = 10_000


class _Host(Struct, eq=False):
    """`failures` in a row; when the next one may try; whose that interval is, and those after it."""

    failures: int = 0
    probe_s: float = 0.0
    given_s: dict[str, float] = field(default_factory=dict)


class Breakers:
    """One for each host that failed lately. A host is forgotten once it answers."""

    def __init__(self, clock: Clock, *, after: int = AFTER, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._after = after
        self._interval_s = interval_s
        self._hosts: dict[str, _Host] = {}

    def may_try(self, name: str) -> bool:
        """May one be sent there now? Where the host is away, whoever is told so is the one of this interval."""
        host = self._hosts.get(name)
        if host is None or host.failures < self._after:
            return True
        now_s = self._clock.monotonic()
        if now_s < host.probe_s:
            return False
        host.probe_s = now_s + self._interval_s
        return True

    def put_off_s(self, name: str, who: str) -> float:
        """How long this one waits, who may not be sent now: until the first interval that is nobody's.

        Whoever has one keeps it, though he was brought forward meanwhile: without him nobody would come then.
        """
        host, now_s = self._hosts.get(name), self._clock.monotonic()
        if host is None:  # it has answered since
            return LATER_S
        host.given_s = {one: at_s for one, at_s in host.given_s.items() if at_s > now_s}
        if who not in host.given_s:
            taken = {round((at_s - host.probe_s) / self._interval_s) for at_s in host.given_s.values()}
            at_s = host.probe_s + self._interval_s * next(number for number in count() if number not in taken)
            if at_s - now_s > LATEST_S:
                return random.uniform(LATEST_S / 2, LATEST_S)  # noqa: S311 - spreads attempts, guards nothing
            host.given_s[who] = at_s
        return max(host.given_s[who] - now_s, 0.0) + LATER_S

    def failed(self, name: str, *, asked_s: float | None = None) -> None:
        """The host gave no answer, or one that says that it cannot. `asked_s`: it asked for so much patience."""
        host = self._hosts.setdefault(name, _Host())
        host.failures += 1
        if host.failures == self._after:
            host.probe_s = self._clock.monotonic() + self._interval_s
        if asked_s is not None:
            host.probe_s = max(host.probe_s, self._clock.monotonic() + min(asked_s, LATEST_S))
        if len(self._hosts) > MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]

    def answered(self, name: str) -> bool:
        """The host answers. True where it had failed before."""
        return self._hosts.pop(name, None) is not None
