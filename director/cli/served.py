"""Run operators' commands in the API for its callers: the line is read and checked here, as if it was typed here.

No command that is run so reads a file or another server. Its caller needs the scope that the command declares.
"""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from director.broker.scripts import Scripts
from director.cli.arguments import DECLARED, SERVED, Served
from director.cli.asking import DIRECT, Ran
from director.cli.backend import Backend
from director.cli.main import COMMANDS, make_parser
from director.cli.operators import OPERATED_BY, Needs
from director.cli.tables import Answer, json_line
from director.core.errors import BackendUnavailable, DirectorError, SettingsError
from director.store.accounts import Account
from director.store.services import Services

MODULES: Final = frozenset({"accounts", "queues", "dead", "models", "status", "usage", "webhooks"})


class OfApi(Backend):
    """The stores of an API process, and its way to the data in its file store."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.redis)
        self._scripts_of_api = services.scripts

    @cached_property
    def scripts_with_files(self) -> Scripts:
        return self._scripts_of_api


async def run_line(
    services: Services, account: Account, line: Sequence[str], *, by: str, width: int | None, said: str, is_json: bool
) -> Ran:
    """Run the command that the line gives. Raises BackendUnavailable. Other faults are in the result."""
    token = SERVED.set(Served(by, width, said))
    try:
        return await _run(services, account, line, is_json=is_json)
    except BackendUnavailable:
        raise
    except DirectorError as exc:
        return Ran(1, error=str(exc))
    finally:
        SERVED.reset(token)


async def _run(services: Services, account: Account, line: Sequence[str], *, is_json: bool) -> Ran:
    top = line[0] if line else ""
    if top not in COMMANDS or COMMANDS[top][0] not in MODULES:
        raise SettingsError("the API runs no such command: say with --redis where Redis is.")
    import_module(f"director.cli.{COMMANDS[top][0]}")
    path = next((name for name in (" ".join(line[:2]), top) if name in OPERATED_BY), "")
    given = make_parser(top).parse_args([*line])
    if not path or given.run is not DECLARED[path].run:
        raise SettingsError("the API runs no such command: say with --redis where Redis is.")
    operated = OPERATED_BY[path]
    if not _may(account, operated.needs):
        return Ran(1, needs=operated.needs)
    if given.redis or getattr(given, "to_redis", None):
        raise SettingsError(DIRECT)
    backend = OfApi(services)
    try:
        answer = await operated.act(backend, given)
    finally:
        await backend.gatherer.aclose()
    return await asyncio.to_thread(_print, answer, is_json=is_json)


def _may(account: Account, needs: Needs) -> bool:
    return {"view": account.oversees, "operate": account.operates, "admin": "admin" in account.scopes}[needs]


def _print(answer: Answer, *, is_json: bool) -> Ran:
    if is_json:
        body: Any = {"results": answer.body} if isinstance(answer.body, list) else answer.body
        return Ran(answer.code, json_line(body))
    return Ran(answer.code, answer.text if isinstance(answer.text, str) else answer.text())
