"""Run predictions on a server that answers a POST with the output.

Sends the filled template, and takes output, error and metrics from where the configuration points to. Never sends a run
twice, and shows nothing before its end. A run is stopped by hanging up.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import httpx
from msgspec import Raw

from director.core.runner_config import HttpConfig
from director.servers.runners.connections import NO_HEADERS
from director.servers.runners.feed import Reporter
from director.servers.runners.http_answers import (
    Answer,
    file_end,
    mapped_end,
    mapped_error,
    read_document,
    refused,
    too_large,
)
from director.servers.runners.http_base import HttpBase, openapi, post
from director.servers.runners.runner import Ended, Hear, OneAnswer, Outcome, RunRequest
from director.servers.runners.untrusted import Unreadable

ACCEPTED: Final = 202


class HttpRunner(HttpBase, OneAnswer):
    """Runs each prediction as one request."""

    def __init__(
        self, url: str, config: HttpConfig, *, slots: int = 1, max_body: int, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        super().__init__(
            url,
            name="http",
            slots=slots,
            max_body=max_body,
            health_paths=[config.health],
            schema=openapi(config.input_schema, config.output_schema, title=config.model),
            headers=headers,
        )
        self._config = config
        self._path = config.path.replace("{model}", quote(config.model, safe=""))

    async def hear(self, request: RunRequest, hear: Hear) -> None:
        await self._runs.hear(request, self._follow, hear)

    async def _follow(self, request: RunRequest, feed: Reporter) -> Ended:
        body = self._config.input.fill(request.input)
        async with self._connections.lend() as connection:
            try:
                answer = await post(connection, self._path, body, feed, limit=self._max_body, trace=request.trace)
            except httpx.TransportError as exc:
                return self._lost(exc, has_begun=feed.has_begun)
        if answer.is_file:
            return file_end(answer)
        document = self._document(answer)
        return document if isinstance(document, Ended) else mapped_end(document, self._config)

    def _document(self, answer: Answer) -> Raw | Ended:
        """Return the JSON of an answer that has an output, else the end that the answer is."""
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
