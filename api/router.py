"""What is at a path: one step for each of its parts, however many routes there are.

Knows no handler and no method. A part that is written out goes before one that is named in braces; `{name:path}`, at
the end alone, takes all that is left.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

Route = TypeVar("Route")
Found = tuple[Route, Mapping[str, str]]
"""A route, and what the path has in the place of its names."""

REST: Final = ":path}"


class Router(Generic[Route]):
    """Routes by their paths."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._start: Final = _Crossing[Route]()
        for path, route in routes.items():
            self._start.add(path.split("/"), (), route)

    def found(self, path: str) -> Sequence[Found[Route]]:
        """All routes that fit this path, the one that says most first."""
        found: list[Found[Route]] = []
        self._start.find(path.split("/"), 0, (), found)
        return found


class _Crossing(Generic[Route]):
    """A place on the way: what is there, and where it goes on."""

    def __init__(self) -> None:
        self._here: tuple[Route, Sequence[str]] | None = None
        self._rest: tuple[Route, Sequence[str]] | None = None
        self._exact: dict[str, _Crossing[Route]] = {}
        self._named: _Crossing[Route] | None = None

    def add(self, parts: Sequence[str], names: tuple[str, ...], route: Route) -> None:
        if not parts:
            self._here = route, names
        elif parts[0].endswith(REST):
            self._rest = route, (*names, parts[0][1 : -len(REST)])
        elif parts[0].startswith("{"):
            self._named = self._named or _Crossing()
            self._named.add(parts[1:], (*names, parts[0][1:-1]), route)
        else:
            self._exact.setdefault(parts[0], _Crossing()).add(parts[1:], names, route)

    def find(self, parts: Sequence[str], at: int, values: tuple[str, ...], found: list[Found[Route]]) -> None:
        if at == len(parts):
            if self._here is not None:
                route, names = self._here
                found.append((route, dict(zip(names, values, strict=True))))
            return
        part = parts[at]
        if (exact := self._exact.get(part)) is not None:
            exact.find(parts, at + 1, values, found)
        if self._named is not None and part:
            self._named.find(parts, at + 1, (*values, part), found)
        if self._rest is not None:
            route, names = self._rest
            found.append((route, dict(zip(names, (*values, "/".join(parts[at:])), strict=True))))
