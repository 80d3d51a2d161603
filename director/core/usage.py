"""Define what a run used, and its written form in a row of the ledger: see `lua/lib/ledger.lua`. Pure.

A server reports tokens as metrics of its run. They are untrusted, so what is no whole number of a sane size is ignored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, Self, get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple, replace

DAYS: Final = 90  # the age up to which days are kept
UNFOLDED_DAYS: Final = 400  # the lifetime of a month in which no keeper ran, see lua/lib/ledger.lua
MOST_TOKENS: Final = 10**9  # of one run
BYTES_OF_TOKEN: Final = 4  # of English text and its JSON, roughly: the end corrects it
MOST_FILES: Final = 64  # in an input that are looked for
MOST_READ_BYTES: Final = 1 << 16  # of an input, for the most tokens of its output
FILE_OR_MOST: Final = re.compile(rb'"(?:data:|max_)')  # `in` took 6 ms for a MB of one letter, this takes 0.4
UNSAID: Final = Raw(b"null")
Tokens = Literal["input_tokens", "cached_tokens", "output_tokens"]
# Metric → what it counts. The first are ours, the others those of Cog's models at Replicate, in both spellings
NAMES: Final[Mapping[str, Tokens]] = {
    "input_tokens": "input_tokens",
    "cached_tokens": "cached_tokens",
    "output_tokens": "output_tokens",
    "input_token_count": "input_tokens",
    "output_token_count": "output_tokens",
    "token_input_count": "input_tokens",
    "token_output_count": "output_tokens",
}


class Used(Struct, frozen=True, kw_only=True):
    """Usage of one run, or of many: `runs` that began, milliseconds of them, tokens, bytes of the files that they made.

    Cached tokens are a part of the input tokens: those that the server did not have to read again.
    """

    runs: int = 0
    ms: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    file_bytes: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(
            runs=self.runs + other.runs,
            ms=self.ms + other.ms,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            file_bytes=self.file_bytes + other.file_bytes,
        )

    @property
    def packed(self) -> str:
        """The written form: the six numbers, without zeros at the end; '' if all are zero."""
        numbers = astuple(self)
        last = len(numbers)
        while last and not numbers[last - 1]:
            last -= 1
        return " ".join(map(str, numbers[:last]))

    @property
    def packed_tokens(self) -> str:
        """The tokens alone, as `advance` takes them; '' if none are known."""
        tokens = (self.input_tokens, self.cached_tokens, self.output_tokens)
        return " ".join(map(str, tokens)) if any(tokens) else ""

    @classmethod
    def unpack(cls, text: str) -> Self:
        return cls(**dict(zip(cls.__struct_fields__, map(int, text.split()), strict=False)))

    def with_metric(self, name: str, value: Raw) -> "Used":
        """Return this with what a metric of the run says. A metric that counts no tokens changes nothing."""
        field = NAMES.get(name)
        count = None if field is None else _count(value)
        return self if field is None or count is None else replace(self, **{field: count})


NOTHING: Final = Used()


def _count(value: Raw) -> int | None:
    try:
        found = msgspec.json.decode(value, type=float)
    except msgspec.DecodeError:
        return None
    return int(found) if 0 <= found <= MOST_TOKENS and found == int(found) else None


class _Asked(Struct):
    max_tokens: Raw = UNSAID
    max_completion_tokens: Raw = UNSAID
    max_new_tokens: Raw = UNSAID
    max_length: Raw = UNSAID


def estimate_tokens(given: bytes) -> str:
    """Return the expected tokens of an input, and the most of its output if it says so: `<input> <output>`. Files in it
    count as none: an image has a hundredth of the tokens that a text of its size has.
    """
    # each create comes here, and most inputs have neither
    has_either = FILE_OR_MOST.search(given) is not None
    file_bytes = _count_file_bytes(given) if has_either else 0
    most = _find_most_output(given) if has_either else None
    return f"{(len(given) - file_bytes) // BYTES_OF_TOKEN} {most or ''}"


def _count_file_bytes(given: bytes) -> int:
    """Return the bytes of the first files in it."""
    counted, end = 0, 0
    for _ in range(MOST_FILES):
        begin = given.find(b'"data:', end)
        end = given.find(b'"', begin + 1)
        if begin < 0 or end < 0:
            break
        counted += end + 1 - begin
    return counted


def _find_most_output(given: bytes) -> int | None:
    if len(given) > MOST_READ_BYTES:  # it would be read a second time for this
        return None
    try:
        said = astuple(msgspec.json.decode(given, type=_Asked))
    except msgspec.DecodeError:
        return None
    return next((count for each in said if each is not UNSAID and (count := _count(each))), None)


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Prices of a model, in the operator's money: for a million tokens, a second and a run."""

    input: float = 0
    cached: float | None = None  # without it, cached tokens cost as much as others of the input
    output: float = 0
    second: float = 0
    run: float = 0

    def cost(self, used: Used) -> float:
        cached = min(used.cached_tokens, used.input_tokens)
        of_cached = self.input if self.cached is None else self.cached
        tokens = self.input * (used.input_tokens - cached) + of_cached * cached + self.output * used.output_tokens
        return tokens / 1_000_000 + self.second * used.ms / 1000 + self.run * used.runs


