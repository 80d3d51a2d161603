"""The house: who may import whom. This is the map."""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from redis.asyncio import Redis

ROOT = Path(__file__).parents[2]

# Each package and the packages that it may import, lowest first: no arrow leads up, so there is no circle. Other
# libraries are free but for the pure modules below.
CORE = ("director", "director.core")
BROKER = (*CORE, "director.broker")
RUNTIME = (*BROKER, "director.runtime")
STORE = (*RUNTIME, "director.files", "director.store")
WEB = (*STORE, "api.services", "api.web")
LOCAL = ("director.local.launcher", "director.local")
MAY_IMPORT = {
    "director": ("director.cli",),
    "director.core": (),
    "director.broker": CORE,
    "director.runtime": BROKER,
    "director.files": BROKER,
    "director.store": (*RUNTIME, "director.files"),
    "director.operate": STORE,
    "director.webhooks": STORE,
    "director.operate.audit": (*STORE, "director.webhooks"),
    "director.local.launcher": CORE,
    "director.local": (*STORE, "director.local.launcher"),
    "api.services": (*STORE, "director.operate"),
    "api.web": (*STORE, "api.services"),
    "api.dashboard": WEB,
    "api.sites": WEB,
    "api.accounts": (*WEB, "api.sites"),
    "api.files": (*WEB, "api.sites", "api.accounts"),
    "api.predictions": (*WEB, "api.sites", "api.accounts", "director.operate"),
    "api.models": (*WEB, "api.sites", "api.accounts", "api.predictions", "director.operate"),
    "api.openai": (*WEB, "api.sites", "api.accounts", "api.files", "api.predictions", "api.models"),
    "api.batches": (
        *(*WEB, "api.sites", "api.accounts", "api.files", "api.predictions", "api.models", "api.openai"),
        "director.webhooks",
    ),
    "director.keeper": (*STORE, "director.operate", "director.webhooks"),
    "director.servers": (*STORE, "director.webhooks"),
    "director.gpus": (*STORE, "director.local.launcher", "director.servers"),
    "director.lab.spec": (),
    "director.lab.chaos": (*STORE, *LOCAL, "director.lab.spec"),
    "director.lab.simulate": (*STORE, *LOCAL, "director.gpus"),
    "director.lab.prove": (*STORE, *LOCAL, "director.lab.spec"),
    "director.lab.bench": (*STORE, *LOCAL),
    "director.lab": (),
    "director.execution": (*STORE, "director.servers", "director.webhooks", "director.gpus"),
    "director.cli": (
        *(*STORE, *LOCAL, "director.operate", "director.operate.audit", "director.webhooks", "director.keeper"),
        *("director.gpus", "director.servers", "director.execution"),
        *("director.lab.chaos", "director.lab.simulate", "director.lab.prove", "director.lab.bench"),
    ),
    # it runs operators' commands for callers
    "api.admin": (*WEB, "api.sites", "api.accounts", "api.predictions", "director.operate", "director.cli"),
    "api": (
        *WEB,
        "director.webhooks",
        "director.keeper",
        "api.dashboard",
        "api.sites",
        "api.files",
        "api.accounts",
        "api.predictions",
        "api.models",
        "api.openai",
        "api.batches",
        "api.admin",
    ),
}
PURE = (
    "api.services.stream_events",
    "api.sites.table",
    "director.broker.keys",
    "director.core.account_limits",
    "director.core.devices",
    "director.core.errors",
    "director.core.view",
    "director.core.figures",
    "director.core.hours",
    "director.core.ids",
    "director.core.data_uri",
    "director.core.json_pointer",
    "director.core.model_config",
    "director.core.policy",
    "director.core.pool_file",
    "director.core.runner_config",
    "director.core.samples",
    "director.core.schema",
    "director.core.settings",
    "director.core.split",
    "director.core.states",
    "director.core.trends",
    "director.core.usage",
    "director.core.webhooks",
    "director.core.words",
    "director.gpus.plan",
    "director.operate.acts",
    "director.operate.kinds",
    "director.operate.sizing",
    "director.operate.story",
    "director.execution.tracker",
    "director.execution.uploads",
    "director.lab.spec.page",
    "director.lab.spec.explore",
    "director.runtime.metric_table",
    "director.runtime.tracing",
    "director.servers.runners.outcomes",
    "director.servers.runners.runner",
    "director.lab.simulate.swaps",
    "director.lab.simulate.trace",
)
EDGES = ("redis", "httpx", "anyio", "starlette", "uvicorn", "asyncio", "socket", "time", "logging", "jsonschema_rs")
# An optional extra, and a command that imports much: each is imported in a function, only if it is asked for
LATE = {("director.runtime.tracing", "director.runtime.otel"), ("director.cli.status", "director.cli.top")}
# These send commands to Redis. The others call a function that says what it reads or writes.
SENDERS = (
    *("director.broker", "director.store"),
    # its checker believes only what it reads by itself, and its faults are commands of operators
    "director.lab.chaos",
    # it empties the server that it has started for itself
    "director.lab.simulate.play",
)
SEND = tuple(f"director.broker.redis_client.{name}" for name in ("ask", "pipelined", "read_all"))
COMMANDS = {name for name in dir(Redis) if not name.startswith("_") and callable(getattr(Redis, name))}
# Methods of a client that send nothing, and commands whose names other objects use too
QUIET = {"aclose", "close", "from_pool", "from_url", "register_script"}
SHARED = {
    *("append", "client", "cluster", "command", "copy", "delete", "digest", "dump", "exists", "expire", "get"),
    *("info", "json", "keys", "lock", "migrate", "move", "parse", "ping", "reset", "role", "save", "select", "set"),
    *("shutdown", "sort", "time", "touch", "type", "unlink", "wait", "watch"),
}
NO_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}


