"""Test what `serve` finds in a folder, and what it says where something is missing."""

import json
import sys
from pathlib import Path

import pytest

from director.examples import EXAMPLES
from director.local.home import Home
from director.local.models import (
    SCHEMA,
    Folder,
    Model,
    Surroundings,
    find_folder,
    keep_schema,
    labelled,
    make_schema,
    model_environment,
    served,
)
from director.local.processes import UpError
from director.local.serve import own_server

HERE = Path(sys.executable)


def folder_with(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class Other: ...\nclass Predictor:\n  def predict(self): ...", "Predictor"),
        ("class Runner:\n  def run(self): ...", "Runner"),
        ("class Painter:\n  def predict(self): ...", "Painter"),
        ("def helper(): ...\ndef predict(): ...", "predict"),
        ("class Broken(", "Predictor"),
    ],
)
def test_predictor_is_found_in_the_source(tmp_path: Path, source: str, name: str) -> None:
    assert find_folder(folder_with(tmp_path, predict_py=source)).predict == f"predict.py:{name}"


def test_cog_yaml_decides_which_predictor_is_served(tmp_path: Path) -> None:
    yaml = "build:\n  gpu: true\npredict: 'paint.py:Painter'  # the big one\n"
    folder = folder_with(tmp_path, cog_yaml=yaml, paint_py="", predict_py="class Predictor: ...")
    assert find_folder(folder).predict == "paint.py:Painter"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no predict.py"),
        ({"predict_py": "x = 1"}, "no class with a method `predict`"),
        ({"cog_yaml": "predict: paint.py:Painter"}, "there is no"),
    ],
)
def test_folder_without_a_model_is_refused_with_the_reason(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(UpError, match=said):
        find_folder(folder_with(tmp_path, **files))


def test_missing_folder_and_missing_python_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UpError, match="is not a folder"):
        find_folder(tmp_path / "nowhere")
    with pytest.raises(UpError, match="There is no Python at"):
        find_folder(folder_with(tmp_path, predict_py="def predict(): ..."), "no-such-python")


def test_the_folders_own_environment_is_used_before_ours(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, predict_py="def predict(): ...")
    assert find_folder(folder).python == HERE
    own = folder / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(HERE)
    assert find_folder(folder).python == own
    assert find_folder(folder, str(HERE)).python == HERE


def without_cog(tmp_path: Path, *, named: str = "python") -> Path:
    """A Python without any package: the base of this environment, or a stand-in that says the same."""
    python = tmp_path / "bare" / named
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {HERE} -S "$@"\n')  # -S: without site-packages
    python.chmod(0o755)
    return python


def test_python_without_cog_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    python = without_cog(tmp_path)
    folder = folder_with(tmp_path, predict_py="def predict(): ...")
    with pytest.raises(UpError) as refused:
        make_schema(find_folder(folder, str(python)))
    assert f"{python} -m pip install 'cog>=0.23'" in str(refused.value)
    assert "No module named 'cog'" in str(refused.value)


