"""Run the examples in the README of the official JavaScript client unchanged, except for the names of models.

The scripts in `javascript/` cover the blocks that only show the signature of a method.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from anyio import to_thread

from tests.integration.clients.conftest import Caller
from tests.integration.clients.readme import Example, accounted_for, adapted, block_of, examples_in
from tests.integration.clients.test_javascript import SCRIPTS, env
from tests.support.clients import run_script
from tests.support.sink import Sink

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the client comes from a package registry

__all__ = ("env",)

CREATE = 'let prediction = await replicate.predictions.create({ model: "acme/painter", input: { prompt: "a cat" } });'
CALLBACK = "https://my.app/webhooks/replicate"
PHOTO = "https://replicate.delivery/pbxt/KWDkejqLfER3jrroDTUsSvBWFaHtapPxfg4xxZIqYmfh3zXm/"
PHOTO += "Screenshot%202024-02-28%20at%2022.14.00.png"

EXAMPLES = {
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
LEFT_OUT = {
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


@pytest.fixture
async def blocks(env: Mapping[str, str]) -> list[str]:
    readme = (Path(env["NODE_PATH"]) / "replicate" / "README.md").read_text()
    found = examples_in(readme, "js", "javascript")
    return [block for block in found if not block.startswith("const response = ")]


async def test_every_example_is_run_or_left_out_for_a_reason(blocks: list[str]) -> None:
    assert accounted_for(blocks, list(EXAMPLES.values()), LEFT_OUT) == []


@pytest.mark.parametrize("name", EXAMPLES)
async def test_readme_example_runs(
    blocks: list[str], env: Mapping[str, str], caller: Caller, receiver: Sink, tmp_path: Path, name: str
) -> None:
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "image.png").write_text("an image")
    example = EXAMPLES[name]
    block = adapted(
        f"{example.before}\n{block_of(example, blocks)}", caller, {**example.instead, CALLBACK: receiver.url}
    )
    given = f'require("{SCRIPTS / "given"}")'
    code = f"""
        const {{ account, client, play, replicate }} = {given};
        const Replicate = require("replicate");
        const assert = require("node:assert/strict");
        play(async () => {{
        {{
        {block}
        assert.ok({example.holds});
        }}
        }});
    """
    assert await to_thread.run_sync(lambda: run_script(["node", "-e", code], env=env, cwd=tmp_path)) is True
    if receiver.url in code:
        await receiver.arrived(1)
