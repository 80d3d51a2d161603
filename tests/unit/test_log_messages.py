"""Every line of the log has a constant message, with the facts beside it: nothing is ever put into the words."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_house import MODULES

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


def told(source: str) -> Iterator[ast.Call]:
    """Every call of a logger."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and is_of_a_logger(node.func):
            yield node


def faults(source: str) -> list[int]:
    """The lines where a message is made up, or where facts do not stand beside it."""
    found = []
    for call in told(source):
        assert isinstance(call.func, ast.Attribute)
        words = call.args[1:] if call.func.attr == "log" else call.args
        beside = {keyword.arg for keyword in call.keywords} <= BESIDE
        if len(words) != 1 or not is_constant(words[0]) or not beside:
            found.append(call.lineno)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_message_is_constant(module: str) -> None:
    assert faults(MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", MODULES)
def test_whoever_logs_calls_its_logger_log(module: str) -> None:
    """Else its messages would not be looked at."""
    names = [
        target.id
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "logging.getLogger(__name__)"
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert names in ([], ["log"])


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
    assert faults(line) == [1]


def test_there_are_messages_to_look_at() -> None:
    messages = sum(len(list(told(Path(path).read_text(encoding="utf-8")))) for path in MODULES.values())
    assert messages > 100
