"""Run predictions on a server that answers a POST with the output.

Sends what the template makes of the input, and takes output, error and metrics from where the configuration points to.
Never sends a run twice, and shows nothing before its end. A run is stopped by hanging up.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Final
from urllib.parse import quote

import httpx
from msgspec import Raw

from director.core.runner_config import HttpConfig
from director.servers.runners.connections import NO_HEADERS
from director.servers.runners.feed import Voice
from director.servers.runners.http_answers import (
    Answer,
    file_end,
    mapped_end,
    mapped_error,
    read_document,
    refused,
    too_large,
)
from director.servers.runners.http_server import HttpServer, OpenRuns, openapi, post
from director.servers.runners.runner import Capabilities, Ended, Health, Hear, OneAnswer, Outcome, RunEvent, RunRequest
from director.servers.runners.untrusted import Unreadable

ACCEPTED: Final = 202


class HttpRunner(OneAnswer):
    """One such server with `slots` slots. `max_body`: the most that is read of one answer."""

    capabilities = Capabilities()

    def __init__(
        self, url: str, config: HttpConfig, *, slots: int = 1, max_body: int, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.url = url.rstrip("/")
        self._config = config
        self._max_body = max_body
        self._path = config.path.replace("{model}", quote(config.model, safe=""))
        self._server = HttpServer(self.url, slots=slots, name="http", health_paths=[config.health], headers=headers)
        self._runs = OpenRuns(read_ahead=max_body)

    async def health(self) -> Health:
        """Look once, at the configured path."""
        return await self._server.health()

    async def openapi_schema(self) -> Raw | None:
        """Made of the configured schemas, if there are any."""
        return openapi(self._config.input_schema, self._config.output_schema, title=self._config.model)

    def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        """Start a run and wait for its answer. Closed early, it hangs up."""
        return self._runs.run(request, self._follow)

    async def hear(self, request: RunRequest, hear: Hear) -> None:
        """The same in the task of who calls, who is told each event. Canceled, it hangs up."""
        await self._runs.hear(request, self._follow, hear)

    def knows(self, remote: str) -> bool:
        """Never: a run is its connection."""
        return False

    async def cancel(self, prediction_id: str) -> bool:
        """Hang up. A server that does not notice computes on, for nobody."""
        return self._runs.hang_up(prediction_id)

    async def shutdown(self) -> bool:
        """Such a server cannot be asked."""
        self._server.count_as_new()
        return False

    async def aclose(self) -> None:
        """Let go of every run and every connection."""
        await self._runs.aclose()
        await self._server.aclose()

    async def _follow(self, request: RunRequest, feed: Voice) -> Ended:
        body = self._config.input.fill(request.input)
        async with self._server.lend() as connection:
            try:
                answer = await post(connection, self._path, body, feed, limit=self._max_body, trace=request.trace)
            except httpx.TransportError as exc:
                return self._server.lost(exc, has_begun=feed.has_begun)
        return self._end(answer)

    def _end(self, answer: Answer) -> Ended:
        if answer.is_file:
            return file_end(answer)
        document = self._document(answer)
        return document if isinstance(document, Ended) else mapped_end(document, self._config)

    def _document(self, answer: Answer) -> Raw | Ended:
        """What was answered, or the end that an answer is which has no output."""
        if not answer.is_ok:
            return refused(answer, error=self._config.error)
        if not answer.complete:
            return too_large(self._max_body)
        if answer.status == ACCEPTED:
            return Ended(outcome=Outcome.FAILED, error="The model server answered 202: it has to be polled")
        try:
            document = read_document(answer.body)
        except Unreadable as exc:
            return Ended(outcome=Outcome.LOST, error=f"The model server's answer is {exc}")
        if error := mapped_error(document, self._config.error):
            return Ended(outcome=Outcome.FAILED, error=error)
        return document
