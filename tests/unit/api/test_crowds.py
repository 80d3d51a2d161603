from typing import Any

import anyio
import pytest

from api.predictions import stream_readers, waiters
from api.predictions.stream_readers import Readers
from api.predictions.waiters import Wait, Waiters
from director.core.clock import SystemClock

MANY = 10_000
UNUSED: Any = None


@pytest.fixture
def waiting() -> Waiters:
    return Waiters(UNUSED, has_ended=UNUSED, read=UNUSED, clock=SystemClock(), most=MANY)


def test_a_crowd_of_waits_looks_no_more_often_than_its_bound(waiting: Waiters) -> None:
    waiting._held.update(Wait() for _ in range(100))
    assert waiting.safety_s == waiters.SAFETY_S
    waiting._held.update(Wait() for _ in range(MANY))
    assert waiting.waiting / waiting.safety_s == pytest.approx(waiters.LOOKS_PER_S)


async def test_a_crowd_of_readers_looks_no_more_often_than_its_bound(waiting: Waiters) -> None:
    readers = Readers(UNUSED, waiting, clock=SystemClock(), descriptors=UNUSED, most=MANY)
    assert readers.safety_s == stream_readers.SAFETY_S
    readers._reading.update(anyio.CancelScope() for _ in range(MANY))
    assert readers.reading / readers.safety_s == pytest.approx(stream_readers.LOOKS_PER_S)
