"""Build the release before this one from its commit. Only a source tree without `.git` skips."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct

OURS: Final = Path(__file__).parents[2]


class Former(Struct, frozen=True):
    """The contents of `former_release.toml`. `modules`: the former release's own names, by their purpose."""

    version: str
    commit: str
    packages: tuple[str, ...]
    modules: dict[str, str]


class Release(Struct, frozen=True):
    version: str
    folder: Path


def _read() -> Former:
    text = Path(__file__).with_name("former_release.toml").read_text(encoding="utf-8")
    said: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert(said, Former)


FORMER: Final = _read()


def former_release(folder: Path) -> Release:
    source, wheels, installed = (folder / name for name in ("source", "wheels", "installed"))
    with tarfile.open(fileobj=BytesIO(archive(OURS, FORMER.commit))) as packed:
        packed.extractall(source, filter="data")
    _pip("wheel", "--no-build-isolation", "-w", str(wheels), str(source))
    [wheel] = wheels.iterdir()
    assert wheel.name.split("-")[1] == FORMER.version, f"{FORMER.commit} is another release: {wheel.name}"
    _pip("install", "--no-index", "--target", str(installed), str(wheel))
    return Release(FORMER.version, installed)


def archive(root: Path, commit: str) -> bytes:
    """Return a commit's files as tar. Skips the test where `root` is no checkout."""
    if not (root / ".git").exists():
        pytest.skip(f"no .git here: release {FORMER.version} is built from the history of a checkout")
    try:
        done = subprocess.run(["git", "archive", "--format=tar", commit], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.fail(f"git is not installed: release {FORMER.version} is built from commit {commit}. Install git.")
    if done.returncode:
        pytest.fail(
            f"git cannot read commit {commit} of release {FORMER.version}: {done.stderr.decode().strip()}\n"
            "If this clone is shallow, run `git fetch --unshallow`."
        )
    return done.stdout


def imported_from(folder: Path) -> set[Path]:
    """The folders that a process of a chaos run imports the product from, with `folder` in its path."""
    names = ("api", "director")
    look = f"import {', '.join(names)}; print({', '.join(f'{name}.__file__' for name in names)}, sep='\\n')"
    env = {"PYTHONPATH": str(folder)}
    found = subprocess.run([sys.executable, "-P", "-c", look], env=env, capture_output=True, text=True, check=True)
    return {Path(line).parents[1] for line in found.stdout.splitlines()}


def sabotaged(folder: Path, file: str, old: str, new: str) -> Path:
    """Return this folder with a copy of the product in which one place of one file is another."""
    for name in ("api", "director", "lua"):
        shutil.copytree(OURS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / file).write_text(with_fault(file, old, new))
    assert imported_from(folder) == {folder}
    return folder


def with_fault(file: str, old: str, new: str) -> str:
    """Return a file of the product in which one place is another."""
    whole = (OURS / file).read_text()
    assert whole.count(old) == 1, f"{file} has {whole.count(old)} × {old}"
    changed = whole.replace(old, new)
    if file.endswith(".py"):
        compile(changed, file, "exec")
    return changed


def _pip(command: str, *options: str) -> None:
    quietly = ("--quiet", "--disable-pip-version-check", "--no-deps")
    subprocess.run([sys.executable, "-m", "pip", command, *quietly, *options], stdout=subprocess.PIPE, check=True)