def modules() -> dict[str, Path]:
    """All that is shipped. Example models are run by Cog, not by this house."""
    found = {}
    for room in ("director", "api"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if "examples" not in path.relative_to(ROOT).parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    return frozenset(_imports(tree(module)))


def _imports(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute: a reader sees which room they lead to"
            # `from director import core` may name a module or a thing in it
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lies_in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("api", "director")


def package_of(module: str) -> str:
    """The row that is nearest. `director` itself is its version and `python -m director`."""
    top, _, rest = module.partition(".")
    if top == "director" and (rest == "__main__" or "__init__" in rest):
        return top
    return next((row for row in sorted(MAY_IMPORT, key=len, reverse=True) if lies_in(module, (row,))), module)


def imported(modules: Iterable[str], is_wrong: Callable[[str, str], bool]) -> set[tuple[str, str]]:
    """Each module with each of its imports that is wrong."""
    return {(module, name) for module in modules for name in imports(module) if is_wrong(module, name)}


def module_of(name: str) -> str:
    """The module that an imported name belongs to: the version and the examples are of `director` itself."""
    return next((known for known in (name, name.rpartition(".")[0]) if known in MODULES), "director")


def owner_of(name: str) -> str:
    return package_of(module_of(name))


def test_packages_import_only_what_their_row_allows() -> None:
    def is_not_allowed(module: str, name: str) -> bool:
        mine = package_of(module)
        return is_ours(name) and owner_of(name) not in (mine, *MAY_IMPORT[mine])

    assert imported(MODULES, is_not_allowed) == set()


def test_api_runs_commands_by_one_module_and_knows_no_terminal() -> None:
    """Only the command line itself asks for a command and shows what follows."""
    used = {name for module in MODULES if lies_in(module, ("api",)) for name in imports(module)}
    assert {module_of(name) for name in used if lies_in(name, ("director.cli",))} == {"director.cli.dispatch"}
    reached, rest = set[str](), ["director.cli.dispatch"]
    while rest:
        reached.add(module := rest.pop())
        ours = {module_of(name) for name in imports(module) if lies_in(name, ("director.cli",))}
        rest += ours - reached
    assert not reached & {f"director.cli.{name}" for name in ("serve", "trials", "live", "tail", "top")}


def test_each_row_names_only_packages_above_it() -> None:
    rows = list(MAY_IMPORT)
    for place, (package, allowed) in enumerate(MAY_IMPORT.items()):
        if package != "director":
            assert set(allowed) <= set(rows[:place]), f"{package} may import what comes below it in the table"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and under TYPE_CHECKING count too, except those in LATE."""
    ours = {(module, module_of(name)) for module in MODULES for name in imports(module) if is_ours(name)}
    arrows = {(module, reached) for module, reached in ours - LATE if module != reached}
    while ends := {reached for _, reached in arrows} - {module for module, _ in arrows}:
        arrows = {(module, reached) for module, reached in arrows if reached not in ends}
    assert arrows == set()


def test_each_package_has_a_row() -> None:
    assert {package_of(module) for module in MODULES} == set(MAY_IMPORT)


def test_nothing_shipped_imports_tests() -> None:
    assert imported(MODULES, lambda _, name: lies_in(name, ("tests", "pytest", "hypothesis"))) == set()


def test_pure_rooms_touch_nothing() -> None:
    assert imported(PURE, lambda _, name: lies_in(name, EDGES)) == set()


def test_pure_rooms_lean_on_pure_rooms_only() -> None:
    assert imported(PURE, lambda _, name: is_ours(name) and not lies_in(name, PURE)) == set()


def test_a_module_opens_with_its_promise() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree(module))] == []


def test_a_module_is_named_after_what_it_holds() -> None:
    assert [module for module in MODULES if NO_NAMES & set(module.split("."))] == []


def test_only_packages_list_what_they_offer() -> None:
    def has_list(module: ast.Module) -> bool:
        return any(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(module))

    inner = [module for module, path in MODULES.items() if path.name != "__init__.py"]
    assert [module for module in inner if has_list(tree(module))] == []


def commands_in(module: ast.Module) -> list[str]:
    """Return the places where a command is sent, or handed to what sends it: `redis.get`, `pipe.hget(key)`."""

    def is_command(node: ast.Attribute) -> bool:
        holder = ast.unparse(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else ""
        is_client = any(word in holder.rpartition(".")[2].lower() for word in ("redis", "pipe"))
        return node.attr in COMMANDS - QUIET and (is_client or node.attr not in SHARED)

    nodes = (node for node in ast.walk(module) if isinstance(node, ast.Attribute))
    return [f"{node.lineno}: {ast.unparse(node)}" for node in nodes if is_command(node)]


@pytest.mark.parametrize(
    "line", ["self._redis.get(key)", "pipe.hget(key, field)", "partial(client.zrange, key)", "ask(redis.time)"]
)
def test_a_command_is_seen_however_it_is_sent(line: str) -> None:
    assert commands_in(ast.parse(line))


def test_only_broker_and_store_send_commands() -> None:
    others = [module for module in MODULES if not lies_in(module, SENDERS)]
    assert imported(others, lambda _, name: name in SEND) == set()
    assert {module: found for module in others if (found := commands_in(tree(module)))} == {}
