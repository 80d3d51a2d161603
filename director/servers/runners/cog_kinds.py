"""What the Cog servers of each time do differently: one table. Pure.

Never asks a server: who it is was told by its health, and by its front page.
"""

import re
from typing import Final

from msgspec import Struct

__all__ = ("COGLET", "Kind", "python_kind")


class Kind(Struct, frozen=True, kw_only=True):
    """`hears_meanwhile`: a PUT that is held open leaves it able to hear anything else, a cancel or a health check.
    `cancels_again`: of a cancel that got lost in a run's first ms, the next one is not ignored.
    `tells_all_at_end`: the answer to that PUT has the logs and the partial output of a failure.
    """

    hears_meanwhile: bool = True
    cancels_again: bool = True
    tells_all_at_end: bool = True


COGLET: Final = Kind(tells_all_at_end=False)
# The Python servers, from the newest on: from which version on, and what they do. Those before 0.12 tell no version
PYTHON: Final = (
    ((0, 13), Kind(cancels_again=False)),
    ((0, 0), Kind(cancels_again=False, hears_meanwhile=False)),
)


def python_kind(version: str) -> Kind:
    """Of the Python server that says it has this version; '' where it does not say."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    said = (int(found[1]), int(found[2])) if found else (0, 0)
    return next(kind for first, kind in PYTHON if said >= first)
