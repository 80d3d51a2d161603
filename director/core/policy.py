"""How a queue treats its predictions: what a director registers for its model, and every script and keeper goes by."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from director.core.errors import SettingsError
from director.core.samples import PERIOD_S, Sample, within

# What a queue promises: so many of a lane start within so long. And how fast what may be missed of that is used up.
#
# Pure. A burn rate of 1 misses just as much as is allowed; 10 uses up an hour's allowance in six minutes. Two windows
# tell a blip from a fault: an alert waits until both are high.

Lane = Literal["high", "normal", "low"]

WINDOWS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0}
# What waited too long at the last look, still does; unless nobody has looked for so long
FRESH_S: Final = 6 * PERIOD_S


class Objective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`share` of those that come into a lane start within `within_s` of their creation."""

    share: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    within_s: Annotated[float, Meta(ge=0.001, le=7 * 86400)]


Objectives = Mapping[Lane, Objective]

NONE: Final[Objectives] = {}


class Burn(Struct, frozen=True, kw_only=True):
    """What came of an objective over a window. `missed`: with what waits and is too late already."""

    met: int
    missed: int
    rate: float


Burns = Mapping[Lane, Mapping[str, Burn]]
"""By lane and window."""


def decode_objectives(text: str | bytes) -> dict[Lane, Objective]:
    """From JSON, by lane; none where it is empty. Raises SettingsError that says what is wrong."""
    try:
        return msgspec.json.decode(text, type=dict[Lane, Objective]) if text else {}
    except msgspec.DecodeError as exc:
        raise SettingsError(f'it is no JSON like {{"normal": {{"share": 0.95, "within_s": 10}}}}: {exc}') from exc


def encode(objectives: Objectives) -> str:
    """The same text for the same objectives; '' for none."""
    return msgspec.json.encode(objectives, order="sorted").decode() if objectives else ""


def burn(samples: Sequence[Sample], lane: Lane, objective: Objective, *, over_s: float, now_ms: int) -> Burn:
    """Of one lane over the last seconds, from its samples in the order of time."""
    lately = within(samples, over_s, now_ms=now_ms)
    met, missed = sum(sample.met[lane] for sample in lately), sum(sample.missed[lane] for sample in lately)
    # of a queue in which nothing starts no start would ever tell
    missed += sum(sample.late[lane] for sample in within(samples[-1:], FRESH_S, now_ms=now_ms))
    share = missed / (met + missed) if missed else 0.0
    return Burn(met=met, missed=missed, rate=share / (1 - objective.share))


def burns(samples: Sequence[Sample], objectives: Objectives, *, now_ms: int) -> Burns:
    """Of each lane that has an objective, by the name of the window."""
    return {
        lane: {name: burn(samples, lane, each, over_s=over_s, now_ms=now_ms) for name, over_s in WINDOWS.items()}
        for lane, each in objectives.items()
    }


# Shuffle sharding: the few streams of a lane that one tenant may use.
#
# A seeded permutation of a stable hash, so that two tenants rarely share all of their streams: with 16 streams and 2
# for each, one pair of tenants in 120. The golden vectors in the tests pin it: a change would move every tenant at
# once.

MAX_STREAMS: Final = 32  # a lane's streams are one bit mask of 32 in Lua


@lru_cache(maxsize=10_000)
def shard(tenant: str, *, streams: int, size: int) -> tuple[int, ...]:
    """`size` different streams out of `streams` for this tenant, always the same ones, in their order of preference."""
    digest = hashlib.sha256(tenant.encode()).digest()
    state = int.from_bytes(digest)
    numbers = list(range(streams))
    for place in range(min(size, streams)):
        state, step = divmod(state, streams - place)
        numbers[place], numbers[place + step] = numbers[place + step], numbers[place]
    return tuple(numbers[: min(size, streams)])


OnLost = Literal["retry", "fail"]
BreakerMode = Literal["hold", "fail"]


class Policy(Struct, frozen=True, kw_only=True):
    """`streams` and `size` count for a queue that is new; the rest is in force as soon as it is registered.

    `on_lost`: what becomes of a run that began and was given back: its director or its server was lost, or the director
    was drained. `fail` is for models whose run must not happen twice.
    `lifetime_s`: of every prediction from its creation; the caller may ask for a shorter one. The breaker opens after
    `breaker_after` faults of the servers in a row (0: never), and lets one try after `breaker_cool_s`; open, the queue
    holds what comes or refuses it. `objectives` are only measured: nothing is done to keep them but to tell how many
    directors it would take.
    """

    streams: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] = 16
    size: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] = 2
    attempts: int = 3
    on_lost: OnLost = "retry"
    backoff_s: float = 1.0
    backoff_cap_s: float = 60.0
    data_ttl_s: float = 3600.0
    record_ttl_s: float = 7 * 86400.0
    lifetime_s: float | None = None
    breaker_after: int = 5
    breaker_cool_s: float = 30.0
    breaker_mode: BreakerMode = "hold"
    objectives: Objectives = NONE
