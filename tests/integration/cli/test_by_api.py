"""Test operators' commands with an address and a token of the API alone: same words, the caller's rights, no Redis."""

import io
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.cli import contexts
from director.cli.arguments import DECLARED
from director.cli.main import make_parser
from director.cli.operators import OPERATOR_COMMANDS
from director.core.policy import Policy
from director.store.accounts import ROLES, Accounts, Role
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.cli.conftest import Operator
from tests.support.api import LiveApi, live_api
from tests.support.audit import live
from tests.support.eventually import eventually
from tests.support.keyspace import unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver
from tests.support.servers import RedisServer

make_parser()  # imports the module of every command
RANKS: Final = {"view": 0, "operate": 1, "admin": 2}
ID: Final = "06gzx0rcvbz008pmq2tvpfvnvc"
NOW: Final = {"doctor", "status"}  # they say when they looked
# each command that the API runs, once. `{queue}` and `{of}` stand for what the test made
LINES: Final[dict[str, str]] = {
    "status": "status",
    "queues": "queues",
    "queues show": "queues show {queue}",
    "directors": "directors",
    "devices": "devices",
    "scale": "scale {queue}",
    "doctor": "doctor",
    "account list": "account list",
    "account show": "account show acme",
    "token list": "token list --account acme",
    "model list": "model list",
    "model": "model",
    "model logs": "model logs {model}",
    "dead list": "dead list -n 5",
    "dead show": "dead show {dead}",
    "webhooks redeliver": "webhooks redeliver hooks.example.com",
    "queues pause": "queues pause {queue}",
    "queues resume": "queues resume {queue}",
    "queues bound": "queues bound {queue} bounded --max-queued 500",
    "queues resize": "queues resize {queue} 4",
    "account create": "account create team --type user",
    "account erase": "account erase team --yes",
    "account rotate-secret": "account rotate-secret team --keep-hours 0.5",
    "token create": "token create --account team --label ci --lanes low --expires-hours 1",
    "token set": "token set ci --account team --scopes read --expires-hours 0",
    "token revoke": "token revoke --account team ci",
    "model set": "model set acme/echo --description=-paints",
    "model price": "model price acme/echo --second 0.0005",
    "model alias": "model alias gpt-4o acme/echo",
    "model config": "model config acme/echo --set attempts=5 --set slots=2 --unset slots",
    "collection set": "collection set best --name Best --models acme/echo",
    "collection remove": "collection remove best",
    "hardware set": "hardware set cpu CPU",
    "hardware remove": "hardware remove cpu",
}
# how each other command that reads Redis with --redis is tried with a context here
BY_ROUTES: Final[dict[str, str]] = {
    "account set": "account set team --rate 5",
    "account suspend": "account suspend team",
    "account resume": "account resume team",
    "queues drain": "queues drain {queue}",
    "dead revive": "dead revive {dead}",
    "dead drop": "dead drop --all",
    "usage": "usage --by account,day",
    "top": "top --once",
    "tail": "tail {ended}",
}
SEE: Final = {"usage", "top", "tail"}  # of those
# and those of callers, which never knew Redis
OF_CALLERS: Final[dict[str, str]] = {
    "predict": "predict {model} --detach",
    "ps": "ps --all",
    "get": "get {ended}",
    "wait": "wait {ended}",
    "logs": "logs {ended}",
    "cancel": "cancel {ended}",
    "explain": "explain {ended}",
    "open": "open {ended}",
    "model show": "model show {model}",
    "login-link": "login-link",
    "predictions list": "predictions list",
    "predictions cancel": "predictions cancel --code none",
    "predictions retry": "predictions retry --code none",
    "batches list": "batches list",
}
CHANGES: Final = (BY_ROUTES.keys() - SEE) | {"predictions cancel", "predictions retry"}
# test_batches, test_deployments and test_tail try these, and a test below
ELSEWHERE: Final = {
    *("batches submit", "batches show", "batches cancel", "batches download", "queues migrate", "audit"),
    *("deploy", "promote", "rollback", "deployments", "deployments list", "deployments show"),
}
NEED_REDIS: Final = {"account migrate", "queues migrate", "audit"}  # the last two only to another server, or to a URL
REFUSED_BY_THE_MODEL: Final = {"model load", "model rest", "model pin", "model example"}  # it shares no device


