from typing import Any

import anyio
import pytest

from api.services import stream_readers, waiters
from api.services.stream_readers import Readers
from api.services.waiters import Wait, Waiters
from director.core.clock import SystemClock

MANY = 10_000
UNUSED: Any = None


@pytest.fixture
def waiting() -> Waiters:
    return Waiters(UNUSED, has_ended=UNUSED, read=UNUSED, clock=SystemClock(), most=MANY)


def test_a_crowd_of_waits_looks_no_more_often_than_its_bound(waiting: Waiters) -> None:
    for _ in range(100):
        waiting._held.enter("acme", Wait())
    assert waiting.safety_s == waiters.SAFETY_S
    for _ in range(MANY):
        waiting._held.enter("acme", Wait())
    assert waiting.waiting / waiting.safety_s == pytest.approx(waiters.LOOKS_PER_S)


async def test_a_crowd_of_readers_looks_no_more_often_than_its_bound(waiting: Waiters) -> None:
    readers = Readers(UNUSED, waiting, clock=SystemClock(), descriptors=UNUSED, most=MANY)
    assert readers.safety_s == stream_readers.SAFETY_S
    for _ in range(MANY):
        readers._reading.enter("acme", anyio.CancelScope())
    assert readers.reading / readers.safety_s == pytest.approx(stream_readers.LOOKS_PER_S)
