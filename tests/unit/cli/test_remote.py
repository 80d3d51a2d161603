"""A command line that the API is sent gives the arguments that were typed."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from director.cli.arguments import EITHER, Argument, hours
from director.cli.client import Away, Client
from director.cli.main import make_parser
from director.cli.operators import OPERATOR_COMMANDS, ask_or_read_redis
from director.cli.remote import write_line
from director.local.home import Home, State

make_parser()  # imports the module of every command
TEXTS = st.text(min_size=1, max_size=8).filter(lambda text: "\0" not in text)
NUMBERS = st.integers(1, 32).map(str)
HOURS = st.decimals(0, 8_000, places=6).map(str)


def words(argument: Argument) -> st.SearchStrategy[Sequence[str]]:
    """Return what can be typed for an argument: one word or several."""
    facts = argument.settings
    kind = facts.get("type")
    if facts.get("action") == "store_true":
        return st.just([""])
    one = TEXTS
    if choices := facts.get("choices"):
        one = st.sampled_from(list(map(str, choices)))
    elif kind is hours:
        one = HOURS
    elif argument.names[-1] == "--set":
        one = TEXTS.filter(lambda text: "@" not in text).map(lambda text: f"name={text}")
    elif kind is not None:
        one = NUMBERS
    is_many = facts.get("nargs") == "*" or facts.get("action") == "append"
    if facts.get("nargs") == "*" and argument.names[0].startswith("-"):
        one = one.filter(lambda text: not text.startswith("-"))
    return st.lists(one, min_size=1, max_size=3 if is_many else 1)


def type_it(argument: Argument, typed: Sequence[str]) -> list[str]:
    name = argument.names[-1]
    if argument.settings.get("action") == "store_true":
        return [name]
    if argument.settings.get("nargs") == "*":
        return [name, *typed]
    return [f"{name}={one}" if name.startswith("--") else f"{name}{one}" for one in typed]


@pytest.mark.parametrize("path", sorted(OPERATOR_COMMANDS))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_line_that_the_api_is_sent_says_what_was_typed(path: str, data: st.DataObject) -> None:
    arguments = OPERATOR_COMMANDS[path].arguments
    typed = {each.dest: data.draw(words(each)) for each in arguments}
    shown = [each for each in arguments if each.settings.get("required") or data.draw(st.booleans())]
    one_of = [each for each in shown if each.section == EITHER][1:]
    options = [
        word
        for each in shown
        if each.names[0].startswith("-") and each not in one_of
        for word in type_it(each, typed[each.dest])
    ]
    places = [word for each in arguments if not each.names[0].startswith("-") for word in typed[each.dest]]
    given_ = _parse(path, [*options, *(["--", *places] if places else [])])
    again = _parse(path, write_line(arguments, given_))
    assert vars(again) == vars(given_)


def _parse(path: str, line: Sequence[str]) -> argparse.Namespace:
    return make_parser(path.split()[0]).parse_args([*path.split(), *line])


def test_dry_run_of_a_large_queue_is_asked_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """An API answers after 20 seconds at most, and a dry run begins again with each call."""
    ran = {"code": 0, "out": json.dumps({"queue": "acme/echo:a1", "claimed": 0})}
    step = {"to": "acme/echo:b2", "moved": 70, "claimed": 0, "held": 0, "done": False}
    asked: list[Any] = []
    monkeypatch.setattr(Client, "run_command", lambda *_: Raw(json.dumps(ran).encode()))
    monkeypatch.setattr(Client, "change_queue", lambda *given: asked.append(given) or Raw(json.dumps(step).encode()))
    given = _parse("queues migrate", ["acme/echo:a1", "acme/echo:b2", "--dry-run", "--url", "http://127.0.0.1:1"])
    given.token = "t"
    given.run(given)
    assert (len(asked), capsys.readouterr().out) == (
        1,
        "at least 70 would be moved from acme/echo:a1 to acme/echo:b2\n",
    )


@pytest.mark.parametrize(
    ("cause", "named", "is_here"),
    [
        (httpx.ConnectError("refused"), {}, True),
        (httpx.ReadTimeout("late"), {}, False),
        (None, {}, False),
        (httpx.ConnectError("refused"), {"token": "of-a-viewer"}, False),
        (httpx.ConnectError("refused"), {"url": "http://127.0.0.1:1", "token": "t"}, False),
    ],
)
def test_redis_is_read_only_where_no_api_can_have_acted(
    cause: Exception | None, named: dict[str, str], is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DIRECTOR_URL", "DIRECTOR_TOKEN", "DIRECTOR_REDIS_URL", "DIRECTOR_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Home, "read", lambda _: State(url="http://127.0.0.1:1", token="t", redis_url="redis://x"))
    given = _parse("queues", ["--home", str(tmp_path)])
    vars(given).update(named)

    def there(_: object) -> int:
        raise Away("no answer") from cause

    if is_here:
        assert ask_or_read_redis(given, there, lambda: 7) == 7
    else:
        with pytest.raises(Away):
            ask_or_read_redis(given, there, lambda: 7)
