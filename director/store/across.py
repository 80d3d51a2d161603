"""Let operators find, cancel and retry predictions of all accounts. A call is bounded, and says where to go on.

A prediction that has ended stays so. A retry makes a new prediction with the same input, for the same account. Only a
dead letter returns to its queue under its own id. The same end is retried once within a day: a repeated call returns
the same new prediction.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import Accepted
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import (
    BackendUnavailable,
    DataRefused,
    DirectorError,
    IdempotencyMismatch,
    SettingsError,
    UnknownQueue,
)
from director.core.ids import Kind, PredictionId, QueueName, lowest_id_at, new_prediction_id
from director.core.schema import NewPrediction, Record, Stored, reference_in
from director.core.states import TERMINAL, Status
from director.core.view import iso
from director.files.data_files import DataAway, DataFiles
from director.store.accounts import Account, Accounts
from director.store.catalog import Catalog, Version
from director.store.changes import Changes
from director.store.predictions import Predictions
from director.store.undo import Undo

MOST_ACCOUNTS: Final = 1_000  # beyond that a filter must name one: each list is asked for its first id
MOST_LOOKED_AT: Final = 2_000
SLICE: Final = 200
AT_ONCE: Final = 20
MOST_NOTED: Final = 20  # ids in the log of changes
FIELDS: Final = (
    *("account", "model", "version", "queue", "kind", "lane", "status"),
    *("created", "started", "completed", "code", "error", "moved"),
)
LONGEST_ERROR: Final = 300
LONGEST_PREVIEW: Final = 300
MOST_PREVIEWED: Final = 1_024  # bytes: a larger one is not read, so a page of 100 reads 200 KB at most
# Facts of a request that a retry does not copy: it gets a stream's ticket and a meter of its own, begins no trace, and
# may start now.
# Secret values are overwritten at the end, so a request with some is not retried
OWN_FACTS: Final = frozenset(
    {"ticket", "metered", "budgeted", "split", "traceparent", "tracestate", "secret", "start_after"}
)
UNKNOWN_S: Final = 1.0  # the assumed time of a run while a queue has finished none

Why = Literal[
    "unknown",
    "moved",
    "has_ended",
    "has_not_ended",
    "data_removed",
    "data_away",
    "secrets_gone",
    "no_queue",
    "account_suspended",
    "compute_exhausted",
    "data_full",
    "refused",
]
"""Why one was left alone. `refused`: its queue takes no more, or a limit of its account is invalid. `data_away`: the
file store does not give its data.
"""
WHYS: Final[frozenset[str]] = frozenset(get_args(Why))
REFUSED: Final[Mapping[type[DirectorError], Why]] = {UnknownQueue: "no_queue", DataRefused: "data_full"}
# Before the digests of operators' retries. A digest of a caller's key has hex digits alone, so no caller can take one
RETRY: Final = "retry-"


class PredictionBrief(Struct, frozen=True, kw_only=True):
    """A prediction without its input and output. `error`: the first 300 characters. `input`, `output`: the first 300
    characters of their JSON, if previews were asked for; null where they are large, gone, not there yet, or secret.
    """

    id: PredictionId
    account: str
    model: str
    version: str
    queue: QueueName
    kind: Kind
    lane: str
    status: Status
    created_at: str
    started_at: str | None
    completed_at: str | None
    code: str | None
    error: str | None
    input: str | UnsetType | None = UNSET
    output: str | UnsetType | None = UNSET


class Filter(Struct, frozen=True, kw_only=True):
    """The conditions of a search; '' and None are no condition. Times are those of the ids, in ms."""

    account: str = ""
    model: str = ""
    version: str = ""
    kind: Kind = ""
    status: str = ""
    code: str = ""
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    is_terminal: bool | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Return the conditions, for the log of changes."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) not in ("", None)}

    def match(self, one: PredictionBrief) -> bool:
        if self.is_terminal not in (None, one.status in TERMINAL):
            return False
        asked = ((name, getattr(self, name)) for name in ("account", "model", "version", "status", "code"))
        return all(value in ("", getattr(one, name)) for name, value in asked)


class Walked(Struct, frozen=True):
    """One page, newest first. `next`: the id to go on below, or None at the end."""

    results: list[PredictionBrief]
    next: PredictionId | None


class LeftAlone(Struct, frozen=True):
    """A prediction that was not changed."""

    id: PredictionId
    why: Why


class Retry(Struct, frozen=True):
    """A retry. A dead letter has the same id as before."""

    id: PredictionId
    new_id: PredictionId


class BulkAnswer(Struct, frozen=True, kw_only=True):
    """The result of a call. `next`: the cursor with which the same call goes on; null if nothing is left."""

    done: int
    refused: list[LeftAlone]
    retried: list[Retry] | UnsetType = UNSET
    next: PredictionId | None = None


Outcome = Why | PredictionId
"""Why it was left alone, or the id that it has now."""
Act = Callable[[PredictionBrief], Awaitable[Outcome]]
Enter = Callable[[Version, NewPrediction, int | None, Undo], Awaitable[Accepted]]
"""Put a checked prediction into its queue, as a caller's, with at most so many bytes of its account. The Undo is that
of the block around. Raises QueueError.
"""


@dataclass(slots=True, eq=False)
class Across:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    _redis: Any  # redis-py says str or bytes; ours answers in bytes
    _scripts: Scripts
    _clock: Clock
    _accounts: Accounts
    _catalog: Catalog
    _predictions: Predictions
    _changes: Changes
    _data_files: DataFiles

    async def page(self, wanted: Filter, *, below: PredictionId | None, count: int) -> Walked:
        """Return at most `count` that match, newest first, of the 2,000 newest below an id.

        Raises SettingsError where there are too many accounts to look through.
        """
        accounts = [wanted.account] if wanted.account else await self._accounts.names()
        if len(accounts) > MOST_ACCOUNTS:
            raise SettingsError(f"There are more than {MOST_ACCOUNTS:,} accounts: name one.")
        oldest, newest = wanted.created_after_ms, wanted.created_before_ms
        low = "-" if oldest is None else f"[{lowest_id_at(oldest)}"
        high = "+" if newest is None else f"({lowest_id_at(newest)}"
        results: list[PredictionBrief] = []
        for _ in range(0, MOST_LOOKED_AT, SLICE):
            ids = await self._predictions.ids_of(
                accounts, wanted.kind, low=low, high=high if below is None else f"({below}", count=SLICE
            )
            for one in await self.find(ids):
                below = one.id
                if wanted.match(one):
                    results.append(one)
                    if len(results) == count:
                        return Walked(results, below)
            if len(ids) < SLICE:
                return Walked(results, None)
            below = ids[-1]
        return Walked(results, below)

    async def find(self, ids: Sequence[PredictionId]) -> list[PredictionBrief]:
        """Return those of these predictions that exist."""
        rows = await pipelined(self._redis, lambda pipe: [pipe.hmget(keys.record(name), FIELDS) for name in ids])
        found = [_brief(name, [text(value or b"") for value in row]) for name, row in zip(ids, rows, strict=True)]
        return [one for one in found if one is not None]

    async def with_previews(self, found: Sequence[PredictionBrief]) -> list[PredictionBrief]:
        """Return the same predictions with the beginnings of their inputs and outputs."""

        def weigh(pipe: Any) -> None:
            for one in found:
                pipe.hget(keys.record(one.id), "secret")
                pipe.strlen(keys.input_data(one.id))
                pipe.hstrlen(keys.output_data(one.id), "output")

        weighed = iter(await pipelined(self._redis, weigh))
        looked = [(one, *(next(weighed) for _ in range(3))) for one in found]
        inputs = [one.id for one, secret, size, _ in looked if not secret and 0 < size <= MOST_PREVIEWED]
        outputs = [one.id for one, _, _, size in looked if 0 < size <= MOST_PREVIEWED]

        def read(pipe: Any) -> None:
            for name in inputs:
                pipe.get(keys.input_data(name))
            for name in outputs:
                pipe.hget(keys.output_data(name), "output")

        begun = [_preview(kept) for kept in await pipelined(self._redis, read)]
        ins, outs = dict(zip(inputs, begun, strict=False)), dict(zip(outputs, begun[len(inputs) :], strict=True))
        return [replace(one, input=ins.get(one.id), output=outs.get(one.id)) for one in found]

    async def cancel(self, ids: Sequence[PredictionId], *, by: str, wanted: Filter | None = None) -> BulkAnswer:
        """Cancel these predictions. One that runs is asked to stop."""

        async def cancel(one: PredictionBrief) -> Outcome:
            said = await self._scripts.cancel(one.id, account=one.account, kind=one.kind)
            words: Mapping[str, Why] = {"over": "has_ended", "moved": "moved", "unknown": "unknown"}
            return words.get(said, one.id)

        return await self._each("predictions_canceled", ids, cancel, by=by, wanted=wanted)

    async def retry(
        self,
        ids: Sequence[PredictionId],
        *,
        by: str,
        ticket: Callable[[], str],
        enter: Enter,
        site: int = 0,
        wanted: Filter | None = None,
    ) -> BulkAnswer:
        """Run these again. Each new one belongs to the account of the old one, and counts against its limits.

        `ticket` makes the secret part of an address of a stream. `site`: the number in new ids.
        """
        owners: dict[str, Account] = {}

        async def retry(one: PredictionBrief) -> Outcome:
            if one.status not in TERMINAL:
                return "has_not_ended"
            if await self._scripts.revive(one.id):
                return one.id
            if one.account not in owners:
                owners[one.account] = await self._accounts.account(one.account)
            try:
                return await self._again(one.id, owners[one.account], ticket, site, enter)
            except DataAway:  # one file that is lost must not keep all others from their retry
                return "data_away"

        return await self._each("predictions_retried", ids, retry, by=by, wanted=wanted)

    async def _again(
        self, prediction_id: PredictionId, owner: Account, ticket: Callable[[], str], site: int, enter: Enter
    ) -> Outcome:
        if owner.suspension is not None:
            return "account_suspended"
        stored = await self._scripts.get(prediction_id, outlook=False, whole=False)
        if stored is None:
            return "unknown"
        record = stored.record
        if record.moved:
            return "moved"
        if not record.is_terminal:  # another operator has revived it meanwhile
            return "has_not_ended"
        if record.secret:
            return "secrets_gone"
        given = await self._input(stored)
        if given is None:
            return "data_removed"
        known = await self._find_retry(record)
        if known is not None:  # before the limits, which it has passed
            await self._list(known, record)
            return known
        version = await self._catalog.version(record.model, record.version)
        served = version and await self._catalog.of_kind(version, record.kind)
        if served is None:
            return "no_queue"
        new_id = new_prediction_id(model=served.model, now_ms=self._clock.now_ms(), site=site)
        secret = ticket() if record.ticket else ""
        new = _copy(record, bytes(given), new_id, owner, shard=served.shard_of(owner.name), ticket=secret)
        return await self._file(new, served, owner, record, enter)

    async def _find_retry(self, record: Record) -> PredictionId | None:
        """Return the prediction that this end was retried as, or None also if that was deleted since."""
        key = _key(record)
        for digest in (RETRY + key, key):  # the second one as release 0.3.0 writes it, among the keys of callers
            with suppress(IdempotencyMismatch):  # the account's own key
                known = await self._predictions.stands_for(
                    record.account, model=record.model, digest=digest, fingerprint=key
                )
                if known is not None and await ask(lambda: self._redis.exists(keys.record(known))):  # noqa: B023
                    return known
        return None

    async def _input(self, stored: Stored) -> Raw | None:
        """Return the input. The output may be large, so it is not read. Raises DataAway."""
        if not stored.left_out:
            return stored.input
        kept = await ask(lambda: self._redis.get(keys.input_data(stored.record.id)))
        return (await self._data_files.whole(replace(stored, input=Raw(kept) if kept else None))).input

    async def _file(self, new: NewPrediction, served: Version, owner: Account, former: Record, enter: Enter) -> Outcome:
        if new.metered and not await self._reserve(new, owner):
            return "compute_exhausted"
        if new.budgeted and not await self._budget(new, owner):
            await self._give_back(new)
            return "compute_exhausted"
        async with Undo() as undo:
            undo.push(lambda: self._give_back(new))
            accepted = await enter(served, new, owner.limits.max_data_bytes, undo)
            if accepted.replayed:
                await undo.note_repeat()
        if accepted.replayed:
            await self._list(accepted.id, former)
        else:
            key = _key(former)
            # an API of release 0.3.0 looks there, so that it retries it no second time
            with suppress(BackendUnavailable):
                await self._scripts.bind(
                    accepted.id, account=new.account, model=new.model, idempotency=(key, key), instead_of=None
                )
        return accepted.id

    async def _list(self, new_id: PredictionId, former: Record) -> None:
        """Put a retry on its account's list, which lacks it if the process of the first request died half way."""
        await self._scripts.enlist(new_id, account=former.account, oldest=lowest_id_at(0), kind=former.kind)

    async def _reserve(self, new: NewPrediction, owner: Account) -> bool:
        stats, limits = await self._scripts.stats(new.queue), owner.limits
        allowed = await self._scripts.reserve(
            owner.name,
            limits.compute_s_per_day,
            in_all=limits.compute_s_total,
            id=new.id,
            asked_s=(stats.service_ms / 1000 or UNKNOWN_S) * max(1, new.cost / stats.service_cost),
        )
        return allowed.allowed

    async def _budget(self, new: NewPrediction, owner: Account) -> bool:
        stats = await self._scripts.stats(new.queue)
        answer = await self._scripts.budget(
            owner.name,
            new.id,
            owner.limits.budget,
            tokens=sum(map(int, new.tokens.split())),
            compute_s=(stats.service_ms / 1000 or UNKNOWN_S) * max(1, new.cost / stats.service_cost),
        )
        return answer.allowed

    async def _give_back(self, new: NewPrediction) -> None:
        if new.budgeted:
            await self._scripts.settle(new.account, new.id)
        if new.metered:
            await self._scripts.spend(new.account, prediction_id=new.id)

    async def _each(
        self,
        kind: Literal["predictions_canceled", "predictions_retried"],
        ids: Sequence[PredictionId],
        act: Act,
        *,
        by: str,
        wanted: Filter | None,
    ) -> BulkAnswer:
        known = {one.id: one for one in await self.find(ids)}
        accounts = {one.account for one in known.values()}
        refused = [LeftAlone(name, "unknown") for name in ids if name not in known]
        if not known:
            return BulkAnswer(done=0, refused=refused)
        did: list[Retry] = []
        whose = accounts.pop() if len(accounts) == 1 else ""
        facts = wanted.facts if wanted else {}
        async with self._changes.noting(
            kind, by=by, account=whose, count=len(known), ids=list(known)[:MOST_NOTED], filter=facts
        ) as noted:
            for start in range(0, len(known), AT_ONCE):
                some = list(known.values())[start : start + AT_ONCE]
                outcomes = await asyncio.gather(*(_outcome(act, one) for one in some))
                for one, outcome in zip(some, outcomes, strict=True):
                    if outcome in WHYS:
                        refused.append(LeftAlone(one.id, outcome))  # type: ignore[arg-type] # it is one of them
                    else:
                        did.append(Retry(one.id, PredictionId(outcome)))
            if not did:
                noted.void()
        return BulkAnswer(done=len(did), refused=refused, retried=did if kind == "predictions_retried" else UNSET)


