"""`director token`: let somebody ask the API, or no longer. Only a token's digest is kept, so it is shown just once."""

import argparse
import sys
from collections.abc import Sequence

from director.cli.arguments import Commands, add_json, add_redis
from director.cli.backend import on_backend
from director.cli.pipe import print_json

__all__ = ("add",)


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    token = commands.add_parser(
        "token", help="make and revoke tokens", description="Make and revoke tokens for callers of the API."
    )
    actions = token.add_subparsers(title="commands", metavar="COMMAND", required=True)
    create = actions.add_parser("create", help="make a token, and its account where there is none")
    create.add_argument("--account", required=True, metavar="NAME", help="who the token speaks for")
    create.add_argument("--lanes", default="high,normal,low", help="lanes that it may use (%(default)s)")
    create.add_argument("--scopes", default="read,run", help="of read, run, admin: what it may do (%(default)s)")
    add_json(create)
    add_redis(create)
    create.set_defaults(run=_create)
    revoke = actions.add_parser("revoke", help="make a token, read from standard input, speak for nobody")
    add_redis(revoke)
    revoke.set_defaults(run=_revoke)


def _create(given: argparse.Namespace) -> int:
    lanes, scopes = _words(given.lanes), _words(given.scopes)
    _check(given.account, lanes, scopes)
    token = on_backend(given, lambda backend: backend.accounts.create_token(given.account, lanes=lanes, scopes=scopes))
    if given.json:
        print_json({"account": given.account, "lanes": lanes, "scopes": scopes, "token": token})
    else:
        print(token)
    return 0


def _revoke(given: argparse.Namespace) -> int:
    """From standard input: what stands on a command line is seen by everybody on the machine, and kept by the shell."""
    from director.cli.where import redis_url
    from director.core.errors import SettingsError

    redis_url(given)  # where none is known, nobody is asked for a token
    token = sys.stdin.readline().strip()
    if not token or not on_backend(given, lambda backend: backend.accounts.revoke(token)):
        raise SettingsError("standard input has no token that speaks for anybody.")
    print("revoked: an API that knew it forgets it once its cache is over")
    return 0


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check(account: str, lanes: Sequence[str], scopes: Sequence[str]) -> None:
    from director.core.accounts import SCOPES, refuse_name
    from director.core.errors import SettingsError
    from director.core.keys import LANES

    refuse_name(account)
    if not lanes or not set(lanes) <= set(LANES):
        raise SettingsError(f"--lanes takes {', '.join(LANES)}, separated by commas.")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise SettingsError(f"--scopes takes {', '.join(SCOPES)}, separated by commas.")
