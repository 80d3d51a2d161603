"""Test that generators of typed clients take the whole OpenAPI document, with every route and answer."""

import os
import subprocess
from pathlib import Path

import pytest

from api.app import ROUTES
from api.web.openapi import encode_document
from tests.support.clients import javascript_client, javascript_package, python_with

pytestmark = pytest.mark.heavy

PYTHON = "openapi-python-client==0.29.1"
TYPES = "openapi-typescript@7.13.0"
COMPILER = "typescript@5.9.3"
LIMIT_S = 240
USE = """
import type { paths, components } from "./types";
type Batch = paths["/predictions/batch"]["post"]["requestBody"]["content"]["application/json"];
const batch: Batch = { predictions: [{ version: "acme/painter", input: { prompt: "a" } }] };
const file = {} as paths["/outputs/{name}"]["get"]["responses"]["200"]["content"]["application/octet-stream"];
const prediction = {} as components["schemas"]["Prediction"];
console.log(batch.predictions[0]?.version, file.length, prediction.id);
"""


@pytest.fixture
def cache(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    kept = getattr(pytestconfig, "cache", None)
    return tmp_path if kept is None else Path(kept.mkdir("clients"))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "openapi.json"
    file.write_bytes(encode_document("http://127.0.0.1:8080", ROUTES))
    return file


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_python_generator_makes_every_route_with_its_answers(cache: Path, document: Path, tmp_path: Path) -> None:
    python = python_with(cache, PYTHON, "ruff")
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    program = str(python.parent / "openapi-python-client")
    made = tmp_path / "made"
    said = run(
        *(program, "generate", "--path", str(document), "--output-path", str(made), "--fail-on-warning"),
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )
    assert "warning" not in said.lower(), said
    names = {file.stem for file in made.glob("*/api/**/*.py")}
    assert {"predictions_batch", "outputs_get", "files_download"} <= names
    assert (made / "director_client" / "models" / "batch_request.py").exists()


def test_typescript_of_the_document_compiles_strictly(cache: Path, document: Path, tmp_path: Path) -> None:
    env = dict(javascript_client(cache))
    generator, compiler = (javascript_package(cache, package) / ".bin" for package in (TYPES, COMPILER))
    run(str(generator / "openapi-typescript"), str(document), "-o", str(tmp_path / "types.ts"), cwd=tmp_path, env=env)
    (tmp_path / "use.ts").write_text(USE)
    run(str(compiler / "tsc"), "--strict", "--noEmit", "types.ts", "use.ts", cwd=tmp_path, env=env)
