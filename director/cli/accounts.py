"""Commands on accounts and tokens: `director account` and `director token`. Redis keeps only the digest of a token, so
a token is shown once. No command prints a webhook secret.
"""

import argparse
import math
import sys
from contextlib import nullcontext
from datetime import date
from itertools import pairwise
from typing import Any, Final, get_args

import msgspec
from msgspec import Raw, Struct

from director.cli.arguments import EXAMPLE_ID, JSON, LISTED, SERVICE, arg, command, flag, group, hours, whole
from director.cli.client import Client, Service, name_service, read, service
from director.cli.operators import Backend, audit, operator, read_line
from director.cli.remote import run
from director.cli.tables import Answer, answer_page, tabulate
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import ALL_LANES
from director.core.usage import NOTHING, Used, day_of
from director.core.view import iso
from director.core.words import several
from director.store.accounts import SCOPES, TYPES, Policy, Reason, Role, Token, TokenChange, refuse_name

COLUMNS: Final = ("account", "limits")
TOKEN_COLUMNS: Final = ("account", "id", "ends in", "scopes", "lanes", "expires", "label")
DAY_S: Final = 86_400
HOUR_S: Final = 3_600.0
POLICIES: Final = get_args(Policy)
END_S: Final = 60.0
KEEP_HOURS: Final = 24.0
LIMITS: Final = {  # the fields of AccountLimits
    "rate": "predictions created a second",
    "burst": "predictions created at once",
    "read_rate": "other requests a second",
    "read_burst": "other requests at once",
    "max_queued": "predictions waiting in one queue",
    "max_running": "predictions running in one queue",
    "compute_s_per_day": "seconds of compute in a UTC day",
    "compute_s_total": "seconds of compute in total",
    "compute_s_per_month": "seconds of compute in a month of UTC",
    "tokens_per_minute": "tokens in a minute, of input and output",
    "tokens_per_day": "tokens in a UTC day",
    "tokens_per_month": "tokens in a month of UTC",
    "data_ttl_s": "seconds that data of terminal predictions is kept",
    "max_files_bytes": "bytes of stored files, outputs included",
    "max_data_bytes": "bytes in Redis of its predictions, waiting and terminal",
    "open_hours": "when its predictions start, as '22:00-06:00 Europe/Berlin', or idle",
    "weight": "its share of a queue; 1 is the default",
}
OPTIONS: Final = {name: f"--{name.replace('_', '-')}" for name in LIMITS}
NAME: Final = arg("name NAME", "the account")

LONGEST_LINK_S: Final = 7 * 86_400

group("token", "list")
group("account", "list")


@operator(
    "account create",
    NAME,
    arg("--type", "what the account stands for (%(default)s)", choices=TYPES, default=TYPES[0]),
    examples=("team-a",),
)
async def _create(backend: Backend, given: argparse.Namespace) -> Answer:
    """Make an account, without a token."""
    with audit() as by:
        is_new = await backend.administration.create(given.name, given.type, by=by)
    if not is_new:
        raise SettingsError(f"there is an account {given.name} already: `director account show {given.name}`.")
    text = f"{given.name} is created. `director token create --account {given.name}` makes a token for it."
    return Answer({"name": given.name, "type": given.type}, text)


@operator("account list", *LISTED, needs="view", examples=("", "-n 1000 --json"))
async def _list(backend: Backend, given: argparse.Namespace) -> Answer:
    """List accounts by name, with the limits set for them."""
    rest = [name for name in await backend.accounts.names() if name > given.cursor]
    names = rest[: given.n]
    found = dict(zip(names, await backend.accounts.read_each_written(names), strict=True))
    rows = [(name, _limits(written.limits)) for name, written in found.items()]
    empty = "no accounts yet: `director account create NAME` makes one"
    results = [{"name": name, "limits": written.limits} for name, written in found.items()]
    following = names[-1] if len(rest) > len(names) else None
    return answer_page(results, COLUMNS, rows, following, words=COLUMNS, empty=empty)


