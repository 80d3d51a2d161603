"""Read what a process takes: its memory and its processor time."""

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

MIB: Final = 1 << 20
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Usage(Struct, frozen=True):
    memory_mib: float
    processor_s: float

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Return the usage of a live process. Raises OSError if it is gone."""
        folder = Path("/proc") / str(pid)
        # the name of the program, in brackets, may hold spaces
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
        return cls(memory_mib=pages * PAGE / MIB, processor_s=(int(fields[11]) + int(fields[12])) * TICK_S)
