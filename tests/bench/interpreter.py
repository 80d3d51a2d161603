"""Run the benches on the fastest Python of this machine. One that was built without optimisation, as of many version
managers, takes 1.4 × as long in a loop of dicts: it slows Python peers most, ours less, and Node not at all.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NEEDS: Final = (ROOT / "pyproject.toml", ROOT / "requirements.lock")
LOOPS: Final = 5
SLOWER: Final = "BENCH_SLOWER_PYTHON"  # the one that this program was started with
SAME: Final = 1.1  # two of the same build differ by less
INSTALL_S: Final = 600.0
LOOP: Final = """
import time
began = time.process_time()
seen = {}
for number in range(300_000):
    seen[number % 1000] = str(number)
print(time.process_time() - began)
"""


def caches() -> Path:
    """Return the folder of environments that are made once: of peers, and of ours for another Python."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "director-bench"


def use_fastest() -> None:
    """Start this program again on the fastest Python of the same version, where that is another one.

    Its environment is made at the first time. Where that fails, the benches stay on this Python, and their header says
    so.
    """
    fastest, _ = _ranked()[0]
    if fastest == base() or SLOWER in os.environ:
        return
    try:
        python = _environment(fastest)
    except (OSError, subprocess.SubprocessError) as exc:
        print(f"stays on {base()}: no environment for {fastest}, which is faster: {exc}", file=sys.stderr, flush=True)
        return
    os.environ[SLOWER] = str(base())
    os.execv(python, [str(python), "-m", "tests.bench", *sys.argv[1:]])  # noqa: S606 - made just now


def about() -> str:
    """Return the version and the name of this Python, and what the loop says of it. Its folder is the machine's own."""
    times = dict(_ranked())
    slower = times[base()] / min(times.values())
    shown = f"{sys.version.split()[0]} ({base().name}"
    if slower > SAME:
        return f"{shown}, {slower:.2f} × the time of the fastest one here)"
    return f"{shown})" if len(times) > 1 else f"{shown}, the only one here: perhaps not optimised)"


def base() -> Path:
    """Return the Python that this one's environment was made of."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


@cache
def _ranked() -> tuple[tuple[Path, float], ...]:
    """Return each Python of this version and its least time, the fastest first."""
    times = {python: min(_loop_s(python) for _ in range(LOOPS)) for python in _candidates()}
    return tuple(sorted(times.items(), key=lambda each: each[1] / (SAME if each[0] == base() else 1)))


def _candidates() -> set[Path]:
    named = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [Path(folder, named) for folder in os.get_exec_path()] + [Path(os.environ.get(SLOWER, sys.executable))]
    return {base(), *(found.resolve() for place in places for found in _executables(place))}


def _executables(path: Path) -> Iterator[Path]:
    # a version manager's shim is a script that starts another one
    if os.access(path, os.X_OK) and path.read_bytes()[:4] == b"\x7fELF":
        yield path


def _loop_s(python: Path) -> float:
    done = subprocess.run([python, "-I", "-c", LOOP], capture_output=True, text=True, timeout=60, check=True)
    return float(done.stdout)


def _environment(python: Path) -> Path:
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in NEEDS)).hexdigest()[:12]
    home = caches() / f"python-{hashlib.sha256(str(python).encode()).hexdigest()[:6]}-{wanted}"
    if not (home / "made").exists():
        print(f"makes an environment for {python} …", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", "--without-pip", home], check=True, timeout=INSTALL_S)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
        needs = ["--disable-pip-version-check", "-c", str(NEEDS[1]), "pip", "-e", f"{ROOT}[test]"]
        subprocess.run([*pip, *needs], check=True, timeout=INSTALL_S)
        (home / "made").touch()
    return home / "bin" / "python"