def _limits(limits: dict[str, str]) -> str:
    return " ".join(f"{limit}={value}" for limit, value in limits.items())


@operator("account show", NAME, needs="view", examples=("team-a",))
async def _show(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show an account: its limits, refused requests and compute of today."""
    await backend.accounts.refuse_unknown(given.name)
    now_ms = SystemClock().now_ms()
    today = now_ms // 1000 // DAY_S
    written, usage = (
        await backend.accounts.read_written(given.name),
        await backend.accounts.usage(given.name, day=today),
    )
    used, away = await _read_used(backend, given.name, day_of(now_ms))
    suspended = written.suspension
    denied = ", ".join(f"{count} of {name}" for name, count in sorted(usage.bursts.items())) or "none"
    lines = [
        *([f"suspended          {suspended.policy}, for the reason {suspended.reason}"] if suspended else []),
        *(f"{name:<18} {written.limits[name]:<10} {text}" for name, text in LIMITS.items() if name in written.limits),
        f"default limits     {', '.join(name for name in LIMITS if name not in written.limits) or 'none'}",
        f"denied bursts      {denied}",
        f"files              {usage.stored_bytes:,} bytes",
        f"data in Redis      {usage.data_bytes:,} bytes",
        f"used today         {several(used.runs, 'run')}, {used.ms / 1000:.1f} s, {used.input_tokens:,} input tokens, "
        f"{used.output_tokens:,} output tokens",
        *([f"not counted        what ran at the site {away}, which does not answer"] if away else []),
        *_compute("today", usage.spent_s, usage.reserved_s),
        *_compute("in all", usage.total_spent_s, usage.total_reserved_s),
    ]
    shown = {"name": given.name, "type": written.type, "suspension": suspended, "limits": written.limits}
    return Answer({**shown, "usage": usage}, "\n".join(lines))


async def _read_used(backend: Backend, account: str, day: date) -> tuple[Used, str]:
    """Return what the account used on a day at all sites, and the names of those that do not answer."""
    counted, away = await backend.ledger.sums([], day, day, account=account), list[str]()
    for name, ledger in backend.other_ledgers.items():
        try:
            counted.join(await ledger.sums([], day, day, account=account))
        except BackendUnavailable:
            away.append(name)
    return next((each.used for each in counted.result({})), NOTHING), ", ".join(away)


def _compute(over: str, spent_s: float, reserved_s: float) -> list[str]:
    """Return what a limit of compute has counted. Without such a limit nothing is, so there is nothing to show."""
    has_any = spent_s or reserved_s
    return [f"compute {over:<10} {spent_s:.1f} s spent, {reserved_s:.1f} s reserved"] if has_any else []


def _ask_to_set(chosen: Service, given: argparse.Namespace) -> Answer:
    with Client(chosen) as client:
        client.change_account(
            given.name, {"limits": {name: _limit(text) for name, text in _read_limits(given).items()}}
        )
        ran = run(client, {"line": ["account", "show", "--", given.name], "json": True})
    return _answer_limits(given.name, read(Raw(ran.out.encode()), dict[str, Any])["limits"])


def _limit(text: str) -> float | str | None:
    """Return a limit as the API reads it."""
    if text == "none":
        return None
    try:
        return number if math.isfinite(number := float(text)) else text
    except ValueError:
        return text


def _read_limits(given: argparse.Namespace) -> dict[str, str]:
    limits = {name: text for name in LIMITS if (text := getattr(given, name)) is not None}
    if not limits:
        raise SettingsError(f"name a limit: {', '.join(OPTIONS.values())}.")
    return limits


def _answer_limits(name: str, written: dict[str, str]) -> Answer:
    return Answer({"name": name, "limits": written}, f"{name} {_limits(written)}".rstrip())


@operator(
    "account set",
    NAME,
    *(arg(f"{OPTIONS[name]} N", text) for name, text in LIMITS.items()),
    ask_api=_ask_to_set,
    examples=("team-a --rate 10 --max-running 4",),
)
async def _set(backend: Backend, given: argparse.Namespace) -> Answer:
    """Set limits: each is a number (of open hours a text), none, or default for the value in the API's settings."""
    with audit() as by:
        written = (await backend.administration.set_limits(given.name, _read_limits(given), by=by)).limits
    return _answer_limits(given.name, written)


@operator(
    "account migrate",
    arg("names NAME", "accounts; without any, all", nargs="*"),
    arg("--to-redis URL", "the other server", required=True),
    flag("--dry-run", "only say how many would be brought"),
    needs=None,
    examples=("--to-redis redis://10.0.0.2:6379",),
    epilog="The command may be interrupted and repeated at any time. It prints no secret.",
)
async def _migrate(here: Backend, given: argparse.Namespace) -> Answer:
    """Bring accounts to another server: limits, suspensions, webhook secrets, tokens. Do this before their queues. Both
    servers are read directly, so this needs --redis or DIRECTOR_REDIS_URL.
    """
    # only here: no other command on accounts needs them
    from director.broker.durability import check
    from director.broker.redis_client import describe
    from director.cli.backend import connect
    from director.core.settings import CommonSettings, load
    from director.store.relocation import PURPOSES, Relocation

    for name in given.names:
        await here.accounts.refuse_unknown(name)
    names = list(dict.fromkeys(given.names)) or await here.accounts.names()
    async with connect(given.to_redis) as there:
        await check(there.redis, load(CommonSettings))
        relocation = Relocation(here.redis, there.redis, here.clock)
        with audit() as by:
            noted = here.changes.noting("accounts_brought", by=by, count=len(names), to_redis=describe(given.to_redis))
            async with nullcontext() if given.dry_run else noted:
                done = await relocation.run(names, only_asks=given.dry_run)
    verb = "would be brought" if given.dry_run else "brought"
    lines = [f"{several(done.accounts, 'account')} and {several(done.tokens, 'token')} {verb}"]
    lines += [f"{several(done.known, 'account')} had been brought before"] if done.known else []
    lines += [
        "the secret that signs addresses of outputs is another one there: addresses that were signed here end"
        for _ in range(len(PURPOSES) - done.secrets)
    ]
    return Answer({"dry_run": given.dry_run, **msgspec.to_builtins(done)}, "\n".join(lines))


def _ask_to_suspend(chosen: Service, given: argparse.Namespace) -> Answer:
    with Client(chosen) as client:
        asked = {"policy": given.policy, "reason": given.reason}
        return _answer_suspended(given, read(client.change_account(given.name, asked, verb="suspend"), _Ended))


class _Ended(Struct, frozen=True):
    ended: int
    asked: int
    left: int


@operator(
    "account suspend",
    NAME,
    arg(
        "--policy",
        "hold what waits and let running predictions finish, or end both (%(default)s)",
        choices=POLICIES,
        default=POLICIES[0],
    ),
    arg("--reason", "the reason that the account is shown (%(default)s)", choices=get_args(Reason), default="review"),
    ask_api=_ask_to_suspend,
    examples=("team-a --policy hold",),
)
async def _suspend(backend: Backend, given: argparse.Namespace) -> Answer:
    """Stop an account from starting anything."""
    if given.policy == "end" and sys.stderr.isatty():
        print(f"ending its predictions, for at most {END_S:.0f} s …", file=sys.stderr, flush=True)
    with audit() as by:
        ended = await backend.administration.suspend(given.name, given.policy, given.reason, by=by, within_s=END_S)
    return _answer_suspended(given, msgspec.convert(ended, _Ended, from_attributes=True))


def _answer_suspended(given: argparse.Namespace, ended: _Ended) -> Answer:
    done = "waiting predictions are held, running ones continue, new ones are refused"
    if given.policy == "end":
        done = f"{ended.ended} canceled, {ended.asked} running ones asked to stop, {ended.left} not ended yet"
    facts = {"name": given.name, "policy": given.policy, "reason": given.reason}
    return Answer({**facts, **msgspec.to_builtins(ended)}, f"{given.name} is suspended: {done}")


@operator(
    "account erase",
    NAME,
    flag("--keep-usage", "keep what it used, for its last invoice"),
    flag("--yes", "do it: without this, only say what it would do"),
    examples=("team-a --yes",),
    epilog="Suspend the account with `--policy end` first. The command may be interrupted and repeated.",
)
async def _erase(backend: Backend, given: argparse.Namespace) -> Answer:
    """Erase all that an account stored: predictions, files, deployments, usage, and its tokens. It stays suspended."""
    if not given.yes:
        await backend.accounts.refuse_unknown(given.name)
        raise SettingsError(f"this cannot be undone: `director account erase {given.name} --yes` does it.")
    with audit() as by:
        erased = await backend.erasure.erase(given.name, keeps_usage=given.keep_usage, by=by, within_s=END_S)
    text = (
        f"{given.name} is erased: {several(erased.predictions, 'prediction')}, "
        f"{several(erased.batches, 'batch')}, {several(erased.files, 'file')}, "
        f"{several(erased.deployments, 'deployment')}, {several(erased.tokens, 'token')}, "
        f"{several(erased.months, 'month')} of usage. A keeper deletes the files within an hour"
    )
    return Answer({"name": given.name, **msgspec.to_builtins(erased)}, text)


def _ask_to_resume(chosen: Service, given: argparse.Namespace) -> Answer:
    with Client(chosen) as client:
        client.change_account(given.name, {}, verb="resume")
    return _answer_resumed(given.name)


@operator("account resume", NAME, ask_api=_ask_to_resume, examples=("team-a",))
async def _resume(backend: Backend, given: argparse.Namespace) -> Answer:
    """End the suspension of an account, and release what was held."""
    with audit() as by:
        await backend.administration.resume(given.name, by=by)
    return _answer_resumed(given.name)


def _answer_resumed(name: str) -> Answer:
    return Answer({"name": name}, f"{name} is no longer suspended. An API may refuse it until its cache expires")


@operator(
    "account rotate-secret",
    NAME,
    arg(
        "--keep-hours H",
        f"hours that the former secret still signs; 0 for none ({KEEP_HOURS:g})",
        type=hours,
        default=KEEP_HOURS,
    ),
    examples=("team-a --keep-hours 24",),
)
async def _rotate(backend: Backend, given: argparse.Namespace) -> Answer:
    """Sign webhooks with a new secret, and for some hours with the former one too."""
    with audit() as by:
        rotated = await backend.administration.rotate_secret(given.name, keep_s=given.keep_hours * HOUR_S, by=by)
    if rotated == "full":
        raise SettingsError(
            f"{given.name} has too many secrets that still sign. Wait until one expires, or expire all now "
            "with --keep-hours 0."
        )
    until = iso(_ms_after(given.keep_hours)) if given.keep_hours else None
    former = f"the former one also signs until {until}" if until else "the former ones no longer sign"
    text = f"{given.name} has a new secret, and {former}. GET /v1/webhooks/default/secret shows it to the account."
    return Answer({"name": given.name, "former_signs_until": until}, text)


def _end_ms(hours: float | None) -> int | None:
    """Return the end of a token as `TokenChange` has it: 0 for never, None to keep it."""
    if hours is None:
        return None
    return _ms_after(hours) if hours else 0


def _ms_after(hours: float) -> int:
    return SystemClock().now_ms() + int(hours * HOUR_S * 1000)


@operator(
    "token create",
    arg("--account NAME", "the account of the token", required=True),
    arg("--label TEXT", "what the token is for", default=""),
    arg("--lanes", "lanes that the token may use (%(default)s)", default="high,normal,low"),
    arg("--scopes", f"what the token may do, of {', '.join(SCOPES)} (%(default)s)", default="read,run"),
    arg("--expires-hours H", "hours until the token expires (never)", type=hours),
    examples=("--account team-a", "--account ops --scopes admin --expires-hours 12"),
)
async def _create_token(backend: Backend, given: argparse.Namespace) -> Answer:
    """Make a token, and its account if it is new. The token is shown just once."""
    refuse_name(given.account)
    lanes = _words("--lanes", given.lanes, ALL_LANES)
    scopes = _words("--scopes", given.scopes, SCOPES)
    expires_ms = None if given.expires_hours is None else _ms_after(given.expires_hours)
    with audit() as by:
        made = await backend.administration.create_token(
            given.account, lanes=lanes, scopes=scopes, label=given.label, expires_ms=expires_ms, by=by
        )
    return Answer({**_token_facts(made.token), "token": made.secret}, made.secret)


class Link(Struct, frozen=True):
    url: str
    expires_at: str
    scopes: list[str]
    token_id: str


@command(
    "login-link",
    JSON,
    *SERVICE,
    arg("--role", "what the person may do, if that is less than the token", choices=get_args(Role)),
    arg("--account NAME", "a person of this account, who gets a token of its own; without it, you"),
    arg("--label TEXT", "with --account: who it is, for the log of changes", default="page"),
    arg("--minutes N", "how long the link waits (%(default)s)", type=whole(LONGEST_LINK_S // 60), default=10),
    arg(
        "--expires-hours H",
        "with --account: hours until the person's token expires (with its session)",
        type=hours,
    ),
    arg("--to PAGE", "the page to show after the log-in: its address in the browser, or a link to a run", default=""),
    examples=("", "--role viewer", f"--to /p/{EXAMPLE_ID}", "--account ops --role operator --label ann --minutes 1440"),
)
def _make_link(given: argparse.Namespace) -> int:
    """Make a link that logs a person in at the page. It works once.

    Without --account it is for you: its session ends with the token of this command. With --account the person gets a
    token without a known secret, and `director token revoke` logs the person out. That needs a token
    with the scope admin.
    """
    chosen = service(given)
    asked = {"role": given.role, "life_s": given.minutes * 60, **_page(given.to, chosen.url)}
    if given.account:
        name_service(chosen)
    with Client(chosen) as client:
        if given.account:
            expires_at = None if given.expires_hours is None else iso(_ms_after(given.expires_hours))
            made = client.invite(given.account, {**asked, "label": given.label, "expires_at": expires_at})
        else:
            made = client.login_link(asked)
    link = read(made, Link)
    return Answer(link, f"{link.url}\n\nIt works once, until {link.expires_at}.").show(is_json=given.json)


def _page(address: str, service_url: str) -> dict[str, str]:
    """Return the field for the page of an address. The page's own views stand behind its #. Raises SettingsError."""
    if not address:
        return {}  # an API of release 0.3.0 knows no such field
    before, has_view, view = address.removeprefix(service_url.rstrip("/")).partition("#/")
    path = f"/{view}" if has_view and before in ("", "/") else before
    if not path.startswith("/") or (has_view and path == before):
        raise SettingsError(f"--to takes an address that begins with {service_url}, or what follows it, as /p/ID.")
    return {"to": path}


def _words(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Return the words of an option. Raises SettingsError for none or an unknown one, before Redis is asked."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not set(words) <= set(known):
        raise SettingsError(f"{option} takes {', '.join(known)}, separated by commas.")
    return words


@operator(
    "token list",
    arg("--account NAME", "list only this account's tokens"),
    *LISTED,
    needs="view",
    examples=("--account team-a",),
)
async def _list_tokens(backend: Backend, given: argparse.Namespace) -> Answer:
    """List tokens without their secrets. All tokens of an account stand in one list, so it may be longer than N."""
    if given.account:
        await backend.accounts.refuse_unknown(given.account)
    names = [given.account] if given.account else [one for one in await backend.accounts.names() if one > given.cursor]
    facts, following = list[dict[str, Any]](), None
    for before, name in pairwise(["", *names]):
        if len(facts) >= given.n:
            following = before
            break
        facts += [_token_facts(token) for token in await backend.accounts.tokens.of(name)]
    rows = [_row_of_token(each) for each in facts]
    empty = "no tokens yet: `director token create --account NAME` makes one"
    return answer_page(facts, TOKEN_COLUMNS, rows, following, words=TOKEN_COLUMNS, empty=empty)


def _row_of_token(each: dict[str, Any]) -> tuple[str, ...]:
    return (
        *(each["account"], each["id"], f"…{each['last4'] or '????'}", ",".join(each["scopes"])),
        *(",".join(each["lanes"]), each["expires_at"] or "never", each["label"]),
    )


@operator(
    "token set",
    arg("name TOKEN", "its id, its label or its last 4 characters"),
    arg("--account NAME", "the account of the token", required=True),
    arg("--scopes", f"what it may do from now on, of {', '.join(SCOPES)}"),
    arg("--lanes", f"lanes that it may use from now on, of {', '.join(ALL_LANES)}"),
    arg("--expires-hours H", "hours from now until it expires; 0 for never", type=hours),
    arg("--label TEXT", "what it is for"),
    examples=("7f3c1a9be2d04856 --account team-a --scopes read,run", "ci --account team-a --expires-hours 12"),
)
async def _set_token(backend: Backend, given: argparse.Namespace) -> Answer:
    """Change what a token may do, and until when. Its secret stays. An API may use the former rights until its cache
    expires.
    """
    change = TokenChange(
        scopes=None if given.scopes is None else _words("--scopes", given.scopes, SCOPES),
        lanes=None if given.lanes is None else _words("--lanes", given.lanes, ALL_LANES),
        label=given.label,
        expires_ms=_end_ms(given.expires_hours),
    )
    if change == TokenChange():
        raise SettingsError("nothing to change: give --scopes, --lanes, --expires-hours or --label.")
    found = await _find_token(backend, given)
    with audit() as by:
        changed = found and await backend.administration.change_token(found, change, by=by)
    if not changed:
        raise SettingsError(f"{given.account} has no such token: `director token list` shows them.")
    facts = _token_facts(changed)
    row = tabulate(TOKEN_COLUMNS, [_row_of_token(facts)], words=TOKEN_COLUMNS, empty="")
    return Answer(facts, f"{row}\nchanged. An API may use the former rights until its cache expires")


# Every user of the machine can read a command line, and the shell keeps it, so no secret is read from there.
@operator(
    "token revoke",
    arg("name TOKEN", "its label, its last 4 characters or its id", nargs="?"),
    arg("--account NAME", "the account of the named token"),
    examples=("--account team-a ci", "< token.txt"),
)
async def _revoke(backend: Backend, given: argparse.Namespace) -> Answer:
    """Revoke a token: a named one, or one read from standard input."""
    if given.name and not given.account:
        raise SettingsError("the account of the token is missing: --account NAME.")
    with audit() as by:
        found = await _find_token(backend, given)
        is_gone = found is not None and await backend.administration.revoke(found, by=by)
    if not is_gone:
        raise SettingsError(
            f"{given.account} has no such token: `director token list` shows them."
            if given.name
            else "standard input has no known token."
        )
    return Answer({"revoked": True}, "revoked. An API may accept the token until its cache expires")


async def _find_token(backend: Backend, given: argparse.Namespace) -> Token | None:
    if not given.name:
        return await backend.accounts.tokens.find(read_line())
    await backend.accounts.refuse_unknown(given.account)
    found = [token for token in await backend.accounts.tokens.of(given.account) if token.is_named(given.name)]
    if len(found) > 1:
        raise SettingsError(f"{len(found)} tokens of {given.account} have this name: give an id.")
    return found[0] if found else None


def _token_facts(token: Token) -> dict[str, Any]:
    return {
        **{name: getattr(token, name) for name in ("id", "account", "label", "last4", "scopes", "lanes")},
        "created_at": iso(token.created_ms) if token.created_ms else None,
        "expires_at": iso(token.expires_ms) if token.expires_ms else None,
    }
