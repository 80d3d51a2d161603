"""Describe the models that run on this machine and the two processes of each: its model server, and the director beside
it. `up` and `serve` start their models with this, the examples too.
"""

import ast
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from director.core.ids import MODEL_NAME, version_id
from director.core.settings import PREFIX
from director.examples import EXAMPLES, Example
from director.local import child
from director.local.home import Home
from director.local.processes import UpError, free_port
from director.local.supervisor import Part

LOOPBACK: Final = "127.0.0.1"
COGLET_DIR: Final = "/tmp/coglet/predictions"  # noqa: S108 - coglet's own, whatever TMPDIR says
DRAIN_S: Final = 10
HAND_BACK_S: Final = 13.0  # the user who pressed Ctrl-C watches: do not wait for a long run
# Cog takes this address as an argument only, and any user of the machine can read arguments. So it comes in a variable.
COG: Final = (
    "import os, runpy, sys; sys.argv += ['--upload-url', os.environ.pop('COG_UPLOAD_URL')]; "
    "runpy.run_module('cog.server.http', run_name='__main__', alter_sys=True)"
)
DESCRIBE: Final = Path(__file__).parent / "describe.py"
# As `cog build` made it: only input, output and the mark of streaming differ between two models
FRAME: Final = EXAMPLES["example/hello"].schema_file
SCHEMA: Final = Path(".cog") / "openapi_schema.json"
NAMED_IN_YAML: Final = re.compile(r"""^(?:predict|run):\s*["']?([^"'#\s]+)""", re.MULTILINE)
CLASSES: Final = ("Predictor", "Runner")
RUNS: Final = ("predict", "run")
PORT: Final = "{port}"


class Folder(Struct, frozen=True, kw_only=True):
    """A folder with a Cog model. `predict`: the file and the class or function in it. `python`: what runs it."""

    path: Path
    predict: str
    python: Path


class Model(Struct, frozen=True, kw_only=True):
    """A model to serve on this machine: a folder for Cog, a command that starts a server, or a server that runs already
    at `url`. `version` is empty for own models: their director makes it from the schema.
    """

    name: str
    label: str  # the end of the names of its processes and logs
    folder: Folder | None = None
    command: str = ""
    url: str = ""
    runner: str = "cog"
    runner_config: str = ""
    concurrency: int = 1
    version: str = ""

    @property
    def is_example(self) -> bool:
        return self.name in EXAMPLES


class Served(Struct, frozen=True, kw_only=True):
    """The processes of one model. `server` is None for a server that runs already."""

    model: Model
    url: str
    ready_url: str
    server: Part | None
    director: Part


class Surroundings(Struct, frozen=True, kw_only=True):
    """The service that a director works for: `up` is the one that it started, or the one that runs already."""

    home: Home
    redis_url: str
    files_dir: str
    webhook_allow: str


def examples() -> list[Model]:
    return [_example(each) for each in EXAMPLES.values()]


def _example(example: Example) -> Model:
    return Model(
        name=example.name,
        label=example.name.rpartition("/")[2],
        folder=Folder(path=example.folder, predict=example.predict, python=Path(sys.executable)),
        version=version_id(example.name, example.schema_file.read_bytes(), example.predictor_file.read_bytes()),
    )


def checked_name(name: str) -> str:
    if not re.fullmatch(MODEL_NAME, name):
        raise UpError(f"{name} is not the name of a model: give owner/name in lower case, such as acme/painter.")
    return name


def labelled(models: Sequence[Model]) -> list[Model]:
    """Give each model a label of its own: the part after the slash, with a number where that is taken."""
    taken: set[str] = set()
    named = []
    for model in models:
        short = model.name.rpartition("/")[2]
        label = next(each for each in (short, *(f"{short}-{n}" for n in range(2, 1000))) if each not in taken)
        taken.add(label)
        named.append(replace(model, label=label))
    return named


def find_folder(path: Path, python: str = "") -> Folder:
    """Return the Cog model in a folder. Raises UpError with the next step."""
    if not path.is_dir():
        raise UpError(f"{path} is not a folder. Give the folder that has the model's predict.py or cog.yaml.")
    path = path.absolute()
    return Folder(path=path, predict=_predict_of(path), python=_python_of(path, python))


