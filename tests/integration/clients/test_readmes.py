"""Run the examples in the READMEs of official clients unchanged, except for the names of models and files.

An example that cannot run is left out by name and with a reason, so that none is forgotten. The scripts of
`test_scripts.py` cover the JavaScript blocks that only show the signature of a method.
"""

import importlib.metadata
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from anyio import to_thread
from msgspec import Struct

from tests.integration.clients.conftest import Caller
from tests.support.clients import run_script
from tests.support.models import CAPTIONER, DREAMER, PAINTER, SKETCHER, TRAINER, WRITER
from tests.support.sink import Sink

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the clients come from package registries

BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
VERSION: Final = r"[0-9a-f]{64}"

# our model → the models of the examples for which it stands
OURS: Final = (
    (
        PAINTER,
        "acmecorp/acme-model ai-forever/kandinsky-2.2 black-forest-labs/flux-dev black-forest-labs/flux-schnell "
        "bytedance/seedream-4 nightmareai/real-esrgan stability-ai/sdxl stability-ai/stable-diffusion",
    ),
    (SKETCHER, "afiaka87/laionide-v4 jingyunliang/swinir kvfrans/clipdraw"),
    (CAPTIONER, "andreasjansson/blip-2 replicate/hello-world stability-ai/stable-diffusion-3"),
    (WRITER, "anthropic/claude-4.5-sonnet meta/llama-2-70b-chat meta/meta-llama-3-70b-instruct"),
    (DREAMER, "pixray/text2image"),
)
STANDS_FOR: Final = {name: model for model, names in OURS for name in names.split()}


class Example(Struct, frozen=True, kw_only=True):
    """An example that can run. `has`: words that only its block has. `instead`: replacements for what the service
    lacks.
    """

    has: str
    instead: Mapping[str, str] = {}
    before: str = ""
    holds: str


def examples_in(text: str, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(text) if language in languages]


def accounted_for(blocks: Sequence[str], examples: Sequence[Example], left_out: Mapping[str, str]) -> list[str]:
    """Return the blocks that are neither an example nor left out, and the words found in no block or in two."""
    words = [*(example.has for example in examples), *left_out]
    unknown = [block for block in blocks if not any(_is_in(word, block) for word in words)]
    return unknown + [word for word in words if sum(_is_in(word, block) for block in blocks) != 1]


def _is_in(words: str, block: str) -> bool:
    return words in f"\n{block}"


def adapted(code: str, caller: Caller, instead: Mapping[str, str]) -> str:
    """Return the code with our models in place of its own. A version alone becomes that of the model beside it."""
    model = PAINTER
    for name in sorted(STANDS_FOR, key=len, reverse=True):
        ours = STANDS_FOR[name]
        code, pinned = re.subn(rf"{re.escape(name)}:{VERSION}", ours.ref, code)
        code, named = re.subn(rf"(?<=[\"']){re.escape(name)}(?=[\"'])", ours.name, code)
        if pinned or named:
            model = ours
    code = re.sub(rf"(?<=[\"']){VERSION}(?=[\"'])", model.version, code)
    for theirs, told in instead.items():
        code = code.replace(theirs, told)
    return code.replace("your-username", caller.account)


ASTRONAUT = "astronaut riding a rocket like a horse"
RUN = f'output = replicate.run("{PAINTER.name}", input={{"prompt": "pattern"}})'
CREATE_DESTINATION = """
replicate.models.create(owner="your-username", name="model-name", visibility="private", hardware="cpu")
"""
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

