"""Split a deployment's calls between two versions by weight, and judge the new one by how its runs end. Pure.

A split belongs to one release of its deployment. Another release ends it, also one of release 0.3.0, which knows no
splits: its API sends all calls to the version of the release.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from director.core.ids import QueueName, queue_name
from director.core.trends import bucket, quantile_s

LEAST_SHARE: Final = 1
MOST_SHARE: Final = 99
MARGIN: Final = 5  # percentage points
LEAST_RUNS: Final = 50
MOST_RUNS: Final = 100_000
# Standard errors. A keeper looks again and again, and at 2 every eighth harmless version was stopped.
CLEAR: Final = 3.0
PARTS: Final = 10_000
# The prediction could not start in its time: that says nothing about the version
NEVER_RAN: Final = frozenset({"deadline_exceeded", "start_by_exceeded"})
SHORT: Final = 12  # digits of a version, as in the name of its queue
Side = Literal["old", "new"]
SIDES: Final[Sequence[Side]] = ("old", "new")


class Split(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a deployment's calls are split. `share`: percent of them that run `version`, 0 once that is stopped or
    promoted.

    `began_ms`: since when runs are counted. It names the split. `since_ms`: since when the share is as it is.
    `release`, `created_ms`: the release of the deployment, and when the deployment was made. `former`: the version of
    that release, or the one before once `version` is promoted. `margin`: percentage points. `least`: ended runs of
    `version` before it is judged. `by`: the account that asked, or `keeper`. Defaults are not stored, so a new field
    with one does not change what an earlier release compares.
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

    @property
    def queues(self) -> dict[QueueName, Side]:
        return {queue_name(self.model, self.former): "old", queue_name(self.model, self.version): "new"}


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
    return f"{side} {percent} {split.since_ms} {split.began_ms} {version[:SHORT]}"


def read_mark(text: str) -> Mark | None:
    """Return the mark of a record, or None if it has none, or one of a form that a later release writes."""
    match text.split(" "):
        case ["old" | "new" as side, percent, since_ms, began_ms, version]:
            return Mark("new" if side == "new" else "old", int(percent), int(since_ms), int(began_ms), version)
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
    """Return what to add to the counts of a split: only runs that it sent, of the version that it chose for them."""
    added = Counter[str]()
    for one in ended:
        mark = read_mark(one.mark)
        if mark is None or one.deployment != deployment or mark.began_ms != split.began_ms:
            continue
        # what an operator moved to the other version says nothing about the one that was chosen
        if split.queues.get(one.queue) != mark.side or one.code in NEVER_RAN:
            continue
        if one.status in ("succeeded", "failed"):
            added[f"{mark.side}:{one.status}"] += 1
            if one.ran_ms is not None:
                added[f"{mark.side}:ms:{bucket(one.ran_ms)}"] += 1
    return dict(added)


def read_runs(counts: Mapping[str, Any]) -> dict[Side, Runs]:
    """Return the counts of a split by version. Other fields are ignored."""
    found: dict[Side, Runs] = {}
    for side in SIDES:
        times = {int(name.rpartition(":")[2]): int(n) for name, n in counts.items() if name.startswith(f"{side}:ms:")}
        succeeded, failed = (int(counts.get(f"{side}:{status}", 0)) for status in ("succeeded", "failed"))
        found[side] = Runs(succeeded, failed, times)
    return found


def judge(split: Split, old: Runs, new: Runs) -> str:
    """Return why the new version is stopped, with both figures, or ''.

    Its failure rate must be above the old one's by more than the margin, and by more than chance explains: three
    standard errors of two equal rates. Without an ended run of the old version there is nothing to compare with.
    """
    if not split.share or new.ended < split.least or not old.ended:
        return ""
    above = new.failure_rate - old.failure_rate
    both = (old.failed + new.failed) / (old.ended + new.ended)
    error = math.sqrt(both * (1 - both) * (1 / old.ended + 1 / new.ended))
    if above * 100 <= split.margin or above <= CLEAR * error:
        return ""
    return (
        f"{new.failed:,} of {new.ended:,} runs of the new version failed ({new.failure_rate:.1%}), and "
        f"{old.failed:,} of {old.ended:,} of the old one ({old.failure_rate:.1%}): more than {split.margin} percentage "
        "points above it"
    )


def explain(mark: Mark, deployment: str, since: str) -> str:
    """Say why a prediction has its version. `since`: the time of the mark."""
    if mark.side == "new":
        return f"because {mark.percent} % of {deployment} go to it since {since}; it was not promoted then"
    return f"because {mark.percent} % of {deployment} stay with it since {since}; the others try another version"
