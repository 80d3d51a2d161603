"""Run the examples of batches with OpenAI's clients, unmodified."""

import json
import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from tests.integration.batches.test_storm import Storm
from tests.support import batches
from tests.support.clients import javascript_client, python_with

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the clients come from package registries
SCRIPTS = Path(__file__).parent / "batches"
NAMES = [f"request-{n}" for n in range(1, 6)]


@pytest.mark.parametrize("language", ["python", "node"])
async def test_example_of_the_guide_runs(language: str, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "batchinput.jsonl").write_bytes(batches.lines(NAMES))
    if language == "python":
        python = await to_thread.run_sync(partial(python_with, cache, "openai==2.54.0"))
        command, env = [str(python), str(SCRIPTS / "batch.py")], dict(os.environ)
    else:
        env = dict(os.environ) | await to_thread.run_sync(partial(javascript_client, cache, "openai@6.49.0"))
        command = ["node", str(SCRIPTS / "batch.mjs")]
    async with AsyncExitStack() as up:
        storm = Storm(up, tmp_path / "files")
        await storm.start()
        env |= {"OPENAI_BASE_URL": f"{storm.api.url}/openai/v1", "OPENAI_API_KEY": storm.token}
        ended = await anyio.run_process(command, env=env, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert json.loads(ended.stdout) == {
        "status": "completed",
        "counts": [5, 5, 0],
        "metadata": {"description": "nightly eval job"},
        "lines": NAMES,
        "listed": True,
        "canceled": "completed",
        "files": ["batch_output"],
    }
