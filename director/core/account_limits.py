"""Define an account's limits and their written form. `lua/reserve.lua` enforces limits over all queues; each queue's
scripts enforce what waits and runs in the queue.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.inspect import FloatType, IntType, StructType, UnionType, type_info

from director.core.errors import SettingsError
from director.core.hours import parse_hours
from director.core.ids import IDLE

BucketName = Literal["create", "read"]
"""create: requests that make a prediction; read: all others."""

NO_LIMIT: Final = "none"  # written for "no limit", which differs from a limit that was never set
DEFAULT: Final = "default"  # written by an operator to remove a limit that was set

Rate = Annotated[float, Meta(ge=0.00001, le=100_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Compute = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000_000)]
Retention = Annotated[int, Meta(ge=1, le=366 * 86400)]
Bytes = Annotated[int, Meta(ge=1, le=100_000_000_000_000)]


class Bucket(Struct, frozen=True):
    name: BucketName
    rate: float
    burst: int


class AccountLimits(Struct, frozen=True, kw_only=True):
    """None means no limit, and for `data_ttl_s` the model's own lifetime. `open_hours`: the only times in which its
    predictions start, or `idle`: only while nothing else waits in their queue.

    A rate without a burst allows one second's worth at once. A burst without a rate has no effect.
    """

    rate: Rate | None = None
    burst: Count | None = None
    read_rate: Rate | None = None
    read_burst: Count | None = None
    max_queued: Count | None = None
    max_running: Count | None = None
    compute_s_per_day: Compute | None = None
    compute_s_total: Compute | None = None
    compute_s_per_month: Compute | None = None
    tokens_per_minute: Tokens | None = None
    tokens_per_day: Tokens | None = None
    tokens_per_month: Tokens | None = None
    data_ttl_s: Retention | None = None
    max_files_bytes: Bytes | None = None
    max_data_bytes: Bytes | None = None
    open_hours: str | None = None
    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0

    @property
    def meters_compute(self) -> bool:
        return self.compute_s_per_day is not None or self.compute_s_total is not None

    @property
    def has_budget(self) -> bool:
        """Is anything limited that `lua/budget.lua` counts?"""
        return self.budget != NO_BUDGET

    @property
    def budget(self) -> tuple[int | None, int | None, int | None, int | None]:
        return self.tokens_per_minute, self.tokens_per_day, self.tokens_per_month, self.compute_s_per_month

    @property
    def closing_hours(self) -> str:
        """Return the open hours that each queue keeps; '' without any. What is idle has a lane instead."""
        return "" if self.open_hours in (None, IDLE) else self.open_hours or ""

    def bucket(self, name: BucketName) -> Bucket | None:
        rate, burst = (self.rate, self.burst) if name == "create" else (self.read_rate, self.read_burst)
        return None if rate is None else Bucket(name, rate, burst or max(1, int(rate)))

    def over(self, written: Mapping[str, str]) -> "AccountLimits":
        """Return these limits with written ones on top. Raises SettingsError with the limit's valid range.

        Open hours are checked where they are set, see `check_limits`: what a zone is depends on the machine.
        """
        given = {
            name: None if (text := written[name]) == NO_LIMIT else text
            for name in self.__struct_fields__
            if name in written
        }
        try:
            return msgspec.convert({**msgspec.structs.asdict(self), **given}, AccountLimits, strict=False)
        except msgspec.ValidationError as exc:
            raise SettingsError(_explain(exc)) from exc


UNLIMITED: Final = AccountLimits()
NO_BUDGET: Final = UNLIMITED.budget


def check_limits(written: Mapping[str, str]) -> None:
    """Raises SettingsError for limits that an account cannot have."""
    if hours := UNLIMITED.over(written).closing_hours:
        parse_hours(hours)


def _explain(exc: msgspec.ValidationError) -> str:
    name = str(exc).partition(" - at `$.")[2].rstrip("`")
    fields = cast(StructType, type_info(AccountLimits)).fields
    [asked] = (field.type for field in fields if field.name == name)
    kinds = asked.types if isinstance(asked, UnionType) else (asked,)
    [number] = (kind for kind in kinds if isinstance(kind, FloatType | IntType))
    word = "whole number" if isinstance(number, IntType) else "number"
    others = f", {NO_LIMIT} or {DEFAULT}" if len(kinds) > 1 else f" or {DEFAULT}"
    least, most = (f"{bound or 0:.5f}".rstrip("0").rstrip(".") for bound in (number.ge, number.le))
    return f"{name}: a {word} from {least} to {most}{others}"
