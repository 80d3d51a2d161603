"""The page keeps its rules, each broken variant is found, and its table is that of the scripts and keys."""

import re
from typing import Final

import pytest

from director.broker import keys
from director.broker.linker import LUA, link
from director.lab.spec.explore import HARMLESS, explore, variants
from director.lab.spec.page import ACTIONS, BESIDE, KEYS, Call, State, explain

SCRIPTS: Final = sorted(path.stem for path in LUA.glob("*.lua"))
VARIANTS: Final = variants()
# The keys of KEYS, as scripts spell them where they write
WRITE: Final = r"redis\.p?call\('(?:HSET|HDEL|HINCRBY|ZADD|ZREM|DEL|UNLINK)', "
NAMED: Final = {
    "record": re.compile(WRITE + r"(?:keys_record\(|record\b)"),
    "lease": re.compile(WRITE + r"(?:lease\b|keys_queue\([^()]*(?:\([^()]*\))?[^()]*'lease'\))"),
    "owed": re.compile(WRITE + r"keys_owed\("),
}
FIRST: Final = {
    "record": r"\{p\}:rec:<id>",
    "lease": r"\{p\}:q:<queue>:lease",
    "owed": r"\{p\}:owed",
}
BY_FIRST: Final = re.compile(WRITE + r"KEYS\[1\]")


def test_every_order_of_the_actions_keeps_the_rules() -> None:
    explored = explore()
    assert explored.wrong == "", explored.steps
    assert explored.states > 500
    assert explored.transitions > 3_000


@pytest.mark.parametrize("name", VARIANTS)
def test_each_broken_variant_is_found_or_has_its_reason(name: str) -> None:
    found = explore(VARIANTS[name])
    assert bool(found.wrong) is (name not in HARMLESS), found


def test_each_harmless_variant_is_a_variant() -> None:
    assert HARMLESS.keys() <= VARIANTS.keys()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("finish does not ask whether the token is that of its claim", "it ended twice"),
        ("write does not ask whether the token is that of its claim", "a claim that was lost wrote"),
        (
            "take back does not ask whether its lease is over, or lost",
            "its claim was taken away before its lease was over",
        ),
        ("finish does not write `owed`", "it has ended, and its webhook is neither owed nor delivered"),
        (
            "the webhook of an end is owed in a step of its own",
            "it has ended, and its webhook is neither owed nor delivered",
        ),
        ("a token names its director, in place of its claim", "a claim that was lost wrote"),
        ("no claim is taken back", "it can never come to rest"),
    ],
)
def test_a_variant_is_found_by_the_rule_that_it_breaks(name: str, wrong: str) -> None:
    assert explore(VARIANTS[name]).wrong == wrong


def test_the_first_witness_of_a_missing_fence_is_the_shortest() -> None:
    found = explore(VARIANTS["finish does not ask whether the token is that of its claim"])
    assert found.steps[0].startswith("enqueue")
    assert found.steps[1:] == ("claim as t1", "finish by claim 1", "finish by claim 1")


@pytest.mark.parametrize("variable", KEYS)
def test_each_variable_of_the_page_is_a_key_in_redis(variable: str) -> None:
    key, field = KEYS[variable]
    assert variable in State.__struct_fields__
    assert callable(getattr(keys, key))
    assert any(f"'{field}'" in link(name) for name in SCRIPTS) or not field


def test_only_the_past_tokens_have_no_key() -> None:
    assert set(State.__struct_fields__) - KEYS.keys() == {"used"}


def test_each_action_is_of_scripts_that_are_there() -> None:
    named = {script for action in ACTIONS.values() for script in action.scripts}
    assert (named | BESIDE.keys()) - set(SCRIPTS) == set()
    assert named & BESIDE.keys() == set()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_writes_to_a_key_of_the_page_is_in_its_table(script: str) -> None:
    named = {each for action in ACTIONS.values() for each in action.scripts} | BESIDE.keys()
    assert bool(written_keys(script)) <= (script in named), written_keys(script)


def test_the_table_has_no_script_that_writes_to_none_of_its_keys() -> None:
    named = {each for action in ACTIONS.values() for each in action.scripts} | BESIDE.keys()
    assert [script for script in sorted(named) if not written_keys(script)] == []


def written_keys(script: str) -> set[str]:
    """Return the keys of the page that a script writes to, also by what it takes of lua/lib/."""
    source = re.sub(r"--.*", "", link(script))
    header = re.search(r"^--   KEYS\[1\].*$", (LUA / f"{script}.lua").read_text(encoding="utf-8"), re.MULTILINE)
    first = header[0] if header else ""
    by_first = (
        {key for key, form in FIRST.items() if re.search(form + "$", first.strip())}
        if BY_FIRST.search(source)
        else set()
    )
    return by_first | {key for key, form in NAMED.items() if form.search(source)}


def test_a_step_that_the_page_forbids_is_named() -> None:
    waits = State(status="open", wants=True)
    claimed = State(status="open", wants=True, token="t1", lease=100, used=("t1",))
    ended = State(status="ended", wants=True, ended="t1", owed=True, used=("t1",))
    late, early = Call("t0", now=200), Call("t1", now=50)
    assert explain(claimed, ended, early) == ""
    assert explain(claimed, claimed, late) == ""
    assert explain(waits, claimed, Call("t1", until=100)) == ""
    assert explain(claimed, ended, late) == "no action changes status, token, lease, ended, owed in this way"
    assert "the token is that of its claim" in explain(
        claimed, State(status="ended", wants=True, ended="t0", owed=True, used=("t1",)), late
    )
    back = State(status="open", wants=True, used=("t1",))
    assert explain(claimed, back, early, "reap") == "take back, and it does not hold that its lease is over, or lost"
    assert explain(claimed, back, late, "reap") == ""
    assert "finish" in explain(
        ended, State(status="ended", wants=True, ended="t2", owed=True, used=("t1",)), Call("t2")
    )
