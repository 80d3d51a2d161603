"""`director account`: what accounts may use, and what became of their limits lately. Makes no tokens: `token` does."""

import argparse
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from director.cli.arguments import CommandParser, Commands, add_json, add_redis

if TYPE_CHECKING:
    from director.core.accounts import Accounts
    from director.core.catalog import Catalog
    from director.core.scripts import Scripts

__all__ = ("add",)

DAY_S: Final = 86_400
LIMITS: Final = {  # the fields of AccountLimits, which is imported only when a command runs
    "rate": "creates a second",
    "burst": "creates at once",
    "read_rate": "other requests a second",
    "read_burst": "other requests at once",
    "max_queued": "predictions that wait in one queue",
    "max_running": "predictions that run in one queue",
    "compute_s_per_day": "seconds of compute in a UTC day",
    "weight": "its share of a queue, where 1 is everybody's",
}


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    account = commands.add_parser(
        "account", help="list accounts, show and set their limits", description="What accounts may use."
    )
    actions = account.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    _action(actions, "list", "list accounts with the limits that were set for them", _list)
    shown = _action(actions, "show", "show one account: its limits, what was denied, the day's compute", _show)
    shown.add_argument("name", metavar="NAME")
    limited = _action(
        actions, "set", "set limits; each is a number, none, or default: what the API's settings say", _set
    )
    limited.add_argument("name", metavar="NAME")
    for name, text in LIMITS.items():
        limited.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=text)


def _action(actions: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> CommandParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_json(parser)
    add_redis(parser)
    parser.set_defaults(run=run)
    return parser


def _list(given: argparse.Namespace) -> int:
    async def read(accounts: "Accounts", *_: object) -> dict[str, dict[str, str]]:
        return {name: await accounts.limits_set(name) for name in await accounts.names()}

    found: dict[str, dict[str, str]] = _run(given, read)
    if given.json:
        _print_json([{"name": name, "limits": limits} for name, limits in found.items()])
    elif not found:
        print("no accounts yet: `director token create --account NAME` makes one")
    for name, limits in {} if given.json else found.items():
        print(" ".join([name, *(f"{limit}={value}" for limit, value in limits.items())]))
    return 0


def _show(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.accounts import Usage
    from director.core.clock import SystemClock
    from director.core.errors import SettingsError

    async def read(accounts: "Accounts", *_: object) -> tuple[dict[str, str], Usage] | None:
        if given.name not in await accounts.names():
            return None
        today = SystemClock().now_ms() // 1000 // DAY_S
        return await accounts.limits_set(given.name), await accounts.usage(given.name, day=today)

    found: tuple[dict[str, str], Usage] | None = _run(given, read)
    if found is None:
        raise SettingsError(f"there is no account {given.name}: `director account list` shows those that there are.")
    limits, usage = found
    if given.json:
        _print_json({"name": given.name, "limits": limits, "usage": msgspec.to_builtins(usage)})
        return 0
    for name, text in LIMITS.items():
        print(f"{name:<18} {limits.get(name, 'default'):<10} {text}")
    denied = ", ".join(f"{count} of {name}" for name, count in sorted(usage.bursts.items())) or "none"
    print(f"denied bursts      {denied}")
    print(f"compute today      {usage.spent_s:.1f} s spent, {usage.reserved_s:.1f} s reserved")
    return 0


def _set(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    limits = {name: text for name in LIMITS if (text := getattr(given, name)) is not None}
    if not limits:
        raise SettingsError(f"say which limit: --{', --'.join(name.replace('_', '-') for name in LIMITS)}.")

    async def write(accounts: "Accounts", catalog: "Catalog", scripts: "Scripts") -> dict[str, str]:
        await accounts.set_limits(given.name, limits)
        written = await accounts.limits_set(given.name)
        if {"weight", "max_running"} & set(limits):
            await _tell_queues(catalog, scripts, given.name, written)
        return written

    written: dict[str, str] = _run(given, write)
    if given.json:
        _print_json({"name": given.name, "limits": written})
    else:
        print(" ".join([given.name, *(f"{limit}={value}" for limit, value in written.items())]))
    return 0


async def _tell_queues(catalog: "Catalog", scripts: "Scripts", account: str, written: Mapping[str, str]) -> None:
    """What waits goes by it too. A default is known to the API alone, which tells a queue with the next create."""
    import asyncio

    from director.core.account_limits import UNLIMITED

    limits = UNLIMITED.over(written)
    queues = await catalog.queues()
    await asyncio.gather(
        *(scripts.limit(queue, account, weight=limits.weight, most_running=limits.max_running) for queue in queues)
    )


def _run(given: argparse.Namespace, act: "Callable[[Accounts, Catalog, Scripts], Awaitable[Any]]") -> Any:
    import anyio

    from director.cli.where import redis_url

    return anyio.run(_connected, redis_url(given), act)


async def _connected(url: str, act: "Callable[[Accounts, Catalog, Scripts], Awaitable[Any]]") -> Any:
    from director.core.accounts import Accounts
    from director.core.catalog import Catalog
    from director.core.clock import SystemClock
    from director.core.gatherer import Gatherer
    from director.core.redis_client import client
    from director.core.scripts import Scripts

    redis = client(url, name="director-cli")
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    try:
        return await act(Accounts(redis), Catalog(redis, scripts, SystemClock()), scripts)
    finally:
        await gatherer.aclose()
        await redis.aclose()


def _print_json(facts: Any) -> None:
    import msgspec

    print(msgspec.json.encode(facts).decode())
