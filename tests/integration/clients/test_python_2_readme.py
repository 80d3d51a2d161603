"""Run the examples in the README of the official Python client 2.0.0b4 unchanged, except for the names of models."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from anyio import to_thread

from tests.integration.clients.conftest import Caller
from tests.integration.clients.readme import Example, accounted_for, adapted, block_of, examples_in
from tests.integration.clients.test_python_1_readme import PLAY
from tests.integration.clients.test_python_2 import env
from tests.support.clients import run_script

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the client comes from a package registry

__all__ = ("env",)

EXAMPLES = {
    "usage": Example(
        has='veo = replicate.use("google/veo-3-fast")',
        instead={"google/veo-3-fast": "acme/sketcher", "image_input=": "image=", "open(video)": "open(video).close()"},
        holds="open(video, 'rb').read() == b'About bananas wearing cowboy hats.0'",
    ),
    "a client": Example(has="from replicate import Replicate\n\nclient =", holds="client.account.get().username"),
    "use": Example(has='aspect_ratio="1:1"', holds="len(outputs) == 2"),
    "use of a language model": Example(has="print(chunk, end", holds="chunk == '.'"),
    "a chain": Example(has="# Describe the image", holds="description == 'About Describe this image in detail.'"),
    "use, asynchronously": Example(has="use_async=True", holds="True"),
    "urls": Example(has="import get_path_url", holds="url.startswith('https://')"),
    "not waiting": Example(has="run = claude.create(", holds="result == 'About Explain quantum computing.'"),
    "run": Example(has='"black-forest-labs/flux-schnell", input', holds="len(output) == 2"),
    "a failure": Example(has="except ModelError as e:", holds="output.startswith('An astronaut')"),
    "file inputs": Example(
        has='open("path/to/image.jpg", "rb")',
        instead={"https://example.com/image.jpg": "data:text/plain;base64,YSBjYXQ="},
        holds="output == 'an image'",
    ),
    "streaming": Example(
        has="Please write a haiku about streaming Python.",
        instead={'input={"prompt": ': "prompt=", '"}):': '"):'},  # otherwise the client would send an input named input
        holds="str(event) == '.'",
    ),
    "asynchronously": Example(
        has='bearer_token=os.environ.get("REPLICATE_API_TOKEN"),  # This is the default',
        before="import replicate as r\nmade = r.Replicate().predictions.create(version='acme/captioner', input={})",
        instead={'"gm3qorzdhgbfurvjtvhg6dckhu"': "made.id"},
        holds="True",
    ),
    "models": Example(has="for model in replicate.models.list():\n    # Do something", holds="len(all_models) > 4"),
    "models, asynchronously": Example(has="async for model in replicate.models.list()", holds="True"),
    "upload": Example(
        has='content=Path("/path/to/file")', instead={"/path/to/file": "path/to/image.jpg"}, holds="True"
    ),
    "errors": Example(has="except replicate.RateLimitError as e:", holds="True"),
    "retries": Example(has="max_retries=5", holds="True"),
    "timeouts": Example(has="httpx.Timeout(60.0", before="import httpx", holds="True"),
    "raw": Example(has="response = replicate.predictions.with_raw_response.create(", holds="prediction.id"),
    "raw and streamed": Example(has="with replicate.predictions.with_streaming_response", holds="'\"id\"' in line"),
    "closing": Example(has="with Replicate() as replicate:", holds="True"),
    "its version": Example(has="print(replicate.__version__)", holds="True"),
}
LEFT_OUT = {
    "# Wait up to 30 seconds": "is dots",
    "DefaultAioHttpClient": "needs aiohttp",
    "first_page = await replicate.models.list()\nif": "has no client: the two before it have",
    'print(f"next URL: {first_page.next}")': "has no client: the two before it have",
    "if response.my_field is None:": "has no response",
    '"/foo",': "asks for a path without a server",
    "http://my.test.server.example.com:8083": "needs a proxy",
    "DefaultHttpxClient(...)": "is dots",
}


@pytest.fixture
async def readme(env: Mapping[str, str]) -> str:
    return next(Path(env["PYTHONPATH"]).glob("replicate-2*.dist-info/METADATA")).read_text()


async def test_every_example_is_run_or_left_out_for_a_reason(readme: str) -> None:
    assert accounted_for(examples_in(readme, "python", "py"), list(EXAMPLES.values()), LEFT_OUT) == []


@pytest.mark.parametrize("name", EXAMPLES)
async def test_readme_example_runs(
    readme: str, env: Mapping[str, str], caller: Caller, tmp_path: Path, name: str
) -> None:
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "image.jpg").write_text("an image")
    example = EXAMPLES[name]
    block = block_of(example, examples_in(readme, "python", "py"))
    code = adapted(f"import replicate\n{example.before}\n{block}", caller, example.instead)
    command = [sys.executable, "-c", PLAY, code, example.holds]
    assert await to_thread.run_sync(lambda: run_script(command, env=env, cwd=tmp_path)) is True, code
