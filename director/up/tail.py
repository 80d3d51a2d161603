"""Show what the parts write to their logs as it comes: `director up --verbose`. Reads the files, as `tail -f` would."""

from pathlib import Path
from typing import Final

import anyio

from director.up.home import Home

__all__ = ("follow",)

LOOK_S: Final = 0.2


async def follow(home: Home) -> None:
    """Print every new line of every log, after the name of its part, for ever."""
    ends = {log: log.stat().st_size for log in _logs(home)}
    while True:
        for log in _logs(home):
            ends[log] = _print_new(log, ends.get(log, 0))
        await anyio.sleep(LOOK_S)


def _logs(home: Home) -> list[Path]:
    return sorted(home.path.glob("logs/*.log"))


def _print_new(log: Path, shown: int) -> int:
    """Print whole lines beyond `shown` bytes; returns how far that came. A log that was cut is shown from its start."""
    if log.stat().st_size < shown:
        shown = 0
    with log.open("rb") as file:
        file.seek(shown)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        print(f"{log.stem:>18} | {line}", flush=True)
    return shown + len(whole)
