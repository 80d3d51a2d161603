"""A small disk that a test can fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    """Mount a disk of this size on a new folder."""
    folder.mkdir()
    options = f"size={mib}m,nr_inodes=2000,mode=0700"
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("mounting a disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill it until not one byte or name is free. Returns the folder to delete."""
    ballast = disk / "ballast"
    ballast.mkdir()
    with suppress(OSError), (ballast / "bytes").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    with suppress(OSError):
        for number in range(2000):
            (ballast / str(number)).touch()
    return ballast