def _predict_of(folder: Path) -> str:
    """Return what `cog.yaml` names, else the class or function that runs in `predict.py` or `run.py`."""
    yaml = folder / "cog.yaml"
    if yaml.is_file() and (named := NAMED_IN_YAML.search(yaml.read_text(errors="replace"))):
        file, _, name = named[1].partition(":")
        if not (folder / file).is_file():
            raise UpError(f"{yaml} names {named[1]}, and there is no {folder / file}.")
        return f"{file}:{name or _runner_in(folder / file)}"
    for file in ("predict.py", "run.py"):
        if (folder / file).is_file():
            return f"{file}:{_runner_in(folder / file)}"
    raise UpError(
        f'{folder} has no predict.py, and no cog.yaml with a line `predict: "file.py:Predictor"`. '
        "Give the folder of a Cog model. For other servers see --openai, --http and --command."
    )


def _runner_in(file: Path) -> str:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return CLASSES[0]  # the model's own Python says what is wrong, or knows this syntax
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    that_run = [name for name, node in classes.items() if any(_is_run(each) for each in node.body)]
    found = [*(name for name in CLASSES if name in classes), *that_run, *(name for name in RUNS if name in functions)]
    if not found:
        raise UpError(f"{file} has no class with a method `predict`, nor a function of that name.")
    return found[0]


