"""Functions are verbs: `show_setting`, not `_shown`. Names in Redis, metrics, settings and the HTTP API keep their
form. A property is a fact, so it may be a participle.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.unit.test_house import MODULES, tree

Function = ast.FunctionDef | ast.AsyncFunctionDef
IRREGULAR = re.compile(
    r"begun|bought|broken|brought|built|caught|chosen|dealt|done|drawn|driven|fallen|felt|forgotten|"
    r"found|frozen|given|gone|grown|heard|held|hidden|kept|known|laid|led|left|lent|lost|made|meant|met|ow"
    r"ned|paid|said|seen|sent|shown|sold|spent|spoken|stolen|stood|struck|sworn|taken|thought|thrown"
    r"|told|torn|understood|won|woken|worn|written"
)
VERBS_IN_ED = frozenset({"bleed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})
# Not renamed yet: a new name is no reason to add a row
ALLOWED = {
    "director.broker.redis_client.pipelined",
    "director.cli.top._shown",
    "director.core.ids.created_ms_of",
    "director.core.runner_config.shared",
    "director.lab.chaos.evidence.accepted",
    "director.lab.chaos.recovery._struck_again",
    "director.runtime.metrics.shown",
    "director.servers.runners.answers.told_error",
    "director.servers.runners.http_base.sent",
    "director.servers.runners.openai.closed",
}


def is_participle(name: str) -> bool:
    word = name.strip("_").split("_")[0].lower()
    return bool(IRREGULAR.fullmatch(word)) or (word.endswith("ed") and word not in VERBS_IN_ED)


def functions(module: str) -> Iterator[Function]:
    for node in ast.walk(tree(module)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
            continue
        if not any("property" in ast.unparse(each) for each in node.decorator_list):
            yield node


@pytest.mark.parametrize(("name", "expected"), [("_shown", True), ("asked_by", True), ("show", False), ("feed", False)])
def test_a_participle_is_told_by_its_first_word(name: str, *, expected: bool) -> None:
    assert is_participle(name) is expected


def test_functions_are_verbs() -> None:
    found = {f"{module}.{each.name}" for module in MODULES for each in functions(module) if is_participle(each.name)}
    assert sorted(found - ALLOWED) == []
    assert sorted(ALLOWED - found) == [], "not needed any more"


def test_a_place_is_where_a_prediction_waits_and_no_other_class() -> None:
    owners = {
        module
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef) and node.name == "Place"
    }
    assert owners == {"director.core.schema", "director.servers.runners.runner"}, "see docs/glossary.md"
