"""Check each request's token, scopes and rate, hold accounts to their limits, and serve the caller's own account. Redis
is not asked about an account without limits. A crash may allow fewer requests, never more: what was taken in vain is
given back only if that is certain. The keeper corrects a prediction's compute once it is terminal.
"""

import math
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.services import services_of
from api.web import errors
from api.web.http import RawHeaders, Request, carry, json_response, raw
from api.web.route import Answer, Scope, changes, reads
from director.broker.replies import Allowance
from director.core.account_limits import Bucket, BucketName
from director.core.data_bytes import RECORD_BYTES
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.store.accounts import Account, AccountType

# `Token` is the older form, which official clients before 2024 still send
SCHEMES: Final = frozenset({"bearer", "token"})
# Replicate's own values for an idle account: a program may pace itself by them. It sends no RateLimit-Limit.
WITHOUT_RATE: Final[Mapping[BucketName, RawHeaders]] = {
    "create": raw({"RateLimit-Remaining": "599", "RateLimit-Reset": "1"}),
    "read": raw({"RateLimit-Remaining": "2999", "RateLimit-Reset": "1"}),
}
UNKNOWN_S: Final = 1.0  # the assumed time of a run while a queue has finished none


async def authenticate(request: Request, *scopes: Scope, bucket: BucketName = "read", frees: bool = False) -> Account:
    """Return the account of the request's token, before a body is read. Raises a 401 without a valid token, a 429 above
    the account's rate, and a 403 without one of these scopes. A suspended account may only read, and call what `frees`.
    It loses the scope admin: with it, it could resume itself or use another account.
    """
    header = request.headers.get("authorization")
    if header is None:
        raise errors.no_token()
    account = await _account_of(request, header)
    if account is None:
        raise errors.invalid_token()
    request.rate_token = await take(request, account, bucket)
    if not set(scopes) & set(account.scopes):
        raise errors.forbidden(f"This token does not have the scope {' or '.join(map(repr, scopes))}.")
    if account.suspension is None:
        return account
    left = tuple(scope for scope in account.scopes if scope != "admin")
    if not (frees or "read" in scopes) or not set(scopes) & set(left):
        raise errors.account_suspended(why=errors.WHY_SUSPENDED[account.suspension.reason])
    return replace(account, scopes=left)


async def may_still(request: Request, scope: Scope) -> bool:
    """Return whether the token has this scope now. While Redis is away, it is assumed to have it."""
    try:
        account = await _account_of(request, request.headers.get("authorization", ""))
    except BackendUnavailable:
        return True
    return account is not None and account.suspension is None and scope in account.scopes


async def _account_of(request: Request, header: str) -> Account | None:
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if scheme.lower() not in SCHEMES or not token:
        return None
    return await services_of(request).lookups.account(token)


def named(operator: Account) -> str:
    """Name the operator for the log of changes: account, and the token's id, which is no secret."""
    return f"{operator.name}/{operator.token_id}"


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
        asked_s=(service.run_s or UNKNOWN_S) * max(1, cost / service.cost),
    )
    if allowance.allowed:
        return
    if allowance.limit == "credit":
        raise errors.credit_exhausted(limit=allowance.most)
    raise errors.compute_exhausted(limit=allowance.most, retry_after=_retry_after_s(allowance))


async def refuse_full(request: Request, *, input_bytes: int) -> None:
    """Raise a 402 if the account's files fill its quota: the prediction's output would have no room. Raise a 413 for an
    input that is larger than all that the account may have in Redis.
    """
    account, most = request.account, request.account.limits.max_files_bytes
    if (most_data := account.limits.max_data_bytes) is not None and input_bytes + RECORD_BYTES > most_data:
        raise errors.input_over_data(limit=most_data)
    if most is not None and (await services_of(request).scripts.stow(account.name)).total >= most:
        raise errors.storage_full(limit=most)


async def give_back(
    request: Request, prediction_id: PredictionId, rate_token: tuple[Bucket, str] | None = None
) -> None:
    """Give back the compute of a prediction that no queue took, and a token of the rate."""
    account = request.account
    if rate_token is not None or account.limits.meters_compute:
        await services_of(request).scripts.spend(account.name, prediction_id=prediction_id, token=rate_token)


def _retry_after_s(allowance: Allowance) -> int:
    return max(1, math.ceil(allowance.retry_after_ms / 1000))


class AccountView(Struct, frozen=True):
    """An account on the wire. Official clients need the first three."""

    username: str
    name: str
    type: AccountType = "organization"
    github_url: str | None = None
    avatar_url: str | None = None


class OwnAccountView(AccountView, frozen=True):
    """The account of the caller. `scopes`: what its token may do."""

    scopes: tuple[str, ...] = ()


class WebhookSecret(Struct, frozen=True):
    """`whsec_` and standard base64."""

    key: str


@reads(
    "/account",
    name="account.get",
    summary="Get the caller's account",
    about="The answer names the account of the token and the scopes that the token has.",
    answers={200: Answer("The account.", OwnAccountView)},
)
async def get_account(request: Request) -> Response:
    account = request.account
    return json_response(
        OwnAccountView(username=account.name, name=account.name, type=account.type, scopes=account.scopes)
    )


@changes(
    "GET",
    "/webhooks/default/secret",
    name="webhooks.default.secret.get",
    summary="Get the secret that signs the account's webhooks",
    about=(
        "Receivers verify the `webhook-signature` header with it, as Standard Webhooks describes. The token needs "
        "the scope `run`, because who has the secret can sign as the service does."
    ),
    answers={200: Answer("The secret.", WebhookSecret)},
    refusals={404},
)
async def get_webhook_secret(request: Request) -> Response:
    account = request.account
    secrets = await request.services.accounts.webhook_secrets(account.name)
    if not secrets:
        raise errors.not_found()
    return json_response(WebhookSecret(secrets[0]), headers={"Cache-Control": "no-store"})
