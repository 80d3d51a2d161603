"""Read a snapshot of the whole service every few seconds, once for all operators who watch. A watcher gets the newest
snapshot next. `director/operate/overview.py` decides how much is read, and the pause after.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.view import iso
from director.operate.findings import Finding, away
from director.operate.overview import SHORTEST_S, Overview, Snapshot

log = logging.getLogger(__name__)
BROKEN_S: Final = 5.0  # after an error of our own


class Away(Struct, frozen=True, kw_only=True):
    """Redis cannot answer, so the snapshot shown last may be old. `findings`: the one that says so."""

    at: str
    reason: str
    findings: Sequence[Finding]


class Event(Struct, frozen=True):
    number: int
    data: bytes


class Watching:
    def __init__(self, overview: Overview, clock: Clock) -> None:
        self._overview = overview
        self._clock = clock
        self._watchers = 0
        self._reading: asyncio.Task[None] | None = None
        self._last = Event(0, b"")
        self._news = asyncio.Event()

    @contextmanager
    def watcher(self) -> Iterator[None]:
        """Count as a watcher. The first one starts the reading, the last one stops it."""
        self._watchers += 1
        if self._reading is None:
            self._last = Event(self._last.number, b"")  # the last snapshot may be a day old
            self._reading = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self.release()

    async def after(self, number: int) -> Event:
        """Wait for an event with a higher number, and return the newest."""
        while self._last.number <= number or not self._last.data:
            await self._news.wait()
        return self._last

    def release(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def run_once(self) -> float:
        """Read one snapshot and publish it to all watchers. Returns the seconds to rest after it."""
        try:
            snapshot = await self._overview.look()
        except BackendUnavailable as exc:
            self._publish("away", Away(at=iso(self._clock.now_ms()), reason=str(exc), findings=[away(str(exc))]))
            return SHORTEST_S
        self._publish("snapshot", snapshot)
        return self._overview.rest_s

    async def _run(self) -> None:
        while True:
            try:
                rest_s = await self.run_once()
            except Exception:  # one failed reading must not end the watch for all readers
                log.exception("reading the snapshot of the service failed")
                rest_s = BROKEN_S
            await self._clock.sleep(rest_s)

    def _publish(self, event: str, what: Snapshot | Away) -> None:
        data = b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(what))
        self._last = Event(self._last.number + 1, data)
        news, self._news = self._news, asyncio.Event()
        news.set()
