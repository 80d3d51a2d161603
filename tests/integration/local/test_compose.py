"""Test compose.yaml and the units for systemd: by their schemas, and by running what they start, without containers."""

import configparser
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from redis.asyncio import Redis

from director.cli.main import make_parser
from director.core.settings import ApiSettings, DirectorSettings, KeeperSettings
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.support.eventually import eventually
from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs/how-to"
UNITS = sorted((HOW_TO / "systemd").glob("*.service"))
OURS = ("api", "keeper", "director-hello")
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?][^}]*)?\}")
SETTING = re.compile(r"\bDIRECTOR_([A-Z_]+)\b")


def compose(**env: str) -> dict[str, Any]:
    """Return the file as Compose reads it, with these variables."""
    text = VARIABLE.sub(lambda match: env.get(match[1], ""), (ROOT / "compose.yaml").read_text())
    merged: dict[str, Any] = yaml.safe_load(text)  # with its merge keys
    return merged


def test_compose_file_follows_the_specification() -> None:
    schema = files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    jsonschema.validate(compose(), json.loads(schema))


def test_every_setting_that_the_files_name_exists() -> None:
    known = {
        name.upper() for kind in (ApiSettings, DirectorSettings, KeeperSettings) for name in kind.__struct_fields__
    }
    for path in (ROOT / "compose.yaml", HOW_TO / "docker-compose.md", HOW_TO / "systemd.md", *UNITS):
        assert set(SETTING.findall(path.read_text())) <= known, path


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_starts_a_command_that_exists(unit: Path) -> None:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read(unit)
    program, *arguments = read["Service"]["ExecStart"].split()
    assert program == "/opt/director/bin/director"
    make_parser(arguments[0]).parse_args(arguments)


@contextmanager
def process(command: list[str], env: Mapping[str, str], **options: Any) -> Iterator[None]:
    started = subprocess.Popen(command, env={**os.environ, **env}, start_new_session=True, **options)
    try:
        yield
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()


@pytest.mark.cog
@pytest.mark.faults
async def test_services_of_the_compose_file_run_a_prediction_together(
    server: RedisServer, redis: Redis, tmp_path: Path
) -> None:
    api_port, model_port, keeper_port = free_port(), free_port(), free_port()
    instead = {
        "redis://:secret@redis:6379/0": server.url,
        "http://127.0.0.1:5000": f"http://127.0.0.1:{model_port}",
        "http://api:8080": f"http://127.0.0.1:{api_port}",
        "http://127.0.0.1:8080": f"http://127.0.0.1:{api_port}",
        "/files": str(tmp_path),
        "8080": str(api_port),
        "9200": str(keeper_port),
        "5000": str(model_port),
        "0.0.0.0": "127.0.0.1",
    }
    services = compose(REDIS_PASSWORD="secret", PUBLIC_URL="http://127.0.0.1:8080")["services"]
    token = await Accounts(redis).create_token("someone")
    model = [sys.executable, "-m", "cog.server.http"]
    with ExitStack() as running:
        env = {**services["hello"]["environment"], "COG_PREDICT_TYPE_STUB": "predict.py:Predictor"}
        env = {name: instead.get(value, value) for name, value in env.items()}
        env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # it starts `python` by name
        running.enter_context(process(model, env, cwd=ROOT / "director/examples/hello"))
        for name in OURS:
            env = {key: instead.get(value, value) for key, value in services[name]["environment"].items()}
            running.enter_context(process([sys.executable, "-m", "director", *services[name]["command"]], env))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{api_port}", trust_env=False) as caller:

            async def output() -> Any:
                try:
                    answer = await caller.post(
                        "/v1/models/example/hello/predictions",
                        headers={"Authorization": f"Bearer {token}", "Prefer": "wait=10"},
                        json={"input": {"text": "hello", "n": 2}},
                        timeout=20,
                    )
                except httpx.TransportError:
                    return None
                return answer.json().get("output")

            await eventually(
                output, "the model answers", until=lambda said: said == ["hello 1\n", "hello 2\n"], limit_s=30
            )
