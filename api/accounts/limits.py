"""Hold accounts to their limits: requests, compute, files, and bytes in Redis. Redis is not asked about an account
without limits. A crash may allow fewer requests, never more: what was taken in vain is given back only if that is
certain. The keeper corrects a prediction's compute once it is terminal.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from api.services.lookups import Service
from api.services.memory import NO_LIMIT
from api.web import errors
from api.web.http import RawHeaders, Request, carry, raw, services_of
from director.broker.replies import Allowance
from director.core.account_limits import Bucket, BucketName
from director.core.data_bytes import FOR_EVER_MS, NOTHING, RECORD_BYTES, Counted
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.core.schema import NewPrediction
from director.store.accounts import Account

# Replicate's own values for an idle account: a program may pace itself by them. It sends no RateLimit-Limit.
WITHOUT_RATE: Final[Mapping[BucketName, RawHeaders]] = {
    "create": raw({"RateLimit-Remaining": "599", "RateLimit-Reset": "1"}),
    "read": raw({"RateLimit-Remaining": "2999", "RateLimit-Reset": "1"}),
}
UNKNOWN_S: Final = 1.0  # the assumed time of a run while a queue has finished none


async def retain(request: Request, owner: str, size: int) -> None:
    """Count bytes that stay until `owner` deletes them, before they are written. Raises DataRefused, but not for an
    operator, who writes for another account.
    """
    services, account = request.services, request.account
    if size <= 0:
        return
    limit = NO_LIMIT
    if account.name == owner:
        limit = services.memory.limit(account.limits.max_data_bytes, size)
    refused = await services.scripts.retain(owner, size, most=limit.most)
    if refused is not None:
        services.memory.uncount(size)
        raise limit.refusal(refused)


async def uncount(request: Request, owner: str, size: int) -> None:
    """Count bytes no longer that were not written, or that are gone. If Redis is away, a keeper does so in a minute."""
    if size > 0:
        with contextlib.suppress(BackendUnavailable):
            await request.services.scripts.weigh(owner, NOTHING, Counted(size, FOR_EVER_MS))


async def take(request: Request, account: Account, name: BucketName) -> tuple[Bucket, str] | None:
    bucket = account.limits.bucket(name)
    if bucket is None:
        carry(request, WITHOUT_RATE[name])
        return None
    token = uuid4().hex
    allowance = await services_of(request).scripts.reserve(account.name, bucket, id=token)
    reset_s = math.ceil(allowance.reset_ms / 1000)
    left = {"Limit": allowance.most, "Remaining": allowance.remaining, "Reset": reset_s}
    carry(request, raw({f"RateLimit-{name}": str(value) for name, value in left.items()}))
    if not allowance.allowed:
        retry_after_s = _retry_after_s(allowance)
        raise errors.rate_limited(limit=allowance.most, retry_after=retry_after_s, reset_s=max(reset_s, retry_after_s))
    return bucket, token


async def reserve_compute(request: Request, prediction_id: PredictionId, *, queue: QueueName, cost: float) -> None:
    """Reserve the compute that this prediction will probably spend, of its account's day and credit. Raises a 429, or a
    402 where waiting does not help; its token stays taken. Reserves at least a mean run: a declared cost may raise
    that, and lower it only at the end.
    """
    account, services = request.account, services_of(request)
    if not account.limits.meters_compute:
        return
    service = await services.lookups.service(queue)
    allowance = await services.scripts.reserve(
        account.name,
        account.limits.compute_s_per_day,
        in_all=account.limits.compute_s_total,
        id=prediction_id,
        asked_s=_estimate_s(service, cost),
    )
    if allowance.allowed:
        return
    if allowance.limit == "credit":
        raise errors.credit_exhausted(limit=allowance.most)
    raise errors.compute_exhausted(limit=allowance.most, retry_after=_retry_after_s(allowance))


async def reserve_budget(request: Request, new: NewPrediction) -> None:
    """Reserve the tokens that this prediction will probably use, and the compute of the month. Raises a 429."""
    limits, services = request.account.limits, services_of(request)
    if not new.budgeted:
        return
    service = await services.lookups.service(new.queue)
    answer = await services.scripts.budget(
        new.account,
        new.id,
        limits.budget,
        tokens=sum(map(int, new.tokens.split())),
        compute_s=_estimate_s(service, new.cost),
    )
    if answer.allowed:
        return
    retry_after_s = max(1, math.ceil(answer.retry_after_ms / 1000))
    if answer.limit == "compute":
        raise errors.month_exhausted(limit=limits.compute_s_per_month, retry_after=retry_after_s)
    most = getattr(limits, f"tokens_per_{answer.limit}")
    raise errors.tokens_exhausted(limit=most, over=answer.limit, retry_after=retry_after_s)


async def refuse_full(request: Request, *, input_bytes: int) -> None:
    """Raise a 402 if the account's files fill its quota: the prediction's output would have no room. Raise a 413 for an
    input that is larger than all that the account may have in Redis.
    """
    account, most = request.account, request.account.limits.max_files_bytes
    if (most_data := account.limits.max_data_bytes) is not None and input_bytes + RECORD_BYTES > most_data:
        raise errors.input_over_data(limit=most_data)
    if most is not None and (await services_of(request).scripts.stow(account.name)).total >= most:
        raise errors.storage_full(limit=most)


async def give_back(request: Request, prediction_id: PredictionId) -> None:
    """Give back the compute and the tokens of a prediction that no queue took."""
    account = request.account
    if account.limits.has_budget:
        await services_of(request).scripts.settle(account.name, prediction_id)
    if account.limits.meters_compute:
        await services_of(request).scripts.spend(account.name, prediction_id=prediction_id)


async def give_back_token(request: Request, rate_token: tuple[Bucket, str]) -> None:
    await services_of(request).scripts.spend(request.account.name, token=rate_token)


def _estimate_s(service: Service, cost: float) -> float:
    return (service.run_s or UNKNOWN_S) * max(1, cost / service.cost)


def _retry_after_s(allowance: Allowance) -> int:
    return max(1, math.ceil(allowance.retry_after_ms / 1000))
