"""Notify one caller about one prediction, in order: start, then the newest output and logs, then completed.

The outbox never holds a slot. Intermediate webhooks are sent once, at most one per interval. The terminal webhook is
owed from `finish` on: the director tries it at once, the keeper's courier later.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Final

from msgspec import Struct

from director.core.errors import BackendUnavailable
from director.core.schema import Record, Stored
from director.core.states import WebhookEvent
from director.webhooks.delivery import Webhooks

log = logging.getLogger(__name__)

GRACE_S: Final = 45.0
"""Time that the director has to deliver the terminal webhook before a courier does: a little more than two sends."""


class Post(Struct, frozen=True):
    """The outboxes of one director share it. `interval_s`: least time between two webhooks of a claim."""

    webhooks: Webhooks
    interval_s: float


class Outbox:
    def __init__(self, record: Record, post: Post, snapshot: Callable[[int | None], Stored]) -> None:
        self._record = record
        self._post = post
        self._snapshot = snapshot
        self._wanted: list[WebhookEvent] = []
        self._started_ms: int | None = None
        self._sent = 0
        self._is_dropped = False
        self._task: asyncio.Task[None] | None = None

    @cached_property
    def _news(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _closed(self) -> asyncio.Event:
        return asyncio.Event()

    @property
    def is_wanted(self) -> bool:
        return bool(self._record.webhook)

    def tell(self, event: WebhookEvent, *, started_ms: int | None) -> None:
        """Send a webhook for this event if the caller wants one. `started_ms`: the start of the run, once known."""
        self._started_ms = started_ms or self._started_ms
        if self._is_dropped or event in self._wanted or not self._record.wants(event):
            return
        self._wanted.append(event)
        self._news.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Drop the webhooks that wait, except `start`, and wait for those that are being sent."""
        self._closed.set()
        self._news.set()
        if self._task is not None:
            await self._task

    def drop(self) -> None:
        self._is_dropped = True
        if self._task is not None:
            self._task.cancel()

    async def complete(self) -> None:
        """Close, then deliver the terminal webhook and note the outcome. Call it when the prediction is terminal."""
        await self.close()
        if not self._record.wants(WebhookEvent.COMPLETED):
            return
        try:
            await self._post.webhooks.deliver(self._record.id)
        except BackendUnavailable:
            log.info("left a webhook to the courier", extra={"prediction": self._record.id})

    def _is_over(self) -> bool:
        return self._closed.is_set() and WebhookEvent.START not in self._wanted

    async def _run(self) -> None:
        while not self._is_over():
            await self._news.wait()
            self._news.clear()
            if self._is_over():
                return
            self._sent += 1
            event = f"{self._wanted[0]}_{self._record.claims}_{self._sent}"
            self._wanted.clear()
            try:
                delivery = await self._post.webhooks.send(self._snapshot(self._started_ms), event)
                if not delivery.ok:
                    log.info("webhook not delivered", extra={"prediction": self._record.id, "reason": delivery.reason})
            except BackendUnavailable:
                log.info("skipped a webhook", extra={"prediction": self._record.id})
            except Exception:  # a webhook of progress must not end the run
                log.exception("sending a webhook failed", extra={"prediction": self._record.id})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._post.interval_s)
