"""Find the Cog model in a folder, make its schema, and say how its server is started. The model runs in a Python of its
own, which has Cog and what the model imports.
"""

import ast
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from anyio import from_thread
from msgspec import Struct

from director.examples import EXAMPLES
from director.local.launcher import child
from director.local.launcher.cog_yaml import CogYaml, read_cog_yaml
from director.local.launcher.launch import LOOPBACK, server_environment
from director.local.launcher.processes import UpError, signal_group

# Cog takes this address as an argument only, and any user of the machine can read arguments. So it comes in a variable.
COG: Final = (
    "import os, runpy, sys; url = os.environ.pop('COG_UPLOAD_URL', ''); sys.argv += ['--upload-url', url] * bool(url); "
    "runpy.run_module('cog.server.http', run_name='__main__', alter_sys=True)"
)
DESCRIBE: Final = Path(__file__).parent / "describe.py"
# As `cog build` made it: only input, output and the mark of streaming differ between two models
FRAME: Final = EXAMPLES["example/hello"].schema_file
SCHEMA: Final = Path(".cog") / "openapi_schema.json"
CLASSES: Final = ("Predictor", "Runner")
MOST_FILES: Final = 5_000
SCHEMA_LIMIT_S: Final = 600.0  # an import of large packages from a slow disk takes minutes
LOOK_S: Final = 0.1
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "venv"})
SOURCES: Final = (".py", ".yaml", ".json")
RUNS: Final = ("predict", "run")


class Folder(Struct, frozen=True, kw_only=True):
    """A folder with a Cog model. `predict`: the file and the class or function in it. `python`: what runs it. `said`:
    its cog.yaml.
    """

    path: Path
    predict: str
    python: Path
    said: CogYaml = CogYaml()


def find_folder(path: Path, python: str = "") -> Folder:
    """Return the Cog model in a folder. Raises UpError with the next step."""
    if not path.is_dir():
        raise UpError(f"{path} is not a folder. Give the folder that has the model's predict.py or cog.yaml.")
    path = path.absolute()
    found = _python_of(path, python)
    said = read_cog_yaml(path, found)
    return Folder(path=path, predict=_predict_of(path, said.predict), python=found, said=said)


def _predict_of(folder: Path, named: str) -> str:
    """Return what `cog.yaml` names, else the class or function that runs in `predict.py` or `run.py`."""
    if named:
        file, _, name = named.partition(":")
        if not (folder / file).is_file():
            raise UpError(f"{folder / 'cog.yaml'} names {named}, and there is no {folder / file}.")
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
    file. Raises UpError if that Python has no Cog or cannot be started, or if the file cannot be imported in time.
    A caller in a worker thread may be cancelled: the import is killed then.
    """
    # Like the parts of an `up` it must not outlive us: a model's import may take minutes
    with subprocess.Popen(
        child.bind_to_parent(str(folder.python), str(DESCRIBE), folder.predict),
        cwd=folder.path,
        env=model_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        try:
            output, errors = _outputs(process)
        except BaseException as exc:  # Ctrl-C does not reach a group of its own
            signal_group(process.pid, signal.SIGKILL)
            if not isinstance(exc, subprocess.TimeoutExpired):
                raise
            file = folder.path / folder.predict.partition(":")[0]
            raise UpError(
                f"{file} is not imported within {SCHEMA_LIMIT_S:g} s. Move what takes long from there into `setup`."
            ) from None
    last = output.decode(errors="replace").rstrip().rpartition("\n")[2]
    try:
        facts = json.loads(last)
    except ValueError:
        end = errors.decode(errors="replace").strip().rpartition("\n")[2]
        why = end or f"it ended with exit code {process.returncode}"
        raise UpError(f"{folder.path / folder.predict.partition(':')[0]} cannot be imported: {why}") from None
    if "missing" in facts:
        raise UpError(_without_cog(folder, str(facts["missing"])))
    if "error" in facts:
        error = str(facts["error"])
        hint = ". Install what the model imports into that Python, or name another one with --python."
        what = f"{folder.path}: {folder.predict} cannot be served by {folder.python}: {error}"
        raise UpError(what + hint if error.startswith("ModuleNotFoundError") else what)
    return _document(facts)


def _outputs(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what it wrote to stdout and stderr, once it has ended. Raises TimeoutExpired, and in a worker thread the
    cancellation of the task that waits for it.
    """
    give_up = time.monotonic() + SCHEMA_LIMIT_S
    while True:
        try:
            return process.communicate(timeout=LOOK_S)
        except subprocess.TimeoutExpired:
            with suppress(RuntimeError):  # this is no worker thread
                from_thread.check_cancelled()
            if time.monotonic() >= give_up:
                raise


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


def has_schema(folder: Folder) -> bool:
    """Return whether the schema is as new as the model's code."""
    try:
        made_ns = (folder.path / SCHEMA).stat().st_mtime_ns
    except FileNotFoundError:
        return False
    return all(changed_ns <= made_ns for _, changed_ns, _ in fingerprint(folder.path))


def fingerprint(folder: Path) -> list[tuple[str, int, int]]:
    """Return path, time and size of the files that a model's code is made of. Its weights may be many and large."""
    return list(islice(_sources(folder), MOST_FILES))


def _sources(folder: Path) -> Iterator[tuple[str, int, int]]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(files):
            if name.endswith(SOURCES):
                file = Path(place, name)
                with suppress(OSError):  # gone since
                    found = file.stat()
                    yield str(file), found.st_mtime_ns, found.st_size


def cog_command(folder: Folder) -> Sequence[str]:
    """Return the command of a Cog server. Its port is `PORT` of its environment."""
    return [str(folder.python), "-c", COG, "--host", LOOPBACK]


def model_environment(folder: Folder, links: Path | None = None) -> Mapping[str, str]:
    """Return the environment of a Cog server. Cog starts its worker as `python` from PATH, so the folder of the model's
    Python comes first there. Where it has no `python` (a system's may have only `python3`), one is made in `links`.
    """
    places = [str(folder.python.parent), os.environ.get("PATH", os.defpath)]
    if links is not None and not (folder.python.parent / "python").exists():
        link = links / folder.python.name / "python"
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.python)
        places.insert(0, str(link.parent))
    # the folder stays as it is, but for its schema
    return {**server_environment(), **folder.said.environment} | {
        "PATH": os.pathsep.join(places),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
