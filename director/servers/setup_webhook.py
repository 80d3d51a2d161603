"""Notify an operator's receiver of how each setup of a model server ended: once for each start, signed.

No work waits for it. What cannot be delivered within a few attempts is logged. The receiver is bound by the same rules
as the receivers of callers, so a private one has to be in the allow-list.
"""

import asyncio
import hashlib
import logging
from collections import deque
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.schema import SetupRun
from director.core.settings import DirectorSettings
from director.core.webhooks import read_webhook_url, sign
from director.webhooks.sender import Sender

log = logging.getLogger(__name__)

PAUSES_S: Final = (1.0, 5.0, 30.0, 120.0)
MOST_WAITING: Final = 64  # servers that restart again and again must not fill the memory


class _Body(Struct, frozen=True):
    """The body of the webhook. `version`: null while it is not known."""

    model: str
    version: str | None
    server: str
    status: str
    started_at: str | None
    completed_at: str | None
    logs: str


class SetupWebhook(Struct, eq=False):
    url: str
    secret: str
    sender: Sender
    clock: Clock
    last_message: dict[str, str] = msgspec.field(default_factory=dict)
    waiting: deque[tuple[str, bytes]] = msgspec.field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, settings: DirectorSettings, sender: Sender, clock: Clock) -> "SetupWebhook | None":
        """Return None without a URL. Raises SettingsError if it could never be delivered."""
        if not settings.setup_webhook:
            return None
        try:
            read_webhook_url(settings.setup_webhook)
        except ValueError as exc:
            raise SettingsError(f"DIRECTOR_SETUP_WEBHOOK: the URL {exc}.") from None
        try:
            sign([settings.setup_webhook_secret], message_id="msg", timestamp_s=0, body=b"")
        except ValueError as exc:
            raise SettingsError(f"DIRECTOR_SETUP_WEBHOOK_SECRET: {exc}.") from None
        return cls(settings.setup_webhook, settings.setup_webhook_secret, sender, clock)

    def add(self, setup: SetupRun, *, model: str, version: str) -> None:
        """Queue the end of a setup. A repeated one is delivered once."""
        which = hashlib.sha256("\n".join((model, setup.server, setup.started_at or "", setup.status)).encode())
        message_id = f"msg_setup_{which.hexdigest()[:32]}"
        if self.last_message.get(setup.server) == message_id:
            return
        self.last_message[setup.server] = message_id
        body = _Body(model, version or None, **msgspec.structs.asdict(setup))
        self.waiting.append((message_id, msgspec.json.encode(body)))
        self.news.set()

    async def run(self) -> NoReturn:
        while True:
            while self.waiting:
                await self._deliver(*self.waiting.popleft())
            self.news.clear()
            await self.news.wait()

    async def _deliver(self, message_id: str, body: bytes) -> None:
        for pause_s in (*PAUSES_S, None):
            now_s = self.clock.now_ms() / 1000
            delivery = await self.sender.send(
                self.url, message_id=message_id, body=body, secrets=[self.secret], now_s=now_s
            )
            if delivery.ok:
                return
            if pause_s is None or delivery.gone or delivery.refused:
                break
            await self.clock.sleep(pause_s)
        log.error("the end of a setup was not delivered: see DIRECTOR_SETUP_WEBHOOK", extra={"reason": delivery.reason})
