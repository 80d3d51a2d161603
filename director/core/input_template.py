"""What a model server is sent, as JSON in which some places are filled from the input of a prediction.

`{"$input": "/pointer"}` stands for what the pointer finds there; where it finds nothing, for `"$default"`, and where
there is none the member or item is left out. `{"$each": "/pointer"}` stands for the list of what it finds in each of
several inputs that are sent together. Pure. Never puts texts together: a value from a caller stays a value,
byte for byte, and cannot become anything else.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from director.core.json_pointer import WHOLE, Pointer

__all__ = ("WHOLE_INPUT", "Template")

INPUT: Final = "$input"
EACH: Final = "$each"
DEFAULT: Final = "$default"
MOST_PLACES: Final = 1000
MOST_DEPTH: Final = 16


class _Taken(Struct, frozen=True):
    pointer: Pointer
    default: Any = msgspec.UNSET
    is_each: bool = False

    def find(self, given: Raw) -> Any:
        found = self.pointer.find(given)
        return self.default if found is None else found


class Template:
    """One template. `source` is what it was made from."""

    __slots__ = ("_each", "_parts", "source")

    def __init__(self, source: Any) -> None:
        """Raises ValueError that names the place which is wrong."""
        self.source = source
        reader = _Reader()
        self._parts = reader.read(source, "")
        self._each = tuple(reader.each)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and other.source == self.source

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self.source, order="sorted"))

    @property
    def has_each(self) -> bool:
        """Is it made for several inputs?"""
        return bool(self._each)

    def fill(self, given: Raw, *others: Raw) -> bytes:
        """The JSON to send for this input. With others, whose `shared` has to be the same, for all of them."""
        return _encoded(_filled(self._parts, given, (given, *others)))

    def shared(self, given: Raw) -> bytes:
        """What is sent for an input but for what stands for each: inputs that differ in it cannot be sent together."""
        return _encoded(_filled(self._parts, given, ()))

    def missing(self, given: Raw) -> Pointer | None:
        """Where each input has to have something and this one has nothing."""
        return next((part.pointer for part in self._each if part.find(given) is msgspec.UNSET), None)


class _Reader:
    """Reads one template, up to its bounds."""

    def __init__(self) -> None:
        self._left = MOST_PLACES
        self.each: list[_Taken] = []

    def read(self, value: Any, place: str) -> Any:
        self._left -= 1
        if self._left < 0 or place.count("/") > MOST_DEPTH:
            raise ValueError(f"a template has at most {MOST_PLACES} values, {MOST_DEPTH} deep")
        match value:
            case {"$input": pointer}:
                return _taken(value, INPUT, pointer, place)
            case {"$each": pointer}:
                self.each.append(_taken(value, EACH, pointer, place))
                return self.each[-1]
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


def _taken(value: dict[str, Any], what: str, pointer: Any, place: str) -> _Taken:
    where = place or "its top"
    if unknown := set(value) - {what, DEFAULT}:
        raise ValueError(f"at {where} beside {what} is {min(map(str, unknown))!r}, where only {DEFAULT} can be")
    if not isinstance(pointer, str):
        raise ValueError(f"at {where} {what} is not a text")
    try:
        return _Taken(Pointer(pointer), value.get(DEFAULT, msgspec.UNSET), what == EACH)
    except ValueError as exc:
        raise ValueError(f"at {where}: {exc}") from exc


def _filled(part: Any, given: Raw, together: Sequence[Raw]) -> Any:
    match part:
        case _Taken(is_each=True):
            return [part.find(one) for one in together]
        case _Taken():
            return part.find(given)
        case dict():
            values = ((name, _filled(inner, given, together)) for name, inner in part.items())
            return {name: value for name, value in values if value is not msgspec.UNSET}
        case list():
            return [value for inner in part if (value := _filled(inner, given, together)) is not msgspec.UNSET]
        case _:
            return part


def _encoded(filled: Any) -> bytes:
    return msgspec.json.encode(None if filled is msgspec.UNSET else filled)


WHOLE_INPUT: Final = Template({INPUT: WHOLE.text})
