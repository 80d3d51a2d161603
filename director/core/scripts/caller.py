"""What a caller asks for: to accept a prediction, show it, cancel it. Holds no claim."""

from collections.abc import Sequence
from typing import Literal, cast

from msgspec import Raw, Struct

from director.core import keys
from director.core.errors import IdempotencyMismatch, UnknownQueue
from director.core.gatherer import Arg
from director.core.ids import PredictionId, QueueName
from director.core.schema import Record, Stored, flat, pairs
from director.core.scripts.wire import Wire, event, now
from director.core.view import fold

__all__ = ("Accepted", "CallerScripts", "Canceled")

Canceled = Literal["canceled", "asked", "over", "unknown"]

IDEMPOTENCY_TTL_MS = 24 * 3600 * 1000


class Accepted(Struct, frozen=True):
    """What became of a submit. `replayed`: the idempotency key stands for this older prediction."""

    id: PredictionId
    replayed: bool = False
    created_ms: int = 0


class CallerScripts(Wire):
    """The caller's side."""

    async def enqueue(
        self,
        prediction_id: PredictionId,
        *,
        queue: QueueName,
        account: str,
        model: str,
        version: str,
        shard: Sequence[int],
        input: bytes,  # noqa: A002 - the word for it
        lane: str = "normal",
        cost: float = 1,
        url: str = "",
        webhook: str = "",
        events: str = "",
        lifetime_ms: int | None = None,
        late: str = "",
        start_by_ms: int | None = None,
        idempotency: tuple[str, str] | None = None,
        now_ms: int | None = None,
    ) -> Accepted:
        """Accept a prediction. `idempotency`: (key's digest, body's fingerprint). Safe to repeat with the same id.

        Raises UnknownQueue, IdempotencyMismatch.
        """
        if lane not in keys.LANES:  # no claim would ever look there
            raise ValueError(f"{lane} is no lane")
        record = keys.record(prediction_id)
        digest, fingerprint = idempotency or ("", "")
        held = keys.idempotency(account=account, model=model, digest=digest) if digest else record
        fields = flat(
            {
                "account": account,
                "model": model,
                "version": version,
                "queue": queue,
                "lane": lane,
                "shard": ",".join(map(str, shard)),
                "cost": f"{cost:g}",
                "url": url,
                "webhook": webhook,
                "events": events,
                "lifetime_ms": lifetime_ms,
                "late": late,
                "start_by_ms": start_by_ms,
            },
        )
        args: list[Arg] = [prediction_id, input, fingerprint, IDEMPOTENCY_TTL_MS, now(now_ms), *fields]
        word, *rest = await self._call("enqueue", [record, keys.input_data(prediction_id), held], args)
        match word:
            case b"created":
                return Accepted(prediction_id, created_ms=int(rest[0]))
            case b"replayed":
                return Accepted(PredictionId(rest[0].decode()), replayed=True)
            case b"mismatch":
                raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
            case _:
                raise UnknownQueue(queue)

    async def enlist(self, prediction_id: PredictionId, *, account: str, oldest: PredictionId) -> None:
        """Put an id on its account's list; call it before `enqueue`. Ids below `oldest` may be dropped."""
        await self._call("enlist", [keys.listing(account)], [prediction_id, oldest])

    async def get(self, prediction_id: PredictionId) -> Stored | None:
        """One prediction as it is now; None when there is none."""
        reply = await self._call("get", [keys.record(prediction_id)], [prediction_id])
        if not reply:
            return None
        fields, data, ended, entries = reply
        record = Record.parse(prediction_id, fields)
        raw = Raw(data) if data else None
        if not record.is_terminal:
            output, logs = fold([event(seq, entry) for seq, entry in enumerate(entries, start=1)])
            return Stored(record=record, input=raw, output=output, logs=logs)
        done = dict(pairs(ended))
        output = Raw(done[b"output"]) if done.get(b"output") else None
        return Stored(record=record, input=raw, output=output, logs=done.get(b"logs", b"").decode())

    async def cancel(self, prediction_id: PredictionId, *, account: str, now_ms: int | None = None) -> Canceled:
        """End a prediction that waits, or ask the holder of one that runs to stop it."""
        args: list[Arg] = [prediction_id, account, now(now_ms)]
        answer = await self._call("cancel", [keys.record(prediction_id)], args)
        return cast(Canceled, answer.decode())
