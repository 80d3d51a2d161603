"""Have Python look for garbage in cycles seldom, and never among what a process has at its start.

By itself it looks after 700 objects more, which is every few requests, and at each hundredth time through all modules:
9 % of the API's CPU under load. What is dropped here is hardly ever in a cycle, and is gone at once without a look.
"""

import gc
from typing import Final

__all__ = ("look_seldom",)

OBJECTS: Final = 10_000


def look_seldom() -> None:
    """For the whole process, from now on. Call it once all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
