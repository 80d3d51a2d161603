"""Show what the runs of an account used, or those of all accounts: runs, seconds, tokens, bytes of files, money."""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from api.sites.sites import AWAY, Site, others
from api.web.errors import InvalidField, invalid_input
from api.web.http import Request, json_response
from api.web.route import OVERSEES, Answer, Parameter, Route, reads
from director.core.errors import BackendUnavailable
from director.core.usage import KEYS, NOTHING, Key, Price, Sum, Sums, Used, day_of
from director.store.accounts import ACCOUNT_NAME

DAY: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
MOST_RESULTS: Final = 20_000  # about 3 MB
LONGEST_DAYS: Final = 3_700  # ten years: more than is ever kept


class UsageSum(Struct, frozen=True, kw_only=True):
    """Usage of the runs that agree in `by`. `seconds` are those of the runs. Cached tokens are a part of the input
    tokens. `token`: the id of an API token, '' where it is unknown. `cost`: null without a price.
    """

    account: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    day: str | UnsetType = UNSET
    token: str | UnsetType = UNSET
    runs: int
    seconds: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    file_bytes: int
    cost: float | None


class UsageView(Struct, frozen=True, kw_only=True):
    """Usage of these days in UTC, both included. A month that is over for more than 90 days has one day: its first."""

    first: str
    last: str
    total: UsageSum
    results: list[UsageSum]


_RANGE: Final = (
    Parameter("from", "The first day, in UTC. Without it: the first of this month.", Annotated[str, Meta(pattern=DAY)]),
    Parameter("to", "The last day, in UTC. Without it: today.", Annotated[str, Meta(pattern=DAY)]),
)


@reads(
    "/usage",
    name="usage.get",
    summary="Get what the caller's account used",
    about=(
        "Every run that began counts, also one that failed, was canceled or was lost, as far as its output was seen. "
        "A token reads the usage of its own account only."
    ),
    parameters=(
        *_RANGE,
        Parameter("by", "What to group by, separated by commas: `model`, `day`, `token`. Without it: `model`."),
    ),
    answers={200: Answer("The sums.", UsageView)},
    refusals={422},
)
async def get_usage(request: Request) -> Response:
    return await _answer(request, account=request.account.name, known=KEYS[1:], default="model")


@Route(
    "GET",
    "/admin/usage",
    name="admin.usage.get",
    summary="Get what all accounts used",
    about="The sums of every account, or of one. The prices of models turn them into money: `director model price`.",
    scopes=OVERSEES,
    parameters=(
        *_RANGE,
        Parameter(
            "by",
            "What to group by, separated by commas: `account`, `model`, `day`, `token`. Without it: `account,model`.",
        ),
        Parameter("account", "Only this account.", Annotated[str, Meta(pattern=ACCOUNT_NAME)]),
    ),
    answers={200: Answer("The sums.", UsageView)},
    refusals={422},
)
async def get_usage_of_all(request: Request) -> Response:
    account = request.query_params.get("account")
    if account is not None and not re.fullmatch(ACCOUNT_NAME, account):
        raise invalid_input([InvalidField("invalid", "account", "Must be the name of an account")])
    if account is not None and not await request.services.accounts.exists(account):
        raise invalid_input([InvalidField("invalid", "account", f"There is no account {account}")])
    return await _answer(request, account=account, known=KEYS, default="account,model")


async def _answer(request: Request, *, account: str | None, known: Sequence[Key], default: str) -> Response:
    services, given, faults = request.services, request.query_params, list[InvalidField]()
    by = [word.strip() for word in given.get("by", default).split(",") if word.strip()]
    if not set(by) <= set(known) or len(set(by)) != len(by):
        faults.append(InvalidField("enum", "by", f"Must be some of {', '.join(known)}, separated by commas"))
    today = day_of(services.clock.now_ms())
    first, last = (
        _day(given.get(name), default=day, name=name, faults=faults)
        for name, day in (("from", today.replace(day=1)), ("to", today))
    )
    if not faults and not 0 <= (last - first).days <= LONGEST_DAYS:
        faults.append(InvalidField("invalid", "from", "Must be a day before `to`, of the last ten years"))
    if faults:
        raise invalid_input(faults)
    keys: list[Key] = [name for name in KEYS if name in by]
    sums, away = await _read_sums(request, keys, first, last, account)
    prices = await _read_prices(request, sums.models, [site for site in others(request) if site.name not in away])
    total, results = await asyncio.to_thread(_show_sums, sums, keys, prices)
    if len(results) > MOST_RESULTS:
        wrong = (
            f"Gives {len(results):,} sums: leave a key out, or ask for fewer days. At most {MOST_RESULTS:,} are given"
        )
        raise invalid_input([InvalidField("invalid", "by", wrong)])
    view = UsageView(first=str(first), last=str(last), total=total, results=results)
    return json_response(view, headers={AWAY: ", ".join(away)} if away else None)


async def _read_sums(
    request: Request, keys: Sequence[Key], first: date, last: date, account: str | None
) -> tuple[Sums, list[str]]:
    """Return the sums of all sites that answer, and the names of the others. Raises BackendUnavailable without the
    home.
    """
    away: list[str] = []
    try:
        async with request.services.reading.hold(request.account.name):
            sums = await request.services.ledger.sums(keys, first, last, account=account)
            for site in others(request):
                try:
                    sums.join(await site.services.ledger.sums(keys, first, last, account=account))
                except BackendUnavailable:
                    away.append(site.name)
    except TimeoutError as exc:
        raise BackendUnavailable("usage of many days is read too often at once") from exc
    return sums, away


async def _read_prices(request: Request, models: Collection[str], counted: Sequence[Site]) -> dict[str, Price]:
    """Return the price of each model, of the first site that has one: a model may be at other sites only. Raises
    BackendUnavailable without a site whose runs are counted: the header would say that its runs are missing.
    """
    prices = await request.services.ledger.prices(models)
    for site in counted:
        if left := set(models) - prices.keys():
            prices |= await site.services.ledger.prices(left)
    return prices


def _show_sums(sums: Sums, keys: Sequence[Key], prices: Mapping[str, Price]) -> tuple[UsageSum, list[UsageSum]]:
    whole = sums.result(prices, by=0)
    total = whole[0] if whole else Sum(by=(), used=NOTHING, cost=None)
    return _view(total, []), [_view(each, keys) for each in sums.result(prices)]


def _day(given: str | None, *, default: date, name: str, faults: list[InvalidField]) -> date:
    try:
        return default if given is None else date.fromisoformat(given if re.fullmatch(DAY, given) else "")
    except ValueError:
        faults.append(InvalidField("invalid", name, "Must be a day such as 2026-11-28"))
        return default


def _view(found: Sum, keys: Sequence[Key]) -> UsageSum:
    used: Used = found.used
    return UsageSum(
        **dict(zip(keys, found.by, strict=True)),
        runs=used.runs,
        seconds=used.ms / 1000,
        input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
        file_bytes=used.file_bytes,
        cost=found.cost,
    )
