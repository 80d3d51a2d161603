"""Hold an account to its limits over all queues: a token for each request at the door, compute for each prediction.

Asks nothing for an account without a limit. What was taken for nothing is given back; where it is not known whether it
was for nothing, it is not, so that a crash may let fewer through, never more. What a prediction took is put right by
the keeper once it has ended.
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
from director.broker.scripts import Allowance
from director.core.account_limits import Bucket, BucketName
from director.core.ids import PredictionId, QueueName
from director.store.accounts import Account

# On every answer of Replicate's, and a program may pace itself by them: these are its own, when nothing was used
# lately. Without RateLimit-Limit, since there is none.
WITHOUT_RATE: Final[Mapping[BucketName, RawHeaders]] = {
    "create": raw({"RateLimit-Remaining": "599", "RateLimit-Reset": "1"}),
    "read": raw({"RateLimit-Remaining": "2999", "RateLimit-Reset": "1"}),
}
UNKNOWN_S: Final = 1.0  # what a run is taken to be while a queue has finished none


class Taken(Struct, frozen=True):
    """The token of a request that came in."""

    bucket: Bucket
    id: str


async def admit(request: Request, account: Account, name: BucketName) -> None:
    """Let one more request of this account in, and have every answer to it tell what is left; else 429."""
    request.scope["state"]["taken"] = await take(request, account, name)


def taken_of(request: Request) -> Taken | None:
    """The token that a request came in with; None where nothing limits its account."""
    taken: Taken | None = request.scope["state"].get("taken")
    return taken


async def take(request: Request, account: Account, name: BucketName) -> Taken | None:
    """A token for one more thing that a request asks for; else 429."""
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
    """Set aside what this prediction will probably spend of its account's day and credit; else 429, or 402 where no
    waiting helps. Then its token is still taken.

    At least a mean run, whatever cost its caller names: that may ask for more, and for less only at the end.
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
    """402 where its account keeps as many bytes of files as it may: what it puts out would have no room."""
    most = account.limits.max_files_bytes
    if most is not None and (await services_of(request).scripts.stow(account.name)).total >= most:
        raise storage_full(402, most)


async def give_back(request: Request, account: Account, prediction_id: PredictionId, taken: Taken | None) -> None:
    """The queue took nothing: neither a token nor compute was used."""
    if taken is not None or account.limits.meters_compute:
        await services_of(request).scripts.spend(
            account.name, prediction_id=prediction_id, token=None if taken is None else (taken.bucket, taken.id)
        )


async def return_compute(request: Request, account: Account, prediction_id: PredictionId) -> None:
    """This prediction is another one's double. The request itself was one all the same."""
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
