"""Step the clock of a server that was started with libfaketime, which adds an offset from a file to its clock.

CLOCK_MONOTONIC stays as it is, as with a step of a real clock.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

MISSING: Final = "libfaketime is not installed"
# Debian and its derivatives have a folder for each architecture, other systems one for all
PLACES: Final = (
    "usr/lib/*/faketime/libfaketime.so.1",
    "usr/lib*/faketime/libfaketime.so.1",
    "usr/local/lib/faketime/libfaketime.so.1",
)


def find_library(wanted: str = "", *, places: Iterable[str] = PLACES) -> Path | None:
    """Return libfaketime: the file `wanted` if given, else the one that the system has, or None without one."""
    if wanted:
        return Path(wanted) if Path(wanted).is_file() else None
    return next((path for place in places for path in sorted(Path("/").glob(place))), None)


class SteppedClock:
    """The clock of one process. `offset_s` is its lead over the machine's clock, `highest_s` the largest so far."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.offset_s = self.highest_s = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for the process. It reads the file at each look at the clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """Move the clock by this many seconds, from now on."""
        self.offset_s += seconds
        self.highest_s = max(self.highest_s, self.offset_s)
        self._write()

    def _write(self) -> None:
        # replaced in one move: a file that is read half written would be another step
        draft = self._file.with_name(f"{self._file.name}.new")
        draft.write_text(f"{self.offset_s:+d}\n")
        draft.replace(self._file)
