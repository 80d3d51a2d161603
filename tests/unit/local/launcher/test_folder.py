"""Test what is found in the folder of a Cog model, its schema, and what is said where something is missing."""

import json
import sys
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from director.examples import EXAMPLES
from director.local.launcher.folder import SCHEMA, Folder, find_folder, keep_schema, make_schema, model_environment
from director.local.launcher.processes import UpError, mark
from tests.support.eventually import eventually

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


@pytest.fixture
def endless(tmp_path: Path) -> Folder:
    """A model whose import does not end. It writes into `started` the pid of a process that it started."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 600 &\necho $! > new\nmv new started\nwait\n")
    python.chmod(0o755)
    return find_folder(folder_with(tmp_path, predict_py="def predict(): ..."), str(python))


async def test_import_that_does_not_end_is_killed_with_all_that_it_started(
    endless: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.local.launcher.folder.SCHEMA_LIMIT_S", 0.5)
    with pytest.raises(UpError, match=r"predict\.py is not imported within 0\.5 s"):
        make_schema(endless)
    started = int((endless.path / "started").read_text())
    await eventually(lambda: mark(started) is None, "what it started has ended")


async def test_import_is_killed_with_the_task_that_waits_for_it(
    endless: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A director that is asked to end must not wait for the import of a model."""
    monkeypatch.setattr("director.local.launcher.folder.SCHEMA_LIMIT_S", 5.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, make_schema, endless)
        await eventually((endless.path / "started").exists, "it has started")
        tasks.cancel_scope.cancel()
    started = int((endless.path / "started").read_text())
    await eventually(lambda: mark(started) is None, "what it started has ended")


def test_schema_is_written_once_and_where_cog_reads_it(tmp_path: Path) -> None:
    folder = Folder(path=tmp_path, predict="predict.py:Predictor", python=HERE)
    assert keep_schema(folder, b"{}")
    assert not keep_schema(folder, b"{}")
    assert [file.name for file in (tmp_path / SCHEMA).parent.iterdir()] == [SCHEMA.name]
    assert keep_schema(folder, b"{ }")
    assert (tmp_path / SCHEMA).read_bytes() == b"{ }"


def test_python_of_another_name_gets_a_link_that_cog_finds(tmp_path: Path) -> None:
    python = without_cog(tmp_path, named="python3.13")
    path = model_environment(Folder(path=tmp_path, predict="", python=python), tmp_path / "bin")["PATH"].split(":")
    assert (Path(path[0]) / "python").readlink() == python
    assert path[1] == str(python.parent)


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


SECRETS = """
from typing import Optional
from cog import Input, Secret
def predict(
    must: Secret,
    described: Secret = Input(description="A key."),
    may: Secret = Input(default=None, description="A key."),
    positional: Secret = Input(None),
    plain: Secret = None,
    optional: Optional[Secret] = None,
    seed: int = Input(default=None),
) -> str: ...
"""


def test_secret_with_default_none_may_be_left_out_as_in_cog_build(tmp_path: Path) -> None:
    schemas = json.loads(make_schema(find_folder(folder_with(tmp_path, predict_py=SECRETS), str(HERE))))["components"]
    shown = schemas["schemas"]["Input"]
    assert shown["required"] == ["must", "described", "seed"]
    nullable = [name for name, each in shown["properties"].items() if each.get("nullable")]
    assert nullable == ["may", "positional", "plain", "optional"]


YAML = """
build:
  python_version: "3.11"
  gpu: true
  python_packages: ["torch==2.4", "pillow"]
image: r8.im/acme/painter
environment:
  - GREETING=a=b
  - PORT=1
concurrency:
  max: 4
train: train.py:train
predict: "predict.py:Predictor"  # what runs
"""


def test_cog_yaml_is_honoured_or_named_as_unused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, predict_py="class Predictor:\n  def predict(self) -> str: ...", cog_yaml=YAML)
    found = find_folder(folder, str(HERE))
    assert found.predict == "predict.py:Predictor"
    assert (found.said.environment, found.said.concurrency) == ({"GREETING": "a=b"}, 4)
    assert model_environment(found)["GREETING"] == "a=b"
    port, packages, others = found.said.notes
    assert "'PORT' is not set" in port
    assert "torch==2.4, pillow" in packages
    assert others == "Not used of cog.yaml: `build.gpu`, `train`."


def test_cog_yaml_that_cannot_be_read_still_names_what_runs(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, predict_py="def predict() -> str: ...", cog_yaml='predict: "predict.py:predict"\na: ['
    )
    found = find_folder(folder, str(HERE))
    assert found.predict == "predict.py:predict"
    assert "cannot be read" in found.said.notes[0]
