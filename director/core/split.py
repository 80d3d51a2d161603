"""Split a deployment's calls between two versions by weight, and judge the new one by how its runs end. Pure.

A split belongs to the version of its deployment. A release of another version ends it, also one of release 0.3.0, which
knows no splits: its API sends all calls to the version of the release.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from director.core.ids import VERSION_DIGITS, QueueName, queue_name
from director.core.trends import bucket, quantile_s

LEAST_SHARE: Final = 1
MOST_SHARE: Final = 99
MARGIN: Final = 5  # percentage points
LEAST_RUNS: Final = 50
MOST_RUNS: Final = 100_000
# Chance explains a difference down to this probability, that of three standard errors. A keeper looks again and again:
# at two standard errors every eighth harmless version was stopped.
RARE: Final = 0.00135
CLEAR: Final = 3.0  # standard errors, without runs of the old version
PARTS: Final = 10_000
# Runs with these codes ran out of time. One that never began says nothing about the version
LATE: Final = frozenset({"deadline_exceeded", "start_by_exceeded"})
NUMBER: Final = re.compile(r"[0-9]{1,15}").fullmatch
Side = Literal["old", "new"]
SIDES: Final[Sequence[Side]] = ("old", "new")
WAYS: Final = ("succeeded", "failed")  # in which a run ends


class Split(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a deployment's calls are split. `share`: percent of them that run `version`, 0 once that is stopped or
    promoted.

    `began_ms`: since when runs are counted. It names the split. `since_ms`: since when the share is as it is.
    `created_ms`: when the deployment was made, and `release` its release at the last change. `former`: the version of
    the deployment, or the one before once `version` is promoted. `before`: the version that a rollback brings back once
    the trial has ended. `margin`: percentage points. `least`: ended runs of `version` before it is judged. `by`: the
    account that asked, or `keeper`.
    """

    model: str
    former: str
    version: str
    share: int
    began_ms: int
    since_ms: int
    release: int
    created_ms: int
    margin: int = MARGIN
    least: int = LEAST_RUNS
    by: str = ""
    stopped_why: str = ""
    is_promoted: bool = False
    before: str = ""

    @property
    def queues(self) -> dict[QueueName, Side]:
        return {queue_name(self.model, self.former): "old", queue_name(self.model, self.version): "new"}

    def fits(self, version: str) -> bool:
        """Return whether it belongs to a deployment of this version. A promotion is written before its release."""
        return version == self.former or (self.is_promoted and version == self.version)


class Mark(Struct, frozen=True):
    """Why a prediction has its version, as its record has it. `percent` of the calls went to `version` then."""

    side: Side
    percent: int
    since_ms: int
    began_ms: int
    version: str


def choose(split: Split, key: str) -> Side:
    """Return the version that this call runs. The same key gets the same one while the share stays, and a larger share
    takes none of the new version's keys away.
    """
    digest = hashlib.sha256(f"{split.began_ms} {key}".encode(errors="replace")).digest()
    return "new" if int.from_bytes(digest[:8], "big") % PARTS < split.share * PARTS // 100 else "old"


def write_mark(split: Split, side: Side) -> str:
    percent, version = (split.share, split.version) if side == "new" else (100 - split.share, split.former)
    return f"{side} {percent} {split.since_ms} {split.began_ms} {version[:VERSION_DIGITS]}"


def read_mark(text: str) -> Mark | None:
    """Return the mark of a record, or None if it has none, or one of a form that a later release writes."""
    match text.split(" "):
        case ["old" | "new" as side, percent, since, began, version] if all(map(NUMBER, (percent, since, began))):
            return Mark("new" if side == "new" else "old", int(percent), int(since), int(began), version)
    return None


class Runs(Struct, frozen=True):
    """How runs of one version ended. `times`: how many took how long, in the buckets of director/core/trends.py."""

    succeeded: int = 0
    failed: int = 0
    times: Mapping[int, int] = {}

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed

    @property
    def failure_rate(self) -> float:
        return self.failed / self.ended if self.ended else 0.0

    @property
    def p50_s(self) -> float | None:
        return quantile_s(self.times, 0.5)


class EndedRun(Struct, frozen=True, kw_only=True):
    """A run that ended, as the log of its partition and its record have it. `ran_ms` is None if it never began."""

    queue: QueueName
    deployment: str
    mark: str
    status: str
    code: str
    ran_ms: int | None


