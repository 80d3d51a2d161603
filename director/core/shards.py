"""Shuffle sharding: the few streams of a lane that one tenant may use.

A seeded permutation of a stable hash, so that two tenants rarely share all of their streams: with 16 streams and 2 for
each, one pair of tenants in 120. The golden vectors in the tests pin it: a change would move every tenant at once.
"""

import hashlib
from functools import lru_cache
from typing import Final

__all__ = ("MAX_STREAMS", "shard")

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
