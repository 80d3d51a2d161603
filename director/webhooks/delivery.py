"""Notify a caller about its prediction: send webhooks, note the outcome of the terminal one, schedule its next attempt.

During the run an `Outbox` sends them in order: start, then the newest output and logs, then completed. The terminal
webhook is owed from `finish` on. The director tries it at once and the keeper's courier later, by the same code.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, Literal

import msgspec
from msgspec import Struct

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import Partition, PredictionId, partition_of
from director.core.schema import Record, Stored
from director.core.settings import WEBHOOK_SCHEDULE
from director.core.states import WebhookEvent
from director.core.view import view
from director.core.webhooks import host_of
from director.files.data_files import DataAway
from director.runtime import crash
from director.runtime.tracing import OFF, Facts, Tracing, facts_of
from director.store.accounts import Accounts
from director.webhooks.sender import Delivery, Sender

log = logging.getLogger(__name__)

Outcome = Literal["delivered", "failed", "gone", "refused", "given_up", "revived"]

# At random a tenth sooner or later: an outage fails many attempts at once, and they must not return at once.
SPREAD: Final = 0.1
# Redis keeps the data of an owed webhook for four days (lua/lib/keys.lua). It is delivered or given up before that,
# whatever delays receivers ask for and however long their hosts are away.
LONGEST_S: Final = 90 * 3600.0

GRACE_S: Final = 45.0
"""Time that the director has to deliver the terminal webhook before a courier does: a little more than two sends."""

WAIT: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h)")
UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Noted(Struct, frozen=True):
    """The outcome of one attempt. `delay_s`: until the next, None after the last. `is_asked`: the receiver chose it.

    `is_early`: the attempt was brought forward. The next one is then that of the schedule, `delay_s` from now or later.
    `is_missed`: the host was away, and the next attempt may be brought forward once it answers.
    """

    outcome: Outcome
    delay_s: float | None = None
    is_asked: bool = False
    is_early: bool = False
    is_missed: bool = False
    host_answers: bool | None = None


class Schedule(Struct, frozen=True):
    """The waits after the first, second, … attempt that failed. After the last one the webhook is given up.

    An attempt that was brought forward takes no step. The count of steps alone gives nothing up: nearly all of the time
    must have passed too.
    """

    waits_s: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """Read the setting: waits such as 2s, 5m or 24h, between commas. Raises SettingsError."""
        matches = [WAIT.fullmatch(part.strip()) for part in text.split(",")]
        waits_s = tuple(float(match[1]) * UNITS_S[match[2]] for match in matches if match)
        if len(waits_s) < len(matches) or 0.0 in waits_s:
            raise SettingsError("DIRECTOR_WEBHOOK_SCHEDULE: give waits such as 2s,30s,5m,2h, between commas.")
        if sum(waits_s) * (1 + SPREAD) > LONGEST_S:
            raise SettingsError(
                f"DIRECTOR_WEBHOOK_SCHEDULE: all waits together are {sum(waits_s) / 3600:.1f} h, and may be "
                f"{LONGEST_S / (1 + SPREAD) / 3600:.1f} h: Redis keeps an owed webhook for four days."
            )
        return cls(waits_s)

    def is_last(self, steps: int, owed_s: float, *, is_early: bool = False) -> bool:
        """Return whether no attempt follows the one after `steps` others, of a webhook owed for `owed_s`."""
        is_over = steps >= len(self.waits_s) and owed_s >= sum(self.waits_s) * (1 - SPREAD)
        return owed_s >= LONGEST_S or (is_over and not is_early)

    def wait_s(self, steps: int, owed_s: float) -> float:
        """Return the wait after this step. Of a count that ran ahead of time, the step is that of the time."""
        if steps < len(self.waits_s):
            return self.waits_s[steps]
        ends_s = accumulate(self.waits_s)
        return next(
            (wait_s for wait_s, end_s in zip(self.waits_s, ends_s, strict=True) if owed_s < end_s), self.waits_s[-1]
        )

    def judge(self, delivery: Delivery, *, steps: int, owed_s: float, jitter: float, is_early: bool = False) -> Noted:
        """Judge an attempt after `steps` others, of a webhook owed for `owed_s`. `jitter` is random, from 0 to 1."""
        ends: tuple[tuple[bool, Outcome], ...] = (
            (delivery.ok, "delivered"),
            (delivery.gone, "gone"),
            (delivery.refused, "refused"),
            (self.is_last(steps, owed_s, is_early=is_early), "given_up"),
        )
        for is_so, outcome in ends:
            if is_so:
                return Noted(outcome, host_answers=delivery.host_answers)
        own_s = 0.0 if is_early else self.wait_s(steps, owed_s) * (1 - SPREAD + 2 * SPREAD * jitter)
        asked_s = delivery.retry_after_s or 0.0
        is_asked = asked_s > own_s
        return Noted(
            "failed",
            min(max(own_s, asked_s), LONGEST_S - owed_s),
            is_asked=is_asked,
            is_early=is_early,
            # one early attempt for each step: a receiver that fails beside others that answer would get one for each
            is_missed=delivery.is_missed and not is_asked and not is_early,
            host_answers=delivery.host_answers,
        )


SCHEDULE: Final = Schedule.parse(WEBHOOK_SCHEDULE)

# The record outlives the webhook that it owes; if an operator removed it, nothing is left to send.
REMOVED: Final = Noted("given_up")
# Webhooks that an answering host makes due, of those that it missed; each that arrives does so again
FORWARD: Final = 32
# An operator revived the prediction first: that end is not owed any more, and the next one is not here yet.
REVIVED: Final = Noted("revived")

# A failed attempt as any other. The last one of the schedule is sent without the data: its file may be lost for good.
UNREADABLE: Final = Delivery(ok=False, reason="its data cannot be read from the file store", was_sent=False)


def message_id(prediction_id: PredictionId, event: str, *, revivals: int = 0) -> str:
    """Return the `webhook-id`, by which a receiver recognises a repetition: it is the same for all attempts.

    `event`: `completed`, or a name used once. A revived prediction ends again, so its `revivals` are in the id.
    """
    life = f"_r{revivals}" if revivals else ""
    return f"msg_{prediction_id}{life}_{event}"


@dataclass(slots=True, eq=False)
class Webhooks:
    """Sends webhooks of predictions. Raises BackendUnavailable. `on_attempt` gets each outcome of a terminal one."""

    _scripts: Scripts
    _accounts: Accounts
    _sender: Sender
    _clock: Clock
    _schedule: Schedule = SCHEDULE
    _tracing: Tracing = OFF
    on_attempt: Callable[[Outcome], None] = lambda outcome: None

    async def send(self, stored: Stored, event: str, *, attempt: int = 1) -> Delivery:
        """Send the prediction as GET shows it now. `attempt` counts from 1. Its span names only the receiver's host."""
        record, tracing, delivery = stored.record, self._tracing, None
        secrets = await self._accounts.webhook_secrets(record.account)
        facts: Facts | None = None
        if tracing.is_on:
            webhook: Facts = {
                "event": event.partition("_")[0],
                "attempt": attempt,
                "server.address": host_of(record.webhook),
            }
            facts = {**facts_of(tracing, record), **webhook}
        span = tracing.begin("webhook", record.trace, kind="client", facts=facts)
        try:
            delivery = await self._sender.send(
                record.webhook,
                message_id=message_id(record.id, event, revivals=record.revivals),
                body=msgspec.json.encode(view(stored)),
                secrets=secrets,
                now_s=self._clock.now_ms() / 1000,
                account=record.account,
                trace=span.headers,
            )
        except ValueError as exc:
            # a missing or malformed secret: an operator can mend it while the schedule lasts
            log.error("webhook cannot be signed", extra={"account": record.account, "error": str(exc)})
            return Delivery(ok=False, reason="cannot be signed", was_sent=False)
        else:
            return delivery
        finally:
            if tracing.is_on:
                status = delivery and delivery.status
                span.end({"http.response.status_code": status} if status else {}, error=_error(delivery))

    async def deliver(self, prediction_id: PredictionId) -> Noted:
        """Make one attempt and note it. Callers have the right to it: from `due`, or in the grace after `finish`."""
        noted = await self._deliver(prediction_id)
        self.on_attempt(noted.outcome)
        return noted

    async def _deliver(self, prediction_id: PredictionId) -> Noted:
        is_unreadable = False
        try:
            stored = await self._scripts.get(prediction_id)
        except DataAway as exc:
            stored, is_unreadable = exc.without, True
        if stored is None:
            await self._scripts.deliver(prediction_id, outcome=REMOVED.outcome, delay_s=None)
            return REMOVED
        record = stored.record
        if not record.is_terminal:
            return REVIVED
        steps = record.webhook_attempts - record.webhook_attempts_before
        owed_s = (self._clock.now_ms() - (record.owed_since or record.completed or 0)) / 1000
        crash.at("before_webhook")
        if is_unreadable and not self._schedule.is_last(steps, owed_s, is_early=record.is_early):
            delivery = UNREADABLE
        else:
            delivery = await self.send(stored, WebhookEvent.COMPLETED, attempt=record.webhook_attempts + 1)
        crash.at("after_webhook")
        result = self._schedule.judge(
            delivery,
            steps=steps,
            owed_s=owed_s,
            is_early=record.is_early,
            jitter=random.random(),  # noqa: S311 - spreads retries, guards nothing
        )
        facts = {"prediction": record.id, "attempt": record.webhook_attempts + 1, "outcome": result.outcome}
        if delivery.ok:
            log.info("webhook delivered", extra=facts)
        else:
            log.warning("webhook failed", extra={**facts, "reason": delivery.reason, "next_s": result.delay_s})
        host = host_of(record.webhook)
        answer = await self._scripts.deliver(
            record.id,
            outcome=result.outcome,
            delay_s=result.delay_s,
            revivals=record.revivals,
            status=delivery.status,
            account=record.account,
            host=host,
            is_away=result.is_missed,
            is_early=result.is_early,
            known=record.webhook_attempts,
            rule=delivery.rule,
        )
        if answer == "others":
            await self.forward(partition_of(record.id), record.account, host)
        return result

    async def forward(self, partition: Partition, account: str, host: str, *, limit: int = FORWARD) -> int:
        return await self._scripts.forward(partition, account, host, limit=limit)


