"""Decide how bytes of an account in Redis count: how many, until when, and what each account may have of them."""

from collections.abc import Iterable, Mapping, Sized
from functools import lru_cache
from typing import Any, Final, NamedTuple

from director.core.ids import LENGTH, PredictionId, created_ms_of

# The record, its events, entries of lists, and small output and logs. Beside the input they take 0.8 KB while a
# prediction waits. At its end the record alone takes 0.6 to 1.4 KB
RECORD_BYTES: Final = 2048
# The record and its entry in the list, which outlive the data: 0.6 to 1.4 KB
KEPT_BYTES: Final = 1024
# Texts of a record that RECORD_BYTES and KEPT_BYTES cover. A record with more is a table, which takes TABLE_BYTES more
SHORT_BYTES: Final = 512
TABLE_BYTES: Final = 1024
# An idempotency key: 270 bytes for a day
KEY_BYTES: Final = 320
KEY_LIFE_MS: Final = 86_400_000
# The record of a file beside its JSON, with its entries in three indexes
FILE_BYTES: Final = 512
# A model or a deployment beside its texts, with its entries in indexes
ENTRY_BYTES: Final = 1024
# The bucket of what never expires: the year 2286. It is a time, so that release 0.3.0 reads it as any other
FOR_EVER_MS: Final = 9_999_999_999_999
# Output, logs and events are counted by a call of their own from here on
WEIGHED_BYTES: Final = 4096
# A bucket is at most a sixteenth of the data's lifetime, so a time is rounded up by no more
BUCKETS: Final = 16
# A prediction that ended later than this part of its data's lifetime after its creation is counted again
LATE: Final = 1 / 8
DATA_TTL_MS: Final = 3_600_000  # of a queue that lost its own, as in lua/lib/keys.lua
RECORD_TTL_MS: Final = 604_800_000  # the same of its records
SHARED: Final = 8  # letters at the start of an id: all but the last 8 bits of its milliseconds
# Shares of Redis's memory: from the first on accounts above their fair share are refused, from the second on shares are
# computed every second. The data of all may always have LEAST, however much else there is
SHORT: Final = 0.8
BUSY: Final = 0.5
LEAST: Final = 0.1


class Counted(NamedTuple):
    """Bytes, and when they are counted no longer. `NOTHING` counts none."""

    bytes: int
    until_ms: int


NOTHING: Final = Counted(0, 0)


def at_creation(prediction_id: PredictionId, input_bytes: int, ttl_ms: int) -> Counted:
    """Return what counts of a new prediction, as if it ended at once. The id has the time: so a later call finds it."""
    return Counted(RECORD_BYTES + input_bytes, _until_of(prediction_id[:SHARED], ttl_ms))


def lasting(
    texts: Iterable[Sized], *, now_ms: int, record_ttl_ms: int, has_key: bool = False, made_bytes: int = 0
) -> Counted:
    """Return what counts of a prediction for longer than its data: of a long record as long as it lives, of an
    idempotency key a day. `made_bytes`: of what it will make, a day too. By then a keeper counts that. All of one
    prediction counts for the longest of these times.
    """
    longer, others = sum(map(len, texts)) - SHORT_BYTES, KEY_BYTES * has_key + made_bytes
    if longer > 0:
        ttl_ms = max(record_ttl_ms, KEY_LIFE_MS) if others else record_ttl_ms
        return Counted(longer + TABLE_BYTES + others, until_ms(now_ms, ttl_ms))
    return Counted(others, until_ms(now_ms, KEY_LIFE_MS)) if others else NOTHING


@lru_cache(maxsize=64)
def _until_of(start: str, ttl_ms: int) -> int:
    """Ids of a quarter of a second begin alike, so it is cached: reading the time of an id takes longest here."""
    return until_ms(created_ms_of(PredictionId(start.ljust(LENGTH, "0"))), ttl_ms)


def at_end(
    prediction_id: PredictionId, *, input_bytes: int, left_bytes: int, lived_ms: int, now_ms: int, ttl_ms: int
) -> tuple[Counted, Counted] | None:
    """Return what counts of a prediction from its end on, and what no longer does. None if that is the same as at its
    creation: most ends are small and soon. `left_bytes`: of output, logs and events.
    """
    is_late = lived_ms > LATE * ttl_ms
    if not is_late and left_bytes < WEIGHED_BYTES:
        return None
    was = at_creation(prediction_id, input_bytes, ttl_ms) if is_late else NOTHING
    return Counted(was.bytes + left_bytes, until_ms(now_ms, ttl_ms)), was


def until_ms(from_ms: int, ttl_ms: int) -> int:
    """Return when data is counted no longer that begins its lifetime now. Times of all lifetimes share buckets."""
    width = 1 << max(0, (ttl_ms // BUCKETS).bit_length() - 1)
    return -(-(from_ms + ttl_ms) // width) * width


def count_bytes(fields: Iterable[tuple[str, str]], *, now_ms: int) -> int:
    """Return the bytes that count, of the buckets that `lua/lib/data.lua` keeps."""
    total = 0
    for name, value in fields:
        size, _, until = value.partition(" ") if name == "old" else (value, "", name)
        total += int(size) if int(until) > now_ms else 0
    return total


class Fullness(NamedTuple):
    """Memory of Redis. Of a Cluster, `limit` is as if all of its masters were as full as the fullest."""

    used: int
    limit: int

    @classmethod
    def of(cls, servers: Iterable[Mapping[str, Any]]) -> "Fullness":
        """Read what each master answers to INFO. Without `maxmemory` there is no limit: 0."""
        masters = [(int(each["used_memory"]), int(each.get("maxmemory", 0))) for each in servers]
        used = sum(of_one for of_one, _ in masters)
        fullest = max((of_one / limit for of_one, limit in masters if limit), default=0.0)
        return cls(used, int(used / fullest) if fullest else 0)

    @property
    def part(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def room_for_data(memory: Fullness, *, data: int) -> int:
    """Return how many bytes all accounts may have together so that memory is not short. `data`: what they have now."""
    return max(int(SHORT * memory.limit) - max(0, memory.used - data), int(LEAST * memory.limit))


def fair_share(held: Iterable[int], room: int) -> int:
    """Return the most bytes that an account may have, so that all together have `room`. No account gives up bytes for
    an account that has more (max-min fairness). Where they have less than `room`, they are taken to grow in proportion.
    So the share is right before memory is short, and no account is above it then.
    """
    demands = sorted(size for size in held if size > 0)
    if not demands:
        return room
    growth = max(1.0, room / sum(demands))
    left = float(room)
    for place, size in enumerate(demands[:-1]):
        share = left / (len(demands) - place)
        if size * growth > share:
            return int(share)
        left -= size * growth
    return int(left)


def share_while_short(share: int, part: float) -> int:
    """Return what an account may have while this part of the memory is used: the share at SHORT, and nothing at 1.

    An account that came first keeps more than its share until its data expires. So whole shares for those that come
    later would be more than there is: the second of two hoarders would fill what is left. With the third power sixty
    in a row leave 1 %, and an account with some KB is served beside them.
    """
    return int(share * max(0.0, (1 - part) / (1 - SHORT)) ** 3)
