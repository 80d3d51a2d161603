from pathlib import Path

import pytest

from director.core.errors import SettingsError
from director.core.json_pointer import Pointer
from director.core.runner_config import (
    PRESETS,
    CogConfig,
    HttpConfig,
    OpenAiConfig,
    Template,
    WrongRunnerConfig,
    decode_runner_config,
    preset_of,
    runner_config,
)

HTTP = """{"kind": "http", "path": "/predict", "input": {"text": {"$input": "/text"}}, "output": "/result",
    "metrics": {"tokens": "/usage/0"}}"""
HTTP_TOML = """
kind = "http"
path = "/predict"
output = "/result"
input = { text = { "$input" = "/text" } }
[metrics]
tokens = "/usage/0"
"""


def test_json_and_toml_say_the_same() -> None:
    expected = HttpConfig(
        path="/predict",
        input=Template({"text": {"$input": "/text"}}),
        output=Pointer("/result"),
        metrics={"tokens": Pointer("/usage/0")},
    )
    assert decode_runner_config(HTTP) == expected
    assert decode_runner_config(HTTP_TOML, is_toml=True) == expected


def test_default_runner_is_cog() -> None:
    assert runner_config("cog", "") == CogConfig()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_complete_but_for_what_only_its_user_knows(name: str) -> None:
    assert preset_of(name)["about"]
    config = decode_runner_config(f'{{"preset": "{name}", "model": "m", "path": "/run"}}')
    assert config.__struct_config__.tag in ("http", "polling", "openai")


def test_preset_puts_the_given_path_where_it_belongs() -> None:
    with pytest.raises(WrongRunnerConfig, match="`path` is missing: 'ray' needs"):
        decode_runner_config('{"preset": "ray"}')
    config = decode_runner_config('{"preset": "ray", "path": "/up/"}')
    assert isinstance(config, HttpConfig)
    assert (config.path, config.health) == ("/up", "/-/healthz")


def test_preset_may_build_on_another_and_keeps_its_former_name() -> None:
    built, base = (decode_runner_config(f'{{"preset": "{name}", "model": "m"}}') for name in ("triton", "kserve"))
    assert built == base == decode_runner_config('{"template": "kserve", "model": "m"}')


def test_health_of_a_litellm_proxy_asks_no_backend() -> None:
    config = decode_runner_config('{"preset": "litellm"}')
    assert isinstance(config, OpenAiConfig)
    assert config.health == "/health/liveliness"


def test_what_is_polled_is_not_sent_together() -> None:
    polling = '{"kind": "polling", "path": "/a", "poll_endpoint_template": "/a/{id}", "input": {"$each": ""}}'
    with pytest.raises(WrongRunnerConfig, match="which is for an http server with `batch`"):
        decode_runner_config(polling)


def test_what_is_said_beside_a_preset_wins() -> None:
    config = decode_runner_config('{"preset": "tei", "path": "/v2/embed"}')
    assert isinstance(config, HttpConfig)
    assert (config.path, config.error) == ("/v2/embed", Pointer("/error"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it cannot be read"),
        ("[]", "it cannot be read"),
        ("{}", "`kind` is one of cog, http"),
        ('{"kind": "ftp"}', "`kind` is one of cog, http"),
        ('{"kind": "http"}', "required field `path`"),
        ('{"kind": "http", "path": "predict"}', r"`\$\.path`"),
        ('{"kind": "http", "path": "/a b"}', r"`\$\.path`"),
        ('{"kind": "http", "path": "/a", "output": "result"}', r"JSON pointer .* `\$\.output`"),
        ('{"kind": "http", "path": "/a", "output": 3}', r"`\$\.output`"),
        ('{"kind": "http", "path": "/a", "metrics": {"a b": ""}}', r"`key` in `\$\.metrics`"),
        ('{"kind": "http", "path": "/a", "input": {"x": {"$input": "y"}}}', r"at /x.* `\$\.input`"),
        ('{"kind": "http", "path": "/a", "outptu": ""}', "unknown field `outptu`"),
        ('{"kind": "http", "path": "/{model}"}', "`model` is missing"),
        ('{"kind": "http", "path": "/a", "batch": {}}', "`batch` needs .each in `input`"),
        ('{"kind": "http", "path": "/a", "input": {"$each": ""}}', "which is for an http server with `batch`"),
        ('{"kind": "http", "path": "/a", "input": {"$each": ""}, "batch": {"most": 65}}', r"`\$\.batch\.most`"),
        ('{"kind": "http", "path": "/a", "input": {"$each": ""}, "batch": {"size": 5}}', "unknown field `size`"),
        ('{"template": "nope"}', "`template` is one of"),
        ('{"preset": []}', "`preset` is one of"),
        ('{"kind": "cog", "fast": "yes"}', r"`\$\.fast`"),
        ('{"kind": "http", "path": "/' + "a" * 70_000 + '"}', "longer than"),
        ('{"a": ' + "[" * 30_000 + "]" * 30_000 + "}", "nested too deeply"),
    ],
)
def test_a_mistake_is_told_with_its_field(text: str, why: str) -> None:
    with pytest.raises(WrongRunnerConfig, match=why):
        decode_runner_config(text)


@pytest.mark.parametrize("name", ["runner.json", "runner.toml"])
def test_it_may_be_in_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(HTTP_TOML if name.endswith("toml") else HTTP)
    assert isinstance(runner_config("http", str(path)), HttpConfig)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("/nowhere/runner.json", "No such file"),
        ("runner.yaml", "neither a JSON object nor"),
        ('{"kind": "cog"}', "the runner is 'http'"),
    ],
)
def test_settings_that_cannot_be_say_which_they_are(given: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"DIRECTOR_RUNNER_CONFIG: .*{why}"):
        runner_config("http", given)