class Row(Struct, frozen=True, kw_only=True):
    """One row of the ledger. `day`: 2026-11-28, or 2026-11 for a month that was added up."""

    account: str
    model: str
    token: str
    day: str
    used: Used

    @property
    def first_day(self) -> str:
        return self.day if len(self.day) == len("2026-11-28") else f"{self.day}-01"


Key = Literal["account", "model", "day", "token"]
KEYS: Final[tuple[Key, ...]] = get_args(Key)


class Sum(Struct, frozen=True, kw_only=True):
    """Rows of the ledger that agree in what they were grouped by. `cost`: None if none of their models has a price."""

    by: tuple[str, ...]
    used: Used
    cost: float | None


class Sums:
    """Add up rows as they come: many months have more of them than one process should hold."""

    def __init__(self, by: Sequence[Key]) -> None:
        self._by = by
        self._used: dict[tuple[tuple[str, ...], str], Used] = {}

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            key = (tuple(str(getattr(row, name)) for name in self._by), row.model)
            self._used[key] = self._used.get(key, NOTHING) + row.used

    def join(self, other: "Sums") -> None:
        """Add the sums of another that has the same keys."""
        for key, used in other._used.items():
            self._used[key] = self._used.get(key, NOTHING) + used

    @property
    def models(self) -> set[str]:
        return {model for _, model in self._used}

    def result(self, prices: Mapping[str, Price], *, by: int | None = None) -> list[Sum]:
        """Return the sums in order of what they were grouped by, or of only the first `by` of these."""
        used: dict[tuple[str, ...], Used] = {}
        costs: dict[tuple[str, ...], float] = {}
        for (whole, model), each in self._used.items():
            key = whole[:by]
            used[key] = used.get(key, NOTHING) + each
            if model in prices:
                costs[key] = costs.get(key, 0.0) + prices[model].cost(each)
        return [Sum(by=key, used=used[key], cost=_round(costs.get(key))) for key in sorted(used)]


def _round(cost: float | None) -> float | None:
    return None if cost is None else round(cost, 6)


def months_of(first: date, last: date) -> list[str]:
    """Return the months of these days, both included, as the ledger writes them: `202611`."""
    span = range(12 * first.year + first.month - 1, 12 * last.year + last.month)
    return [f"{number // 12}{number % 12 + 1:02}" for number in span]


def day_of(now_ms: int) -> date:
    return datetime.fromtimestamp(now_ms / 1000, UTC).date()


def list_months_to_fold(now_ms: int) -> list[str]:
    """Return the months of which each day is more than 90 days ago and which may still have days, the latest last."""
    today = day_of(now_ms)
    last = (today - timedelta(days=DAYS)).replace(day=1) - timedelta(days=1)
    return months_of(today - timedelta(days=UNFOLDED_DAYS), last)


def last_of_month(month: str) -> date:
    """Return the last day of a month as the ledger writes it."""
    year, number = int(month[:4]), int(month[4:])
    return date(year + number // 12, number % 12 + 1, 1) - timedelta(days=1)
