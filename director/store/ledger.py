"""Read what runs used, by account, model, API token and day, and the prices of models. Scripts write the rows: see
`lua/lib/ledger.lua`.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import date
from functools import partial
from itertools import product
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, read_all, text
from director.broker.scripts import Scripts
from director.core.errors import SettingsError, UnknownModel
from director.core.ids import Partition
from director.core.usage import Key, Price, Row, Sums, Used, months_of
from director.store.catalog import Catalog

AT_ONCE: Final = 200  # months of accounts, or lists of them, that one write to the socket asks for
ROWS_AT_ONCE: Final = 1_000
WHOLE: Final = "00"  # the day of a row that has its whole month
FOLDED_AT_ONCE: Final = 500
Place = tuple[Partition, str]
"""A partition and a month: where the rows of some models are."""


class Ledger:
    def __init__(self, redis: Redis, scripts: Scripts, catalog: Catalog) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._scripts = scripts
        self._catalog = catalog

    async def rows(self, first: date, last: date, *, account: str | None = None) -> AsyncIterator[list[Row]]:
        """Yield the rows of these days, both included, of one account or of all. A month that was added up counts
        with its first day.
        """
        places = list(product(await self._catalog.partitions(), months_of(first, last)))
        of = self._accounts(places) if account is None else _each(places, account)
        async for some in of:
            replies = await read_all(self._redis, some, lambda pipe, pair: pipe.hgetall(keys.ledger(*pair[0], pair[1])))
            for ((_, month), name), found in zip(some, replies, strict=True):
                packed = list(found.items())
                for start in range(0, len(packed), ROWS_AT_ONCE):
                    await asyncio.sleep(0)  # an API answers other callers meanwhile
                    each = [_row(month, name, *pair) for pair in packed[start : start + ROWS_AT_ONCE]]
                    yield [row for row in each if row is not None and str(first) <= row.first_day <= str(last)]

    async def sums(self, by: Sequence[Key], first: date, last: date, *, account: str | None = None) -> Sums:
        found = Sums(by)
        async for rows in self.rows(first, last, account=account):
            found.add(rows)
        return found

    async def fold(self, month: str, *, kept_until: date, today: date) -> int:
        """Add the days of a month up, and let each of its rows live until `kept_until`. Return the rows added."""
        kept_s, folded = max(1, (kept_until - today).days) * 86_400.0, 0
        async for some in self._accounts([(partition, month) for partition in await self._catalog.partitions()]):
            for (partition, _), account in some:
                key, cursor = keys.ledger(partition, month, account), -1
                while cursor:
                    scan = partial(self._redis.hscan, key, max(0, cursor), count=FOLDED_AT_ONCE)
                    cursor, rows = await ask(scan)
                    days = [text(field) for field in rows if text(field)[:2] != WHOLE]
                    for start in range(0, max(1, len(days)), FOLDED_AT_ONCE):
                        pairs = [(day, WHOLE + day[2:]) for day in days[start : start + FOLDED_AT_ONCE]]
                        folded += await self._scripts.fold(partition, month, account, pairs, kept_s=kept_s)
        return folded

    async def _accounts(self, places: Sequence[Place]) -> AsyncIterator[list[tuple[Place, str]]]:
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            replies = await read_all(self._redis, some, lambda pipe, place: pipe.smembers(keys.ledger_accounts(*place)))
            pairs = [(place, text(name)) for place, names in zip(some, replies, strict=True) for name in names]
            for at in range(0, len(pairs), AT_ONCE):
                yield pairs[at : at + AT_ONCE]

    async def prices(self, models: Collection[str]) -> dict[str, Price]:
        found = await self._catalog.models.many(sorted(models))
        return {model.name: price for model in found if model is not None and (price := read_price(model.price))}

    async def set_price(self, model: str, price: Price | None) -> None:
        """Raises UnknownModel."""
        written = "" if price is None else msgspec.json.encode(price).decode()
        if not await self._catalog.models.change(model, {"price": written}):
            raise UnknownModel(model)


def read_price(written: str) -> Price | None:
    """Return a price, or None if nothing is written, or a newer release wrote it in an unknown form."""
    try:
        return msgspec.json.decode(written, type=Price) if written else None
    except msgspec.DecodeError:
        return None


def check_price(given: dict[str, float]) -> Price:
    """Return a price. Raises SettingsError for a negative number, one that is too large, or NaN."""
    for name, value in given.items():
        if not 0 <= value < 1_000_000_000:
            raise SettingsError(f"{name} is a number from 0, below 1,000,000,000.")
    return Price(**given)


async def _each(places: Sequence[Place], account: str) -> AsyncIterator[list[tuple[Place, str]]]:
    for start in range(0, len(places), AT_ONCE):
        yield [(place, account) for place in places[start : start + AT_ONCE]]


def _row(month: str, account: str, field: bytes, packed: bytes) -> Row | None:
    day, model, token, *more = text(field).split(" ")
    if more:  # a newer release wrote it
        return None
    at = f"{month[:4]}-{month[4:]}" + ("" if day == WHOLE else f"-{day}")
    return Row(account=account, model=model, token=token, day=at, used=Used.unpack(text(packed)))
