"""Test what `serve` finds in a folder, and what it says where something is missing."""

import socket
import sys
from pathlib import Path

import pytest

from director.local.home import Home
from director.local.launcher.folder import Folder
from director.local.launcher.processes import UpError, free_port
from director.local.models import (
    Model,
    Surroundings,
    label,
    plan_processes,
)
from director.local.serve import own_server

HERE = Path(sys.executable)


def test_models_of_one_short_name_have_processes_of_different_names() -> None:
    models = [Model(name=name, label="") for name in ("a/painter", "b/painter", "c/other")]
    assert [model.label for model in label(models)] == ["painter", "painter-2", "other"]


def around(tmp_path: Path) -> Surroundings:
    return Surroundings(home=Home(tmp_path), redis_url="unix:///v", files_dir="/files", webhook_allow="loopback")


def test_model_server_gets_neither_our_settings_nor_the_address_of_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIRECTOR_REDIS_URL", "redis://:hush@db")
    model = Model(name="acme/painter", label="painter", folder=Folder(path=tmp_path, predict="p.py:P", python=HERE))
    one = plan_processes(model, around(tmp_path))
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
    one = plan_processes(own_server("acme/llm", command=command), around(tmp_path))
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
        ({"http": "http://127.0.0.1:8000/paint"}, "http", '{"path":"/paint","kind":"http","openapi":"/openapi.json"}'),
        ({"http": "http://127.0.0.1:8000/up", "preset": "ray"}, "http", '{"preset":"ray","path":"/up"}'),
        ({"http": "http://127.0.0.1:8000", "preset": "litserve"}, "http", '{"preset":"litserve"}'),
        ({"http": "http://127.0.0.1:8000", "preset": "litellm"}, "openai", '{"preset":"litellm"}'),
        (
            {
                "http": "http://127.0.0.1:8000/jobs",
                "config": '{"kind":"polling","poll_endpoint_template":"/jobs/{id}"}',
            },
            "polling",
            '{"kind":"polling","poll_endpoint_template":"/jobs/{id}","path":"/jobs"}',
        ),
        ({"http": "http://127.0.0.1:8000/up", "config": '{"health":""}'}, "http", '{"health":"","path":"/up"}'),
    ],
)
def test_running_server_is_not_started_again(tmp_path: Path, given: dict[str, str], runner: str, config: str) -> None:
    one = plan_processes(own_server("acme/llm", **given), around(tmp_path))
    assert one.server is None
    assert one.director.env["DIRECTOR_SERVERS"] == "http://127.0.0.1:8000"
    assert (one.director.env["DIRECTOR_RUNNER"], one.director.env["DIRECTOR_RUNNER_CONFIG"]) == (runner, config)


def test_runner_config_in_a_file_is_read_where_the_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counter.toml").write_text('path = "/count"\n')
    monkeypatch.chdir(tmp_path)
    own = own_server("acme/counter", http="http://127.0.0.1:8000", config="counter.toml")
    one = plan_processes(own, around(tmp_path))
    assert one.director.env["DIRECTOR_RUNNER_CONFIG"] == '{"path":"/count"}'


@pytest.mark.parametrize("given", [{"http": "http://127.0.0.1:{free}/up"}, {"openai": "http://localhost:{free}/v1"}])
def test_command_listens_at_the_port_of_the_url(tmp_path: Path, given: dict[str, str]) -> None:
    port = free_port()
    [(kind, url)] = given.items()
    address = url.replace("{free}", str(port))
    one = plan_processes(own_server("acme/m", **{kind: address}, command=f"{HERE} --port {{port}}"), around(tmp_path))
    assert one.server is not None
    assert (one.server.command[-1], one.server.env["PORT"]) == (str(port), str(port))
    assert one.director.env["DIRECTOR_SERVERS"] == address.rpartition("/")[0]


@pytest.mark.parametrize("http", ["/up", "http://127.0.0.1/up", "http://127.0.0.1:{port}/up"])
def test_command_without_a_port_in_the_url_gets_a_free_one(tmp_path: Path, http: str) -> None:
    one = plan_processes(own_server("acme/m", http=http, command=f"{HERE} --port {{port}}"), around(tmp_path))
    assert one.server is not None
    assert one.director.env["DIRECTOR_SERVERS"] == f"http://127.0.0.1:{one.server.env['PORT']}"
    assert '"path":"/up"' in one.director.env["DIRECTOR_RUNNER_CONFIG"]


@pytest.mark.parametrize(
    ("given", "runner"),
    [
        ({"preset": "litserve"}, "http"),
        ({"config": '{"kind":"polling","path":"/jobs","poll_endpoint_template":"/jobs/{id}"}'}, "polling"),
        ({"preset": "litellm"}, "openai"),
    ],
)
def test_command_may_start_a_server_of_any_kind(tmp_path: Path, given: dict[str, str], runner: str) -> None:
    one = plan_processes(own_server("acme/m", command=f"{HERE} {{port}}", **given), around(tmp_path))
    assert one.director.env["DIRECTOR_RUNNER"] == runner


def test_command_for_a_port_where_something_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UpError, match="something listens there"):
        own_server("acme/m", http=f"http://127.0.0.1:{taken.getsockname()[1]}/up", command=f"{HERE} {{port}}")


@pytest.mark.parametrize("given", [{"openai": "127.0.0.1:8000"}, {"http": "http://127.0.0.1:8000"}])
def test_address_that_cannot_be_used_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UpError, match="http://"):
        own_server("acme/llm", **given)
