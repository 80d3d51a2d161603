"""Secret values that a model server quotes are removed from what it says, in whatever form."""

from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw

from api.predictions.secrets import Secrets
from director.core.schema import Record
from director.core.states import Status
from director.execution.quoted_secrets import HIDDEN, MOST_TEXTS, without_secrets

KEY: Final = "-----BEGIN KEY-----\nMIIE\tabcdé'\"9876543210\n-----END KEY-----"


def said_of(said: str, *values: Any) -> str:
    schema = {"properties": {"keys": {"items": {"writeOnly": True}}}}
    marked = Secrets({}, schema).mark(Raw(msgspec.json.encode({"text": "hi", "keys": values})))
    return without_secrets(said, record(marked.secret), Raw(marked.input))


def record(secret: str) -> Record:
    who: Any = {"id": "a", "account": "a", "model": "a/b", "version": "c", "queue": "d", "lane": "normal"}
    return Record(**who, status=Status.PROCESSING, created=0, secret=secret)


@pytest.mark.parametrize(
    "quoted",
    [
        pytest.param(KEY, id="as it is"),
        pytest.param(repr(KEY)[1:-1], id="Python"),
        pytest.param(msgspec.json.encode(KEY).decode()[1:-1], id="JSON"),
        pytest.param(ascii(KEY)[1:-1].replace("\\xe9", "\\u00e9").replace("\\'", "'").replace('"', '\\"'), id="ASCII"),
        pytest.param(" ".join(KEY.split()), id="one line"),
    ],
)
def test_a_value_is_hidden_in_every_form(quoted: str) -> None:
    assert said_of(f"no such key {quoted} here", KEY) == f"no such key {HIDDEN} here"
    assert said_of(f"no such key {quoted[:30]}…", KEY) == f"no such key {HIDDEN}", "a cut text ends within the value"


def test_excerpts_of_a_long_value_are_hidden() -> None:
    said = said_of(f"input_value='{KEY[:22]}...{KEY[-22:]}'", KEY)
    assert said == f"input_value='{HIDDEN}{KEY[20:22]}...{KEY[-22:-20]}{HIDDEN}'"


@pytest.mark.parametrize("value", [["hush"], {"a": {"b": "hush"}}, {"hush": 1}, "hush"])
def test_each_text_of_a_value_is_hidden(value: Any) -> None:
    assert said_of("it is hush, hi", value) == f"it is {HIDDEN}, hi"


def test_a_value_that_begins_another_leaves_nothing_of_it() -> None:
    assert said_of("a hush-2 b hush c", "hush", "hush-2") == f"a {HIDDEN} b {HIDDEN} c"
    assert said_of("a hush-2 b", "hush", "hush-2", "REDA", "DACT") == f"a {HIDDEN} b"


def test_numbers_are_hidden_and_words_that_are_no_secret_stay() -> None:
    said = said_of("true 123456 no null abc", 123456, True, None, "abc")
    assert said == f"true {HIDDEN} no null abc", "three characters are too few"


def test_a_value_of_very_many_texts_hides_all_that_is_said() -> None:
    assert said_of("a", [f"hush{number}" for number in range(MOST_TEXTS + 1)]) == HIDDEN


def test_an_input_that_is_gone_hides_nothing() -> None:
    assert without_secrets("it says no", record("10 74"), Raw(b"{}")) == "it says no"
