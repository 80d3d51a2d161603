"""Run the examples in the README of the official Python client 1.0.7 unchanged, except for the names of models."""

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from tests.integration.clients.conftest import Caller
from tests.integration.clients.readme import Example, accounted_for, adapted, block_of, examples_in
from tests.support.clients import run_script
from tests.support.models import PAINTER, TRAINER
from tests.support.sink import Sink

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]

ASTRONAUT = "astronaut riding a rocket like a horse"
RUN = f'output = replicate.run("{PAINTER.name}", input={{"prompt": "pattern"}})'
CREATE_DESTINATION = """
replicate.models.create(owner="your-username", name="model-name", visibility="private", hardware="cpu")
"""
README = str(importlib.metadata.metadata("replicate").get_payload())
BLOCKS = examples_in(README, "python")
# Evaluate an expression after the code, which may await, as in a notebook
PLAY = """
import ast, asyncio, sys

code, wanted = sys.argv[1:]
names = {}
running = eval(compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
if running is not None:
    asyncio.run(running)
print("\\ntrue" if eval(wanted, names) else "\\nfalse")
"""

EXAMPLES = {
    "opting out of file output": Example(
        has='output = replicate.run("acmecorp/acme-model", use_file_output=False)',
        holds="output[0].startswith('https://')",
    ),
    "run a model": Example(
        has=">>> for index, output in enumerate(outputs):",
        holds=f"[open(f'output_{{n}}.webp').read() for n in range(2)] == [{ASTRONAUT + '0'!r}, {ASTRONAUT + '1'!r}]",
    ),
    "asyncio": Example(has="asyncio.TaskGroup()", holds="len(results) == 4"),
    "an open file": Example(
        has="path/to/mystery.jpg",
        instead={'mystery.jpg")': 'mystery.jpg", "rb")'},  # the client itself refuses it as text
        holds="output == 'a mystery'",
    ),
    "stream": Example(has="for event in replicate.stream(", holds="event.event.value == 'done'"),
    "stream of a prediction": Example(has="    stream=True,", holds="event.event.value == 'done'"),
    "in the background": Example(
        has=">>> print(prediction.logs)",
        # the output of a prediction, unlike that of run(), has always been text
        instead={"prediction.output.read()": "prediction.output.encode()"},
        holds="prediction.status == 'succeeded' and open('output.png').read().startswith('https://')",
    ),
    "a webhook": Example(has='webhook="https://example.com/your-webhook"', holds="prediction.status == 'starting'"),
    "output while it runs": Example(
        has="iterator = replicate.run(", holds="open('file_1.png').read() == 'san francisco sunset'"
    ),
    "cancel": Example(
        has=">>> prediction.cancel()", holds="prediction.wait() or prediction.status in ('canceled', 'succeeded')"
    ),
    "list": Example(has="# [<Prediction: 8b0ba5ab4d85>", before=RUN, holds="len(replicate.predictions.list()) == 1"),
    "pages": Example(has="page2 = replicate.predictions.list", before=RUN, holds="len(page1) == 1 and not page1.next"),
    "load output files": Example(
        has="background = Image.open(output[0])",
        instead={"Image.open(output[0])": "output[0].read()"},  # our model's output is no picture
        holds="background == open('my_output.png', 'rb').read()",
    ),
    "the url of a file": Example(
        has="print(output.url)", before=f"{RUN}[0]", holds="output.url.startswith('https://')"
    ),
    "a file read": Example(
        has="with open('output.bin', 'wb')", before=f"{RUN}[0]", holds="open('output.bin').read() == 'pattern0'"
    ),
    "a file in chunks": Example(
        has="with open(file_path, 'wb')",
        before=f"file_path = 'large'\n{RUN}[0]",
        holds="open('large').read() == 'pattern0'",
    ),
    "models": Example(has="\nreplicate.models.list()\n", holds="True"),
    "pages of models": Example(
        has="# Automatic pagination", holds=f"{PAINTER.name!r} in [f'{{m.owner}}/{{m.name}}' for m in models]"
    ),
    "collections": Example(
        has=">>> collections[0].slug", instead={"text-to-image": "best"}, holds="collections[0].slug == 'best'"
    ),
    "create a model": Example(has='hardware="gpu-a40-large"', holds="model.visibility == 'public'"),
    "hardware": Example(has="replicate.hardware.list()", holds="replicate.hardware.list()"),
    "fine-tune": Example(
        has="training = replicate.trainings.create(",
        instead={'"acme/painter"': f'"{TRAINER.name}"', PAINTER.version: TRAINER.version},
        before=CREATE_DESTINATION,
        holds="training.status == 'starting'",
    ),
}
LEFT_OUT = {
    "swinir = replicate": "calls Version.predict, which this client no longer has",
    "except ModelError as e\n": "is not Python: a colon is missing",
    "async with aiofiles.open": "is not Python: `await for`",
    "@condition(etag_func=None)": "is a part of an application in Django",
    '@app.get("/")': "is a part of an application in FastAPI",
    "@app.route('/stream')": "is a part of an application in Flask",
    "const replicate = ": "is not Python: `const`",
    "from replicate.client import Client": "is not Python: a comma is missing",
}


def test_every_example_is_run_or_left_out_for_a_reason() -> None:
    assert accounted_for(BLOCKS, list(EXAMPLES.values()), LEFT_OUT) == []


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with the files that the examples open."""
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "mystery.jpg").write_text("a mystery")
    return tmp_path


@pytest.mark.parametrize("name", EXAMPLES)
async def test_readme_example_runs(here: Path, caller: Caller, receiver: Sink, name: str) -> None:
    example = EXAMPLES[name]
    code = f"import replicate\n{example.before}\n{statements(block_of(example, BLOCKS))}"
    code = adapted(code, caller, {**example.instead, "https://example.com/your-webhook": receiver.url})
    env = {
        **os.environ,
        "REPLICATE_POLL_INTERVAL": "0.05",
        "REPLICATE_API_TOKEN": caller.token,
        "REPLICATE_BASE_URL": caller.url,
        "SSL_CERT_FILE": str(caller.authority),
    }
    command = [sys.executable, "-c", PLAY, code, example.holds]
    assert await to_thread.run_sync(lambda: run_script(command, env=env, cwd=here)) is True, code
    if receiver.url in code:
        await receiver.arrived(1)


def statements(block: str) -> str:
    """Return what was typed in a session, without the printed answers."""
    lines = block.splitlines()
    if not any(line.startswith(">>> ") for line in lines):
        return block
    typed = [line for line in lines if line.startswith((">>> ", " ", ")"))]
    return "\n".join(line.removeprefix(">>> ") for line in typed)
