"""Ask the operator's moderation endpoint whether an output may be released.

Without a verdict the question is repeated with the same `webhook-id`, or the output counts as allowed, by the
operator's policy. Only a 200 carries a verdict. Never follows a redirect, uses a proxy, or raises for the endpoint.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec
from msgspec import Raw, Struct

from director import __version__
from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.schema import Record
from director.core.settings import DirectorSettings
from director.core.webhooks import sign, sign_headers
from director.execution.tracker import Judged, Verdict
from director.servers.runners.answers import Unreadable, one_line, read_json
from director.servers.runners.transport import read_chunks
from director.webhooks.delivery import message_id

log = logging.getLogger(__name__)

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
MOST_ANSWER: Final = 64 * 1024
HEADERS: Final = {
    "content-type": "application/json",
    "accept-encoding": "identity",
    "user-agent": f"director/{__version__}",
}


class _Question(Struct, frozen=True):
    id: str
    model: str
    output: Raw


class _Answer(Struct, frozen=True):
    allowed: bool
    reason: str | None = None


@dataclass(eq=False)
class Moderator:
    settings: DirectorSettings
    clock: Clock

    def __post_init__(self) -> None:
        self._http = httpx.AsyncClient(timeout=None, trust_env=False, follow_redirects=False)  # noqa: S113 - see _ask

    @classmethod
    def of(cls, settings: DirectorSettings, clock: Clock) -> "Moderator | None":
        """Return the moderator of the settings, if any. Raises SettingsError if its URL or secret is invalid."""
        if not settings.moderation_url:
            return None
        try:
            is_url = httpx.URL(settings.moderation_url).scheme in ("http", "https")
        except httpx.InvalidURL:
            is_url = False
        if not is_url:
            raise SettingsError("DIRECTOR_MODERATION_URL is no http:// or https:// URL.")
        try:
            sign([settings.moderation_secret], message_id="msg", timestamp_s=0, body=b"")
        except ValueError as exc:
            raise SettingsError(f"DIRECTOR_MODERATION_SECRET: {exc}.") from None
        return cls(settings, clock)

    async def judge(self, record: Record, output: bytes, *, until_s: float, cut: asyncio.Event) -> Judged:
        """Return the verdict on this output. Asks at least once, then until `until_s` or until `cut` is set."""
        body = msgspec.json.encode(_Question(record.id, record.model, Raw(output)))
        pauses = iter(PAUSES_S)
        pause_s = 0.0
        while True:
            answer = await self._ask(record, body)
            if isinstance(answer, Judged):
                return answer
            log.warning("an output was not judged", extra={"prediction": record.id, "reason": answer})
            if self.settings.moderation_on_failure == "release":
                return Judged(Verdict.ALLOWED)
            pause_s = next(pauses, pause_s)
            left_s = until_s - self.clock.monotonic()
            if cut.is_set() or left_s <= 0:
                return Judged(Verdict.UNKNOWN)
            try:
                await asyncio.wait_for(cut.wait(), min(pause_s, left_s))
            except TimeoutError:
                continue

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _ask(self, record: Record, body: bytes) -> Judged | str:
        headers = sign_headers(
            [self.settings.moderation_secret],
            message_id=message_id(record.id, f"moderation_{record.claims}", revivals=record.revivals),
            timestamp_s=self.clock.now_ms() // 1000,
            body=body,
        )
        headers |= HEADERS
        url, timeout_s = self.settings.moderation_url, self.settings.moderation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.stream("POST", url, content=body, headers=headers) as response:
                    answer, is_whole = await read_chunks(response.aiter_raw(), MOST_ANSWER)
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as exc:
            return type(exc).__name__
        if response.status_code != httpx.codes.OK:
            return f"answered {response.status_code}"
        if not is_whole:
            return f"answered more than {MOST_ANSWER:,} bytes"
        try:
            said = read_json(answer, _Answer)
        except Unreadable as exc:
            return f"answered what is {exc}"
        return Judged(Verdict.ALLOWED if said.allowed else Verdict.REFUSED, one_line(said.reason or ""))
