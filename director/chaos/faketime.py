"""A server whose clock can be stepped: it is started with libfaketime, which adds to its clock what a file says.

The clock that only grows (CLOCK_MONOTONIC) is left alone, as a step of a real clock leaves it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

MISSING: Final = "libfaketime is not installed"
# Debian and its like have a folder for each architecture; others one for all of them
PLACES: Final = (
    "usr/lib/*/faketime/libfaketime.so.1",
    "usr/lib*/faketime/libfaketime.so.1",
    "usr/local/lib/faketime/libfaketime.so.1",
)


def find_library(wanted: str = "", *, places: Iterable[str] = PLACES) -> Path | None:
    """Return libfaketime: `wanted`, where that names it, else the one that the system has. None where there is none."""
    if wanted:
        return Path(wanted) if Path(wanted).is_file() else None
    return next((path for place in places for path in sorted(Path("/").glob(place))), None)


class SteppedClock:
    """The clock of one process. `offset_s`: how far it is ahead of the machine's; `highest_s`: the most so far."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.offset_s = self.highest_s = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """What the process is started with. It reads the file each time that it asks for the time."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """Move it, from now on."""
        self.offset_s += seconds
        self.highest_s = max(self.highest_s, self.offset_s)
        self._write()

    def _write(self) -> None:
        # in one move: a file that is read half written would be another step
        draft = self._file.with_name(f"{self._file.name}.new")
        draft.write_text(f"{self.offset_s:+d}\n")
        draft.replace(self._file)
