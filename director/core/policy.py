"""Define how a queue treats its predictions. A director registers this policy; scripts and keepers apply it."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from director.core.errors import SettingsError

Lane = Literal["high", "normal", "low"]

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


def decode_objectives(text: str | bytes) -> dict[Lane, Objective]:
    """Decode objectives by lane from JSON; an empty text has none. Raises SettingsError that says what is wrong."""
    try:
        return msgspec.json.decode(text, type=dict[Lane, Objective]) if text else {}
    except msgspec.DecodeError as exc:
        raise SettingsError(f'it is not JSON like {{"normal": {{"share": 0.95, "within_s": 10}}}}: {exc}') from exc


def encode(objectives: Objectives) -> str:
    return msgspec.json.encode(objectives, order="sorted").decode() if objectives else ""


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
    less. `open_hours`: the only times in which anything starts, see `hours.py`; '' for always. The breaker opens
    after `breaker_after` server faults in a row (0: never) and lets one prediction try after `breaker_cool_s`.
    While open, the queue holds or refuses new predictions. `objectives` are only measured, and used to suggest a
    number of directors. `spare_slots`: how many slots of the queue idle work leaves free, if it has more.
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
    open_hours: str = ""
    objectives: Objectives = NONE
    spare_slots: int = 1
