import ast
from collections.abc import Iterator

import pytest

from tests.unit.test_house import MODULES, tree

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
BESIDE = {"extra", "exc_info"}


def is_constant(message: ast.expr) -> bool:
    match message:
        case ast.Constant(value=str(words)):
            return bool(words) and "%" not in words
        case ast.IfExp(body=first, orelse=second):
            return is_constant(first) and is_constant(second)
    return False


def is_of_a_logger(called: ast.expr) -> bool:
    match called:
        case ast.Attribute(value=ast.Name(id="log" | "logger" | "logging"), attr=level):
            return level in LEVELS
        case ast.Attribute(value=ast.Call(func=ast.Attribute(attr="getLogger")), attr=level):
            return level in LEVELS
    return False


def loggers(module: ast.Module) -> list[str]:
    return [
        target.id
        for node in ast.walk(module)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value) == "logging.getLogger(__name__)"
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def told(module: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and is_of_a_logger(node.func):
            yield node


def faults(module: ast.Module) -> list[int]:
    """The lines where a message is made up, or where facts do not stand beside it."""
    found = []
    for call in told(module):
        assert isinstance(call.func, ast.Attribute)
        words = call.args[1:] if call.func.attr == "log" else call.args
        beside = {keyword.arg for keyword in call.keywords} <= BESIDE
        if len(words) != 1 or not is_constant(words[0]) or not beside:
            found.append(call.lineno)
    return found


def test_every_message_is_constant() -> None:
    assert {module: found for module in MODULES if (found := faults(tree(module)))} == {}


def test_each_module_names_its_logger_log() -> None:
    assert [module for module in MODULES if loggers(tree(module)) not in ([], ["log"])] == []


@pytest.mark.parametrize(
    "line",
    [
        'log.info(f"prediction {id} accepted")',
        'log.info("prediction " + id)',
        'log.info("prediction %s accepted", id)',
        'log.info("prediction {} accepted".format(id))',
        "log.info(words)",
        'log.log(level, "ended" if is_so else words)',
        'log.info("prediction accepted", prediction=id)',
        'logging.getLogger("x").info(words)',
    ],
)
def test_what_is_not_is_found(line: str) -> None:
    assert faults(ast.parse(line)) == [1]


def test_there_are_messages_to_look_at() -> None:
    messages = sum(len(list(told(tree(module)))) for module in MODULES)
    assert messages > 100
