"""Read what a model's cog.yaml says of how it is run, and name what is not used here. It is read by the model's own
Python, since Cog comes with a parser of YAML.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from director.local.launcher.launch import server_environment

LIMIT_S: Final = 20.0
READ: Final = (
    "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1], encoding='utf-8')), default=str))"
)
NAMED: Final = re.compile(r"""^(?:predict|run):\s*["']?([^"'#\s]+)""", re.MULTILINE)
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that Director or Cog sets itself. `cog build` refuses most of these too
RESERVED: Final = re.compile(
    r"PORT|PATH|LD_LIBRARY_PATH|PYTHONPATH|PYTHONHOME|PYTHONUNBUFFERED|VIRTUAL_ENV|(?:COG|R8|REPLICATE|DIRECTOR)_.*"
)
USED: Final = frozenset({"predict", "run", "environment", "concurrency", "image", "build"})
PACKAGES: Final = ("python_packages", "python_requirements", "system_packages")
FREE: Final = frozenset({"python_version", "cog_runtime", "sdk_version"})  # nothing is missing without them


class CogYaml(Struct, frozen=True, kw_only=True):
    """`predict`: what runs, '' if it is not named. `concurrency`: None if it is not. `notes`: what is not used, for the
    person who serves the folder.
    """

    predict: str = ""
    environment: Mapping[str, str] = {}
    concurrency: int | None = None
    notes: tuple[str, ...] = ()


def read_cog_yaml(folder: Path, python: Path) -> CogYaml:
    file = folder / "cog.yaml"
    if not file.is_file():
        return CogYaml()
    text = file.read_text(errors="replace")
    try:
        done = subprocess.run(
            [str(python), "-c", READ, str(file)],
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        errors = getattr(exc, "stderr", None) or b""
        why = errors.decode(errors="replace").strip().rpartition("\n")[2] or str(exc)
        found = NAMED.search(text)
        note = f"{file} cannot be read by {python} ({why}): of it only `predict` is used."
        return CogYaml(predict=found[1] if found else "", notes=(note,))
    return cog_yaml_of(said if isinstance(said, dict) else {}, python=python)


def cog_yaml_of(said: Mapping[str, Any], *, python: Path) -> CogYaml:
    environment, refused = _environment(said.get("environment"))
    concurrency = said.get("concurrency")
    most = concurrency.get("max") if isinstance(concurrency, dict) else None
    is_count = isinstance(most, int) and not isinstance(most, bool) and most > 0
    build = said.get("build") if isinstance(said.get("build"), dict) else {}
    notes = [
        *(f"`environment` of cog.yaml: {name!r} is not set, because Director sets it." for name in refused),
        *(
            ["`concurrency.max` of cog.yaml is no whole number from 1, and is not used."]
            if most and not is_count
            else []
        ),
        *_packages(build or {}, python),
        *_find_unused(said, build or {}),
    ]
    predict = said.get("predict") or said.get("run")
    return CogYaml(
        predict=predict if isinstance(predict, str) else "",
        environment=environment,
        concurrency=int(most) if is_count and most else None,
        notes=tuple(notes),
    )


def _environment(given: Any) -> tuple[dict[str, str], list[str]]:
    lines = (
        given if isinstance(given, list) else [f"{k}={v}" for k, v in given.items()] if isinstance(given, dict) else []
    )
    named = [str(line).partition("=") for line in lines]
    may = {name: value for name, _, value in named if VARIABLE.fullmatch(name) and not RESERVED.fullmatch(name)}
    return may, [name for name, _, _ in named if name not in may]


def _packages(build: Mapping[str, Any], python: Path) -> Iterator[str]:
    for key in PACKAGES:
        if wanted := build.get(key):
            names = ", ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
            where = "on this machine" if key == "system_packages" else f"into {python}"
            yield f"`build.{key}` of cog.yaml is not installed here. Install what is missing {where}: {names}"


def _find_unused(said: Mapping[str, Any], build: Mapping[str, Any]) -> Iterator[str]:
    others: Sequence[str] = [
        *(f"build.{key}" for key, value in build.items() if key not in {*PACKAGES, *FREE} and value),
        *(key for key in said if key not in USED),
    ]
    if others:
        yield f"Not used of cog.yaml: {', '.join(f'`{each}`' for each in others)}."
