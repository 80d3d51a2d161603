"""`director account`: who there is, what they may use, what became of their limits lately, what signs their webhooks.

Makes no tokens: `token` does. Never prints a secret of webhooks: their account asks the API for it.
"""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from director.cli.arguments import CommandParser, Commands, add_json, add_redis, hours
from director.cli.backend import Backend, audited, on_backend
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.broker.scripts import Rotated
    from director.store.accounts import Usage, Written
    from director.store.suspensions import Ended


COLUMNS: Final = ("account", "limits")
DAY_S: Final = 86_400
HOUR_S: Final = 3_600.0
POLICIES: Final = ("hold", "end")  # these too; a test holds them together
REASONS: Final = ("unpaid", "abuse", "security", "asked", "review")
END_S: Final = 60.0
KEEP_HOURS: Final = 24.0
TYPES: Final = ("organization", "user")  # of core.accounts, which is imported only when a command runs
LIMITS: Final = {  # the fields of AccountLimits, which is imported only when a command runs
    "rate": "creates a second",
    "burst": "creates at once",
    "read_rate": "other requests a second",
    "read_burst": "other requests at once",
    "max_queued": "predictions that wait in one queue",
    "max_running": "predictions that run in one queue",
    "compute_s_per_day": "seconds of compute in a UTC day",
    "compute_s_total": "seconds of compute in all",
    "data_ttl_s": "seconds that the data of what has ended is kept",
    "max_files_bytes": "bytes of files that it keeps, outputs too",
    "weight": "its share of a queue, where 1 is everybody's",
}


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    account = commands.add_parser(
        "account", help="make and list accounts, show and set their limits", description="Who may ask, and what for."
    )
    actions = account.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    created = _action(actions, "create", "make an account, which has no token yet", _create)
    created.add_argument("name", metavar="NAME")
    created.add_argument("--type", choices=TYPES, default=TYPES[0], help="what it stands for (%(default)s)")
    _action(actions, "list", "list accounts with the limits that were set for them", _list)
    shown = _action(actions, "show", "show one account: its limits, what was denied, the day's compute", _show)
    shown.add_argument("name", metavar="NAME")
    limited = _action(
        actions, "set", "set limits; each is a number, none, or default: what the API's settings say", _set
    )
    limited.add_argument("name", metavar="NAME")
    for name, text in LIMITS.items():
        limited.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=text)
    suspended = _action(actions, "suspend", "let nothing of an account start any more", _suspend)
    suspended.add_argument("name", metavar="NAME")
    suspended.add_argument(
        "--policy",
        choices=POLICIES,
        default=POLICIES[0],
        help="hold what waits and let run what runs, or end both (%(default)s)",
    )
    suspended.add_argument("--reason", choices=REASONS, default="review", help="what it is told (%(default)s)")
    resumed = _action(actions, "resume", "let a suspended account run again, and what was held of it", _resume)
    resumed.add_argument("name", metavar="NAME")
    rotated = _action(actions, "rotate-secret", "sign its webhooks with a new secret, and the former one too", _rotate)
    rotated.add_argument("name", metavar="NAME")
    rotated.add_argument(
        "--keep-hours", type=hours, default=KEEP_HOURS, metavar="H", help=f"how long; 0: not at all ({KEEP_HOURS:g})"
    )


def _action(actions: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> CommandParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_json(parser)
    add_redis(parser)
    parser.set_defaults(run=run)
    return parser


def _create(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    with audited() as by:
        is_new = on_backend(given, lambda backend: backend.administration.create(given.name, given.type, by=by))
    if not is_new:
        raise SettingsError(f"there is an account {given.name} already: `director account show {given.name}`.")
    if given.json:
        print_json({"name": given.name, "type": given.type})
    else:
        print(f"{given.name} is there. `director token create --account {given.name}` makes a token for it.")
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
        raise SettingsError(f"say which limit: --{', --'.join(name.replace('_', '-') for name in LIMITS)}.")

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
            print(f"ending what waits and runs, for at most {END_S:.0f} s …", file=sys.stderr, flush=True)
        ended = on_backend(given, suspend)
    if given.json:
        print_json({"name": given.name, "policy": given.policy, "reason": given.reason, **msgspec.to_builtins(ended)})
    elif given.policy == "hold":
        print(f"{given.name} is suspended: what waits is held, what runs goes on, and nothing more is taken in")
    else:
        print(
            f"{given.name} is suspended: {ended.ended} were canceled, {ended.asked} that run were asked to stop, "
            f"{ended.left} have not ended yet"
        )
    return 0


def _resume(given: argparse.Namespace) -> int:
    with audited() as by:
        on_backend(given, lambda backend: backend.administration.resume(given.name, by=by))
    if given.json:
        print_json({"name": given.name})
    else:
        print(f"{given.name} may run again; an API that knew of its suspension forgets it once its cache is over")
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
            f"{given.name} has too many secrets that still sign: wait until one has ended, or end them all now "
            "with --keep-hours 0."
        )
    until = iso(SystemClock().now_ms() + int(given.keep_hours * HOUR_S * 1000)) if given.keep_hours else None
    if given.json:
        print_json({"name": given.name, "former_signs_until": until})
    else:
        former = f"the former one signs too until {until}" if until else "no former one signs any more"
        print(f"{given.name} has a new secret, and {former}. GET /v1/webhooks/default/secret shows it to the account.")
    return 0


def _line(name: str, limits: dict[str, str]) -> str:
    return f"{name} {_limits(limits)}".rstrip()


def _limits(limits: dict[str, str]) -> str:
    return " ".join(f"{limit}={value}" for limit, value in limits.items())
