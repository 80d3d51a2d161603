"""Judge a model server by how its runs end: when it rests, and whether it had room for a run that it refused. Pure."""

import re
from collections import deque
from typing import Final

from msgspec import Struct

from director.servers.runners.outcomes import REFUSALS_OF_AN_ATTEMPT
from director.servers.runners.runner import Outcome

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
MOST_DOUBLINGS: Final = 10  # long past LONGEST_S, and far from what a float can hold

# The outcomes that count against a server. A refused input does not, nor does a run that was asked to stop
AGAINST: Final = frozenset({Outcome.FAILED, Outcome.CANCELED, Outcome.LOST, Outcome.REFUSED})
# Words of an error that may mean a sick accelerator. A model may also raise them because of an input
SICKNESS: Final = re.compile(
    r"\b(?:CUDA|cuDNN|cuBLAS|NCCL)[ _]|\bHIP error|out of memory|device-side assert", re.IGNORECASE
)
MOST_PAST: Final = 64  # runs
MOST_REFUSED: Final = 1000  # predictions that are remembered for having been refused


class Trust:
    """The trust in one server, by how its last runs ended. `most`: failures in a row after which it rests; 0 for never.

    Some servers answer health checks well and fail every run at once: one with a broken GPU would drain a queue. Each
    rest is twice as long as the last, and after it the server runs one prediction at a time until a run succeeds. It is
    not restarted, since what fails may be the inputs: an operator sees that it rests.

    Errors that the model's own code raises mostly come from inputs, so they count only if they have words of sickness,
    or of a dead engine (`by_words`), and come from two accounts. With `counts_failed` they all count. Failures of a
    single account then count once, so that no account can make a server rest for all the others. So do its runs that a
    server lost and stayed ready, and those that a server refused as if it were full.
    """

    def __init__(self, most: int = 0, *, counts_failed: bool = False) -> None:
        self.failures = 0
        self._most = most
        self.counts_failed = counts_failed
        self._rests = 0
        self._died = ""
        self._found_by = ""
        self._suspect = ""
        self._accused_by = ""

    @property
    def is_on_trial(self) -> bool:
        return self._rests > 0

    @property
    def failures_in_words(self) -> str:
        return f"{self.failures} runs in a row failed on it"

    def note(
        self,
        outcome: Outcome,
        *,
        since: str,
        is_dead: bool = False,
        by_words: bool = False,
        may_be_full: bool = False,
        account: str = "",
        error: str = "",
    ) -> float | None:
        """Count the end of a run on the start `since` of the server: all runs that one death ends are one failure.
        `account`: whose run it was; '' if no other account could suffer by its failures, unless words of sickness make
        it one. Returns the seconds of a rest if one is due.
        """
        if outcome is Outcome.SUCCEEDED:
            self.failures = self._rests = 0
            self._accused_by = self._suspect = ""
            return None
        is_said = outcome is Outcome.FAILED or by_words
        if is_said and not self.counts_failed:
            if not by_words and not SICKNESS.search(error):
                self._rests = 0  # the server brought a run to its end
                return None
            before, self._accused_by = self._accused_by, account
            if before in ("", account):
                return None
        elif is_said and account:
            if account == self._accused_by:
                return None
            self._accused_by = account
        if outcome not in AGAINST or not self._most or (is_dead and since and self._died == since):
            return None
        if (is_dead or may_be_full) and account and account == self._suspect:
            return None
        if is_dead:
            self._died, self._found_by = since, account
        elif may_be_full:
            self._suspect = account
        self.failures += 1
        if self.failures < self._most and not self._rests:
            return None
        return self.rest()

    def rest(self) -> float:
        self._rests += 1
        return min(LONGEST_S, FIRST_S * 2.0 ** min(self._rests - 1, MOST_DOUBLINGS))

    def acquit(self) -> None:
        """Note that the server is alive after all: the next death that a run finds is another failure."""
        self._died = ""
        self.suspect()

    def suspect(self) -> None:
        """Note that the server was ready right after a run found it dead: the run's account may be the reason."""
        self._suspect = self._found_by

    def went_well_elsewhere(self, account: str) -> None:
        """Note a success on another server: failures here may not come from what the account sends."""
        if account == self._suspect:
            self._suspect = ""
        if self.counts_failed and account == self._accused_by:
            self._accused_by = ""


class Room:
    """The most runs that a server is known to have run at once, of the last ones that succeeded. It says whether a
    server had room for a run that it refused. Kept only once a server refused one beside others: each costs some µs.
    """

    def __init__(self) -> None:
        self._runs: deque[_Past] = deque(maxlen=MOST_PAST)

    @property
    def most(self) -> int:
        return max((run.beside for run in self._runs), default=0) + 1

    def add(self, began_at: float, ended_at: float) -> None:
        """Note a run that succeeded. The most runs at once are at the beginning of one of them."""
        beside = 0
        for run in self._runs:
            if began_at <= run.began_at < ended_at:
                run.beside += 1
            elif run.began_at < began_at < run.ended_at:
                beside += 1
        self._runs.append(_Past(began_at, ended_at, beside))


class _Past(Struct, eq=False):
    began_at: float
    ended_at: float
    beside: int  # others that were running when it began


class Refusals:
    """How often ready servers refused a prediction although they had room for it: the reason may be its input.
    Kept in this process: where several directors meet it, each counts for itself.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def add(self, run: str) -> int:
        """Count one more. Returns how many there were. After as many as an attempt has, the count begins again."""
        times = self._times.pop(run, 0) + 1
        if times < REFUSALS_OF_AN_ATTEMPT:
            self._times[run] = times
        if len(self._times) > MOST_REFUSED:
            del self._times[next(iter(self._times))]
        return times