async def _outcome(act: Act, one: PredictionBrief) -> Outcome:
    """Act on one. What refuses it must not keep the others from their outcome. Raises BackendUnavailable."""
    try:
        return await act(one)
    except BackendUnavailable:
        raise
    except DirectorError as exc:
        return REFUSED.get(type(exc), "refused")


def _key(record: Record) -> str:
    """Return the digest of this end, under which it is retried once."""
    return hashlib.sha256(f"retry {record.id} {record.completed}".encode()).hexdigest()


def _copy(
    record: Record, given: bytes, new_id: PredictionId, owner: Account, *, shard: str, ticket: str
) -> NewPrediction:
    """Return the same request again. All its facts are copied but those of OWN_FACTS."""
    limits, key = owner.limits, _key(record)
    facts = {name: value for name, value in record.request_facts.items() if name not in OWN_FACTS}
    return NewPrediction(
        id=new_id,
        input=given,
        shard=shard,
        idempotency=(RETRY + key, key),
        weight=limits.weight,
        most_running=limits.max_running,
        most_queued=limits.max_queued,
        limits_rev=owner.limits_rev,
        open_hours=limits.closing_hours,
        lifetime_ms=record.deadline - record.created if record.deadline_status and record.deadline else None,
        ticket=ticket,
        metered=limits.meters_compute,
        budgeted=limits.has_budget,
        **facts,
    )


def _preview(kept: bytes | None) -> str | None:
    """Return the beginning of JSON, or None if it is in the file store or was removed meanwhile."""
    return None if kept is None or reference_in(kept) else text(kept)[:LONGEST_PREVIEW]


def _brief(name: PredictionId, fields: Sequence[str]) -> PredictionBrief | None:
    account, model, version, queue, kind, lane, status, created, started, completed, code, error, moved = fields
    if not status or moved:
        return None
    return PredictionBrief(
        id=name,
        account=account,
        model=model,
        version=version,
        queue=QueueName(queue),
        kind=msgspec.convert(kind, Kind),
        lane=lane,
        status=Status(status),
        created_at=iso(int(created)),
        started_at=iso(int(started)) if started else None,
        completed_at=iso(int(completed)) if completed else None,
        code=code or None,
        error=error[:LONGEST_ERROR] or None,
    )
