"""Known holes of the servers that this service runs on, and the release of each line that closed them. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

__all__ = ("FLOORS", "Floor", "open_holes")

Line = tuple[int, int]


class Floor(Struct, frozen=True):
    """One hole: the first line that has it, and for each line the patch that closed it; newer lines never had it."""

    cve: str
    what: str
    kind: str
    since: Line
    closed: Mapping[Line, int]

    def fix(self, line: Line, patch: int) -> str:
        """The release to go to, '' where this one is not concerned."""
        if line < self.since or line > max(self.closed):
            return ""
        if patch >= self.closed.get(line, patch + 1):
            return ""
        # a line that never got the fix leads to the next one that did
        target = min(found for found in self.closed if found >= line)
        return f"{target[0]}.{target[1]}.{self.closed[target]}"


OLDEST: Final = (0, 0)
LUA: Final = "a script can run code in the server"
FLOORS: Final = (
    Floor("CVE-2025-49844", LUA, "redis", OLDEST, {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}),
    Floor("CVE-2025-49844", LUA, "valkey", OLDEST, {(7, 2): 11, (8, 0): 6, (8, 1): 4}),
    Floor("CVE-2022-31144", "XAUTOCLAIM overflows the heap", "redis", (7, 0), {(7, 0): 4}),
    Floor("CVE-2025-62507", "XACKDEL overflows the stack", "redis", (8, 2), {(8, 2): 3}),
    Floor(
        "CVE-2025-67733",
        "an error of a script can forge replies",
        "valkey",
        OLDEST,
        {(7, 2): 12, (8, 0): 7, (8, 1): 6, (9, 0): 2},
    ),
)


def open_holes(kind: str, version: str) -> list[tuple[Floor, str]]:
    """The holes that a release has, each with the release to go to."""
    major, minor, patch = (*(int(part) for part in version.split(".")[:3] if part.isdecimal()), 0, 0, 0)[:3]
    fixes = [(floor, floor.fix((major, minor), patch)) for floor in FLOORS if floor.kind == kind]
    return [(floor, fix) for floor, fix in fixes if fix]
