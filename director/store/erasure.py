"""Erase what a suspended account has stored: predictions, batches, uploads and deployments, its tokens, and its usage.

Records go here. A keeper deletes files of records that are gone, so no file store is needed. All of it may be repeated.
"""

import asyncio
from itertools import product
from typing import Any, Final, get_args

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined, read_all
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.ids import Kind, PredictionId
from director.core.usage import day_of, months_of
from director.core.words import several
from director.store.accounts import Accounts
from director.store.administration import Suspensions
from director.store.batches import Batches
from director.store.caller_files import CallerFiles
from director.store.catalog import Catalog
from director.store.changes import Changes
from director.store.deployments import Deployments
from director.store.predictions import Predictions

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
AT_ONCE: Final = 100  # ids of a list in one write
LEDGERS_AT_ONCE: Final = 500
ROUNDS: Final = 5  # a keeper may change a deployment's split between the read and the write
LONGEST_YEARS: Final = 11  # more than DIRECTOR_USAGE_MONTHS can be


class Erased(Struct, frozen=True, kw_only=True):
    """How many were erased. `months`: of usage, once for each model and month."""

    predictions: int
    batches: int
    files: int
    deployments: int
    tokens: int
    months: int


class Erasure:
    def __init__(
        self,
        redis: Redis,
        scripts: Scripts,
        clock: Clock,
        accounts: Accounts,
        catalog: Catalog,
        suspensions: Suspensions,
        deployments: Deployments,
        changes: Changes,
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self._accounts = accounts
        self._catalog = catalog
        self._suspensions = suspensions
        self._deployments = deployments
        self._changes = changes
        self._predictions = Predictions(redis)
        self._files = CallerFiles(redis)
        self._batches = Batches(redis, scripts)

    async def erase(self, account: str, *, keeps_usage: bool, by: str, within_s: float) -> Erased:
        """Erase it all. Raises SettingsError if the account is not suspended with `end`, if something of it still runs
        after `within_s`, or if a deployment is left.
        """
        await self._accounts.refuse_unknown(account)
        suspension = (await self._accounts.read_written(account)).suspension
        if suspension is None or suspension.policy != "end":
            raise SettingsError(f"{account} may still run: `director account suspend {account} --policy end` first.")
        if left := (await self._suspensions.settle(account, within_s=within_s)).left:
            raise SettingsError(f"{left} of its predictions have not ended yet. Repeat this in a minute.")
        async with self._changes.noting("account_erased", by=by, account=account, keeps_usage=keeps_usage) as noted:
            noted.begin()
            return Erased(
                batches=await self._batches.erase(account),  # first: keepers notice, and store no more
                tokens=await self._revoke(account),
                predictions=sum([await self._erase_predictions(account, kind) for kind in KINDS]),
                files=await self._erase_files(account),
                deployments=await self._erase_deployments(account),
                months=0 if keeps_usage else await self._erase_usage(account),
            )

    async def _revoke(self, account: str) -> int:
        tokens = await self._accounts.tokens.of(account)
        await pipelined(self._redis, lambda pipe: pipe.unlink(keys.sessions(account)))
        return sum([await self._accounts.tokens.remove(token) for token in tokens])

    async def _erase_predictions(self, account: str, kind: Kind) -> int:
        erased, high = 0, "+"
        while ids := await self._predictions.ids(account, kind, high=high, count=AT_ONCE):
            erased += sum(await asyncio.gather(*(self._erase_one(each, account, kind) for each in ids)))
            high = f"({ids[-1]}"
        return erased

    async def _erase_one(self, prediction_id: PredictionId, account: str, kind: Kind) -> bool:
        await self._scripts.stow(account, prediction_id)  # before the record goes, since a keeper finds no account then
        answer = await self._scripts.erase(prediction_id, account=account, kind=kind)
        if answer != "running":
            await self._scripts.delist(prediction_id, account=account, kind=kind)
        return answer == "erased"

    async def _erase_files(self, account: str) -> int:
        erased, high = 0, "+"
        while ids := await self._files.ids(account, high=high, count=AT_ONCE):
            known = await self._files.find(account, ids)
            for file in known.values():
                await self._files.remove(file)
                await self._scripts.stow(account, file.id)
            counts = [(each, known[each].counts) for each in ids if each in known]
            gone = [self._scripts.delist(each, account=account, is_file=True, counted=count) for each, count in counts]
            gone += [self._scripts.delist(each, account=account, is_file=True) for each in ids if each not in known]
            await asyncio.gather(*gone)
            erased += len(known)
            high = f"({ids[-1]}"
        for each in await self._files.read_counted(account):  # what batches wrote and is on no list
            await self._files.forget(account, each)
            await self._scripts.stow(account, each)
        return erased

    async def _erase_deployments(self, account: str) -> int:
        """Erase its deployments. Raises SettingsError if another process goes on to change them, or a later release
        wrote one in a form that is unknown here.
        """
        erased = 0
        for _ in range(ROUNDS):
            names = [name for _, name in await self._deployments.names(account)]
            found = await self._deployments.with_splits(await self._deployments.many(account, names))
            written = [await self._deployments.delete(each) for each in found]
            erased += written.count("written")
            if "changed" not in written:
                return erased
        left = several(written.count("changed"), "deployment")
        raise SettingsError(f"{left} of {account} changed meanwhile. Repeat this, with the newest release that runs.")

    async def _erase_usage(self, account: str) -> int:
        today = day_of(self._clock.now_ms())
        months = months_of(today.replace(year=today.year - LONGEST_YEARS, day=1), today)
        places = list(product(await self._catalog.partitions(), months))
        erased = 0
        for start in range(0, len(places), LEDGERS_AT_ONCE):
            some = places[start : start + LEDGERS_AT_ONCE]
            has_rows = await read_all(
                self._redis, some, lambda pipe, place: pipe.sismember(keys.ledger_accounts(*place), account)
            )
            with_rows = [place for place, has_any in zip(some, has_rows, strict=True) if has_any]

            def forget(pipe: Any) -> None:
                for place in with_rows:  # noqa: B023
                    pipe.unlink(keys.ledger(*place, account))
                    pipe.srem(keys.ledger_accounts(*place), account)

            await pipelined(self._redis, forget)
            erased += len(with_rows)
        return erased