PYTHON_1 = {
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
NOT_PYTHON_1 = {
    "swinir = replicate": "calls Version.predict, which this client no longer has",
    "except ModelError as e\n": "is not Python: a colon is missing",
    "async with aiofiles.open": "is not Python: `await for`",
    "@condition(etag_func=None)": "is a part of an application in Django",
    '@app.get("/")': "is a part of an application in FastAPI",
    "@app.route('/stream')": "is a part of an application in Flask",
    "const replicate = ": "is not Python: `const`",
    "from replicate.client import Client": "is not Python: a comma is missing",
}
PYTHON_2 = {
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
NOT_PYTHON_2 = {
    "# Wait up to 30 seconds": "is dots",
    "DefaultAioHttpClient": "needs aiohttp",
    "first_page = await replicate.models.list()\nif": "has no client: the two before it have",
    'print(f"next URL: {first_page.next}")': "has no client: the two before it have",
    "if response.my_field is None:": "has no response",
    '"/foo",': "asks for a path without a server",
    "http://my.test.server.example.com:8083": "needs a proxy",
    "DefaultHttpxClient(...)": "is dots",
}
CREATE = 'let prediction = await replicate.predictions.create({ model: "acme/painter", input: { prompt: "a cat" } });'
HOOKS = ("https://my.app/webhooks/replicate", "https://example.com/your-webhook")
PHOTO = "https://replicate.delivery/pbxt/KWDkejqLfER3jrroDTUsSvBWFaHtapPxfg4xxZIqYmfh3zXm/"
PHOTO += "Screenshot%202024-02-28%20at%2022.14.00.png"

JAVASCRIPT = {
    "a client": Example(has='auth: "my api token"', holds='replicate.auth === "my api token"'),
    "run": Example(has="GtQb3Sgve42ZZyVnt8xjquFk9EX5LP0fF68NTIWlgBMUpguQA", holds='output.url().protocol === "https:"'),
    "in the background": Example(has="painting of a cat by andy warhol", holds='prediction.status === "starting"'),
    "get": Example(has="\nprediction = await replicate.predictions.get(", before=CREATE, holds="prediction.id"),
    "wait": Example(has="\nprediction = await replicate.wait(", before=CREATE, holds="prediction.output.length === 2"),
    "a file": Example(has="path/to/image.png", holds='(await (await output.blob()).text()) === "an image0"'),
    "a webhook": Example(
        has="const callbackURL",
        instead={"new Replicate()": "client()", PHOTO: "data:text/plain;base64,YSBjYXQ="},
        holds="true",
    ),
    "a fetch of one's own": Example(
        has='headers["X-Custom-Header"]',
        holds="(await client({ fetch: customFetch }).accounts.current()).username === account",
    ),
    "run of a version": Example(
        has='wearing a suit" };\nconst output = await replicate.run(model, { input });', holds="output.length === 2"
    ),
    "progress": Example(has="last_log_line", holds="output.length === 2"),
    "stream": Example(
        has="in the style of Mary Oliver",
        holds='output.join("") === "About Write a poem about machine learning in the style of Mary Oliver.."',
    ),
    "paginate": Example(has="let paginator =", before=CREATE, holds="page1.value.length === 1 && page2.done"),
    "a file output": Example(
        has="// To stream the file back to a browser:",
        # each of the shown ways reads the whole stream
        instead={'fs.writeFile("my-image.png", output);': "", "return new Response(output);": ""},
        holds="output.url()",
    ),
    "no file outputs": Example(
        has="new Replicate({ useFileOutput: false })", holds="replicate.useFileOutput === false"
    ),
    "no cache": Example(
        has='cache: "no-store"',
        before="let replicate;",
        instead={"new Replicate({/*...*/})": "client();"},
        holds="(await replicate.accounts.current()).username === account",
    ),
}
NOT_JAVASCRIPT = {
    "// CommonJS (default": "is both kinds of import at once",
    "@hono/node-server": "needs hono",
    "next/server": "needs Next.js",
    "const requestData = {": "validates what is made up",
    "new Replicate(options)": "is a signature",
    'require("fetch")': "needs a package",
    "replicate.run(identifier": "is a signature",
    "replicate.stream(identifier": "is a signature",
    "new EventSource(": "is for browsers",
}
CLIENTS = {
    "python_1": (PYTHON_1, NOT_PYTHON_1),
    "python_2": (PYTHON_2, NOT_PYTHON_2),
    "javascript": (JAVASCRIPT, NOT_JAVASCRIPT),
}
EnvOf = Callable[[str], Awaitable[Mapping[str, str]]]


async def blocks_of(client: str, env_of: EnvOf) -> tuple[list[str], Mapping[str, str]]:
    """Return the examples of a client's README, and the environment that runs them."""
    if client == "python_1":
        return examples_in(str(importlib.metadata.metadata("replicate").get_payload()), "python"), os.environ
    env = await env_of(client)
    if client == "python_2":
        text = next(Path(env["PYTHONPATH"]).glob("replicate-2*.dist-info/METADATA")).read_text()
        return examples_in(text, "python", "py"), env
    found = examples_in((Path(env["NODE_PATH"]) / "replicate" / "README.md").read_text(), "js", "javascript")
    return [block for block in found if not block.startswith("const response = ")], env


@pytest.mark.parametrize("client", CLIENTS)
async def test_every_example_is_run_or_left_out_for_a_reason(env_of: EnvOf, client: str) -> None:
    examples, left_out = CLIENTS[client]
    blocks, _ = await blocks_of(client, env_of)
    assert accounted_for(blocks, list(examples.values()), left_out) == []


@pytest.mark.parametrize(("client", "name"), [(client, name) for client in CLIENTS for name in CLIENTS[client][0]])
async def test_readme_example_runs(
    env_of: EnvOf, caller: Caller, receiver: Sink, tmp_path: Path, client: str, name: str
) -> None:
    folder = tmp_path / "path" / "to"
    folder.mkdir(parents=True)
    for file, text in (("mystery.jpg", "a mystery"), ("image.jpg", "an image"), ("image.png", "an image")):
        (folder / file).write_text(text)
    example = CLIENTS[client][0][name]
    blocks, env = await blocks_of(client, env_of)
    block = next(block for block in blocks if _is_in(example.has, block))
    if client == "python_1":
        block, env = statements(block), {**env, **caller.of_python(caller.url)}
    before = "" if client == "javascript" else "import replicate\n"
    code = adapted(
        f"{before}{example.before}\n{block}", caller, {**example.instead, **dict.fromkeys(HOOKS, receiver.url)}
    )
    if client == "javascript":
        code = f"""
            const {{ account, client, play, replicate }} = require("{Path(__file__).parent / "javascript" / "given"}");
            const Replicate = require("replicate");
            const assert = require("node:assert/strict");
            play(async () => {{
            {{
            {code}
            assert.ok({example.holds});
            }}
            }});
        """
        command = ["node", "-e", code]
    else:
        command = [sys.executable, "-c", PLAY, code, example.holds]
    assert await to_thread.run_sync(lambda: run_script(command, env=env, cwd=tmp_path)) is True, code
    if receiver.url in code:
        await receiver.arrived(1)


def statements(block: str) -> str:
    """Return what was typed in a session, without the printed answers."""
    lines = block.splitlines()
    if not any(line.startswith(">>> ") for line in lines):
        return block
    typed = [line for line in lines if line.startswith((">>> ", " ", ")"))]
    return "\n".join(line.removeprefix(">>> ") for line in typed)