def test_model_gets_a_python_of_its_own_where_that_of_director_has_no_cog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment that uv or pipx made for director has no pip."""
    python = without_cog(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    folder = folder_with(tmp_path, predict_py="def predict(): ...")
    with pytest.raises(UpError) as refused:
        make_schema(find_folder(folder, str(python)))
    own = folder / ".venv"
    lines = [f"{python} -m venv {own}", f"{own}/bin/python -m pip install 'cog>=0.23'"]
    assert str(refused.value).splitlines()[1:] == [f"  {line}" for line in lines]


def test_schema_is_written_once_and_where_cog_reads_it(tmp_path: Path) -> None:
    folder = Folder(path=tmp_path, predict="predict.py:Predictor", python=HERE)
    assert keep_schema(folder, b"{}")
    assert not keep_schema(folder, b"{}")
    assert [file.name for file in (tmp_path / SCHEMA).parent.iterdir()] == [SCHEMA.name]
    assert keep_schema(folder, b"{ }")
    assert (tmp_path / SCHEMA).read_bytes() == b"{ }"


def test_python_of_another_name_gets_a_link_that_cog_finds(tmp_path: Path) -> None:
    python = without_cog(tmp_path, named="python3.13")
    home = Home(tmp_path / "home")
    path = model_environment(Folder(path=tmp_path, predict="", python=python), home)["PATH"].split(":")
    assert (Path(path[0]) / "python").readlink() == python
    assert path[1] == str(python.parent)


def test_models_of_one_short_name_have_processes_of_different_names() -> None:
    models = [Model(name=name, label="") for name in ("a/painter", "b/painter", "c/other")]
    assert [model.label for model in labelled(models)] == ["painter", "painter-2", "other"]


def around(tmp_path: Path) -> Surroundings:
    return Surroundings(home=Home(tmp_path), redis_url="unix:///v", files_dir="/files", webhook_allow="loopback")


def test_model_server_gets_neither_our_settings_nor_the_address_of_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRECTOR_REDIS_URL", "redis://:hush@db")
    model = Model(name="acme/painter", label="painter", folder=Folder(path=tmp_path, predict="p.py:P", python=HERE))
    one = served(model, around(tmp_path))
    assert one.server is not None
    assert not [name for name in one.server.env if name.startswith("DIRECTOR_")]
    assert one.server.env["COG_PREDICT_TYPE_STUB"] == "p.py:P"
    assert one.director.env["DIRECTOR_FILES_DIR"] == "/files"
    assert one.director.env["DIRECTOR_WEBHOOK_ALLOW"] == "loopback"
    secret = one.director.env["DIRECTOR_UPLOAD_SECRET"]
    assert secret in one.server.env["COG_UPLOAD_URL"]
    assert secret not in " ".join(one.server.command), "any user of the machine can read it"


def test_command_is_started_with_its_port_and_driven_as_openais_api(tmp_path: Path) -> None:
    command = f"{HERE} serve 'a model' --port {{port}}"
    one = served(own_server("acme/llm", command=command), around(tmp_path))
    assert one.server is not None
    port = one.server.env["PORT"]
    assert one.server.command == [str(HERE), "serve", "a model", "--port", port]
    assert one.director.env["DIRECTOR_SERVERS"] == f"http://127.0.0.1:{port}"
    assert one.director.env["DIRECTOR_RUNNER"] == "openai"


@pytest.mark.parametrize(
    ("command", "said"), [("vllm 'serve", "No closing quotation"), ("no-such-program --port {port}", "no program")]
)
def test_command_that_cannot_start_is_refused_before_anything_starts(command: str, said: str) -> None:
    with pytest.raises(UpError, match=said):
        own_server("acme/llm", command=command)


@pytest.mark.parametrize(
    ("given", "runner", "config"),
    [
        ({"openai": "http://127.0.0.1:8000"}, "openai", ""),
        ({"openai": "http://127.0.0.1:8000/v1/"}, "openai", ""),
        ({"http": "http://127.0.0.1:8000/paint"}, "http", '{"kind":"http","path":"/paint"}'),
    ],
)
def test_running_server_is_not_started_again(tmp_path: Path, given: dict[str, str], runner: str, config: str) -> None:
    one = served(own_server("acme/llm", **given), around(tmp_path))
    assert one.server is None
    assert one.director.env["DIRECTOR_SERVERS"] == "http://127.0.0.1:8000"
    assert (one.director.env["DIRECTOR_RUNNER"], one.director.env["DIRECTOR_RUNNER_CONFIG"]) == (runner, config)


def test_relative_path_of_a_runner_config_holds_in_the_folder_of_the_director(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counter.toml").write_text('path = "/count"\n')
    monkeypatch.chdir(tmp_path)
    own = own_server("acme/counter", http="http://127.0.0.1:8000/count", config="counter.toml")
    one = served(own, around(tmp_path))
    assert one.director.env["DIRECTOR_RUNNER_CONFIG"] == str(tmp_path / "counter.toml")


@pytest.mark.parametrize("given", [{"openai": "127.0.0.1:8000"}, {"http": "http://127.0.0.1:8000"}])
def test_address_that_cannot_be_used_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UpError, match="http://"):
        own_server("acme/llm", **given)


# 0.3 s each: a Python starts, and imports Cog


def test_made_schemas_of_the_examples_are_those_of_cog_build() -> None:
    for example in EXAMPLES.values():
        made = json.loads(make_schema(Folder(path=example.folder, predict=example.predict, python=HERE)))
        assert made == json.loads(example.schema_file.read_bytes())


ALL_KINDS = """
from typing import Optional
from cog import BaseModel, Input, Path, Secret
class Output(BaseModel):
    picture: Path
    note: Optional[str]
def predict(
    key: Secret,
    mode: str = Input(choices=["calm", "wild"], default="wild"),
    steps: int = Input(ge=1, le=50),
    tags: list[str] = Input(default=["a"]),
    mask: Optional[Path] = Input(default=None, description="What to keep."),
    plain: float = 0.5,
) -> Output: ...
"""


def test_made_schema_has_choices_bounds_defaults_secrets_and_optional_inputs(tmp_path: Path) -> None:
    folder = find_folder(folder_with(tmp_path, predict_py=ALL_KINDS), str(HERE))
    document = json.loads(make_schema(folder))
    schemas = document["components"]["schemas"]
    shown = schemas["Input"]["properties"]
    assert schemas["Input"]["required"] == ["key", "steps"]
    assert (shown["key"]["x-cog-secret"], shown["key"]["format"]) == (True, "password")
    assert shown["mode"] == {"allOf": [{"$ref": "#/components/schemas/mode"}], "x-order": 1, "default": "wild"}
    assert schemas["mode"]["enum"] == ["calm", "wild"]
    assert (shown["steps"]["minimum"], shown["steps"]["maximum"]) == (1, 50)
    assert shown["tags"] == {
        "title": "Tags",
        "type": "array",
        "items": {"type": "string"},
        "x-order": 3,
        "default": ["a"],
    }
    assert (shown["mask"]["nullable"], shown["mask"]["description"]) == (True, "What to keep.")
    assert shown["plain"]["default"] == 0.5
    assert schemas["Output"]["properties"]["picture"]["format"] == "uri"
    assert "x-cog-streaming" not in document["paths"]["/predictions"]["post"]


def test_model_that_cannot_be_imported_is_refused_with_its_own_error(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, predict_py="import no_such_package\ndef predict() -> str: ...")
    with pytest.raises(UpError, match=r"No module named 'no_such_package'\. Install what the model imports"):
        make_schema(find_folder(folder, str(HERE)))
