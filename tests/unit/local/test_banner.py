import json
import shlex
from pathlib import Path

import pytest

from director.examples import EXAMPLES
from director.local.home import State
from director.local.up import banner
from director.local.usage import FILE, example_input, output_of, usage


def printed(redis_url: str, *, has_examples: bool, home: str = ".director") -> str:
    servers = {"example/hello": "http://127.0.0.1:1"} if has_examples else {"acme/painter": "http://127.0.0.1:2"}
    state = State(url="http://127.0.0.1:8080", token="the-token", redis_url=redis_url, servers=servers)
    return banner(
        state, program=".venv/bin/director", home=home, promise="kept", page="http://127.0.0.1:8080/#/login/local.0"
    )


@pytest.mark.parametrize("has_examples", [True, False])
def test_banner_always_says_how_to_serve_an_own_model(has_examples: bool) -> None:
    said = printed("unix:///valkey.sock", has_examples=has_examples)
    assert "\n  .venv/bin/director serve FOLDER --model owner/name\n" in said
    assert "\n  .venv/bin/director run --model owner/name --server http://127.0.0.1:5000 --home .director\n" in said


def test_printed_command_has_the_program_and_an_unusual_home() -> None:
    usual = printed("unix:///valkey.sock", has_examples=True)
    assert "Or: .venv/bin/director predict example/hello -i text=hello -i n=3\n" in usual
    other = printed("unix:///valkey.sock", has_examples=True, home="/my data")
    assert "Or: .venv/bin/director predict example/hello -i text=hello -i n=3 --home '/my data'\n" in other
    assert "serve FOLDER --model owner/name --home '/my data'\n" in other


@pytest.mark.parametrize("has_examples", [True, False])
@pytest.mark.parametrize("url", ["redis://:hush@db:6379/0", "rediss://me:hush@db/1", "redis+sentinel://:hush@a,b/main"])
def test_a_password_of_redis_is_not_printed(url: str, has_examples: bool) -> None:
    assert "hush" not in printed(url, has_examples=has_examples)


def document(properties: dict[str, object], required: list[str], **schemas: object) -> dict[str, object]:
    shown = {"type": "object", "properties": properties, "required": required}
    return {"components": {"schemas": {"Input": shown, **schemas}}}


def test_example_input_has_a_value_for_each_required_input() -> None:
    asked = {
        "text": {"type": "string", "x-order": 1},
        "image": {"type": "string", "format": "uri", "x-order": 0},
        "steps": {"type": "integer", "minimum": 4},
        "mode": {"allOf": [{"$ref": "#/components/schemas/mode"}]},
        "words": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "loud": {"type": "boolean"},
        "seed": {"type": "integer"},
    }
    given = example_input(document(asked, [name for name in asked if name != "seed"], mode={"enum": ["calm", "wild"]}))
    assert given == {"image": FILE, "text": "hello", "steps": 4, "mode": "calm", "words": ["hello"], "loud": True}


@pytest.mark.parametrize("strange", [None, [], {}, {"components": 1}, {"components": {"schemas": {"Input": []}}}])
def test_example_input_of_a_strange_schema_is_empty(strange: object) -> None:
    assert example_input(strange) == {}
    assert output_of(strange) == {}


def test_printed_lines_quote_the_input_for_the_shell_and_for_python() -> None:
    state = State(url="http://127.0.0.1:8080", token="the-token")
    given = {"text": "it's", "loud": True}
    said = usage("acme/painter", given, state, program="director", home=".director", output={})
    [curl] = [line for line in said.splitlines() if line.startswith("  curl ")]
    assert json.loads(shlex.split(curl)[-1]) == {"input": given}
    [predict] = [line for line in said.splitlines() if line.startswith("Or: ")]
    assert shlex.split(predict.removeprefix("Or: "))[3:] == ["-i", "text=it's", "-i", "loud=true"]
    assert """print(client.run("acme/painter", input={'text': "it's", 'loud': True}))""" in said


def test_printed_python_joins_pieces_of_text_and_shows_items_one_by_one() -> None:
    pieces = output_of(json.loads(Path(EXAMPLES["example/hello"].schema_file).read_bytes()))
    state = State(url="http://127.0.0.1:8080", token="the-token")

    def python(output: object) -> str:
        return usage("a/b", {}, state, program="director", home=".director", output=output)

    assert 'print("".join(client.run("a/b", input={})))' in python(pieces)
    assert 'for item in client.run("a/b", input={}): print(item)' in python({"x-cog-array-type": "iterator"})
