"""Hold the table of acts to the findings, and each act to its route of the API and its command."""

import re
from typing import Any

import pytest
from msgspec import convert
from starlette.routing import compile_path

from api.app import ROUTES
from api.web.route import OPERATES
from director.cli.main import make_parser
from director.operate.acts import ACTS, Act
from director.operate.findings import find
from director.operate.kinds import CODES, Code
from director.store.owed import FailingHost
from tests.unit.operate.test_findings import NOW, Q, ended, situation
from tests.unit.operate.test_kinds import FOUND

ALL: list[tuple[Code, Act]] = [(code, act) for code, one in FOUND.items() for act in one.acts]
each_act = pytest.mark.parametrize(("code", "act"), ALL, ids=[f"{code} {act.label}" for code, act in ALL])


def test_each_finding_has_acts_or_a_reason_why_not() -> None:
    assert set(ACTS) == set(CODES)
    for code, acts in ACTS.items():
        assert bool(FOUND[code].acts) is not isinstance(acts, str), code
        assert acts, f"{code}: give an act, or the reason without one"


@each_act
def test_act_is_filled_in_with_its_finding(code: Code, act: Act) -> None:
    for text in (act.path, act.command, act.asks, *map(str, act.body.values())):
        assert "{" not in text, code
    assert act.label
    assert act.done.endswith(".")


@each_act
def test_act_is_one_route_that_takes_its_parameters(code: Code, act: Act) -> None:
    matching = [
        route
        for route in ROUTES
        if route.method == "POST" and compile_path(route.path)[0].fullmatch(act.path) and not route.is_openai
    ]
    exact = [route for route in matching if route.path == act.path] or matching
    [route] = exact
    assert set(route.scopes) == (set(OPERATES) if act.scope == "operate" else {"admin"}), code
    if act.body:
        assert route.body is not None
        convert(dict(act.body), route.body.type)


@each_act
def test_command_of_an_act_can_be_typed(code: Code, act: Act) -> None:
    program, *line = act.command.split()
    assert program == "director"
    make_parser(line[0]).parse_args(line)


def test_only_what_ends_by_itself_or_helps_at_once_asks_nothing() -> None:
    assert {act.label for _, act in ALL if not act.asks} == {"Resume", "Send again"}


def test_failing_model_is_paused_once() -> None:
    def acts(**stats: Any) -> list[str]:
        found = find(situation(ended(ended=9, failed=9), **stats))
        return [act.label for one in found for act in one.acts]

    assert acts() == ["Pause queue"]
    assert acts(paused=True) == ["Resume"], "it is paused already"


def test_host_of_a_caller_is_quoted_for_the_shell() -> None:
    host = FailingHost(host="a.example;rm -r x", count=1, id="abc", attempts=5, oldest_at="2027-01-15T08:00:00.000Z")
    [found] = find(situation(closer={"failing": [host]}))
    assert found.acts[0].command == "director webhooks redeliver 'a.example;rm -r x'"
    assert found.acts[0].body == {"host": "a.example;rm -r x"}


def test_finding_says_since_when_as_far_as_it_is_known() -> None:
    [found] = find(situation(paused=True, paused_at=NOW - 60_000))
    assert (found.queue, found.since) == (Q, "2027-01-15T07:59:00.000Z")
    for one in FOUND.values():
        assert one.since is None or re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", one.since)
