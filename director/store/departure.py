"""Move what waits in a queue to a queue of the same model on another Redis server, so that each prediction runs once.

Each prediction takes three steps that may be repeated: it leaves its queue, so that no director can claim it; it
arrives there; a tombstone here says so. The same command continues a move that was cut short. No claim is moved.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, pipelined, text
from director.broker.replies import Arrived, Departed
from director.broker.scripts import Scripts
from director.core.account_limits import UNLIMITED, AccountLimits
from director.core.data_bytes import DATA_TTL_MS, at_creation
from director.core.errors import SettingsError, UnknownQueue
from director.core.ids import PredictionId, QueueName, lowest_id_at, model_and_kind
from director.core.schema import Record, reference_in
from director.runtime import crash
from director.store.accounts import Accounts

SLICE: Final = 50
AT_ONCE: Final = 16  # of a slice, since an input and its events may be megabytes
PASSES: Final = 10

Done = TypeVar("Done")


class Site(Struct, frozen=True):
    redis: Redis
    scripts: Scripts
    accounts: Accounts


class Left(Struct, frozen=True, kw_only=True):
    """Progress so far: `moved` and `stayed` (put back). The others stay here, as of the last pass.

    `claimed`: they run. `held`: their account is paused. `strange`: it is unknown there. `elsewhere`: for others.
    """

    moved: int = 0
    stayed: int = 0
    claimed: int = 0
    held: int = 0
    strange: int = 0
    elsewhere: int = 0


class _Packed(Struct, frozen=True):
    """All that moves with one prediction. `held`: its idempotency key, the value of the key, and its remaining ms."""

    record: Record
    flat: Sequence[bytes]
    input: bytes
    events: Sequence[bytes]
    held: tuple[str, bytes, int] | None


async def name_site(redis: Redis) -> str:
    await ask(lambda: redis.set(keys.site(), secrets.token_hex(8), nx=True))
    return await server_name(redis)


async def server_name(redis: Redis) -> str:
    [name] = await pipelined(redis, lambda pipe: [pipe.get(keys.site())])
    return text(name or b"")


class Departure:
    def __init__(self, here: Site, there: Site, queue: QueueName, to: QueueName) -> None:
        if model_and_kind(queue) != model_and_kind(to):
            raise SettingsError(f"{queue} and {to} are not of one model, or not for one kind of run.")
        self._here = here
        self._there = there
        self._queue = queue
        self._to = to
        self._site = ""
        self._limits: dict[str, tuple[AccountLimits, int] | None] = {}

    async def steps(self, *, only_asks: bool = False) -> AsyncIterator[Left]:
        """Move all that waits, and yield the progress after each slice. With `only_asks` nothing moves.

        The queue is searched until a pass moves nothing, at most ten times: stop a queue that fills faster first.
        """
        await self._meet()
        if not await ask(lambda: self._there.redis.exists(keys.meta(self._to))):
            raise UnknownQueue(self._to)
        done = Left()
        if not only_asks:
            async for done in self._resume():
                yield done
        for _ in range(PASSES):
            before, done, start, has_changed = done.moved, replace(done, claimed=0, held=0, strange=0), 0, False
            while ids := await self._ids(keys.live(self._queue), start):
                answers = await self._look(ids) if only_asks else await self._depart(ids)
                gone = sum(answer == "leaving" for answer in answers)
                arrived = gone if only_asks else await self._carry(ids, answers)
                done = replace(
                    done,
                    moved=done.moved + arrived,
                    claimed=done.claimed + answers.count("claimed"),
                    held=done.held + answers.count("held"),
                    strange=done.strange + answers.count("strange"),
                )
                yield done
                start += len(ids) - (0 if only_asks else gone)
                has_changed = has_changed or "gone" in answers  # some of this slice were not looked at
            if only_asks or (done.moved == before and not has_changed):
                return

    async def put_back(self) -> AsyncIterator[Left]:
        """Put what has not arrived yet back into the queue here. Yield the progress after each slice."""
        await self._meet()
        done = Left()
        while ids := await self._ids(keys.leaving(self._queue), done.elsewhere):
            for prediction_id in ids:
                record = await self._record(prediction_id)
                if record is None or record.leaving != self._site:
                    done = replace(done, elsewhere=done.elsewhere + 1)
                    continue
                refused = await self._there.scripts.arrive(prediction_id, self._to, move=record.moves, refuses=True)
                if refused == "refused":
                    stayed = await self._here.scripts.stay(prediction_id, site=self._site)
                    done = replace(done, stayed=done.stayed + (stayed != "gone"))
                else:
                    done = replace(done, moved=done.moved + await self._vacate(record))
            yield done

    async def _meet(self) -> None:
        self._site = await name_site(self._there.redis)
        if self._site == await name_site(self._here.redis):
            raise SettingsError("That is the same Redis server twice: name the other queue instead.")

    async def _resume(self) -> AsyncIterator[Left]:
        done = Left()
        while ids := await self._ids(keys.leaving(self._queue), done.elsewhere):
            records = [await self._record(prediction_id) for prediction_id in ids]
            mine = [record is not None and record.leaving == self._site for record in records]
            arrived = await self._carry(ids, ["leaving" if is_mine else "elsewhere" for is_mine in mine])
            done = replace(done, moved=done.moved + arrived, elsewhere=done.elsewhere + len(ids) - arrived)
            yield done

    async def _ids(self, index: str, start: int) -> list[PredictionId]:
        [found] = await pipelined(self._here.redis, lambda pipe: [pipe.zrange(index, start, start + SLICE - 1)])
        return [PredictionId(text(name)) for name in found]

    async def _look(self, ids: Sequence[PredictionId]) -> list[str]:
        held = {text(name) for name in await ask(lambda: self._here.redis.smembers(keys.held(self._queue)))}
        held |= {text(name) for name in await ask(lambda: self._here.redis.hkeys(keys.suspended(self._queue)))}
        answers = []
        for account, token in await self._fields(ids, "account", "token"):
            answer = "claimed" if token else "held" if account in held else "leaving"
            answers.append(answer if not account or await self._find_account(account) else "strange")
        return answers

    async def _depart(self, ids: Sequence[PredictionId]) -> list[str]:
        accounts = [account for (account,) in await self._fields(ids, "account")]
        known = [not account or await self._find_account(account) is not None for account in accounts]
        asked = [(name, account) for name, account, is_known in zip(ids, accounts, known, strict=True) if is_known]
        answers: list[Departed] = []
        if asked:
            answers = await self._here.scripts.depart(self._queue, asked, site=self._site)
            crash.at("after_depart")
        departed = iter(answers)
        return [next(departed) if is_known else "strange" for is_known in known]

    async def _carry(self, ids: Sequence[PredictionId], answers: Sequence[str]) -> int:
        leaving = [name for name, answer in zip(ids, answers, strict=True) if answer == "leaving"]
        came = [int(arrival or 0) for (arrival,) in await self._fields(leaving, "arrival")]
        in_order = [name for _, name in sorted(zip(came, leaving, strict=True))]
        moved = 0
        for start in range(0, len(in_order), AT_ONCE):
            packed = await _all(map(self._pack, in_order[start : start + AT_ONCE]))
            moved += await self._bring([one for one in packed if one is not None and one.record.leaving == self._site])
        return moved

    async def _bring(self, packed: Sequence[_Packed]) -> int:
        """Bring one slice. Calls of one turn leave in one write and are executed in their order."""
        known = [one for one in packed if await self._find_account(one.record.account) is not None]
        await _all(map(self._enlist, known))
        answers = await _all(map(self._arrive, known))
        crash.at("after_arrive")
        if "unknown" in answers:
            raise UnknownQueue(self._to)
        here = [one.record for one, answer in zip(known, answers, strict=True) if answer == "here"]
        return sum(await _all(map(self._vacate, here)))

    async def _enlist(self, one: _Packed) -> None:
        record = one.record
        counts = at_creation(record.id, len(one.input), record.data_ttl_ms or DATA_TTL_MS)
        await self._there.scripts.enlist(
            record.id, account=record.account, oldest=lowest_id_at(0), kind=record.kind, counts=counts
        )

    async def _arrive(self, one: _Packed) -> Arrived:
        limits, revision = await self._find_account(one.record.account) or (UNLIMITED, 0)
        if limits.closing_hours:
            await self._there.scripts.hours(
                self._to, limits.closing_hours, account=one.record.account, revision=revision
            )
        return await self._there.scripts.arrive(
            one.record.id,
            self._to,
            move=one.record.moves,
            record=one.flat,
            input=one.input,
            events=one.events,
            idempotency=one.held,
            weight=limits.weight,
            most_running=limits.max_running,
            limits_rev=revision,
        )

    async def _vacate(self, record: Record) -> bool:
        """Leave a tombstone for a prediction that arrived, after passing on a cancel that its caller asked for here."""
        canceled = False
        while True:
            answer = await self._here.scripts.vacate(record.id, site=self._site, canceled=canceled)
            if answer != "cancel":
                crash.at("after_vacate")
                return answer == "moved"
            await self._there.scripts.cancel(record.id, account=record.account, kind=record.kind)
            crash.at("after_cancel_there")
            canceled = True

    async def _pack(self, prediction_id: PredictionId) -> _Packed | None:
        """Read all that moves with a prediction. While it leaves only a cancel changes it, and `vacate` checks that."""

        def read(pipe: Any) -> None:
            pipe.hgetall(keys.record(prediction_id))
            pipe.get(keys.input_data(prediction_id))
            pipe.lrange(keys.events(prediction_id), 0, -1)

        fields, data, events = await pipelined(self._here.redis, read)
        if not fields:
            return None
        flat = list(chain(*fields.items()))
        record = Record.parse(prediction_id, flat)
        if reference_in(data):  # the other server may have another file store
            stored = await self._here.scripts.get(prediction_id, outlook=False)
            if stored is None or stored.input is None:
                return None
            data = bytes(stored.input)
        return _Packed(record, flat, data or b"", events, await self._find_key(record))

    async def _find_key(self, record: Record) -> tuple[str, bytes, int] | None:
        if not record.idem:
            return None
        key = keys.idempotency(account=record.account, model=record.model, digest=record.idem)
        holds, lasts_ms = await pipelined(self._here.redis, lambda pipe: (pipe.get(key), pipe.pttl(key)))
        return (key, holds, lasts_ms) if holds and lasts_ms > 0 else None

    async def _record(self, prediction_id: PredictionId) -> Record | None:
        fields: Any = await ask(lambda: self._here.redis.hgetall(keys.record(prediction_id)))
        return Record.parse(prediction_id, list(chain(*fields.items()))) if fields else None

    async def _fields(self, ids: Sequence[PredictionId], *names: str) -> list[list[str]]:
        rows = await pipelined(self._here.redis, lambda pipe: [pipe.hmget(keys.record(each), names) for each in ids])
        return [[text(value or b"") for value in row] for row in rows]

    async def _find_account(self, account: str) -> tuple[AccountLimits, int] | None:
        if account not in self._limits:
            accounts, known = self._there.accounts, None
            if await accounts.exists(account):
                written = await accounts.read_written(account)
                known = accounts.limits_of(written), written.revision
            self._limits[account] = known
        return self._limits[account]


async def _all(calls: Iterable[Awaitable[Done]]) -> list[Done]:
    """Return all answers once every call has ended, so that a failure leaves no other call running."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
