"""Decide how far a model server is trusted with work, by how its last runs ended. Pure: no clock, no server.

Some servers answer health checks well and fail every run at once: one with a broken GPU would drain a queue. Such a
server rests after a number of failures in a row, each time twice as long, and comes back with one run at a time until
a run succeeds. Consecutive failures of a single account may come from what that account sends. They count once, so
that no account can make a server rest for all the others.
"""

from typing import Final

from msgspec import Struct

from director.servers.runners.runner import Outcome

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
MOST_DOUBLINGS: Final = 10  # long past LONGEST_S, and far from what a float can hold

# The outcomes that count against a server. A refused input does not, nor does a run that was asked to stop
AGAINST: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST, Outcome.REFUSED})
# The outcomes that a restart may help against. A server that refuses has no room, or lets others go first
MENDED_BY_A_START: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST})


class Rest(Struct, frozen=True, kw_only=True):
    """Give the server no work for `seconds`. `restart`: restart it meanwhile."""

    seconds: float
    restart: bool


class Trust:
    """The trust in one server. `most`: failures in a row after which it rests; 0 for never."""

    def __init__(self, most: int = 0) -> None:
        self.failures = 0
        self._most = most
        self._rests = 0
        self._died = ""
        self._accused_by = ""
        self._is_restarted = False

    @property
    def is_on_trial(self) -> bool:
        """True if it rested and no run of it has succeeded since."""
        return self._rests > 0

    def note(self, outcome: Outcome, *, since: str, is_dead: bool = False, account: str = "") -> Rest | None:
        """Count the end of a run on the start `since` of the server. All runs that one death ends are one failure.

        `account`: whose run it was; '' if no other account could suffer by its failures. Returns a rest if one is due.
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
        # A second restart would not help where the first did not: an account's inputs may be what fails
        restart = outcome in MENDED_BY_A_START and not is_dead and not self._is_restarted
        self._is_restarted |= restart
        return self.rest(restart=restart)

    def rest(self, *, restart: bool = False) -> Rest:
        self._rests += 1
        return Rest(seconds=min(LONGEST_S, FIRST_S * 2.0 ** min(self._rests - 1, MOST_DOUBLINGS)), restart=restart)

    def went_well_elsewhere(self, account: str) -> None:
        """Note a success on another server: failures here may not come from what the account sends."""
        if account == self._accused_by:
            self._accused_by = ""
