"""How a queue treats its predictions: what a director registers for its model, and every script and keeper goes by."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from director.core.objectives import NONE, Objectives
from director.core.shards import MAX_STREAMS

__all__ = ("BreakerMode", "OnLost", "Policy")

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
