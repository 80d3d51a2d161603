"""The release before this one: built from its tag as its users have it, and its scripts beside ours in one process.

Never taken for this one: whoever uses it can ask where it was imported from. Without git or a tag there is none, and a
test that needs it did not run, and says so.
"""

import importlib
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from msgspec import Struct

from director.core import errors

__all__ = ("OURS", "EitherScripts", "Release", "TheirScripts", "former_release", "imported_from")

OURS: Final = Path(__file__).parents[2]
PACKAGES: Final = ("api", "director", "lua")
NONE: Final = "no tag of a former release to build (a checkout with its history and tags has one)"


class Release(Struct, frozen=True):
    """`folder`: where it is installed, without what it needs: that is as it is here."""

    tag: str
    folder: Path


def former_release(folder: Path) -> Release:
    """Build and install the last release before this commit. Skips the test where git knows of none."""
    tag = _last_tag()
    source, wheels, installed = (folder / name for name in ("source", "wheels", "installed"))
    archive = _output("git", "archive", "--format=tar", tag)
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(source, filter="data")
    _pip("wheel", "--no-build-isolation", "-w", str(wheels), str(source))
    [wheel] = wheels.iterdir()
    _pip("install", "--no-index", "--target", str(installed), str(wheel))
    return Release(tag, installed)


def imported_from(folder: Path) -> set[Path]:
    """Where a process that is started as the parts of a chaos run are gets our packages from, with this in its path."""
    look = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)}, sep='\\n')"
    env = {"PYTHONPATH": str(folder)}
    found = subprocess.run([sys.executable, "-P", "-c", look], env=env, capture_output=True, text=True, check=True)
    return {Path(line).parents[1] for line in found.stdout.splitlines()}


class EitherScripts:
    """The typed calls of two releases as one: the coin falls for each call, and both know only what is in Redis.

    What the other one has no call for, or no such argument, is ours alone. Its errors come as ours.
    """

    def __init__(self, ours: Any, theirs: Any, coin: random.Random) -> None:
        self._ours = ours
        self._theirs = theirs
        self.coin = coin
        self.calls = {"ours": 0, "theirs": 0}

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        ours, theirs = getattr(self._ours, name), getattr(self._theirs, name, None)

        def call(*args: Any, **options: Any) -> Awaitable[Any]:
            if self.coin.random() < 0.5 and theirs is not None and _takes(theirs, args, options):
                self.calls["theirs"] += 1
                return _as_ours(theirs(*args, **options))
            self.calls["ours"] += 1
            awaited: Awaitable[Any] = ours(*args, **options)
            return awaited

        return call


class TheirScripts:
    """Those of another release, with its own way to Redis. `scripts` are its typed calls."""

    def __init__(self, release: Release, url: str) -> None:
        with _instead_of_ours(release.folder):
            gatherer = importlib.import_module("director.core.gatherer")
            texts = {path.stem: gatherer.source(path.stem) for path in (release.folder / "lua").glob("*.lua")}
            scripts = importlib.import_module("director.core.scripts")
            made: ModuleType = importlib.import_module("director.core.redis_client")
        # it would look for them where our packages are by then
        vars(gatherer)["source"] = texts.__getitem__
        self._gatherer = gatherer.Gatherer(made.client(url))
        self.scripts: Any = scripts.Scripts(self._gatherer)

    async def aclose(self) -> None:
        await self._gatherer.aclose()
        await self._gatherer.redis.aclose()


@contextmanager
def _instead_of_ours(folder: Path) -> Iterator[None]:
    """What is imported in the block comes from there. What we have imported is here again after it."""
    ours = _take_out()
    sys.path.insert(0, str(folder))
    try:
        yield
        found = {Path(str(module.__file__)).parents[len(name.split(".")) - 1] for name, module in _ours_of(sys.modules)}
        assert all(folder in (each, *each.parents) for each in found), found
    finally:
        sys.path.remove(str(folder))
        _take_out()
        sys.modules.update(ours)


def _take_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name, _ in _ours_of(sys.modules)}


def _ours_of(modules: dict[str, ModuleType]) -> list[tuple[str, ModuleType]]:
    return [(name, module) for name, module in modules.items() if name.partition(".")[0] in PACKAGES]


def _takes(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    try:
        signature(call).bind(*args, **options)
    except TypeError:
        return False
    return True


async def _as_ours(theirs: Awaitable[Any]) -> Any:
    try:
        return await theirs
    except Exception as exc:
        kind = getattr(errors, type(exc).__name__, None)
        if kind is None:
            raise
        ours = kind.__new__(kind)
        ours.args = exc.args
        vars(ours).update(vars(exc))
        raise ours from exc


def _last_tag() -> str:
    """Before this commit: a release is not compared with itself."""
    if shutil.which("git") is None or not (OURS / ".git").exists():
        pytest.skip(NONE)
    found = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"],
        cwd=OURS,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(NONE)
    return found.stdout.strip()


def _output(*command: str) -> bytes:
    return subprocess.run(command, cwd=OURS, stdout=subprocess.PIPE, check=True).stdout


def _pip(command: str, *options: str) -> None:
    _output(sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-deps", *options)
