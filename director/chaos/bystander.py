"""Judge I19: a bystander is served beside hungry and hostile neighbours almost as without them. Pure. The bystander
wants little. It is watched twice in the time without faults: first alone with the ordinary load, as a control, then
beside the neighbours. Its times are what its clients see, so they hold all waits: for the API, for a slot, for the end.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from director.chaos.evidence import Evidence, Findings, Try
from director.chaos.plan import ALONE, BESIDE, NEIGHBOURS, Plan
from director.chaos.recovery import percentile
from director.core.states import TERMINAL

TIMES: Final = 5  # a time beside the neighbours may be this many times the control's,
LEAST_MS: Final = 2_000  # or this long: less is noise where two cores carry all parts. A missing bound costs 5 s
SHARE: Final = 0.9  # the percentile that is compared
KINDS: Final = ("creates", "streams", "webhooks")
LEAST_SEEN: Final = {"creates": 12, "streams": 4, "webhooks": 12}  # in each watch
# Connections that the neighbours held at least, in each visit without faults: the API has 16 turns for large events
LEAST_HELD: Final = {"stall": 16, "slow": 32}
QUIET_PART: Final = "peace"
REFUSED: Final = 429


class Served(Struct, frozen=True, kw_only=True):
    """How one kind of request was served. The times are percentiles, from the first request of a prediction on."""

    alone_ms: int
    beside_ms: int
    most_ms: int


def bystander_is_served(evidence: Evidence) -> Findings:
    for kind, each in served(evidence).items():
        if each.beside_ms > each.most_ms:
            bound = f"and may take {each.most_ms} ms"
            yield "", f"its {kind} took {each.alone_ms} ms alone, {each.beside_ms} ms beside neighbours, {bound}"
    for tries in _of(evidence, BESIDE):
        first = tries[0]
        if not first.ok:
            yield first.sent.key, f"its create beside neighbours was answered {first.answer.status}"


def served(evidence: Evidence) -> dict[str, Served]:
    """Compare both watches, as far as both saw something."""
    alone, beside = _times(evidence, ALONE), _times(evidence, BESIDE)
    found = {}
    for kind in KINDS:
        before, now = percentile(alone[kind], SHARE), percentile(beside[kind], SHARE)
        if before is not None and now is not None:
            found[kind] = Served(alone_ms=before, beside_ms=now, most_ms=max(TIMES * before, LEAST_MS))
    return found


def unseen(evidence: Evidence) -> Iterator[str]:
    """Yield what is missing in a run that has a bystander, so that nothing was compared."""
    if not list(_of(evidence, BESIDE)):
        return
    for plan in (ALONE, BESIDE):
        times = _times(evidence, plan)
        yield from (f"too few {kind} of the bystander, {plan}" for kind in KINDS if len(times[kind]) < LEAST_SEEN[kind])
    came = {tries[0].sent.plan for tries in evidence.accepted().values()}
    yield from (f"no neighbour had the plan {plan}" for plan in NEIGHBOURS if plan not in came)
    for kind, least in LEAST_HELD.items():
        counts = [each.count for each in evidence.held if (each.kind, each.part) == (kind, QUIET_PART)]
        if max(counts, default=0) < least:
            yield f"fewer than {least} connections of neighbours were held open: {kind}"
    hoarded = (each for tries in evidence.creates.values() for each in tries if each.sent.plan == "hoard")
    if not any(each.answer.status == REFUSED for each in hoarded):
        yield "the hoarder was never at its limit of bytes"


def _of(evidence: Evidence, plan: Plan) -> Iterator[list[Try]]:
    return (tries for tries in evidence.creates.values() if tries[0].sent.plan == plan)


def _times(evidence: Evidence, plan: Plan) -> dict[str, list[int]]:
    """Return each time in milliseconds. What never came counts until the end of the run."""
    times: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for tries in _of(evidence, plan):
        began, accepted = tries[0].sent.at, next((each.answer for each in tries if each.ok), None)
        times["creates"].append((accepted.at if accepted else evidence.until) - began)
        if accepted is None:
            continue
        ends = [each.at for each in evidence.webhooks.get(accepted.id, []) if each.status in TERMINAL]
        times["webhooks"].append(min(ends, default=evidence.until) - began)
        if accepted.id in evidence.followed:
            done = [each.at for each in evidence.heard.get(accepted.id, []) if each.event == "done"]
            times["streams"].append(min(done, default=evidence.until) - began)
    return times
