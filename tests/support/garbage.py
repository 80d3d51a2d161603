"""Switch the garbage collector off, and count what only it would free."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave cycles of objects alone inside the block. `alive` counts those that were made in it."""
    gc.collect()
    gc.disable()
    gc.freeze()  # the collector no longer lists what exists now, of other tests for example
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def alive(*kinds: type) -> int:
    """Return how many objects of these classes exist, of those made since `uncollected` began."""
    return sum(type(each) in kinds for each in gc.get_objects())
