"""Hold an account to its limits over all queues: a token for each request, compute for each prediction.

Asks Redis nothing for an account without limits. What was taken in vain is given back. If that is unknown, it stays
taken: a crash may allow fewer requests, never more. The keeper corrects a prediction's compute once it is terminal.
"""

import math
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from msgspec import Struct
from starlette.requests import Request

from api.errors import compute_exhausted, credit_exhausted, rate_limited, storage_full
from api.response import RawHeaders, carry, raw
from api.services import services_of
from director.broker.replies import Allowance
from director.core.account_limits import Bucket, BucketName
from director.core.ids import PredictionId, QueueName
from director.store.accounts import Account

# Replicate sends these headers with every answer, and a program may pace itself by them. The values are Replicate's own
# for an idle account. There is no RateLimit-Limit, since there is no limit.
WITHOUT_RATE: Final[Mapping[BucketName, RawHeaders]] = {
    "create": raw({"RateLimit-Remaining": "599", "RateLimit-Reset": "1"}),
    "read": raw({"RateLimit-Remaining": "2999", "RateLimit-Reset": "1"}),
}
UNKNOWN_S: Final = 1.0  # the assumed time of a run while a queue has finished none


class Taken(Struct, frozen=True):
    """A token of a rate's bucket."""

    bucket: Bucket
    id: str


async def admit(request: Request, account: Account, name: BucketName) -> None:
    """Take a token for this request, and send what is left with its answer. Raises a 429 if none is left."""
    request.scope["state"]["taken"] = await take(request, account, name)


def taken_of(request: Request) -> Taken | None:
    taken: Taken | None = request.scope["state"].get("taken")
    return taken


async def take(request: Request, account: Account, name: BucketName) -> Taken | None:
    """Take a token for one more action of a request. Raises a 429 if none is left."""
    bucket = account.limits.bucket(name)
    if bucket is None:
        carry(request, WITHOUT_RATE[name])
        return None
    taken = Taken(bucket, uuid4().hex)
    allowance = await services_of(request).scripts.reserve(account.name, bucket, id=taken.id)
    carry(request, raw(_headers(allowance)))
    if not allowance.allowed:
        raise rate_limited(allowance.most, retry_after_s=_seconds(allowance.retry_after_ms), reset_s=_reset(allowance))
    return taken


async def reserve_compute(
    request: Request,
    account: Account,
    prediction_id: PredictionId,
    *,
    queue: QueueName,
    cost: float,
) -> None:
    """Reserve the compute that this prediction will probably spend, of its account's day and credit.

    Raises a 429, or a 402 where waiting does not help; its token is still taken then. Reserves at least a mean run: the
    cost that a caller names may raise that, and lower it only at the end.
    """
    limits = account.limits
    if not limits.meters_compute:
        return
    services = services_of(request)
    service = await services.lookups.service(queue)
    asked_s = (service.run_s or UNKNOWN_S) * max(1, cost / service.cost)
    allowance = await services.scripts.reserve(
        account.name, limits.compute_s_per_day, in_all=limits.compute_s_total, id=prediction_id, asked_s=asked_s
    )
    if not allowance.allowed:
        if allowance.limit == "credit":
            raise credit_exhausted(allowance.most)
        raise compute_exhausted(allowance.most, retry_after_s=_seconds(allowance.retry_after_ms))


async def refuse_full(request: Request, account: Account) -> None:
    """Raise a 402 if the account's files fill its quota: the prediction's output would have no room."""
    most = account.limits.max_files_bytes
    if most is not None and (await services_of(request).scripts.stow(account.name)).total >= most:
        raise storage_full(402, most)


async def give_back(request: Request, account: Account, prediction_id: PredictionId, taken: Taken | None) -> None:
    """Give back the token and the compute of a prediction that no queue took."""
    if taken is not None or account.limits.meters_compute:
        await services_of(request).scripts.spend(
            account.name, prediction_id=prediction_id, token=None if taken is None else (taken.bucket, taken.id)
        )


async def return_compute(request: Request, account: Account, prediction_id: PredictionId) -> None:
    """Give back the compute of a replayed prediction. Its request still counts against the rate."""
    if account.limits.meters_compute:
        await services_of(request).scripts.spend(account.name, prediction_id=prediction_id)


def _headers(allowance: Allowance) -> dict[str, str]:
    return {
        "RateLimit-Limit": str(allowance.most),
        "RateLimit-Remaining": str(allowance.remaining),
        "RateLimit-Reset": str(_reset(allowance)),
    }


def _reset(allowance: Allowance) -> int:
    return math.ceil(allowance.reset_ms / 1000)


def _seconds(milliseconds: int) -> int:
    return max(1, math.ceil(milliseconds / 1000))
