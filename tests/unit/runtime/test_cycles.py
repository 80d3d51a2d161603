import gc
import weakref
from collections.abc import Iterator

import pytest

from director.runtime.startup import OBJECTS, collect_garbage_rarely


@pytest.fixture
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class Knot:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("as_before")
def test_only_garbage_made_after_the_start_is_collected() -> None:
    others = gc.get_threshold()[1:]
    collect_garbage_rarely()
    assert gc.get_threshold() == (OBJECTS, *others)
    assert gc.get_freeze_count() > 0
    gone = weakref.ref(Knot())
    kept = [[] for _ in range(2 * OBJECTS)]  # type: ignore[var-annotated]
    assert gone() is None, f"{len(kept)} objects more"
