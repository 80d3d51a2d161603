"""Commands on accounts and tokens: `director account` and `director token`.

Redis keeps only the digest of a token, so a token is shown once. No command prints a webhook secret: the account asks
the API for it.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from director.cli.arguments import Commands, add_action, add_group, hours
from director.cli.backend import Backend, audited, on_backend, redis_url
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.broker.scripts import Rotated
    from director.store.accounts import Token, Usage, Written
    from director.store.administration import Ended, MadeToken


COLUMNS: Final = ("account", "limits")
TOKEN_COLUMNS: Final = ("account", "id", "ends in", "scopes", "lanes", "expires", "label")
HOUR_MS: Final = 3_600_000
DAY_S: Final = 86_400
HOUR_S: Final = 3_600.0
POLICIES: Final = ("hold", "end")  # a test compares these and REASONS with core
REASONS: Final = ("unpaid", "abuse", "security", "asked", "review")
END_S: Final = 60.0
KEEP_HOURS: Final = 24.0
TYPES: Final = ("organization", "user")  # those of core.accounts, which is imported only when a command runs
LIMITS: Final = {  # the fields of AccountLimits, which is imported only when a command runs
    "rate": "predictions created a second",
    "burst": "predictions created at once",
    "read_rate": "other requests a second",
    "read_burst": "other requests at once",
    "max_queued": "predictions waiting in one queue",
    "max_running": "predictions running in one queue",
    "compute_s_per_day": "seconds of compute in a UTC day",
    "compute_s_total": "seconds of compute in total",
    "data_ttl_s": "seconds that data of terminal predictions is kept",
    "max_files_bytes": "bytes of stored files, outputs included",
    "weight": "its share of a queue; 1 is the default",
}


def add(commands: Commands) -> None:
    _add_tokens(commands)
    actions = add_group(
        commands, "account", "make and list accounts; show and set their limits", "director account list"
    )
    created = add_action(
        actions, "create", "make an account, without a token", _create, "director account create team-a"
    )
    created.add_argument("name", metavar="NAME")
    created.add_argument("--type", choices=TYPES, default=TYPES[0], help="what the account stands for (%(default)s)")
    add_action(actions, "list", "list accounts with the limits set for them", _list, "director account list")
    shown = add_action(
        actions,
        "show",
        "show an account: its limits, refused requests and compute of today",
        _show,
        "director account show team-a",
    )
    shown.add_argument("name", metavar="NAME")
    limited = add_action(
        actions,
        "set",
        "set limits: each is a number, none, or default for the value in the API's settings",
        _set,
        "director account set team-a --rate 10 --max-running 4",
    )
    limited.add_argument("name", metavar="NAME")
    for name, text in LIMITS.items():
        limited.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=text)
    suspended = add_action(
        actions,
        "suspend",
        "stop an account from starting anything",
        _suspend,
        "director account suspend team-a --policy hold",
    )
    suspended.add_argument("name", metavar="NAME")
    suspended.add_argument(
        "--policy",
        choices=POLICIES,
        default=POLICIES[0],
        help="hold what waits and let running predictions finish, or end both (%(default)s)",
    )
    suspended.add_argument(
        "--reason", choices=REASONS, default="review", help="the reason that the account is shown (%(default)s)"
    )
    resumed = add_action(
        actions,
        "resume",
        "end the suspension of an account, and release what was held",
        _resume,
        "director account resume team-a",
    )
    resumed.add_argument("name", metavar="NAME")
    rotated = add_action(
        actions,
        "rotate-secret",
        "sign webhooks with a new secret, and for some hours with the former one too",
        _rotate,
        "director account rotate-secret team-a --keep-hours 24",
    )
    rotated.add_argument("name", metavar="NAME")
    rotated.add_argument(
        "--keep-hours",
        type=hours,
        default=KEEP_HOURS,
        metavar="H",
        help=f"hours that the former secret still signs; 0 for none ({KEEP_HOURS:g})",
    )


def _add_tokens(commands: Commands) -> None:
    actions = add_group(commands, "token", "make, list and revoke tokens for callers of the API", "director token list")
    create = add_action(
        actions,
        "create",
        "make a token, and its account if it is new",
        _create_token,
        "director token create --account team-a",
        "director token create --account ops --scopes admin --expires-hours 12",
        about="Make a token, and its account if it is new. The token is shown just once.",
    )
    create.add_argument("--account", required=True, metavar="NAME", help="the account of the token")
    create.add_argument("--label", default="", metavar="TEXT", help="what the token is for")
    create.add_argument("--lanes", default="high,normal,low", help="lanes that the token may use (%(default)s)")
    create.add_argument(
        "--scopes", default="read,run", help="what the token may do, of read, run and admin (%(default)s)"
    )
    create.add_argument("--expires-hours", type=hours, metavar="H", help="hours until the token expires (never)")
    listed = add_action(
        actions, "list", "list tokens without their secrets", _list_tokens, "director token list --account team-a"
    )
    listed.add_argument("--account", metavar="NAME", help="list only this account's tokens")
    revoke = add_action(
        actions,
        "revoke",
        "revoke a token: a named one, or one read from standard input",
        _revoke,
        "director token revoke --account team-a ci",
        "director token revoke < token.txt",
    )
    revoke.add_argument("name", nargs="?", metavar="TOKEN", help="its label, its last 4 characters or its id")
    revoke.add_argument("--account", metavar="NAME", help="the account of the named token")


def _create(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    with audited() as by:
        is_new = on_backend(given, lambda backend: backend.administration.create(given.name, given.type, by=by))
    if not is_new:
        raise SettingsError(f"there is an account {given.name} already: `director account show {given.name}`.")
    if given.json:
        print_json({"name": given.name, "type": given.type})
    else:
        print(f"{given.name} is created. `director token create --account {given.name}` makes a token for it.")
    return 0


def _list(given: argparse.Namespace) -> int:
    from director.cli.output import fitted, line_width

    async def read(backend: Backend) -> dict[str, dict[str, str]]:
        return {name: (await backend.accounts.written(name)).limits for name in await backend.accounts.names()}

    found = on_backend(given, read)
    if given.json:
        print_json([{"name": name, "limits": limits} for name, limits in found.items()])
    elif not found:
        print("no accounts yet: `director account create NAME` makes one")
    else:
        rows = [(name, _limits(limits)) for name, limits in found.items()]
        print("\n".join(fitted(COLUMNS, rows, width=line_width(), words=COLUMNS)))
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.clock import SystemClock

    async def read(backend: Backend) -> "tuple[Written, Usage]":
        await backend.accounts.refuse_unknown(given.name)
        today = SystemClock().now_ms() // 1000 // DAY_S
        return await backend.accounts.written(given.name), await backend.accounts.usage(given.name, day=today)

    written, usage = on_backend(given, read)
    if given.json:
        suspension, used = msgspec.to_builtins(written.suspension), msgspec.to_builtins(usage)
        shown = {"name": given.name, "type": written.type, "suspension": suspension, "limits": written.limits}
        print_json({**shown, "usage": used})
        return 0
    if written.suspension:
        print(f"suspended          {written.suspension.policy}, for the reason {written.suspension.reason}")
    for name, text in LIMITS.items():
        print(f"{name:<18} {written.limits.get(name, 'default'):<10} {text}")
    denied = ", ".join(f"{count} of {name}" for name, count in sorted(usage.bursts.items())) or "none"
    print(f"denied bursts      {denied}")
    print(f"files              {usage.stored_bytes:,} bytes")
    print(f"compute today      {usage.spent_s:.1f} s spent, {usage.reserved_s:.1f} s reserved")
    print(f"compute in all     {usage.total_spent_s:.1f} s spent, {usage.total_reserved_s:.1f} s reserved")
    return 0


def _set(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    limits = {name: text for name in LIMITS if (text := getattr(given, name)) is not None}
    if not limits:
        raise SettingsError(f"name a limit: --{', --'.join(name.replace('_', '-') for name in LIMITS)}.")

    with audited() as by:
        written = on_backend(given, lambda backend: backend.administration.set_limits(given.name, limits, by=by)).limits
    if given.json:
        print_json({"name": given.name, "limits": written})
    else:
        print(_line(given.name, written))
    return 0


def _suspend(given: argparse.Namespace) -> int:
    import msgspec

    with audited() as by:

        async def suspend(backend: Backend) -> "Ended":
            return await backend.administration.suspend(given.name, given.policy, given.reason, by=by, within_s=END_S)

        if given.policy == "end" and sys.stderr.isatty():
            print(f"ending its predictions, for at most {END_S:.0f} s …", file=sys.stderr, flush=True)
        ended = on_backend(given, suspend)
    if given.json:
        print_json({"name": given.name, "policy": given.policy, "reason": given.reason, **msgspec.to_builtins(ended)})
    elif given.policy == "hold":
        print(f"{given.name} is suspended: waiting predictions are held, running ones continue, new ones are refused")
    else:
        print(
            f"{given.name} is suspended: {ended.ended} canceled, {ended.asked} running ones asked to stop, "
            f"{ended.left} not ended yet"
        )
    return 0


def _resume(given: argparse.Namespace) -> int:
    with audited() as by:
        on_backend(given, lambda backend: backend.administration.resume(given.name, by=by))
    if given.json:
        print_json({"name": given.name})
    else:
        print(f"{given.name} is no longer suspended. An API may refuse it until its cache expires")
    return 0


def _rotate(given: argparse.Namespace) -> int:
    from director.core.clock import SystemClock
    from director.core.errors import SettingsError
    from director.core.view import iso

    async def rotate(backend: Backend) -> "Rotated":
        return await backend.administration.rotate_secret(given.name, keep_s=given.keep_hours * HOUR_S, by=by)

    with audited() as by:
        rotated = on_backend(given, rotate)
    if rotated == "full":
        raise SettingsError(
            f"{given.name} has too many secrets that still sign. Wait until one expires, or expire all now "
            "with --keep-hours 0."
        )
    until = iso(SystemClock().now_ms() + int(given.keep_hours * HOUR_S * 1000)) if given.keep_hours else None
    if given.json:
        print_json({"name": given.name, "former_signs_until": until})
    else:
        former = f"the former one also signs until {until}" if until else "the former ones no longer sign"
        print(f"{given.name} has a new secret, and {former}. GET /v1/webhooks/default/secret shows it to the account.")
    return 0


def _line(name: str, limits: dict[str, str]) -> str:
    return f"{name} {_limits(limits)}".rstrip()


def _limits(limits: dict[str, str]) -> str:
    return " ".join(f"{limit}={value}" for limit, value in limits.items())


def _create_token(given: argparse.Namespace) -> int:
    from director.core.clock import SystemClock

    lanes, scopes = _words(given.lanes), _words(given.scopes)
    _check_token(given.account, lanes, scopes)
    expires_ms = None
    if given.expires_hours is not None:
        expires_ms = SystemClock().now_ms() + int(given.expires_hours * HOUR_MS)

    with audited() as by:

        async def make(backend: Backend) -> "MadeToken":
            return await backend.administration.create_token(
                given.account,
                lanes=lanes,
                scopes=scopes,
                label=given.label,
                expires_ms=expires_ms,
                by=by,
            )

        made = on_backend(given, make)
    if given.json:
        print_json({**_token_facts(made.token), "token": made.secret})
    else:
        print(made.secret)
    return 0


def _list_tokens(given: argparse.Namespace) -> int:
    from director.cli.output import fitted, line_width

    async def read(backend: Backend) -> "list[Token]":
        if given.account:
            await backend.accounts.refuse_unknown(given.account)
        names = [given.account] if given.account else await backend.accounts.names()
        return [token for name in names for token in await backend.accounts.tokens.of(name)]

    tokens = on_backend(given, read)
    if given.json:
        print_json([_token_facts(token) for token in tokens])
    elif not tokens:
        print("no tokens yet: `director token create --account NAME` makes one")
    else:
        print(
            "\n".join(
                fitted(TOKEN_COLUMNS, [_token_row(token) for token in tokens], width=line_width(), words=TOKEN_COLUMNS)
            )
        )
    return 0


def _token_row(token: "Token") -> list[str]:
    shown = _token_facts(token)
    until, last = shown["expires_at"] or "never", f"…{token.last4 or '????'}"
    return [token.account, token.id, last, ",".join(token.scopes), ",".join(token.lanes), until, token.label]


def _revoke(given: argparse.Namespace) -> int:
    """Revoke a token by a public name, or by its secret from standard input.

    Every user of the machine can read a command line, and the shell keeps it, so no secret is read from there.
    """
    from director.core.errors import SettingsError

    redis_url(given)  # without a known Redis, do not wait for a token
    if given.name and not given.account:
        raise SettingsError("the account of the token is missing: --account NAME.")
    secret = "" if given.name else sys.stdin.readline().strip()

    with audited() as by:

        async def revoke(backend: Backend) -> bool:
            found = await (_find_token(backend, given) if given.name else backend.accounts.tokens.found(secret))
            return found is not None and await backend.administration.revoke(found, by=by)

        is_gone = on_backend(given, revoke)
    if not is_gone:
        raise SettingsError(
            f"{given.account} has no such token: `director token list` shows them."
            if given.name
            else "standard input has no known token."
        )
    if given.json:
        print_json({"revoked": True})
    else:
        print("revoked. An API may accept the token until its cache expires")
    return 0


async def _find_token(backend: Backend, given: argparse.Namespace) -> "Token | None":
    from director.core.errors import SettingsError

    await backend.accounts.refuse_unknown(given.account)
    found = [token for token in await backend.accounts.tokens.of(given.account) if token.is_named(given.name)]
    if len(found) > 1:
        raise SettingsError(f"{len(found)} tokens of {given.account} have this name: give an id.")
    return found[0] if found else None


def _token_facts(token: "Token") -> dict[str, Any]:
    from director.core.view import iso

    return {
        "id": token.id,
        "account": token.account,
        "label": token.label,
        "last4": token.last4,
        "scopes": token.scopes,
        "lanes": token.lanes,
        "created_at": iso(token.created_ms) if token.created_ms else None,
        "expires_at": iso(token.expires_ms) if token.expires_ms else None,
    }


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check_token(account: str, lanes: Sequence[str], scopes: Sequence[str]) -> None:
    """Raise SettingsError for wrong options, before Redis is asked."""
    from director.core.errors import SettingsError
    from director.core.ids import LANES
    from director.store.accounts import SCOPES, refuse_name

    refuse_name(account)
    if not lanes or not set(lanes) <= set(LANES):
        raise SettingsError(f"--lanes takes {', '.join(LANES)}, separated by commas.")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise SettingsError(f"--scopes takes {', '.join(SCOPES)}, separated by commas.")