def count_runs(split: Split, deployment: str, ended: Sequence[EndedRun]) -> dict[str, int]:
    """Return what to add to the counts of a split: only runs that it sent, of the version that it chose for them.

    Runs that were sent with the share of now count as `now` too, and only they are judged: both versions had the same
    days, good and bad. Over two shares a bad hour would count more for one version than for the other.
    """
    added, queues = Counter[str](), split.queues
    for one in ended:
        mark = read_mark(one.mark)
        if mark is None or one.deployment != deployment or mark.began_ms != split.began_ms:
            continue
        # what an operator moved to the other version says nothing about the one that was chosen
        if queues.get(one.queue) != mark.side or not (way := _way_to_end(one)):
            continue
        added[f"{mark.side}:{way}"] += 1
        if mark.since_ms == split.since_ms:
            added[f"{mark.side}:{way}:now"] += 1
        if one.ran_ms is not None:
            added[f"{mark.side}:ms:{bucket(one.ran_ms)}"] += 1
    return dict(added)


def _way_to_end(one: EndedRun) -> Literal["succeeded", "failed", ""]:
    """Return how a run ended, or '' if that says nothing about its version. One that hangs until its time is over has
    failed, whatever its status.
    """
    if one.code in LATE:
        return "failed" if one.ran_ms is not None else ""
    return "succeeded" if one.status == "succeeded" else "failed" if one.status == "failed" else ""


class Figures(Struct, frozen=True):
    """How runs of both versions ended. `now`: those that were sent with the share of now, without times."""

    all: Mapping[Side, Runs]
    now: Mapping[Side, Runs]


def read_figures(counts: Mapping[str, Any]) -> Figures:
    """Return the counts of a split by version. Other fields are ignored."""
    found, now = dict[Side, Runs](), dict[Side, Runs]()
    for side in SIDES:
        times = {int(name.rpartition(":")[2]): int(n) for name, n in counts.items() if name.startswith(f"{side}:ms:")}
        succeeded, failed = (int(counts.get(f"{side}:{way}", 0)) for way in WAYS)
        found[side] = Runs(succeeded, failed, times)
        succeeded, failed = (int(counts.get(f"{side}:{way}:now", 0)) for way in WAYS)
        now[side] = Runs(succeeded, failed)
    return Figures(found, now)


def judge(split: Split, old: Runs, new: Runs) -> str:
    """Return why the new version is stopped, with both figures, or ''. `old`, `new`: runs of the share of now.

    Its failure rate must be above the old one's by more than the margin, and by more than chance explains. Without an
    ended run of the old version, clearly more than half of its runs must have failed.
    """
    if not split.share or new.ended < split.least:
        return ""
    failed = f"{new.failed:,} of {new.ended:,} runs of the new version failed ({new.failure_rate * 100:.1f} %)"
    if not old.ended:
        is_clear = new.failed - new.ended / 2 > CLEAR * math.sqrt(new.ended) / 2
        return f"{failed} at {split.share} %, and none of the old one ended" if is_clear else ""
    above = new.failure_rate - old.failure_rate
    if above * 100 <= split.margin or find_chance(old, new) >= RARE:
        return ""
    return (
        f"{failed} at {split.share} %, and {old.failed:,} of {old.ended:,} of the old one "
        f"({old.failure_rate * 100:.1f} %): more than {split.margin} percentage points above it"
    )


def find_chance(old: Runs, new: Runs) -> float:
    """Return how likely at least so many of the failures are the new version's if both fail alike: Fisher's exact test,
    as three standard errors say too much of few runs. It adds terms until they are too small to count.
    """
    failed, ended = old.failed + new.failed, old.ended + new.ended

    def ways(all_of_them: int, some: int) -> float:
        return math.lgamma(all_of_them + 1) - math.lgamma(some + 1) - math.lgamma(all_of_them - some + 1)

    term = math.exp(ways(failed, new.failed) + ways(ended - failed, new.succeeded) - ways(ended, new.ended))
    total = 0.0
    for count in range(new.failed, min(failed, new.ended) + 1):
        total += term
        if term <= total * 1e-9:
            break
        term *= (failed - count) * (new.ended - count) / ((count + 1) * (ended - failed - new.ended + count + 1))
    return total


def explain(mark: Mark, deployment: str, since: str) -> str:
    """Say why a prediction has its version. `since`: the time of the mark."""
    if mark.side == "new":
        return f"because {mark.percent} % of {deployment} go to it since {since}, to try it"
    return f"because {mark.percent} % of {deployment} stay with it since {since}, while another version is tried"
