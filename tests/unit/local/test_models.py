"""Test what `serve` finds in a folder, and what it says where something is missing."""

import sys
from pathlib import Path

import pytest

from director.launcher.folder import Folder
from director.launcher.processes import UpError
from director.local.home import Home
from director.local.models import (
    Model,
    Surroundings,
    labelled,
    served,
)
from director.local.serve import own_server

HERE = Path(sys.executable)


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