class Scene:
    def __init__(self, capsys: pytest.CaptureFixture[str], api: LiveApi, redis: Redis, names: dict[str, str]) -> None:
        self.capsys = capsys
        self.api = api
        self.redis = redis
        self.names = names

    async def operator(self, role: Role = "admin") -> Operator:
        token = await Accounts(self.redis).create_token("ops", scopes=ROLES[role])
        return Operator(self.capsys, "--url", self.api.url, "--token", token)

    async def with_context(self, folder: Path) -> Operator:
        """Log in once, as people do."""
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_text(await Accounts(self.redis).create_token("ops", scopes=ROLES["admin"]))
        contexts.keep("prod", self.api.url, file)
        return Operator(self.capsys, "--context", "prod")

    def line(self, path: str) -> list[str]:
        return (LINES | BY_ROUTES | OF_CALLERS)[path].format(**self.names).split(" ")

    async def ask(self, *line: str, role: Role = "admin") -> httpx.Response:
        token = await Accounts(self.redis).create_token("ops", scopes=ROLES[role])
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=self.api.url, headers=headers, trust_env=False) as caller:
            return await caller.post("/v1/admin/commands", json={"line": list(line)})


@pytest.fixture
async def scene(
    server: RedisServer,
    redis: Redis,
    driver: QueueDriver,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> AsyncIterator[Scene]:
    """An API, and commands whose Redis is a wrong one: what works has not asked it."""
    monkeypatch.setenv("DIRECTOR_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    await Accounts(redis).create_token(ACCOUNT)
    dead, ended = await driver.die(), await live(driver)
    names = {"queue": driver.queue, "model": MODEL, "dead": dead, "ended": ended}
    async with live_api(server.url, env={"DIRECTOR_CACHE_S": "0.1", "DIRECTOR_OPENAI": "true"}) as api:
        yield Scene(capsys, api, redis, names)


def test_each_command_that_the_api_runs_is_tried_here() -> None:
    assert set(LINES) | REFUSED_BY_THE_MODEL == set(OPERATOR_COMMANDS)


def test_each_command_that_may_ask_the_api_is_tried_with_a_context() -> None:
    asks = {
        path for path, one in DECLARED.items() if one.run and any("--context" in each.names for each in one.arguments)
    }
    tried = {*LINES, *REFUSED_BY_THE_MODEL, *BY_ROUTES, *OF_CALLERS, *ELSEWHERE}
    assert asks == tried | NEED_REDIS


def test_what_needs_redis_says_so_in_its_help() -> None:
    """And no other command of operators declares that it does."""
    says = {path for path, one in DECLARED.items() if "needs --redis" in " ".join(f"{one.about}".split())}
    assert says == NEED_REDIS


async def test_reading_commands_print_the_same_as_with_redis(scene: Scene, operator: Operator) -> None:
    by_api = await scene.operator()
    for path in [name for name, one in OPERATOR_COMMANDS.items() if one.needs == "view" and name not in NOW]:
        for more in ([], ["--json"]):
            said = [await each.tries(*scene.line(path), *more) for each in (operator, by_api)]
            plain = [re.sub(r"[0-9.]+ (ms|s)\b", "T", one.stdout) for one in said]
            assert (plain[0], said[0].returncode) == (plain[1], said[1].returncode), (path, said)


async def test_every_command_works_with_a_context_and_no_redis(scene: Scene, tmp_path: Path) -> None:
    by_api = await scene.with_context(tmp_path)
    for path in (*LINES, *BY_ROUTES, *OF_CALLERS):
        if path == "account erase":
            await by_api.types("account", "suspend", "team", "--policy", "end")
        ended = await by_api.tries(*scene.line(path))
        if path == "account erase":
            await by_api.types("account", "resume", "team")
        code = int("fail  " in ended.stdout or "bad  " in ended.stdout)  # this Redis is no durable one
        assert ended.returncode == code, (path, ended)
        if path in CHANGES or path in LINES:
            is_change = path in CHANGES or OPERATOR_COMMANDS[path].needs != "view"
            assert ended.stderr == (f"» {scene.api.url} (context prod)\n" if is_change else ""), (path, ended)
    for path in sorted(REFUSED_BY_THE_MODEL - {"model example"}):
        assert "shares no device" in await by_api.is_told(*path.split(), MODEL)
    assert "no such prediction" in await by_api.is_told("model", "example", MODEL, ID)
    changes = await scene.redis.xrange(keys.changes())
    assert changes
    assert {entry[b"by"].decode().partition("/")[0] for _, entry in changes} == {"ops"}


@pytest.mark.parametrize("role", ROLES)
async def test_each_command_needs_the_role_that_it_declares(scene: Scene, role: Role) -> None:
    rank = list(ROLES).index(role)
    for path, operated in OPERATOR_COMMANDS.items():
        line = scene.line(path) if path in LINES else [*path.split(), MODEL, *([ID] if path == "model example" else [])]
        answer = await scene.ask(*line, role=role)
        assert (answer.status_code != 403) == (rank >= RANKS[operated.needs]), (path, answer.text)


async def test_commands_that_only_see_change_no_key(scene: Scene) -> None:
    by_api = await scene.operator("viewer")
    await by_api.types("queues")  # the log-in is in the cache by now
    async with unchanged(scene.redis):
        for path in [name for name, one in OPERATOR_COMMANDS.items() if one.needs == "view"]:
            await by_api.tries(*scene.line(path))


async def test_dead_letters_and_migration_go_by_their_own_routes(
    scene: Scene, driver: QueueDriver, catalog: Catalog
) -> None:
    by_api = await scene.operator()
    dead = [await driver.die() for _ in range(3)]
    assert await by_api.types("dead", "revive", dead[0]) == "1 revived\n"
    assert "1 revived" not in (await by_api.tries("dead", "drop", dead[0])).stdout
    told = json.loads(await by_api.types("dead", "drop", "--all", "--queue", driver.queue, "--json"))
    assert told == {"done": 3, "refused": [], "secret": []}
    to = await catalog.register(MODEL, "b2" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    assert f"1 moved from {driver.queue} to {to}" in await by_api.types("queues", "migrate", driver.queue, to)
    assert "TO or --to-redis is missing" in await by_api.is_told("queues", "migrate", driver.queue)


async def test_drain_pauses_once_and_then_only_looks(scene: Scene, driver: QueueDriver, operator: Operator) -> None:
    by_api, queue = await scene.operator(), driver.queue
    said = [await each.types("queues", "drain", queue) for each in (operator, by_api)]
    assert said[0] == said[1]
    await scene.ask("queues", "resume", queue)
    await driver.claimed()

    async def paused() -> bool:
        return (await driver.scripts.stats(queue)).paused

    async with anyio.create_task_group() as tasks:

        async def resume() -> None:
            await eventually(paused, "the queue is paused", limit_s=10)
            await scene.ask("queues", "resume", queue)

        tasks.start_soon(resume)
        ended = await by_api.tries("queues", "drain", queue, "--timeout", "2")
    assert (ended.returncode, "1 still running" in ended.stdout) == (1, True), ended
    assert not await paused()


async def test_accounts_change_by_the_routes_that_change_every_site(scene: Scene, operator: Operator) -> None:
    """With the same words and JSON as at Redis, and not by the route of commands, which knows the home alone."""
    by_api = await scene.operator()
    await by_api.types("account", "create", "team")
    for line in (
        ["set", "team", "--rate", "2.5", "--max-running", "none", "--open-hours=22:00-06:00 Europe/Berlin"],
        ["set", "team", "--rate", "default", "--max-queued", "500", "--json"],
        ["suspend", "team", "--policy", "end", "--reason", "unpaid"],
        ["suspend", "team", "--json"],
        ["resume", "team"],
        ["resume", "team", "--json"],
    ):
        assert await by_api.types("account", *line) == await operator.types("account", *line)
        assert "runs no such command" in (await scene.ask("account", *line)).text
    for line in (["set", "team", "--rate", "x"], ["set", "team"], ["suspend", "absent"], ["resume", "absent"]):
        assert await by_api.is_told("account", *line)


async def test_file_is_read_where_the_command_is_typed(scene: Scene, tmp_path: Path) -> None:
    by_api = await scene.operator()
    config = tmp_path / "attempts.json"
    config.write_text("7")
    assert "attempts = 7" in await by_api.types("model", "config", MODEL, "--set", f"attempts=@{config}")
    answer = (await scene.ask("model", "config", MODEL, "--set", f"attempts=@{config}")).json()
    assert answer["code"] == 1
    assert "a file is read where the command is typed" in answer["error"]
    nested = tmp_path / "nested"
    nested.write_text("@/etc/hostname")
    assert "a file is read" in await by_api.is_told("model", "config", MODEL, "--set", f"attempts=@{nested}")


async def test_token_that_was_changed_has_its_new_rights_within_the_cache(scene: Scene) -> None:
    by_api, token = await scene.operator(), await Accounts(scene.redis).create_token("team", label="ci")
    caller = Operator(scene.capsys, "--url", scene.api.url, "--token", token)
    assert "'view'" in await caller.is_told("queues")
    await by_api.types("token", "set", "ci", "--account", "team", "--scopes", "read,view")
    await eventually(
        lambda: caller.tries("queues"), "it may look", until=lambda ended: ended.returncode == 0, limit_s=5
    )
    await by_api.types("token", "set", "ci", "--account", "team", "--scopes", "read")
    await eventually(lambda: caller.tries("queues"), "it may not", until=lambda ended: ended.returncode == 1, limit_s=5)


@pytest.mark.parametrize("shape", ["{url}/p/06gz", "/p/06gz", "{url}/#/p/06gz", "#/p/06gz", "/#/p/06gz"])
async def test_link_leads_to_the_page_whose_address_is_given(scene: Scene, shape: str) -> None:
    by_api = await scene.operator()
    printed = await by_api.types("login-link", "--to", shape.format(url=scene.api.url))
    assert "?to=/p/06gz\n" in printed
    assert "?" not in await by_api.types("login-link")
    for other in ("https://evil.example/p/06gz", "https://evil.example/#/p/06gz", "p/06gz", f"{scene.api.url}0/p/06gz"):
        assert "--to takes an address that begins with" in await by_api.is_told("login-link", "--to", other)


async def test_token_is_revoked_by_standard_input(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await Accounts(scene.redis).create_token("team")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{token}\n"))
    assert "revoked" in await (await scene.operator()).types("token", "revoke")
    assert await Accounts(scene.redis).authenticate(token) is None


@pytest.mark.parametrize(
    "line",
    [
        "up",
        "chaos run",
        "run --help",
        "top",
        "tail",
        "--help",
        "-v",
        "queues --help",
        "queues --redis redis://10.0.0.1",
        "queues migrate a/b --to-redis redis://10.0.0.1",
        "account migrate --to-redis redis://10.0.0.1",
        "queues -- pause acme/echo",
        "nothing",
        "queues resize acme/echo 0",
        "dead list -n x",
    ],
)
async def test_api_runs_nothing_else_and_stays_up(scene: Scene, line: str) -> None:
    answer = await scene.ask(*line.split(" "))
    assert answer.status_code == 200
    assert (answer.json()["code"], bool(answer.json()["error"])) == (1, True), answer.text
    assert scene.api.process.returncode is None
