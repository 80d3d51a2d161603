"""Put each script together with what it uses of lua/lib/.

A library is a namespace: `share.may_run` is declared in lua/lib/share.lua and becomes the local `share_may_run` of the
script. So a name costs nothing when the script runs, and a script ships only what it uses. A constant is put in place:
each variable that functions take costs about 1,000 instructions of each call.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

import director

# The wheel has the scripts inside `director`, a checkout beside it
LUA: Final = next(
    path
    for path in (Path(director.__file__).parent / "lua", Path(director.__file__).parents[1] / "lua")
    if path.is_dir()
)
# Read with this module: an upgrade in place under a live process gives it no script of another release
FILES: Final = {
    path.relative_to(LUA).with_suffix("").as_posix(): path.read_text(encoding="utf-8") for path in LUA.rglob("*.lua")
}
# In the order of the linked script: a library uses only what stands before it
LIBRARIES: Final = (
    *("keys", "records", "data", "log", "ready", "pending", "estimate", "share", "outlook", "breaker", "spare"),
    *("ledger", "ends", "bucket", "requeue", "batch"),
)
IN_CLUSTER: Final = ("lib/slot",)
FIRST_INNER: Final = ("ready", "share")
NAME: Final = re.compile(rf"--.*|'[^'\n]*'|(?<![\w.])(?P<library>{'|'.join(LIBRARIES)})\.(?P<name>[A-Za-z_]\w*)")
# A declaration in a library: a function, up to the `end` on its only line or at the left margin; or a line of values
DECLARED: Final = re.compile(
    r"^function (?P<function>\w+\.\w+)(?:.* end$|(?s:.*?)^end$)|^(?P<values>\w+\.\w+(?:, \w+\.\w+)*) = .*$",
    re.MULTILINE,
)
# A line of values that are numbers or words, by names in capitals
LITERAL: Final = r"(?:[\d.]+|'[^', ]*')"
CONSTANTS: Final = re.compile(
    rf"(?P<names>\w+\.[A-Z][A-Z\d_]*(?:, \w+\.[A-Z][A-Z\d_]*)*) = (?P<values>{LITERAL}(?:, {LITERAL})*)(?: +--.*)?"
)


class Declaration(Struct, frozen=True):
    """A function, or a line of values, of a library: the names that it declares, and those that it uses."""

    text: str
    declares: frozenset[str]
    uses: frozenset[str]
    home: str  # its library


def link(name: str) -> str:
    """Return a script behind all that it uses of lua/lib/, directly or not. Raises ValueError for an unknown name.

    What follows each of FIRST_INNER is a function of its own: Lua makes a function slowly if it takes many variables
    from a long chunk, because it looks for each in a list of all that were taken.
    """
    shebang, _, body = file(name).partition("\n")
    needed, new = frozenset[str](), names_in(body)
    while new:
        needed |= new
        new = frozenset[str]().union(*(of.uses for of in declarations() if of.declares & new)) - needed
    found = [of for of in declarations() if of.declares & needed]
    if unknown := needed - frozenset[str]().union(*(of.declares for of in found)):
        raise ValueError(f"lua/{name}.lua needs {', '.join(sorted(unknown))}, which lua/lib/ does not declare")
    inner = [library for library in FIRST_INNER if any(of.home == library for of in found)]
    lines = [shebang]
    for library in LIBRARIES:
        lines += ["return (function()"] if library in inner else []
        lines += [
            f"local {_plain(of.text)}" for of in found if of.home == library and not of.declares <= constants().keys()
        ]
    return "\n".join([*lines, _plain(body), *["end)()"] * len(inner)])


@cache
def declarations() -> tuple[Declaration, ...]:
    return tuple(
        Declaration(
            text=match[0],
            declares=frozenset((match["function"] or match["values"]).split(", ")),
            uses=names_in(match[0]),
            home=library,
        )
        for library in LIBRARIES
        for match in DECLARED.finditer(file(f"lib/{library}"))
    )


def names_in(text: str) -> frozenset[str]:
    """Return the names of libraries, such as `share.may_run`, in a text of Lua. Comments and strings do not count."""
    return frozenset(match[0] for match in NAME.finditer(text) if match["name"])


def file(name: str) -> str:
    return FILES[name]


@cache
def constants() -> Mapping[str, str]:
    """Return the values of all constants of the libraries, as Lua spells them."""
    found: dict[str, str] = {}
    for of in declarations():
        if match := CONSTANTS.fullmatch(of.text):
            found |= zip(match["names"].split(", "), match["values"].split(", "), strict=True)
    return found


def _plain(text: str) -> str:
    """Return the text with `share_may_run` for `share.may_run`, and with the value of a constant for its name."""
    known = constants()
    return NAME.sub(
        lambda match: known.get(match[0], f"{match['library']}_{match['name']}") if match["name"] else match[0], text
    )