def _is_run(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in RUNS


def _python_of(folder: Path, wanted: str) -> Path:
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise UpError(f"There is no Python at {wanted}. Give the path of the one that has the model's packages.")
        return Path(found).absolute()
    own = folder / ".venv" / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def make_schema(folder: Folder) -> bytes:
    """Return the OpenAPI document of a model, made by Cog's inspector in the model's own Python. It imports the model's
    file. Raises UpError if that Python has no Cog or cannot be started, or if the file cannot be imported.
    """
    # Like the parts of an `up` it must not outlive us: a model's import may take minutes
    said = subprocess.run(
        child.bound(str(folder.python), str(DESCRIBE), folder.predict),
        cwd=folder.path,
        env=model_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    last = said.stdout.decode(errors="replace").rstrip().rpartition("\n")[2]
    try:
        facts = json.loads(last)
    except ValueError:
        end = said.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = end or f"it ended with exit code {said.returncode}"
        raise UpError(f"{folder.path / folder.predict.partition(':')[0]} cannot be imported: {why}") from None
    if "missing" in facts:
        raise UpError(_without_cog(folder, str(facts["missing"])))
    if "error" in facts:
        error = str(facts["error"])
        hint = ". Install what the model imports into that Python, or name another one with --python."
        what = f"{folder.path}: {folder.predict} cannot be served by {folder.python}: {error}"
        raise UpError(what + hint if error.startswith("ModuleNotFoundError") else what)
    return _document(facts)


def _without_cog(folder: Folder, why: str) -> str:
    missing = f"{folder.python} has no Cog 0.23 or later ({why}), and {folder.path} needs it."
    install = f"{shlex.quote(str(folder.python))} -m pip install 'cog>=0.23'"
    if folder.python != Path(sys.executable):
        return f"{missing} Install it, and what the model imports:\n  {install}"
    # an environment that uv or pipx made for director has no pip
    own = folder.path / ".venv"
    install = f"{shlex.quote(str(own / 'bin' / 'python'))} -m pip install 'cog>=0.23'"
    make = f"{shlex.quote(sys.executable)} -m venv {shlex.quote(str(own))}"
    return (
        f"{missing} Give the model a Python of its own, which is found by itself, and install there what the model "
        f"imports, too:\n  {make}\n  {install}"
    )


def _document(facts: Mapping[str, Any]) -> bytes:
    document = json.loads(FRAME.read_bytes())
    schemas = document["components"]["schemas"]
    schemas |= {"Input": facts["input"], "Output": facts["output"], **facts["enums"]}
    document["paths"]["/predictions"]["post"].pop("x-cog-streaming", None)
    if facts["streams"]:
        document["paths"]["/predictions"]["post"]["x-cog-streaming"] = True
    return json.dumps(document, indent=2).encode() + b"\n"


def keep_schema(folder: Folder, document: bytes) -> bool:
    """Write the schema where Cog's server reads it, as `cog build` does. Return whether it differs from before.
    Raises UpError if the folder cannot be written.
    """
    file = folder.path / SCHEMA
    try:
        if file.is_file() and file.read_bytes() == document:
            return False
        file.parent.mkdir(exist_ok=True)
        new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        new.write_bytes(document)
        new.replace(file)
    except OSError as exc:
        raise UpError(
            f"{file} cannot be written ({exc.strerror}). Cog's server reads the model's schema there."
        ) from exc
    return True


def served(model: Model, around: Surroundings) -> Served:
    """Return the processes of a model. Each call takes new ports."""
    health_port, upload_secret = free_port(), secrets.token_urlsafe(24)
    url, server = _server(
        model, upload_url=f"http://{LOOPBACK}:{health_port}/uploads/{upload_secret}/", home=around.home
    )
    own = {"model": model.name, "servers": url, "concurrent_predictions": str(model.concurrency)}
    if model.runner != "cog":
        own |= {"runner": model.runner, "runner_config": model.runner_config}
    # The user wants this model to be asked, also if its schema is an older one again
    own |= {"version": model.version} if model.version else {"latest": "true"}
    return Served(
        model=model,
        url=url,
        ready_url=f"http://{LOOPBACK}:{health_port}/readyz",
        server=server,
        director=ours(
            around,
            f"director-{model.label}",
            [*python_of_ours("director"), "run"],
            grace_s=DRAIN_S + HAND_BACK_S,
            drain_s=str(DRAIN_S),
            health_host=LOOPBACK,
            health_port=str(health_port),
            upload_secret=upload_secret,
            coglet_dir=COGLET_DIR,
            **own,
        ),
    )


def _server(model: Model, *, upload_url: str, home: Home) -> tuple[str, Part | None]:
    name = f"model-{model.label}"
    if model.folder is not None:
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"
        env = {
            "PORT": str(port),
            "COG_PREDICT_TYPE_STUB": model.folder.predict,
            "COG_MAX_CONCURRENCY": str(model.concurrency),
            "COG_UPLOAD_URL": upload_url,
        }
        # SIGTERM is for the director; the server ends after it, when asked by HTTP
        options = ("--host", LOOPBACK, "--await-explicit-shutdown=true")
        return url, Part(
            name=name,
            command=[str(model.folder.python), "-c", COG, *options],
            env=dict(model_environment(model.folder, home)) | env,
            cwd=model.folder.path,
            shutdown_url=f"{url}/shutdown",
        )
    if not model.command:
        return model.url, None
    port = free_port()
    url = model.url or f"http://{LOOPBACK}:{port}"
    command = [word.replace(PORT, str(port)) for word in shlex.split(model.command)]
    return url, Part(name=name, command=command, env=_theirs() | {"PORT": str(port)}, cwd=Path.cwd())


def python_of_ours(module: str) -> Sequence[str]:
    # -P: never import from the folder that the command is called in, which may contain an `api` of its own
    return [sys.executable, "-P", "-m", module]


def ours(around: Surroundings, name: str, command: Sequence[str], *, grace_s: float = 10.0, **settings: str) -> Part:
    settings |= {"redis_url": around.redis_url, "files_dir": around.files_dir, "webhook_allow": around.webhook_allow}
    env = {PREFIX + setting.upper(): value for setting, value in settings.items()}
    return Part(name=name, command=command, env=dict(os.environ) | env, cwd=around.home.path, grace_s=grace_s)


def _theirs() -> dict[str, str]:
    # a model sees neither our settings nor the address of Redis
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def model_environment(folder: Folder, home: Home | None = None) -> Mapping[str, str]:
    """Return the environment of a Cog server. Cog starts its worker as `python` from PATH, so the folder of the model's
    Python comes first there. Where it has no `python` (a system's may have only `python3`), a link in the home has.
    """
    places = [str(folder.python.parent), os.environ.get("PATH", os.defpath)]
    if home is not None and not (folder.python.parent / "python").exists():
        link = home.path / "bin" / folder.python.name / "python"
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.python)
        places.insert(0, str(link.parent))
    # the folder stays as it is, but for its schema
    return _theirs() | {"PATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
