"""`director token create`: let somebody ask the API. Tokens are kept by their digest, so this shows one only once."""

import argparse
import re
from collections.abc import Sequence

from director.cli.arguments import Commands, add_json, add_redis

__all__ = ("add",)


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    token = commands.add_parser("token", help="make tokens", description="Make tokens for callers of the API.")
    actions = token.add_subparsers(title="commands", metavar="COMMAND", required=True)
    create = actions.add_parser("create", help="make a token, and its account where there is none")
    create.add_argument("--account", required=True, metavar="NAME", help="who the token speaks for")
    create.add_argument("--lanes", default="high,normal,low", help="lanes that it may use (%(default)s)")
    create.add_argument("--scopes", default="read,run", help="of read, run, admin: what it may do (%(default)s)")
    add_json(create)
    add_redis(create)
    create.set_defaults(run=_create)


def _create(given: argparse.Namespace) -> int:
    import anyio
    import msgspec

    from director.cli.where import redis_url

    lanes, scopes = _words(given.lanes), _words(given.scopes)
    _check(given.account, lanes, scopes)
    token = anyio.run(_write, redis_url(given), given.account, lanes, scopes)
    if given.json:
        facts = {"account": given.account, "lanes": lanes, "scopes": scopes, "token": token}
        print(msgspec.json.encode(facts).decode())
    else:
        print(token)
    return 0


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check(account: str, lanes: Sequence[str], scopes: Sequence[str]) -> None:
    from director.core.accounts import ACCOUNT_NAME, SCOPES
    from director.core.errors import SettingsError
    from director.core.keys import LANES

    if not re.fullmatch(ACCOUNT_NAME, account):
        raise SettingsError(f"{account!r} is no account name: use a-z, 0-9, - and _, at most 64, such as team-a.")
    if not lanes or not set(lanes) <= set(LANES):
        raise SettingsError(f"--lanes takes {', '.join(LANES)}, separated by commas.")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise SettingsError(f"--scopes takes {', '.join(SCOPES)}, separated by commas.")


async def _write(url: str, account: str, lanes: Sequence[str], scopes: Sequence[str]) -> str:
    from director.core.accounts import Accounts
    from director.core.redis_client import client

    redis = client(url, name="director-cli")
    try:
        return await Accounts(redis).create_token(account, lanes=lanes, scopes=scopes)
    finally:
        await redis.aclose()
