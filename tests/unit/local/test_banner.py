import pytest

from director.local.home import State
from director.local.up import banner


def printed(redis_url: str, *, has_examples: bool, home: str = ".director") -> str:
    servers = {"example/hello": "http://127.0.0.1:1"} if has_examples else {}
    state = State(url="http://127.0.0.1:8080", token="the-token", redis_url=redis_url, servers=servers)
    return banner(state, program=".venv/bin/director", home=home, promise="kept")


def test_without_examples_it_says_how_to_serve_a_model_on_this_redis() -> None:
    assert "--redis 'unix:///a b/valkey.sock'" in printed("unix:///a b/valkey.sock", has_examples=False)


def test_printed_command_has_the_program_and_an_unusual_home() -> None:
    usual = printed("unix:///valkey.sock", has_examples=True)
    assert "Or: .venv/bin/director predict example/hello -i text=hello -i n=3\n" in usual
    other = printed("unix:///valkey.sock", has_examples=True, home="/my data")
    assert "Or: .venv/bin/director predict example/hello -i text=hello -i n=3 --home '/my data'\n" in other
    assert "\n  .venv/bin/director run --model" in printed("unix:///valkey.sock", has_examples=False)


@pytest.mark.parametrize("has_examples", [True, False])
@pytest.mark.parametrize("url", ["redis://:hush@db:6379/0", "rediss://me:hush@db/1", "redis+sentinel://:hush@a,b/main"])
def test_a_password_of_redis_is_not_printed(url: str, has_examples: bool) -> None:
    assert "hush" not in printed(url, has_examples=has_examples)


def test_where_redis_has_a_password_it_says_where_to_find_the_url() -> None:
    assert ".director/up.json in DIRECTOR_REDIS_URL" in printed("redis://:hush@db:6379/0", has_examples=False)
