"""The house: who may import whom. This is the map."""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A room, and what of this house it may import. Other packages are free but for the pure rooms below.
MAY_IMPORT = {
    "lua": (),
    "director.core": ("director.core", "lua"),
    "director": ("director", "lua"),
    "api": ("api", "director.core", "lua"),
}
PURE = (
    "api.sites.placement",
    "api.streams.stream_events",
    "director.bench.figures",
    "director.core.account_limits",
    "director.core.errors",
    "director.core.event_log",
    "director.core.history",
    "director.core.ids",
    "director.core.input_template",
    "director.core.json_pointer",
    "director.core.keys",
    "director.core.metrics.names",
    "director.core.metrics.table",
    "director.core.model_config",
    "director.core.objectives",
    "director.core.policy",
    "director.core.retry",
    "director.core.runner_config",
    "director.core.samples",
    "director.core.schema",
    "director.core.search",
    "director.core.server_url",
    "director.core.settings",
    "director.core.setup_run",
    "director.core.shards",
    "director.core.signing",
    "director.core.sizing",
    "director.core.states",
    "director.core.story",
    "director.core.trace_context",
    "director.core.view",
    "director.core.webhook_url",
    "director.doctor.floors",
    "director.runners.batch",
    "director.runners.runner",
    "director.runs.ends",
    "director.runs.inference",
    "director.runs.media",
    "director.runs.tracker",
    "director.runs.uploads",
    "director.servers.recovery",
    "director.servers.trust",
    "director.simulate.made",
    "director.simulate.shares",
    "director.simulate.trace",
)
EDGES = ("redis", "httpx", "anyio", "starlette", "uvicorn", "asyncio", "socket", "time", "logging", "jsonschema_rs")
NO_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}


def modules() -> dict[str, Path]:
    """All that is shipped. Example models are run by Cog, not by this house."""
    found = {}
    for room in ("lua", "director", "api"):
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


def room_of(module: str) -> str:
    return next(room for room in sorted(MAY_IMPORT, key=len, reverse=True) if lies_in(module, (room,)))


def imported(modules: Iterable[str], is_wrong: Callable[[str, str], bool]) -> set[tuple[str, str]]:
    """Each module with each of its imports that is wrong."""
    return {(module, name) for module in modules for name in imports(module) if is_wrong(module, name)}


def test_imports_go_down_only() -> None:
    def leads_up(module: str, name: str) -> bool:
        # the package's own name holds only its version, so everyone may ask for that
        return is_ours(name) and not lies_in(name, MAY_IMPORT[room_of(module)]) and name != "director.__version__"

    assert imported(MODULES, leads_up) == set()


def is_ours(name: str) -> bool:
    return lies_in(name, tuple(MAY_IMPORT))


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


def test_a_module_lists_what_it_offers_and_offers_what_it_lists() -> None:
    assert [module for module in MODULES if not lists_what_it_offers(tree(module))] == []


def lists_what_it_offers(module: ast.Module) -> bool:
    public: list[str] = []
    named: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                public = list(ast.literal_eval(node.value))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                named.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()):
                named.add(name)
            case ast.Import() | ast.ImportFrom():
                named |= {alias.asname or alias.name for alias in node.names}
    return len(public) == len(set(public)) and set(public) <= named
