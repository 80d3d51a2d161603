"""What a model server is sent, as JSON in which some places are filled from the input of a prediction.

`{"$input": "/pointer"}` stands for what the pointer finds there; where it finds nothing, for `"$default"`, and where
there is none the member or item is left out. Pure. Never puts texts together: a value from a caller stays a value,
byte for byte, and cannot become anything else.
"""

import math
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from director.core.json_pointer import WHOLE, Pointer

__all__ = ("WHOLE_INPUT", "Template")

INPUT: Final = "$input"
DEFAULT: Final = "$default"
MOST_PLACES: Final = 1000
MOST_DEPTH: Final = 16


class _Taken(Struct, frozen=True):
    pointer: Pointer
    default: Any = msgspec.UNSET


class Template:
    """One template. `source` is what it was made from."""

    __slots__ = ("_parts", "source")

    def __init__(self, source: Any) -> None:
        """Raises ValueError that names the place which is wrong."""
        self.source = source
        self._parts = _Reader().read(source, "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and other.source == self.source

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self.source, order="sorted"))

    def fill(self, given: Raw) -> bytes:
        """The JSON to send for this input."""
        filled = _filled(self._parts, given)
        return msgspec.json.encode(None if filled is msgspec.UNSET else filled)


class _Reader:
    """Reads one template, up to its bounds."""

    def __init__(self) -> None:
        self._left = MOST_PLACES

    def read(self, value: Any, place: str) -> Any:
        self._left -= 1
        if self._left < 0 or place.count("/") > MOST_DEPTH:
            raise ValueError(f"a template has at most {MOST_PLACES} values, {MOST_DEPTH} deep")
        match value:
            case {"$input": pointer}:
                return _taken(value, pointer, place)
            case dict():
                return {name: self.read(part, f"{place}/{_escaped(name)}") for name, part in value.items()}
            case list():
                return [self.read(part, f"{place}/{index}") for index, part in enumerate(value)]
            case None | bool() | int() | str():
                return value
            case float() if math.isfinite(value):
                return value
            case _:
                raise ValueError(f"at {place or 'its top'} is a value that JSON has no way to write")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _taken(value: dict[str, Any], pointer: Any, place: str) -> _Taken:
    where = place or "its top"
    if unknown := set(value) - {INPUT, DEFAULT}:
        raise ValueError(f"at {where} beside {INPUT} is {min(map(str, unknown))!r}, where only {DEFAULT} can be")
    if not isinstance(pointer, str):
        raise ValueError(f"at {where} {INPUT} is not a text")
    try:
        return _Taken(Pointer(pointer), value.get(DEFAULT, msgspec.UNSET))
    except ValueError as exc:
        raise ValueError(f"at {where}: {exc}") from exc


def _filled(part: Any, given: Raw) -> Any:
    match part:
        case _Taken():
            found = part.pointer.find(given)
            return part.default if found is None else found
        case dict():
            return {name: value for name, each in part.items() if (value := _filled(each, given)) is not msgspec.UNSET}
        case list():
            return [value for each in part if (value := _filled(each, given)) is not msgspec.UNSET]
        case _:
            return part


WHOLE_INPUT: Final = Template({INPUT: WHOLE.text})
