"""Define how a queue treats its predictions. A director registers this policy; scripts and keepers apply it."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from director.core.errors import SettingsError
from director.core.samples import PERIOD_S, Sample, within

# Objectives: the share of a lane's predictions that should start within a time, and how fast the allowed misses are
# used. Pure. A burn rate of 1 misses exactly the allowed share; 10 uses an hour's allowance in six minutes. Two windows
# separate a blip from a fault: an alert waits until both are high.

Lane = Literal["high", "normal", "low"]

WINDOWS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0}
# The last sample's late predictions still count as late, unless the sample is older than this
FRESH_S: Final = 6 * PERIOD_S
HOT: Final = 10.0
# A keeper looks every second. Work that is this late shows that no keeper does
LATE_MS: Final = 5_000


class Objective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`share` of a lane's predictions start within `within_s` of their creation."""

    share: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    within_s: Annotated[float, Meta(ge=0.001, le=7 * 86400)]

    @property
    def hot_rate(self) -> float:
        """Return the burn rate above which starts come too late. It is ten, or half the way from the allowed share to
        missing all: where a tenth may be late, no rate is above ten.
        """
        allowed = 1 - self.share
        return min(HOT, (1 + allowed) / (2 * allowed))


Objectives = Mapping[Lane, Objective]

NONE: Final[Objectives] = {}


class Burn(Struct, frozen=True, kw_only=True):
    """The result of an objective over a window. `missed` includes predictions that wait and are late already."""

    met: int
    missed: int
    rate: float


Burns = Mapping[Lane, Mapping[str, Burn]]
"""By lane and window."""


def decode_objectives(text: str | bytes) -> dict[Lane, Objective]:
    """Decode objectives by lane from JSON; an empty text has none. Raises SettingsError that says what is wrong."""
    try:
        return msgspec.json.decode(text, type=dict[Lane, Objective]) if text else {}
    except msgspec.DecodeError as exc:
        raise SettingsError(f'it is not JSON like {{"normal": {{"share": 0.95, "within_s": 10}}}}: {exc}') from exc


def encode(objectives: Objectives) -> str:
    return msgspec.json.encode(objectives, order="sorted").decode() if objectives else ""


def burn(samples: Sequence[Sample], lane: Lane, objective: Objective, *, over_s: float, now_ms: int) -> Burn:
    """Return the burn of one lane over the last `over_s` seconds. `samples` are in the order of time."""
    recent = within(samples, over_s, now_ms=now_ms)
    met, missed = sum(sample.met[lane] for sample in recent), sum(sample.missed[lane] for sample in recent)
    # if nothing starts, no start would ever count as missed
    missed += sum(sample.late[lane] for sample in within(samples[-1:], FRESH_S, now_ms=now_ms))
    share = missed / (met + missed) if missed else 0.0
    return Burn(met=met, missed=missed, rate=share / (1 - objective.share))


def burns(samples: Sequence[Sample], objectives: Objectives, *, now_ms: int) -> Burns:
    return {
        lane: {name: burn(samples, lane, each, over_s=over_s, now_ms=now_ms) for name, over_s in WINDOWS.items()}
        for lane, each in objectives.items()
    }


# Shuffle sharding: the few streams of a lane that one tenant may use, by a seeded permutation from a stable hash, so
# that two tenants rarely share all their streams. With 16 streams and 2 each, that is one pair of tenants in 120.
# Golden vectors in the tests pin it: a change would move every tenant at once.

MAX_STREAMS: Final = 32  # a lane's streams are one 32-bit mask in Lua


@lru_cache(maxsize=10_000)
def shard(tenant: str, *, streams: int, size: int) -> tuple[int, ...]:
    """Return `size` different streams of `streams` for this tenant, always the same, in order of preference."""
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
    """`streams` and `size` apply only to a new queue; all other fields apply once they are registered. `on_lost`: the
    fate of a run that began and was given back, because its director or server was lost or the director drained; `fail`
    is for models whose run must not happen twice. `lifetime_s`: of a prediction from its creation; callers may ask for
    less. The breaker opens after `breaker_after` server faults in a row (0: never) and lets one prediction try after
    `breaker_cool_s`. While open, the queue holds or refuses new predictions. `objectives` are only measured, and used
    to suggest a number of directors.
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
