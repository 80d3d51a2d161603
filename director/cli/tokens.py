"""`director token`: let somebody ask the API, or no longer. Only a token's digest is kept, so it is shown just once."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from director.cli.arguments import CommandParser, Commands, add_json, add_redis, hours
from director.cli.backend import Backend, audited, on_backend
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.store.administration import MadeToken
    from director.store.tokens import Token


HOUR_MS = 3_600_000
COLUMNS = ("account", "id", "ends in", "scopes", "lanes", "expires", "label")


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    token = commands.add_parser(
        "token", help="make, list and revoke tokens", description="Make, list and revoke tokens for callers of the API."
    )
    actions = token.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    create = actions.add_parser(
        "create",
        help="make a token, and its account where there is none",
        description="Make a token, and its account where there is none. It is shown just once.",
    )
    create.add_argument("--account", required=True, metavar="NAME", help="who the token speaks for")
    create.add_argument("--label", default="", metavar="TEXT", help="what it is for: tells it from others")
    create.add_argument("--lanes", default="high,normal,low", help="lanes that it may use (%(default)s)")
    create.add_argument("--scopes", default="read,run", help="of read, run, admin: what it may do (%(default)s)")
    create.add_argument("--expires-hours", type=hours, metavar="H", help="how long it is good (for ever)")
    add_json(create)
    add_redis(create)
    create.set_defaults(run=_create)
    listed = actions.add_parser(
        "list",
        help="list tokens, without what is secret of them",
        description="List tokens, without what is secret of them.",
    )
    listed.add_argument("--account", metavar="NAME", help="those of this account (of all)")
    add_json(listed)
    add_redis(listed)
    listed.set_defaults(run=_list)
    revoke = actions.add_parser(
        "revoke",
        help="make a token speak for nobody: one that is named, or is read from standard input",
        description="Make a token speak for nobody: one that is named, or is read from standard input.",
    )
    revoke.add_argument("name", nargs="?", metavar="TOKEN", help="its label, its last 4 characters or its id")
    revoke.add_argument("--account", metavar="NAME", help="whose it is, where it is named")
    add_json(revoke)
    add_redis(revoke)
    revoke.set_defaults(run=_revoke)


def _create(given: argparse.Namespace) -> int:
    from director.core.clock import SystemClock

    lanes, scopes = _words(given.lanes), _words(given.scopes)
    _check(given.account, lanes, scopes)
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
        print_json({**_shown(made.token), "token": made.secret})
    else:
        print(made.secret)
    return 0


def _list(given: argparse.Namespace) -> int:
    from director.cli.output import fitted, line_width

    async def read(backend: Backend) -> "list[Token]":
        if given.account:
            await backend.accounts.refuse_unknown(given.account)
        names = [given.account] if given.account else await backend.accounts.names()
        return [token for name in names for token in await backend.accounts.tokens.of(name)]

    tokens = on_backend(given, read)
    if given.json:
        print_json([_shown(token) for token in tokens])
    elif not tokens:
        print("no tokens yet: `director token create --account NAME` makes one")
    else:
        print("\n".join(fitted(COLUMNS, [_row(token) for token in tokens], width=line_width(), words=COLUMNS)))
    return 0


def _row(token: "Token") -> list[str]:
    shown = _shown(token)
    until, last = shown["expires_at"] or "never", f"…{token.last4 or '????'}"
    return [token.account, token.id, last, ",".join(token.scopes), ",".join(token.lanes), until, token.label]


def _revoke(given: argparse.Namespace) -> int:
    """What is no secret may be named. A whole token comes from standard input: what stands on a command line is seen by
    everybody on the machine, and kept by the shell.
    """
    from director.cli.where import redis_url
    from director.core.errors import SettingsError

    redis_url(given)  # where none is known, nobody is asked for a token
    if given.name and not given.account:
        raise SettingsError("say whose token it is: --account NAME.")
    secret = "" if given.name else sys.stdin.readline().strip()

    with audited() as by:

        async def revoke(backend: Backend) -> bool:
            found = await (_named(backend, given) if given.name else backend.accounts.tokens.found(secret))
            return found is not None and await backend.administration.revoke(found, by=by)

        is_gone = on_backend(given, revoke)
    if not is_gone:
        raise SettingsError(
            f"{given.account} has no such token: `director token list` shows them."
            if given.name
            else "standard input has no token that speaks for anybody."
        )
    if given.json:
        print_json({"revoked": True})
    else:
        print("revoked: an API that knew it forgets it once its cache is over")
    return 0


async def _named(backend: Backend, given: argparse.Namespace) -> "Token | None":
    from director.core.errors import SettingsError

    await backend.accounts.refuse_unknown(given.account)
    found = [token for token in await backend.accounts.tokens.of(given.account) if token.is_named(given.name)]
    if len(found) > 1:
        raise SettingsError(f"{len(found)} tokens of {given.account} are named like that: give the id of one.")
    return found[0] if found else None


def _shown(token: "Token") -> dict[str, Any]:
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


def _check(account: str, lanes: Sequence[str], scopes: Sequence[str]) -> None:
    """In the words of the command line, and before any server is asked."""
    from director.core.errors import SettingsError
    from director.core.ids import LANES
    from director.store.accounts import refuse_name
    from director.store.tokens import SCOPES

    refuse_name(account)
    if not lanes or not set(lanes) <= set(LANES):
        raise SettingsError(f"--lanes takes {', '.join(LANES)}, separated by commas.")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise SettingsError(f"--scopes takes {', '.join(SCOPES)}, separated by commas.")
