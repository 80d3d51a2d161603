"""Test that a stream ends among ends of its size: large outputs, read whole, keep no small one waiting."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import pytest

from api.services.stream_events import Frames, Mark
from api.services.stream_readers import LARGE_ENDS_AT_ONCE, LargeReadSemaphore, Readers
from director.core.clock import SystemClock
from director.core.ids import PredictionId
from tests.support.queue_driver import ACCOUNT, QueueDriver

UNUSED: Any = None
LARGE: Final = b'"%s"' % (b"a" * 1_000_000)


@pytest.fixture
async def readers(driver: QueueDriver) -> AsyncIterator[Readers]:
    """As many large ends are read as may be at once, and none of them comes to its end."""
    found = Readers(driver.scripts, UNUSED, clock=SystemClock(), descriptors=UNUSED, most=9)
    async with AsyncExitStack() as stack:
        for _ in range(LARGE_ENDS_AT_ONCE):
            await stack.enter_async_context(found.large_ends)
        yield found


async def ended(driver: QueueDriver, output: bytes) -> PredictionId:
    claim = await driver.claimed()
    assert await driver.finish(claim, output=output, ran_ms=5)
    return claim.id


async def sent(readers: Readers, prediction_id: PredictionId, *, within_s: float) -> bytes:
    """Return what its reader got within this time."""
    got = bytearray()

    async def send(data: bytes) -> None:
        got.extend(data)

    with anyio.move_on_after(within_s):
        await readers.read(prediction_id, Frames(Mark()), send, account=ACCOUNT, is_over=True)
    return bytes(got)


async def test_small_end_waits_for_no_large_ones(readers: Readers, driver: QueueDriver) -> None:
    got = await sent(readers, await ended(driver, b'"small"'), within_s=10)
    assert b"data: small\n" in got
    assert b"event: done\n" in got


async def test_large_end_waits_for_large_ones(readers: Readers, driver: QueueDriver) -> None:
    prediction_id = await ended(driver, LARGE)
    assert b"event: output" not in await sent(readers, prediction_id, within_s=0.3)
    readers.large_ends.release()
    got = await sent(readers, prediction_id, within_s=10)
    assert (len(got) > len(LARGE), b"event: done\n" in got) == (True, True)
    await readers.large_ends.acquire()


async def test_large_end_is_not_read_without_a_place(
    readers: Readers, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    prediction_id, read = await ended(driver, LARGE), driver.scripts.get
    asked: list[dict[str, Any]] = []

    async def get(of: PredictionId, **options: Any) -> Any:
        asked.append(options)
        return await read(of, **options)

    monkeypatch.setattr(driver.scripts, "get", get)
    readers.large_ends.release()
    readers.large_reads = LargeReadSemaphore(0, each=0)
    assert b"event: output" not in await sent(readers, prediction_id, within_s=0.5)
    assert asked == [{"outlook": False, "whole": False}]
    await readers.large_ends.acquire()