class Post(Struct, frozen=True):
    """The outboxes of one director share it. `interval_s`: least time between two webhooks of a claim."""

    webhooks: Webhooks
    interval_s: float = 0.5


class Outbox:
    """The webhooks of one claim. Intermediate ones are sent once, at most one per interval. It never holds a slot."""

    def __init__(self, record: Record, post: Post, snapshot: Callable[[int | None], Stored]) -> None:
        self._record = record
        self._post = post
        self._snapshot = snapshot
        self._wanted: list[WebhookEvent] = []
        self._started_ms: int | None = None
        self._sent = 0
        self._shown: Stored | None = None
        self._is_dropped = False
        self._task: asyncio.Task[None] | None = None

    @cached_property
    def _news(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _closed(self) -> asyncio.Event:
        return asyncio.Event()

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

    async def complete(self, last: Stored) -> None:
        """Close, then deliver the terminal webhook and note the outcome. Call it when the prediction is terminal.
        `last`: all of its output and logs, which a caller that wants no terminal webhook gets once more if it has less.
        """
        await self.close()
        if not self._record.wants(WebhookEvent.COMPLETED):
            await self._send_rest(last)
            return
        try:
            await self._post.webhooks.deliver(self._record.id)
        except BackendUnavailable:
            log.info("left a webhook to the courier", extra={"prediction": self._record.id})

    async def _send_rest(self, last: Stored) -> None:
        rest = (
            event
            for event, now, shown in (
                (WebhookEvent.OUTPUT, last.output, self._shown and self._shown.output),
                (WebhookEvent.LOGS, last.logs, self._shown and self._shown.logs),
            )
            if now and now != shown and self._record.wants(event)
        )
        if (event := next(rest, None)) is not None:
            await self._send(last, event)

    def _is_over(self) -> bool:
        return self._closed.is_set() and WebhookEvent.START not in self._wanted

    async def _run(self) -> None:
        while not self._is_over():
            await self._news.wait()
            self._news.clear()
            if self._is_over():
                return
            event = self._wanted[0]
            self._wanted.clear()
            await self._send(self._snapshot(self._started_ms), event)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._post.interval_s)

    async def _send(self, stored: Stored, event: WebhookEvent) -> None:
        self._sent += 1
        self._shown = stored
        try:
            name = f"{event}_{self._record.claims}_{self._sent}"
            delivery = await self._post.webhooks.send(stored, name)
            if not delivery.ok:
                log.info("webhook not delivered", extra={"prediction": self._record.id, "reason": delivery.reason})
        except BackendUnavailable:
            log.info("skipped a webhook", extra={"prediction": self._record.id})
        except Exception:  # a webhook of progress must not end the run
            log.exception("sending a webhook failed", extra={"prediction": self._record.id})


def _error(delivery: Delivery | None) -> str:
    if delivery is None:
        return "left"
    if delivery.ok:
        return ""
    return delivery.rule or ("refused" if delivery.status else "no_answer")
