"""Notify the receiver of a batch about its end: `batch.completed`, `.failed`, `.expired` or `.cancelled`.

The message is that of OpenAI's webhooks, signed with the account's secret as all others are, and tried as often.
"""

import logging
import random
import secrets
from functools import partial

import msgspec

from api.batches.patience import with_patience
from director.core.clock import Clock
from director.core.webhooks import host_of
from director.store.accounts import Accounts
from director.store.batches import OVER, Batch, Lease
from director.webhooks.delivery import UNREADABLE, Schedule
from director.webhooks.sender import Delivery, Sender

log = logging.getLogger(__name__)


class Notifier:
    def __init__(self, sender: Sender, accounts: Accounts, clock: Clock, schedule: Schedule) -> None:
        self._sender = sender
        self._accounts = accounts
        self._clock = clock
        self._schedule = schedule

    async def notify(self, batch: Batch, lease: Lease) -> float:
        """Make the attempt that is due. Returns the seconds until the next one, or 0 after the last. Raises Lost."""
        now_ms = self._clock.now_ms()
        if not batch.webhook:
            return 0.0
        if batch.hook_at > now_ms:
            return (batch.hook_at - now_ms) / 1000
        ended_ms = batch.times[batch.status]
        noted = self._schedule.judge(
            await self._send(batch, ended_ms),
            steps=batch.hook_tries,
            owed_s=(now_ms - ended_ms) / 1000,
            jitter=random.random(),  # noqa: S311 - spreads retries, guards nothing
        )
        log.info("webhook of a batch", extra={"batch": batch.id, "outcome": noted.outcome})
        if noted.delay_s is None:
            return 0.0
        next_ms = now_ms + int(noted.delay_s * 1000)
        fields = {"hook_at": next_ms, "hook_tries": batch.hook_tries + 1}
        write = partial(lease.write, fields, nonce=secrets.token_hex(8), allowed=(batch.status,), turn=OVER + next_ms)
        await with_patience(write)
        return max(1.0, noted.delay_s)

    async def _send(self, batch: Batch, ended_ms: int) -> Delivery:
        message_id = f"evt_{batch.id}"
        said = {
            "id": message_id,
            "object": "event",
            "type": f"batch.{batch.status}",
            "created_at": ended_ms // 1000,
            "data": {"id": f"batch_{batch.id}"},
        }
        try:
            return await self._sender.send(
                batch.webhook,
                message_id=message_id,
                body=msgspec.json.encode(said),
                secrets=await with_patience(partial(self._accounts.webhook_secrets, batch.account)),
                now_s=self._clock.now_ms() / 1000,
                account=batch.account,
            )
        except ValueError:  # a missing or malformed secret: an operator can mend it while the schedule lasts
            log.exception("webhook cannot be signed", extra={"batch": batch.id, "to": host_of(batch.webhook)})
            return UNREADABLE
