"""How far a model server is to be trusted with work, by how its last runs ended. Pure: no clock, no server.

Some servers answer health checks well and fail every run at once: one with a broken GPU would drain a queue. It rests
after so many failures in a row, each time twice as long, and comes back with one run at a time until one succeeds.
What fails one after the other for a single account may be what that account sends: it counts once, so that nobody can
have a server rest for all the others.
"""

from typing import Final

from msgspec import Struct

from director.servers.runners.runner import Outcome

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
MOST_DOUBLINGS: Final = 10  # long past LONGEST_S, and far from what a float can hold

# What an end says against its server. A refused input says nothing of it, nor does a run that was asked to stop.
AGAINST: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST, Outcome.REFUSED})
# A new start may help those; one that refuses has no room, or says that others go first
MENDED_BY_A_START: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST})


class Rest(Struct, frozen=True, kw_only=True):
    """Give it nothing for so long. `restart`: and have it started anew."""

    seconds: float
    restart: bool


class Trust:
    """In one server. `most`: failures in a row after which it rests; 0 for any number."""

    def __init__(self, most: int = 0) -> None:
        self.failures = 0
        self._most = most
        self._rests = 0
        self._died = ""
        self._accused_by = ""
        self._is_restarted = False

    @property
    def is_on_trial(self) -> bool:
        """It rested, and no run of it has succeeded since."""
        return self._rests > 0

    def note(self, outcome: Outcome, *, since: str, is_dead: bool = False, account: str = "") -> Rest | None:
        """A run ended so on the server that was started at `since`. What one death takes with it is one failure.

        `account`: whose it was; '' where nobody else is there that could suffer by it.
        """
        if outcome is Outcome.SUCCEEDED:
            self.failures = self._rests = 0
            self._is_restarted = False
            self._accused_by = ""
            return None
        if outcome is Outcome.FAILED and account:
            if account == self._accused_by:
                return None
            self._accused_by = account
        if outcome not in AGAINST or not self._most or (is_dead and since and self._died == since):
            return None
        self._died = since if is_dead else ""
        self.failures += 1
        if self.failures < self._most and not self._rests:
            return None
        # what one start did not mend another one will not; it may be somebody's inputs that fail
        restart = outcome in MENDED_BY_A_START and not is_dead and not self._is_restarted
        self._is_restarted |= restart
        return self.rest(restart=restart)

    def rest(self, *, restart: bool = False) -> Rest:
        """It rests now, each time longer than the last."""
        self._rests += 1
        return Rest(seconds=min(LONGEST_S, FIRST_S * 2.0 ** min(self._rests - 1, MOST_DOUBLINGS)), restart=restart)

    def went_well_elsewhere(self, account: str) -> None:
        """A run of that account succeeded on another server: what failed for it here may not be what it sends."""
        if account == self._accused_by:
            self._accused_by = ""
