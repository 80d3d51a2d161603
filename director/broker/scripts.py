"""Call every script with types: the one place that knows the order of KEYS and ARGV.

Each file of lua/ has one method with its name; the script's header states what it promises. Keys and arguments have the
names that they have there, and a test compares. None is sent as ''.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Raw

from director.broker import keys, replies
from director.broker.gatherer import BATCH_BYTES, LARGE_BYTES, Arg, Gatherer, Traffic
from director.broker.redis_client import text
from director.core.account_limits import Bucket
from director.core.clock import SystemClock
from director.core.data_bytes import FOR_EVER_MS, NOTHING, Counted
from director.core.errors import BackendUnavailable, IdempotencyMismatch, QueueRefused, SettingsError, UnknownQueue
from director.core.hours import DAY_MS, closures
from director.core.ids import ALL_LANES, FileId, Kind, Partition, PredictionId, QueueName, created_ms_of, partition_of
from director.core.policy import MAX_STREAMS, NONE, Lane, Objectives, Policy, decode_objectives, encode
from director.core.schema import (
    LIFE,
    Claim,
    Known,
    NewEvent,
    NewPrediction,
    Record,
    RequestFacts,
    Stored,
    Token,
    pairs,
    reference_in,
)
from director.core.states import Status
from director.core.usage import NOTHING as NOTHING_USED
from director.core.usage import Used
from director.core.view import fold

log = logging.getLogger(__name__)
IDEMPOTENCY_TTL_MS = 24 * 3600 * 1000
# Fields of a new prediction that `enqueue` takes with their names: seven in this order
FIRST_NAMED: Final = ("account", "queue", "lane", "shard", "cost", "tokens", "start_after")
STORED: Final = dict(zip(RequestFacts.__struct_fields__, RequestFacts.__struct_encode_fields__, strict=True))
FACTS: Final = (*FIRST_NAMED, *(name for name in STORED if name not in FIRST_NAMED), "waiter")
NAMED: Final = tuple(STORED.get(name, name) for name in FACTS)
named_values: Final = attrgetter(*FACTS)
MOST_CLAIMS = 20
DELIVERED: Final[Sequence[replies.Delivered]] = ("", "noted", "others")


class Scripts:
    """Every change of shared state. All methods raise BackendUnavailable while Redis cannot answer.

    `whole` replaces references to the file store in what `get` returns. Without it they stay.
    """

    def __init__(self, gatherer: Gatherer, *, whole: Callable[[Stored], Awaitable[Stored]] | None = None) -> None:
        self._call = gatherer.call
        self._packed = gatherer.pack
        self._whole = whole

    async def _word(self, script: str, names: Sequence[str], args: Sequence[Arg]) -> Any:
        """Return the reply of a call that is answered with one word."""
        return (await self._call(script, names, args)).decode()

    async def register(self, queue: QueueName, *, version: str, policy: Policy) -> bool:
        """Register a queue, or refresh its policy. Returns False if its name belongs to another version."""
        _refuse_streams(policy.streams)
        promised = policy.objectives
        args: list[Arg] = [version, policy.streams, min(policy.size, policy.streams), "objectives", encode(promised)]
        for lane in get_args(Lane):
            args += [f"within:{lane}", ms(promised[lane].within_s if lane in promised else None)]
        for name in policy.__struct_fields__:
            value = getattr(policy, name)
            if name.endswith("_s"):
                args += [f"{name[:-2]}_ms", ms(value)]
            elif name not in ("streams", "size", "objectives", "open_hours"):
                args += [name, value]
        is_its = bool(await self._call("register", [keys.meta(queue)], args))
        if is_its:
            await self.hours(queue, policy.open_hours, revision=None)
        return is_its

    async def unregister(
        self, queue: QueueName, *, only_asks: bool = False, now_ms: int | None = None
    ) -> replies.Unregistered:
        """Forget an empty queue without directors, or return why not and write nothing. `only_asks`: never write."""
        word = await self._word("unregister", [keys.meta(queue)], [int(only_asks), now_ms])
        return cast(replies.Unregistered, word)

    async def resize(self, queue: QueueName, *, streams: int) -> tuple[int, int]:
        """Change the streams of each lane. Returns (streams that take new work, streams that are read)."""
        _refuse_streams(streams)
        taking, read = _require_known(queue, await self._call("resize", [keys.meta(queue)], [streams]))
        return taking, read

    async def migrate(
        self, queue: QueueName, *, to: QueueName, start: int, count: int, only_asks: bool, now_ms: int | None = None
    ) -> replies.Migrated | None:
        """Move the waiting predictions of one slice to another queue of the model; None if that queue is unknown."""
        reply = await self._call("migrate", [keys.live(queue)], [to, start, count, int(only_asks), now_ms])
        return replies.Migrated(**dict(zip(replies.Migrated.__struct_fields__, reply, strict=True))) if reply else None

    async def stats(self, queue: QueueName, *, now_ms: int | None = None) -> replies.QueueStats:
        reply = _require_known(queue, await self._call("stats", [keys.meta(queue)], [now_ms]))
        fields: dict[str, Any] = dict(zip(replies.QueueStats.__struct_fields__, reply[:-1], strict=False))
        for name in ("service_cost", "mode", "breaker", "max_queued", "paused_at", "paused_by", "swap", "zone"):
            fields[name] = text(fields[name])
        fields["opens_ms"] = fields["opens_ms"] or None
        fields["paused_at"] = fields["paused_at"] or None
        fields["max_queued"] = fields["max_queued"] or None
        fields["mode"] = fields["mode"] or "absorb"
        fields["objectives"] = _read_objectives(fields["objectives"])
        fields["tally"] = {name.decode(): int(value) for name, value in pairs(reply[-1])}
        return msgspec.convert(fields, replies.QueueStats, strict=False)

    async def demand(self, queue: QueueName, *, soon_s: float, now_ms: int | None = None) -> replies.Demand:
        """Return what the queue runs, and what it could run now or within `soon_s`. Raises UnknownQueue."""
        reply = _require_known(queue, await self._call("demand", [keys.meta(queue)], [ms(soon_s), now_ms]))
        values = [text(value) if isinstance(value, bytes) else value for value in reply[:-1]]
        fields = dict(zip(replies.Demand.__struct_fields__, [*values, _read_objectives(reply[-1])], strict=True))
        return msgspec.convert(fields, replies.Demand, strict=False)

    async def survey(self, queue: QueueName, *, now_ms: int | None = None) -> replies.Survey:
        """Return what waits and could start now, by account and lane. Raises UnknownQueue."""
        reply = _require_known(queue, await self._call("survey", [keys.meta(queue)], [now_ms]))
        order, accepted, service_ms, *rest = reply
        rows = zip(*[iter(rest)] * 4, strict=True)
        lines = tuple(
            replies.Line(text(account), cast(Lane, text(lane)), count, oldest_ms / 1000)
            for account, lane, count, oldest_ms in rows
        )
        wanted = cast(replies.Order, text(order))
        return replies.Survey(order=wanted, accepted=accepted, run_s=service_ms / 1000, lines=lines)

    async def order(self, queue: QueueName, order: replies.Order, *, was: replies.Order = "") -> None:
        """Write an operator's order for a model that shares devices; with `was` only in place of that one."""
        _require_known(queue, await self._call("order", [keys.meta(queue)], [order, was]))

    async def pause(
        self,
        queue: QueueName,
        *,
        paused: bool,
        account: str = "",
        revision: int | None = None,
        by: str = "",
        now_ms: int | None = None,
    ) -> None:
        """Pause or resume one account, or the whole queue. An older `revision` of a suspension changes nothing. Callers
        whose predictions wait in a paused queue read `by`.
        """
        _require_known(
            queue, await self._call("pause", [keys.meta(queue)], [int(paused), account, revision, by, now_ms])
        )

    async def hours(
        self,
        queue: QueueName,
        hours: str,
        *,
        account: str = "",
        revision: int | None,
        day: int | None = None,
        now_ms: int | None = None,
    ) -> bool:
        """Set the open hours of an account in a queue, or of the queue; '' for always. Returns False if it is unknown.

        An older revision than the known one changes nothing, nor do hours in a zone that this machine does not know.
        With None the last call counts. Redis says which day it is: `day`, or the clock here, is only tried first.
        """
        day = SystemClock().now_ms() // DAY_MS if day is None else day
        while day > 1:
            try:
                times = " ".join(f"{start}-{end}" for start, end in closures(hours, day)) if hours else ""
            except SettingsError:
                log.exception("open hours that cannot be read here stay as they are", extra={"queue": queue})
                return True
            day = int(await self._call("hours", [keys.meta(queue)], [account, revision, hours, times, day, now_ms]))
        return bool(day)  # the reply is a day while it is another one

    async def bound(self, queue: QueueName, *, mode: replies.Admission, max_queued: int | None = None) -> None:
        """Set how the queue treats more work than it can run; `max_queued` goes with `bounded`."""
        if (mode == "bounded") != (max_queued is not None):
            raise ValueError("a bounded queue has max_queued, and no other has")
        _require_known(queue, await self._call("bound", [keys.meta(queue)], [mode, max_queued]))

    async def limit(
        self,
        queue: QueueName,
        account: str,
        *,
        weight: float,
        most_running: int | Literal["kept"] | None,
        revision: int = 0,
    ) -> None:
        """Set an account's weight and most running claims (`kept`: leave them). `revision`: of the account's limits."""
        _require_known(
            queue, await self._call("limit", [keys.meta(queue)], [account, f"{weight:g}", most_running, revision])
        )

    async def reserve(
        self,
        account: str,
        of: Bucket | int | None,
        *,
        id: str,  # noqa: A002 - the word for it
        asked_s: float = 0,
        in_all: int | None = None,
        now_ms: int | None = None,
    ) -> replies.Allowance:
        """Take one token of a bucket, or reserve `asked_s` seconds of compute. Nothing is taken if it is denied.

        `of`: the bucket, or the seconds per day; `in_all`: in total. Safe to repeat with the same id for half a minute.
        """
        limit: replies.Reserved
        most: int | None
        if isinstance(of, Bucket):
            limit, most, rate, unit = of.name, of.burst, _fill(of.rate), 1
            bounds: Mapping[replies.Reserved, int | None] = {of.name: of.burst}
        else:
            limit, most, rate, unit = "compute", ms(of), 0, 1000
            bounds = {"compute": of, "credit": in_all}
        names = [keys.usage(account), keys.taken(account), keys.compute(account), keys.credit(account)]
        args: list[Arg] = [limit, id, most, rate, ms(asked_s), ms(in_all), now_ms]
        allowed, remaining, reset_ms, retry_after_ms, word = await self._call("reserve", names, args)
        told = cast(replies.Reserved, word.decode())
        return replies.Allowance(told, bool(allowed), bounds[told] or 0, remaining // unit, reset_ms, retry_after_ms)

    async def spend(
        self,
        account: str,
        *,
        prediction_id: PredictionId | None = None,
        spent_s: float = 0,
        token: tuple[Bucket, str] | None = None,
        now_ms: int | None = None,
    ) -> tuple[bool, bool]:
        """Replace reserved compute by what was spent, and give back a token. Returns for each if anything changed."""
        bucket, taken_by = token or (Bucket("create", 0, 0), "")
        names = [keys.usage(account), keys.taken(account), keys.compute(account), keys.credit(account)]
        made_ms = None if prediction_id is None else created_ms_of(prediction_id)
        args: list[Arg] = [taken_by, bucket.burst, _fill(bucket.rate), prediction_id, ms(spent_s), made_ms, now_ms]
        returned, corrected = await self._call("spend", names, args)
        return bool(returned), bool(corrected)

    async def budget(
        self,
        account: str,
        prediction_id: PredictionId,
        limits: tuple[int | None, int | None, int | None, int | None],
        *,
        tokens: int,
        compute_s: float,
        now_ms: int | None = None,
    ) -> replies.Budgeted:
        """Reserve tokens and compute. Nothing is taken if a limit denies it. Safe to repeat.

        `limits`: tokens of a minute, a day and a month, and seconds of a month; None for no limit.
        """
        per_minute, per_day, per_month, month_s = limits
        args: list[Arg] = [prediction_id, tokens, ms(compute_s), per_minute, per_day, per_month, ms(month_s), now_ms]
        allowed, limit, retry_after_ms = await self._call("budget", [keys.budget(account)], args)
        return replies.Budgeted(bool(allowed), cast(replies.BudgetLimit, limit.decode()), retry_after_ms)

    async def settle(
        self,
        account: str,
        prediction_id: PredictionId,
        *,
        tokens: int = 0,
        spent_s: float = 0,
        now_ms: int | None = None,
    ) -> bool:
        """Replace what a prediction reserved by what it used. Returns whether anything changed."""
        args: list[Arg] = [prediction_id, tokens, ms(spent_s), now_ms]
        return bool(await self._call("settle", [keys.budget(account)], args))

    async def stow(
        self,
        account: str,
        name: str = "",
        size: int = 0,
        *,
        most: int | None = None,
        until_ms: int = 0,
        now_ms: int | None = None,
    ) -> replies.Stowed:
        """Count a file's `size` bytes until `until_ms`, 0 removes it. Without a name: the total. Safe to repeat."""
        written = [keys.stored(account), keys.stored_until(account)]
        args: list[Arg] = [name, size, most, until_ms, now_ms]
        fits, more = False, True
        while more and not fits:
            fits, total, more = await self._call("stow", written, args)
        return replies.Stowed(fits=bool(fits), total=total)

    async def rotate(self, account: str, *, secret: str, keep_s: float, now_ms: int | None = None) -> replies.Rotated:
        """Sign with this secret from now on, and with the former one for `keep_s` more; 0 drops all former secrets."""
        return cast(replies.Rotated, await self._word("rotate", [keys.account(account)], [secret, ms(keep_s), now_ms]))

    async def grant(
        self,
        account: str,
        entry: str,
        *,
        link: str = "",
        token_digest: str = "",
        scopes: str = "",
        life_s: float,
        most: int,
        now_ms: int | None = None,
    ) -> bytes | None:
        """Store a session or a link, and use up the link that it comes from. None if there is no such link."""
        args: list[Arg] = [entry, link, token_digest, scopes, ms(life_s), most, now_ms]
        value: bytes = await self._call("grant", [keys.sessions(account)], args)
        return None if value == b"gone" else value

    async def deploy(
        self, account: str, name: str, *, was: bytes, becomes: bytes, created_ms: int, most: int
    ) -> replies.Deployed:
        """Write a deployment if it still equals `was`; empty bytes stand for a missing deployment."""
        args: list[Arg] = [name, was, becomes, created_ms, most]
        written = [keys.deployment(account, name), keys.deployments(account)]
        return cast(replies.Deployed, await self._word("deploy", written, args))

    async def split(
        self,
        name: str,
        was: bytes,
        becomes: bytes,
        *,
        step: replies.SplitStep,
        most: int,
        queue: QueueName,
        detail: str,
        now_ms: int | None = None,
    ) -> replies.Split:
        """Write how the calls of a deployment are split, if it still equals `was`; empty bytes stand for no split."""
        args: list[Arg] = [name, was, becomes, step, most, queue, detail, now_ms]
        written = [keys.splits(), keys.split(name), keys.split_runs(name)]
        return cast(replies.Split, await self._word("split", written, args))

    async def count_split(
        self, name: str, *, is_: bytes, was: str, cursor: str, counts: Mapping[str, int]
    ) -> replies.SplitCounted:
        """Add to the counts of a split, once: `was` and `cursor` are the last entries of the log before and after."""
        each: Iterable[tuple[Arg, Arg]] = counts.items()
        args: list[Arg] = [is_, was, cursor, *chain.from_iterable(each)]
        written = [keys.split_runs(name), keys.split(name)]
        return cast(replies.SplitCounted, await self._word("count_split", written, args))

    async def open_batch(
        self,
        account: str,
        batch_id: FileId,
        *,
        created_ms: int,
        ttl_s: float,
        most: int,
        most_live: int,
        fields: Mapping[str, str | bytes | int],
        idempotency: tuple[str, str] | None = None,
    ) -> replies.BatchOpened | FileId:
        """Accept a batch with these fields, unless its account has `most`, or `most_live` that have not ended. Returns
        the id of the batch that the idempotency key made before. Raises IdempotencyMismatch.
        """
        digest, fingerprint = idempotency or ("", "")
        member, listing, live = f"{account} {batch_id}", keys.batches_of(account), keys.batches_live(account)
        args: list[Arg] = [
            member,
            batch_id,
            created_ms,
            ms(ttl_s),
            most,
            most_live,
            fingerprint,
            IDEMPOTENCY_TTL_MS,
            *chain.from_iterable(fields.items()),
        ]
        idem = keys.batch_key(account, digest) if digest else keys.batch(batch_id)
        names = [keys.batch(batch_id), keys.batches(), listing, live, idem, keys.all_batches()]
        word = await self._word("open_batch", names, args)
        if word == "mismatch":
            raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
        return cast(replies.BatchOpened, word) if word in get_args(replies.BatchOpened) else FileId(word)

    async def lease_batch(
        self, account: str, batch_id: FileId, *, token: str, lease_s: float, now_ms: int | None = None
    ) -> str:
        """Take a batch for `lease_s`, extend that, or give it back with 0. Returns its status, 'busy' or 'gone'."""
        member = f"{account} {batch_id}"
        args: list[Arg] = [member, token, ms(lease_s), now_ms]
        return cast(str, await self._word("lease_batch", [keys.batch(batch_id), keys.batches()], args))

    async def write_batch(
        self,
        account: str,
        batch_id: FileId,
        *,
        token: str,
        allowed: Iterable[str],
        nonce: str,
        fields: Mapping[str, str | bytes | int],
        parts: int | None = None,
        is_over: bool = False,
        turn: int | Literal["", "-"] = "",
    ) -> replies.BatchWritten:
        """Change a batch that has one of these statuses. `token`: of the keeper that has it, or '' from a caller.
        `parts`: how many it must have. `is_over`: it has ended. `turn`: its new place, '-' if nothing is left to do.
        """
        member, live = f"{account} {batch_id}", keys.batches_live(account)
        names = [keys.batch(batch_id), keys.batches(), live]
        allowed = "".join(f"{each} " for each in allowed)
        args: list[Arg] = [member, batch_id if is_over else "", token, allowed, parts, nonce, turn]
        args += chain.from_iterable(fields.items())
        return cast(replies.BatchWritten, await self._word("write_batch", names, args))

    async def amend(
        self,
        model: str,
        what: Literal["make", "change"],
        *,
        said: Mapping[str, str | bytes] | None = None,
        version: str = "",
        nonce: str = "",
    ) -> replies.Amended:
        """Make a model, or change what is said of it or of a version. Safe to repeat.

        `nonce`: identifies the call that makes it.
        """
        args: list[Arg] = [what, nonce, *chain.from_iterable((said or {}).items())]
        names = [keys.version(model, version) if version else keys.model(model)]
        return cast(replies.Amended, await self._word("amend", names, args))

    async def allow(self, token_digest: str, said: Mapping[str, str], *, expires_ms: int | None) -> bool:
        """Change fields of a token, and its end: 0 for never, None to keep it. False if it was revoked meanwhile."""
        args: list[Arg] = [expires_ms, *chain.from_iterable(said.items())]
        return bool(await self._call("allow", [keys.token(token_digest)], args))

    async def configure(
        self, model: str, config: bytes, *, by: str, at_ms: int, was: int | None, nonce: str
    ) -> tuple[replies.Configured, int]:
        """Write a model's config, b"" to remove it, and return the new revision. `nonce`: identifies the change."""
        word, *revision = await self._call("configure", [keys.model(model)], [was, config, by, at_ms, nonce])
        return cast(replies.Configured, word.decode()), int(revision[0]) if revision else 0

    async def withdraw(
        self,
        model: str,
        what: Literal["model", "going", "gone"],
        *,
        version: str = "",
        runs: int = 0,
        latest: str = "",
    ) -> replies.Withdrawn:
        """Remove a model, or note that one of its versions goes. Safe to repeat."""
        return cast(replies.Withdrawn, await self._word("withdraw", [keys.model(model)], [what, version, runs, latest]))

    async def note(
        self,
        id: str,  # noqa: A002 - the word for it
        *,
        kind: str,
        by: str,
        account: str,
        queue: str,
        detail: bytes,
        at_ms: int,
    ) -> bool:
        """Add one entry. Returns False if there is one of this id and kind already. `detail`: JSON."""
        return bool(await self._call("note", [keys.changes()], [id, kind, by, account, queue, detail, at_ms]))

    async def enqueue(self, prediction: NewPrediction, *, now_ms: int | None = None) -> replies.Accepted:
        """Accept a prediction. Safe to repeat with the same id. Raises UnknownQueue, IdempotencyMismatch, QueueRefused.

        Raises BackendUnavailable if its idempotency key went to a later one.
        """
        if prediction.lane not in ALL_LANES:  # no claim would ever look there
            raise ValueError(f"unknown lane {prediction.lane}")
        record = idem = keys.record(prediction.id)
        digest, fingerprint = prediction.idempotency or ("", "")
        if digest:
            idem = keys.idempotency(account=prediction.account, model=prediction.model, digest=digest)
        args: list[Arg] = [prediction.id, prediction.input, fingerprint, IDEMPOTENCY_TTL_MS, now_ms]
        args += [f"{prediction.weight:g}", prediction.most_running, prediction.most_queued, prediction.limits_rev]
        args += [prediction.lifetime_ms, prediction.start_by_ms, "1" if prediction.bound else ""]
        for name, value in zip(NAMED, named_values(prediction), strict=True):
            if value:
                args += (name, value if isinstance(value, str) else _number(value))
        names = [record, keys.input_data(prediction.id), idem]
        word, *rest = await self._call(
            "enqueue", names, args, traffic=_filing(len(prediction.input)), group=prediction.queue
        )
        match word:
            case b"created":
                created, deadline, hope = rest if len(rest) > 1 else (rest[0], b"", None)
                return replies.Accepted(
                    prediction.id,
                    created_ms=int(created),
                    deadline_ms=int(deadline) if deadline else None,
                    outlook=replies.parse_outlook(hope),
                )
            case b"replayed":
                return replies.Accepted(PredictionId(rest[0].decode()), replayed=True)
            case b"mismatch":
                raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
            case b"late":
                raise BackendUnavailable("the same request was placed again meanwhile")
            case b"refused":
                raise _parse_refusal(*rest)
            case _:
                raise UnknownQueue(prediction.queue)

    async def bind(
        self,
        prediction_id: PredictionId | None,
        *,
        account: str,
        model: str,
        idempotency: tuple[str, str],
        instead_of: PredictionId | None,
    ) -> replies.Bound | None:
        """Bind a key, as (digest, body's fingerprint), to this prediction or to none, or return what it is bound to."""
        digest, fingerprint = idempotency
        idem = keys.idempotency(account=account, model=model, digest=digest)
        held = await self._call("bind", [idem], [prediction_id, fingerprint, IDEMPOTENCY_TTL_MS, instead_of])
        return replies.Bound(PredictionId(held[0].decode()), held[1].decode(), held[2]) if held else None

    def enlist(
        self,
        name: PredictionId | FileId,
        *,
        account: str,
        oldest: PredictionId,
        kind: Kind = "",
        life_ms: int | None = None,
        input_bytes: int = 0,
        counts: Counted = NOTHING,
        lasting: Counted = NOTHING,
        most: int | None = None,
        now_ms: int | None = None,
    ) -> "asyncio.Future[Any]":
        """Put an id on its account's list, before `enqueue` of `input_bytes`. Ids below `oldest` may be dropped. With
        `life_ms` it is a file's, and its list lives for as long.

        `counts`: its bytes, `lasting`: those that stay for longer. Above `most` bytes of the account nothing is
        written, and the result is [bytes that it has, ms until there is room]; else 1.
        """
        names = [keys.listing(account, kind) if life_ms is None else keys.files(account), keys.data(account)]
        args: list[Arg] = [
            name,
            oldest,
            counts.bytes,
            counts.until_ms,
            lasting.bytes,
            lasting.until_ms,
            life_ms,
            most,
            now_ms,
        ]
        # a run that names a listed id counts nothing, and what counts nothing may be listed
        group = names[0] if counts.bytes else f"{names[0]} uncounted"
        return self._call("enlist", names, args, traffic=_filing(input_bytes), group=group)

    async def delist(
        self,
        name: PredictionId | FileId,
        *,
        account: str,
        kind: Kind = "",
        is_file: bool = False,
        counted: Counted = NOTHING,
        lasting: Counted = NOTHING,
    ) -> bool:
        """Take an id off its account's list. `counted`, `lasting`: what `enlist` counted of it and counts no longer."""
        names = [keys.files(account) if is_file else keys.listing(account, kind), keys.data(account)]
        args: list[Arg] = [name, counted.bytes, counted.until_ms, lasting.bytes, lasting.until_ms]
        return bool(await self._call("delist", names, args))

    async def retain(
        self, account: str, size: int, *, most: int | None = None, now_ms: int | None = None
    ) -> list[int] | None:
        """Count bytes that stay until the account deletes them: `weigh` takes them off. Above `most` bytes of it
        nothing is written, and the result is [bytes that it has, ms until there is room].
        """
        said = await self._call("retain", [keys.data(account)], [size, FOR_EVER_MS, most, now_ms])
        return said if isinstance(said, list) else None

    def weigh(
        self, account: str, counts: Counted, instead_of: Counted = NOTHING, *, now_ms: int | None = None
    ) -> "asyncio.Future[Any]":
        """Count what a prediction left behind at its end, perhaps instead of what `enlist` counted of it. With NOTHING,
        what `retain` or `enlist` counted counts no longer.
        """
        args: list[Arg] = [counts.bytes, counts.until_ms, instead_of.bytes, instead_of.until_ms, now_ms]
        names = [keys.data(account)]
        return self._call("weigh", names, args, group=names[0])

    async def recount(
        self,
        account: str,
        size: int,
        *,
        until_ms: int,
        retained: int = 0,
        was_retained: int = 0,
        now_ms: int | None = None,
    ) -> None:
        """Say how many bytes the account has beyond what was counted, until `until_ms` or the next call. Repeatable.

        `retained`: bytes without an end. If others than `was_retained` are counted now, no fewer are counted.
        """
        await self._call("recount", [keys.data(account)], [size, until_ms, retained, was_retained, FOR_EVER_MS, now_ms])

    async def get(
        self,
        prediction_id: PredictionId,
        *,
        outlook: bool = True,
        whole: bool = True,
        size: int | None = None,
        now_ms: int | None = None,
    ) -> Stored | None:
        """Return one prediction as it is now, or None if it is unknown. `outlook`: include why it waits.

        A large one takes a second round trip unless `size`, the bytes of its data, is known. Unless `whole`, large data
        is left out instead, see `Stored.left_out`.
        """
        if size is None:
            stored = await self._get(prediction_id, now_ms, outlook, LARGE_BYTES)
            if stored is None or (stored.left_out and not whole):
                return stored
            if not stored.left_out:
                return await self._with_files(stored, most=None if whole else LARGE_BYTES)
            size = stored.left_out
        stored = await self._get(prediction_id, now_ms, outlook, None, size=size)
        return stored and await self._with_files(stored)

    async def _with_files(self, stored: Stored, *, most: int | None = None) -> Stored:
        """Return it with the data that is in the file store, or without any data if that has more than `most` bytes."""
        found = [reference for reference in (reference_in(stored.input), reference_in(stored.output)) if reference]
        if not found or self._whole is None:
            return stored
        size = sum(reference.size for reference in found)
        if most is not None and size > most:
            return Stored(record=stored.record, input=None, left_out=size)
        return await self._whole(stored)

    async def _get(
        self, prediction_id: PredictionId, now_ms: int | None, outlook: bool, most: int | None, *, size: int = 0
    ) -> Stored | None:
        args: list[Arg] = [int(outlook), most, now_ms]
        traffic = Traffic.LARGE_READS if size else Traffic.SMALL
        reply = await self._call("get", [keys.record(prediction_id)], args, traffic=traffic, answer_bytes=size)
        if not reply:
            return None
        fields, data, ended, entries, hope, *left_out = reply
        record = Record.parse(prediction_id, fields)
        if left_out:
            return Stored(record=record, input=None, left_out=left_out[0])
        raw = Raw(data) if data else None
        if not record.is_terminal:
            output, logs = fold([replies.event(seq, entry) for seq, entry in enumerate(entries, start=1)])
            return Stored(record=record, input=raw, output=output, logs=logs, outlook=replies.parse_outlook(hope))
        done = dict(pairs(ended))
        output = Raw(done[b"output"]) if done.get(b"output") else None
        return Stored(record=record, input=raw, output=output, logs=done.get(b"logs", b"").decode())

    async def story(self, prediction_id: PredictionId, *, now_ms: int | None = None) -> Known | None:
        reply = await self._call("story", [keys.record(prediction_id)], [now_ms])
        if not reply:
            return None
        at, fields, entries, hope, attempts, due, lease, owed, dead = reply
        return Known(
            now=at,
            record=Record.parse(prediction_id, fields),
            events=tuple(replies.event(seq, entry) for seq, entry in zip(entries[::2], entries[1::2], strict=True)),
            outlook=replies.parse_outlook(hope),
            attempts=replies.number(attempts),
            due=replies.number(due),
            lease=replies.number(lease),
            owed=replies.number(owed),
            is_dead=bool(dead),
        )

    async def replay(
        self, prediction_id: PredictionId, *, after: int, count: int, most_bytes: int, whole: bool = True
    ) -> replies.Replayed | None:
        """Return its events after a number, or None if it is unknown. Stops at `count` events or `most_bytes`.

        All events are returned for a number of a former list. Only with `whole` one event may be larger than the bound.
        """
        args: list[Arg] = [after, count, most_bytes, int(whole), LIFE]
        # the size of the answer is not known before: a page may reach its bound, and a whole event may exceed it
        is_large = count > 0 and (whole or most_bytes >= LARGE_BYTES)
        traffic, answer_bytes = (Traffic.LARGE_READS, BATCH_BYTES) if is_large else (Traffic.SMALL, 0)
        names = [keys.record(prediction_id)]
        reply = await self._call("replay", names, args, traffic=traffic, answer_bytes=answer_bytes)
        if not reply:
            return None
        account, status, ticket, moved, last, first, *entries = reply
        return replies.Replayed(
            account=account.decode(),
            status=Status(status.decode()),
            ticket=ticket.decode(),
            moved=moved.decode(),
            last=last,
            next=first + len(entries),
            events=tuple(replies.event(seq, entry) for seq, entry in enumerate(entries, start=first)),
        )

    async def redeliver(
        self, prediction_id: PredictionId, *, account: str | None, only_owed: bool = False, now_ms: int | None = None
    ) -> replies.Redelivered:
        """Owe its terminal webhook again, at once. `account`: the owner that it must have, or None for any.
        `only_owed`: leave one that was delivered or given up.
        """
        args: list[Arg] = [account, int(only_owed), now_ms]
        return cast(replies.Redelivered, await self._word("redeliver", [keys.record(prediction_id)], args))

    async def cancel(
        self, prediction_id: PredictionId, *, account: str, kind: Kind = "", now_ms: int | None = None
    ) -> replies.Canceled:
        return cast(replies.Canceled, await self._word("cancel", [keys.record(prediction_id)], [account, kind, now_ms]))

    async def erase(
        self, prediction_id: PredictionId, *, account: str, kind: Kind = "", now_ms: int | None = None
    ) -> replies.Erased:
        """Delete a terminal prediction of this kind with all its data but its files. Safe to repeat."""
        return cast(replies.Erased, await self._word("erase", [keys.record(prediction_id)], [account, kind, now_ms]))

    async def claim(
        self,
        queue: QueueName,
        *,
        consumer: str,
        nonce: str,
        count: int,
        lease_s: float,
        budget: float | None = None,
        alone: bool = True,
        warm: str = "",
        send: Callable[[bytes], Awaitable[Any]] | None = None,
        now_ms: int | None = None,
    ) -> replies.Claims:
        """Claim up to `count`. The same nonce returns the same claims. A paused queue hands out nothing.

        `budget`: most that all may cost; with `alone` the first is claimed at any cost. `warm`: the affinity key that
        goes first within its account. `send`: sends the packed call once; its errors pass through. Raises UnknownQueue.
        """
        args: list[Arg] = [queue, consumer, nonce, count, ms(lease_s), MOST_CLAIMS, now_ms]
        args += [budget, int(alone), warm]
        named = [keys.meta(queue)]
        sent = self._call("claim", named, args) if send is None else send(self._packed("claim", named, args))
        state, *handed = await sent
        if state == b"unknown":
            raise UnknownQueue(queue)
        claims = replies.Claims(why=cast(replies.Ceased, (handed[0] if handed else state).decode()))
        for data, packed in handed[1:]:
            claims.append(Claim(Record.unpack(packed), Raw(data or b"{}")))
        return claims

    async def extend(
        self,
        queue: QueueName,
        *,
        consumer: str,
        lease_s: float,
        claims: Iterable[tuple[PredictionId, Token]],
        slots: int = 1,
        state: replies.Readiness = "ready",
        swap: replies.Swap | None = None,
        about: bytes = b"",
        now_ms: int | None = None,
    ) -> list[replies.Hold]:
        """Extend the leases of these claims, or send a heartbeat without claims. Returns the state of each, in order.

        `slots`: of this director. `state`: of its servers. `swap`: what the queue waits for, if this director loads its
        model. `about`: further facts, see director.store.directors.
        """
        swap_said = f"{swap.reason} {ms(swap.eta_s)} {ms(swap.late_s)} {swap.slots}" if swap else ""
        args: list[Arg] = [consumer, ms(lease_s), slots, state, swap_said, about, now_ms]
        args += chain.from_iterable(claims)
        reply = await self._call("extend", [keys.directors(queue)], args, traffic=Traffic.HEARTBEATS)
        return [word.decode() for word in reply]

    async def advance(
        self,
        prediction_id: PredictionId,
        *,
        token: Token,
        seq: int,
        ran_ms: int | None,
        events: Sequence[NewEvent],
        remote: str = "",
        used: Used = NOTHING_USED,
        now_ms: int | None = None,
    ) -> replies.Advanced:
        """Write that the run began `ran_ms` ago, new events, and if new the server's own name of the run (`remote`) and
        the tokens that it `used` so far.
        """
        args: list[Arg] = [token, seq, ran_ms, remote, used.packed_tokens, now_ms]
        args += chain.from_iterable(events)
        word, *known = await self._call("advance", [keys.record(prediction_id)], args)
        last, started = known if known else (seq, None)
        return replies.Advanced(word.decode(), last, int(started) if started else None)

    async def finish(
        self,
        prediction_id: PredictionId,
        *,
        queue: QueueName,
        token: Token,
        status: Status,
        error: str = "",
        code: str = "",
        output: bytes = b"",
        logs: str = "",
        metrics: bytes = b"",
        ran_ms: int | None = None,
        grace_s: float = 0,
        over_ms: int = 0,
        claimed_ms: int | None = None,
        ahead_ms: int = 0,
        seq: int = 0,
        used: Used = NOTHING_USED,
        events: Sequence[NewEvent] = (),
        now_ms: int | None = None,
    ) -> bool:
        """Write the terminal record and remove the entry. Returns False if the claim is lost; nothing was written then.

        `over_ms`, `claimed_ms`: how long ago by the caller's clock. `ahead_ms`: how long it waited for a slot after the
        claim. `events`: those that `advance` did not write yet.
        """
        args: list[Arg] = [prediction_id, token, status, error, code, output, logs, metrics]
        args += [ran_ms, ms(grace_s), seq, now_ms, over_ms, claimed_ms, ahead_ms, used.packed]
        args += chain.from_iterable(events)
        return bool(await self._call("finish", [keys.record(prediction_id)], args, group=queue) == b"finished")

    async def release(
        self,
        prediction_id: PredictionId,
        *,
        token: Token,
        spent: bool,
        delay_s: float = 0,
        error: str = "",
        code: str = "",
        began: bool | None = None,
        claimed_ms: int | None = None,
        used: Used = NOTHING_USED,
        now_ms: int | None = None,
    ) -> replies.Requeued:
        """Give a claim back, unspent or as a spent attempt. Returns the new state of the prediction.

        `began`: None lets the record decide. If the queue allows no second run, a begun one ends with `error` and
        `code`.
        """
        args: list[Arg] = [token, int(spent), ms(delay_s), error, code]
        args += [began if began is None else int(began), claimed_ms, MOST_CLAIMS, used.packed, now_ms]
        return cast(replies.Requeued, await self._word("release", [keys.record(prediction_id)], args))

    async def fold(
        self, partition: Partition, month: str, account: str, rows: Iterable[tuple[str, str]], *, kept_s: float
    ) -> int:
        """Add days of a month in the ledger to that month. `rows`: each with the row that takes it in."""
        names = [keys.ledger(partition, month, account), keys.ledger_accounts(partition, month)]
        args: list[Arg] = [ms(kept_s), *chain.from_iterable(rows)]
        return int(await self._call("fold", names, args))

    async def contact(self, run_id: str, *, silence_s: float, now_ms: int | None = None) -> tuple[int, float]:
        """Note contact with this run of the server. Returns its time in ms, and the seconds of contact so far."""
        at, lasted = await self._call("contact", [keys.contact()], [run_id, ms(silence_s), now_ms])
        return at, lasted / 1000

    async def reap(
        self, queue: QueueName, *, limit: int, lease_s: float = 15.0, now_ms: int | None = None
    ) -> list[tuple[PredictionId, replies.Requeued]]:
        """Recover claims whose lease has expired at `now_ms`, which a frozen keeper would overrun. Returns states."""
        return _outcomes(await self._call("reap", [keys.lease(queue)], [limit, _jitter(), ms(lease_s), now_ms]))

    async def recover(
        self,
        queue: QueueName,
        lane: str,
        number: int,
        *,
        cursor: str,
        count: int,
        idle_s: float,
        now_ms: int | None = None,
    ) -> tuple[str, list[tuple[PredictionId, replies.Requeued]]]:
        """Find claims of one stream that have no lease. Returns the cursor to continue from, '0-0' at the end."""
        last, *recovered = await self._call(
            "recover", [keys.stream(queue, lane, number)], [queue, cursor, count, ms(idle_s), _jitter(), now_ms]
        )
        return last.decode(), _outcomes(recovered)

    async def reconcile(
        self, queue: QueueName, *, start: int, count: int, lease_s: float, now_ms: int | None = None
    ) -> tuple[int, list[tuple[PredictionId, replies.Repair]]]:
        """Repair one slice of the live ids. Returns where the next slice starts, 0 after the last."""
        following, *repaired = await self._call("reconcile", [keys.live(queue)], [start, count, ms(lease_s), now_ms])
        return following, _outcomes(repaired)

    async def retire(self, queue: QueueName, *, silent_s: float, now_ms: int | None = None) -> str:
        """Forget one director that is silent for `silent_s` and has nothing pending. Returns its name, or ''."""
        return text(await self._call("retire", [keys.directors(queue)], [ms(silent_s), now_ms]))

    async def promote(self, queue: QueueName, *, limit: int, now_ms: int | None = None) -> int:
        return int(await self._call("promote", [keys.delayed(queue)], [limit, now_ms]))

    async def expire(self, queue: QueueName, *, limit: int, now_ms: int | None = None) -> tuple[int, int]:
        """End predictions that wait past their deadline and notify directors of running ones. Returns both counts."""
        ended, told = await self._call("expire", [keys.deadline(queue)], [limit, now_ms])
        return ended, told

    async def due(
        self, partition: Partition, *, limit: int, hold_s: float, now_ms: int | None = None
    ) -> list[PredictionId]:
        """Take terminal webhooks whose next attempt is due. They become due again after `hold_s`."""
        return [
            PredictionId(name.decode())
            for name in await self._call("due", [keys.owed(partition)], [limit, ms(hold_s), now_ms])
        ]

    async def deliver(
        self,
        prediction_id: PredictionId,
        *,
        outcome: str,
        delay_s: float | None,
        revivals: int = 0,
        status: int | None = None,
        account: str = "",
        host: str = "?",
        is_away: bool = False,
        is_early: bool = False,
        known: int | None = None,
        rule: str | None = None,
        now_ms: int | None = None,
    ) -> replies.Delivered:
        """Note the outcome of a terminal webhook's attempt; `put_off` is not counted. Without `delay_s`: the last.

        `revivals`: of the record that was sent; an answer for an earlier end does not settle a later one. `is_away`:
        the host missed it, so that `forward` may make it due. `is_early`: the attempt was brought forward. `known`:
        attempts noted before this one. `rule`: forbids the address.
        """
        names = [keys.record(prediction_id), keys.away(partition_of(prediction_id), account, host)]
        args: list[Arg] = [ms(delay_s), outcome, revivals, status, host, int(is_away)]
        args += [known, rule, int(is_early), now_ms]
        return DELIVERED[int(await self._call("deliver", names, args))]

    async def sample(self, queue: QueueName, *, period_s: float, most: int, now_ms: int | None = None) -> bool:
        """Add a sample of a queue unless this period has one, and keep `most`. Returns False for an idle queue."""
        return bool(await self._call("sample", [keys.meta(queue)], [ms(period_s), most, now_ms]))

    async def forward(
        self, partition: Partition, account: str, host: str, *, limit: int, now_ms: int | None = None
    ) -> int:
        """Make webhooks of an account due that a host missed which answers again. Returns their number."""
        return int(await self._call("forward", [keys.away(partition, account, host)], [limit, now_ms]))

    async def revive(self, prediction_id: PredictionId, *, now_ms: int | None = None) -> bool:
        """Return a dead letter to its queue. Returns False if it is not one, or its input is gone or had secrets."""
        return bool(await self._call("revive", [keys.record(prediction_id)], [now_ms]))

    async def drop(self, prediction_id: PredictionId, queue: QueueName, *, now_ms: int | None = None) -> bool:
        return bool(await self._call("drop", [keys.record(prediction_id)], [queue, now_ms]))

    async def depart(
        self,
        queue: QueueName,
        ids: Sequence[tuple[PredictionId, str]],
        *,
        site: str,
        now_ms: int | None = None,
    ) -> list[replies.Departed]:
        """Take the waiting ones of these (id, account) pairs out of their queue. Returns each one's state, in order."""
        reply = await self._call("depart", [keys.live(queue)], [site, now_ms, *chain.from_iterable(ids)])
        return [word.decode() for word in reply]

    async def arrive(
        self,
        prediction_id: PredictionId,
        queue: QueueName,
        *,
        move: int,
        record: Sequence[bytes] = (),
        input: bytes = b"",  # noqa: A002 - the word for it
        events: Sequence[bytes] = (),
        idempotency: tuple[str, bytes, int] | None = None,
        weight: float = 1,
        most_running: int | None = None,
        limits_rev: int = 0,
        refuses: bool = False,
        now_ms: int | None = None,
    ) -> replies.Arrived:
        """Accept a prediction from another server, or with `refuses` refuse it for good. `record`: flat fields.

        `idempotency`: the key, its value, its remaining ms. `limits_rev` 0 keeps the limits that the queue knows.
        """
        idem, held, held_ttl_ms = idempotency or (keys.record(prediction_id), b"", 0)
        names = [keys.record(prediction_id), keys.came(prediction_id), idem]
        args: list[Arg] = [queue, move, int(refuses), input, held, held_ttl_ms]
        args += [f"{weight:g}", most_running, limits_rev, now_ms, *record]
        args += [part for entry in events for part in (b"", entry)]
        # the same traffic for all sizes keeps the calls in order
        reply = await self._call("arrive", names, args, traffic=Traffic.LARGE_WRITES)
        return cast(replies.Arrived, reply.decode())

    async def vacate(
        self, prediction_id: PredictionId, *, site: str, canceled: bool = False, now_ms: int | None = None
    ) -> replies.Vacated:
        """Leave a tombstone for a prediction that arrived elsewhere. `canceled`: its caller's cancel was passed on."""
        return cast(
            replies.Vacated, await self._word("vacate", [keys.record(prediction_id)], [site, int(canceled), now_ms])
        )

    async def stay(self, prediction_id: PredictionId, *, site: str, now_ms: int | None = None) -> replies.Stayed:
        return cast(replies.Stayed, await self._word("stay", [keys.record(prediction_id)], [site, now_ms]))


def _number(value: float) -> str | int:
    """Convert a number, or True, of a new prediction."""
    return f"{value:g}" if type(value) is float else int(value)


def ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def _require_known(queue: QueueName, reply: Any) -> Any:
    if not reply:
        raise UnknownQueue(queue)
    return reply


def _read_objectives(found: bytes) -> Objectives:
    try:
        return decode_objectives(found)
    except SettingsError:  # a newer release wrote it
        return NONE


def _refuse_streams(streams: int) -> None:
    if not 1 <= streams <= MAX_STREAMS:  # beyond the bit mask an entry would never be read
        raise ValueError(f"a lane has 1 to {MAX_STREAMS} streams, not {streams}")


def _fill(rate: float) -> int:
    """Return the fill rate as scripts take it: whole billionths of a token per millisecond, so nothing is rounded."""
    return int(rate * 1_000_000)


def _filing(input_bytes: int) -> Traffic:
    """Return the traffic of `enlist` and `enqueue`, which keep their order. Only the input makes such a call large."""
    return Traffic.LARGE_WRITES if input_bytes >= LARGE_BYTES // 2 else Traffic.SMALL


def _parse_refusal(code: bytes, limit: bytes | int, retry_after_ms: bytes | int, eta_ms: bytes | int) -> QueueRefused:
    return QueueRefused(
        code.decode(),
        limit=int(limit) if limit != b"" else None,
        retry_after_s=max(1, math.ceil(int(retry_after_ms) / 1000)),
        eta_s=int(eta_ms) / 1000 if eta_ms != b"" else None,
    )


def _jitter() -> float:
    return random.random()  # noqa: S311 - spreads retries, guards nothing


def _outcomes(reply: Sequence[bytes]) -> list[tuple[PredictionId, Any]]:
    return [(PredictionId(name.decode()), word.decode()) for name, word in pairs(reply)]
