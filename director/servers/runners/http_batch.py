"""Run predictions on a server that answers one POST with the outputs of several, as those for embeddings do.

What came in one claim goes in one request, as far as its inputs go together; each ends by itself. One that is stopped
leaves the others as they are.
"""

import asyncio
from collections.abc import Mapping, Sequence

import httpx

from director.core.runner_config import BatchConfig, HttpConfig
from director.servers.runners.batch import Batch
from director.servers.runners.batch_answers import ends_of
from director.servers.runners.feed import Voice
from director.servers.runners.http_sync import HttpRunner
from director.servers.runners.rounds import Rounds, Together
from director.servers.runners.runner import Capabilities, Ended, Outcome, RunRequest
from director.servers.runners.server import post
from director.servers.runners.transport import NO_HEADERS

__all__ = ("HttpBatchRunner",)


class HttpBatchRunner(HttpRunner):
    """One such server. A request that has no place in a batch is one of its own."""

    def __init__(
        self, url: str, config: HttpConfig, *, slots: int = 1, max_body: int, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        super().__init__(url, config, slots=slots, max_body=max_body, headers=headers)
        self._batch = config.batch or BatchConfig()
        self.capabilities = Capabilities(batches=self._batch.most)
        self._rounds: dict[Batch, Rounds] = {}

    async def _follow(self, request: RunRequest, feed: Voice) -> Ended:
        template = self._config.input
        if (missing := template.missing(request.input)) is not None:
            return Ended(outcome=Outcome.INVALID, error=f"The input has nothing at {missing.text}")
        shared = None if request.alone else template.shared(request.input)
        run = Together(request, feed, shared, asyncio.get_running_loop().create_future())
        place = request.place or Batch(1).places[0]
        rounds = self._rounds.get(place.batch)
        if rounds is None:
            rounds = self._rounds[place.batch] = Rounds(place.batch, self._send)
        place.come()
        try:
            return await rounds.end_of(run)
        finally:
            try:
                await rounds.leave(run)
            finally:  # also where it is let go of while it hangs up
                if rounds.is_over and self._rounds.get(place.batch) is rounds:
                    del self._rounds[place.batch]
                    await rounds.aclose()

    async def _send(self, runs: Sequence[Together]) -> Sequence[Ended] | Ended:
        body = self._config.input.fill(*(run.request.input for run in runs))
        feeds = [run.feed for run in runs]
        trace = runs[0].request.trace  # one request has one: the others are told of in spans of their own
        async with self._server.lend() as connection:
            try:
                answer = await post(connection, self._path, body, *feeds, limit=self._max_body, trace=trace)
            except httpx.TransportError as exc:
                return [self._server.lost(exc, has_begun=feed.has_begun) for feed in feeds]
        document = self._document(answer)
        if isinstance(document, Ended):
            return document
        return ends_of(document, self._config, self._batch, [run.request.cost for run in runs], answer.headers)
