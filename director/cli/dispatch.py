"""Run operators' commands in the API for its callers: the line is read and checked here, as if it was typed here.

No command that is run so reads a file or another server. Its caller needs the scope that the command declares.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from director.broker.scripts import Scripts
from director.cli.arguments import CALLER, DECLARED, Caller
from director.cli.backend import Backend
from director.cli.main import COMMANDS, make_parser
from director.cli.operators import OPERATOR_COMMANDS, Needs
from director.cli.remote import DIRECT, CommandResult
from director.cli.tables import Answer, json_line
from director.core.errors import BackendUnavailable, DirectorError, SettingsError
from director.core.settings import CommonSettings
from director.store.accounts import Account
from director.store.services import Services

MODULES: Final = frozenset({"accounts", "queues", "dead", "models", "status", "webhooks"})


class OfApi(Backend):
    """The stores of an API process, its settings, and its way to the data in its file store. `others`: those of its
    other sites.
    """

    def __init__(self, services: Services, settings: CommonSettings, others: Mapping[str, Services]) -> None:
        super().__init__(services.redis)
        self.other_ledgers = {name: each.ledger for name, each in others.items()}
        self._scripts_of_api = services.scripts
        self._settings_of_api = settings

    @cached_property
    def settings(self) -> CommonSettings:
        return self._settings_of_api

    @cached_property
    def scripts_with_files(self) -> Scripts:
        return self._scripts_of_api


async def run_line(
    services: Services,
    settings: CommonSettings,
    account: Account,
    line: Sequence[str],
    *,
    by: str,
    width: int | None,
    stdin: str,
    is_json: bool,
    others: Mapping[str, Services],
) -> CommandResult:
    """Run the command that the line gives. Raises BackendUnavailable. Other faults are in the result."""
    token, backend = CALLER.set(Caller(by, width, stdin)), OfApi(services, settings, others)
    try:
        return await _run(backend, account, line, is_json=is_json)
    except BackendUnavailable:
        raise
    except DirectorError as exc:
        return CommandResult(1, error=str(exc))
    finally:
        await backend.gatherer.aclose()
        CALLER.reset(token)


async def _run(backend: OfApi, account: Account, line: Sequence[str], *, is_json: bool) -> CommandResult:
    top = line[0] if line else ""
    if top not in COMMANDS or COMMANDS[top][0] not in MODULES:
        raise SettingsError("the API runs no such command: say with --redis where Redis is.")
    import_module(f"director.cli.{COMMANDS[top][0]}")
    path = next((name for name in (" ".join(line[:2]), top) if name in OPERATOR_COMMANDS), "")
    given = make_parser(top).parse_args([*line])
    if not path or given.run is not DECLARED[path].run:
        raise SettingsError("the API runs no such command: say with --redis where Redis is.")
    command = OPERATOR_COMMANDS[path]
    if not _may(account, command.needs):
        return CommandResult(1, needs=command.needs)
    if given.redis or getattr(given, "to_redis", None):
        raise SettingsError(DIRECT)
    answer = await command.act(backend, given)
    return await asyncio.to_thread(_print, answer, is_json=is_json)


def _may(account: Account, needs: Needs) -> bool:
    return {"view": account.oversees, "operate": account.operates, "admin": "admin" in account.scopes}[needs]


def _print(answer: Answer, *, is_json: bool) -> CommandResult:
    if is_json:
        body: Any = {"results": answer.body} if isinstance(answer.body, list) else answer.body
        return CommandResult(answer.code, json_line(body))
    return CommandResult(answer.code, answer.text if isinstance(answer.text, str) else answer.text())
