"""Show what the parts write to their logs as it comes: `director up --verbose`. Reads the files, as `tail -f` would."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio

from director.local.home import Home

__all__ = ("follow",)

LOOK_S: Final = 0.2


async def follow(home: Home, say: Callable[[str], None]) -> None:
    """Say every new line of every log, after the name of its part, for ever."""
    ends = {log: log.stat().st_size for log in _logs(home)}
    while True:
        for log in _logs(home):
            ends[log] = _say_new(log, ends.get(log, 0), say)
        await anyio.sleep(LOOK_S)


def _logs(home: Home) -> list[Path]:
    return sorted(home.path.glob("logs/*.log"))


def _say_new(log: Path, shown: int, say: Callable[[str], None]) -> int:
    """Say whole lines beyond `shown` bytes; returns how far that came. A log that was cut is shown from its start."""
    if log.stat().st_size < shown:
        shown = 0
    with log.open("rb") as file:
        file.seek(shown)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        say(f"{log.stem:>18} | {line}")
    return shown + len(whole)
