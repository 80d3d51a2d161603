"""Run predictions on a server that answers a POST with the output, whole or as a stream.

Sends the filled template, and takes output, error and metrics from where the configuration points to: in the answer, or
in each event of a stream. Sends no run twice that may have come there. It is stopped by hanging up.
"""

import asyncio
import contextlib
import math
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import httpx
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.json_pointer import WHOLE, Pointer
from director.core.runner_config import BatchConfig, HttpConfig
from director.core.view import join
from director.servers.runners import answers, form, outcomes
from director.servers.runners.http_base import MappedRunner, OutputReader, Reporter, RunnerOptions, receive, unpack
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import Batch, Capabilities, Ended, Hear, OneAnswer, Outcome, RunRequest
from director.servers.runners.transport import Exchange

ACCEPTED: Final = 202
# Texts that come in pieces are streamed as pieces. A table or a page is one text, however it comes
STREAMED_TEXT: Final = frozenset({"text/plain", "text/markdown"})
HEARTBEATS: Final = frozenset({"ping", "heartbeat", "keepalive", "keep-alive", "keep_alive"})


class HttpRunner(MappedRunner, OneAnswer):
    _config: HttpConfig

    def hear(self, request: RunRequest, hear: Hear) -> Coroutine[Any, Any, None]:
        return self._runs.hear(request, self._follow_to_end, hear)

    def __init__(self, config: HttpConfig, options: RunnerOptions) -> None:
        self._boundary = secrets.token_hex(16)
        if config.body == "form":
            headers = {**options.headers, "content-type": form.content_type(self._boundary)}
            options = replace(options, headers=headers)
        super().__init__(config, options)
        self.capabilities = Capabilities(takes_bytes=bool(config.files))
        self._is_form = config.body == "form"

    async def _follow(self, request: RunRequest, feed: Reporter) -> Ended:
        body = self._config.input.fill(request.input)
        if self._is_form:
            try:
                body = form.encode(body, files=self._config.files, boundary=self._boundary)
            except (form.FormFault, msgspec.DecodeError) as exc:
                return Ended(outcome=Outcome.INVALID, error=str(exc))
        try:
            response = await self._send_request(body, feed, trace=request.trace)
            async with aclosing(response):
                parser = self._parser(response) if response.is_success else None
                if parser is None:
                    answer = await receive(response, self._max_body)
                else:
                    reader = _Reader(request, feed, self._max_body, parser, self._config)
                    ended = await reader.follow(unpack(response, self._max_body))
                    whole = parser.whole if isinstance(parser, answers.UntypedParser) and ended is None else None
                    if whole is None:
                        is_whole = reader.is_done or response.is_framed
                        return answers.unproven(reader.with_output(ended), is_whole=is_whole)
                    status, headers, is_framed = response.status_code, response.headers, response.is_framed
                    answer = answers.Answer(status=status, body=whole, headers=headers, is_framed=is_framed)
        except httpx.TransportError as exc:
            return self._lose(exc, has_begun=feed.has_begun)
        except answers.Unreadable as exc:
            return answers.unreadable("The model server's stream is", exc, b"")
        if answer.is_file:
            return answers.unproven(answers.file_end(answer), is_whole=answer.is_framed)
        document = self._document(answer)
        if isinstance(document, Ended):
            return document
        is_whole = answers.is_whole(answer, document)
        return answers.unproven(answers.map_end(document, self._config), is_whole=is_whole)

    def _parser(self, response: Exchange) -> answers.Parser | None:
        """Return the parser of a stream; None for an answer that comes as a whole. Raises Unreadable."""
        kind = answers.kind_in(response.headers)
        if kind == answers.EVENT_STREAM:
            if self._config.is_mapped:
                return answers.SseParser(self._max_body)
            return answers.EventParser(self._max_body, response.headers)
        if answers.LINES.fullmatch(kind):
            return answers.LineParser(self._max_body)
        if kind in STREAMED_TEXT and response.is_chunked and not self._config.is_mapped:
            return answers.TextParser(response.headers)
        if not kind and response.is_chunked:
            return answers.UntypedParser(self._max_body)
        return None

    def _document(self, answer: answers.Answer) -> Raw | Ended:
        if not answer.is_ok:
            return self._judge_refusal(answer)
        if not answer.complete:
            return answers.too_large(self._max_body)
        if answer.status == ACCEPTED:
            return Ended(outcome=Outcome.FAILED, error="The model server answered 202: it has to be polled")
        try:
            document = answers.read_output(answer, is_mapped=self._config.is_mapped)
        except answers.Unreadable as exc:
            return answers.unreadable("The model server's answer is", exc, answer.body, is_framed=answer.is_framed)
        if error := answers.map_error(document, self._config.error):
            return outcomes.end(outcomes.read_error(error), error)
        return document


class _Reader(OutputReader):
    """Takes each event of a stream as one output. Data that is no JSON is text, and so is a piece of text."""

    def __init__(
        self, request: RunRequest, feed: Reporter, max_body: int, parser: answers.Parser, config: HttpConfig
    ) -> None:
        super().__init__(request, feed, max_body, parser=parser)
        self._config = config
        self._must_be_json = isinstance(parser, answers.LineParser | answers.UntypedParser)
        self.is_done = False  # it said so

    def with_output(self, ended: Ended | None) -> Ended:
        """Return the end. A stream that came whole has all of the output, since it has no sign of its end."""
        output = join(self._items)
        if ended is None:
            empty = outcomes.end(Observation.UNREADABLE, "The model server's stream is empty")
            ended = empty if output is None else Ended(outcome=Outcome.SUCCEEDED)
        return replace(ended, output=output, metrics=self._metrics)

    def _take(self, frame: answers.Frame) -> Ended | None:
        data = frame.data.strip()
        if frame.is_text:
            return self._produce(msgspec.json.encode(frame.data.decode()))
        self.is_done = self.is_done or data == answers.DONE
        if not data or data == answers.DONE or frame.event.lower() in HEARTBEATS:
            return None
        document = answers.read_document(data) if self._must_be_json else answers.document_or_text(data)
        if frame.event.lower() in answers.ERROR_EVENTS:
            why = answers.map_error(document, self._config.error) or answers.map_error(document, WHOLE)
            return outcomes.end(outcomes.read_stream_error(0, why), why or "The model failed without saying why")
        error = answers.map_error(document, self._config.error) if self._config.error else answers.told_error(document)
        if error:
            return outcomes.end(outcomes.read_stream_error(0, error), error)
        self._metrics |= answers.map_metrics(document, self._config)
        found = self._config.output.find(document)
        return None if found is None or found == answers.NULL else self._produce(bytes(answers.legible(found)))

    def _cut_off(self, exc: answers.Unreadable) -> Ended:
        return outcomes.end(Observation.UNFRAMED, f"The last piece of the model server's stream is {exc}")


# Run several predictions in one request, on a server that answers one POST with several outputs, as for embeddings.
# Each ends by itself, and one that is stopped leaves the others as they are. A request that failed is sent again in
# halves, until the prediction to blame fails alone. If the items of an answer cannot be matched to the predictions, no
# prediction gets an output.

MOST: Final = 2**48  # above it, rounding alone may be whole units
DIGITS: Final = 6
MISMATCH: Final = "batch_mismatch"
# A run whose files take longer to look up goes after the others
LATE_S: Final = 1.0
# An answer to all of them that may be the fault of one
MAY_BE_ONE: Final = frozenset({Outcome.FAILED, Outcome.INVALID})
# A server that is about to die still takes connections: the next run sent there would lose an attempt
NOT_SENT: Final = Ended(outcome=Outcome.REFUSED, error="The model server died before it was sent there")


class BatchRun(Struct, eq=False):
    """One run of a batch. `shared`: it can go only with runs that share this value; None if it has to go alone."""

    request: RunRequest
    feed: Reporter
    shared: Hashable
    end: asyncio.Future[Ended]


Send = Callable[[Sequence[BatchRun]], Coroutine[Any, Any, Sequence[Ended] | Ended]]
"""Sends one request: the end of each run, or one end that the request as a whole came to."""


class Rounds:
    """The requests of one batch through one slot: one after the other, never two at once."""

    def __init__(self, batch: Batch, send: Send) -> None:
        self._send = send
        self._runs: set[BatchRun] = set()
        self._come: list[BatchRun] = []
        self._waiting: deque[list[BatchRun]] = deque()
        self._sent: list[BatchRun] = []
        self._request: asyncio.Task[Sequence[Ended] | Ended] | None = None
        self._lead: asyncio.Task[None] | None = None
        self._gathered = asyncio.Event()
        batch.on_gathered = self._gathered.set
        if batch.is_gathered:
            self._gathered.set()

    @property
    def is_over(self) -> bool:
        return not self._runs

    async def end_of(self, run: BatchRun) -> Ended:
        self._runs.add(run)
        self._come.append(run)
        if self._lead is None or self._lead.done():
            self._lead = asyncio.create_task(self._go())
        return await run.end

    async def leave(self, run: BatchRun) -> None:
        self._runs.discard(run)
        run.end.cancel()
        if self._request is not None and all(each.end.done() for each in self._sent):
            self._request.cancel()
            await asyncio.wait({self._request})

    async def aclose(self) -> None:
        if self._lead is not None:
            self._lead.cancel()
            await asyncio.wait({self._lead})

    async def _go(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                await self._gathered.wait()
        while sent := self._next():
            self._sent = sent
            self._request = asyncio.create_task(self._send(sent))
            await asyncio.wait({self._request})
            if not self._request.cancelled():
                self._tell(sent, self._request)

    def _next(self) -> list[BatchRun]:
        come, self._come = self._come, []
        groups: dict[Hashable, list[BatchRun]] = {}
        for run in come:
            groups.setdefault(run.shared, []).append(run)
        alone = groups.pop(None, [])
        self._waiting += [*groups.values(), *([run] for run in alone)]
        while self._waiting:
            if sent := [run for run in self._waiting.popleft() if not run.end.done()]:
                return sent
        return []

    def _tell(self, sent: list[BatchRun], request: asyncio.Task[Sequence[Ended] | Ended]) -> None:
        left = [run for run in sent if not run.end.done()]
        if fault := request.exception():
            for run in left:
                run.end.set_exception(fault)
            return
        answer = request.result()
        if isinstance(answer, Ended) and answer.outcome in MAY_BE_ONE and len(sent) > 1:
            half = (len(left) + 1) // 2
            self._waiting.extendleft([left[half:], left[:half]])
            return
        if isinstance(answer, Ended) and len(sent) > 1:
            answer = replace(answer, may_be_input=False)  # of which of them, is not known
        ends = [answer] * len(sent) if isinstance(answer, Ended) else answer
        for run, end in zip(sent, ends, strict=True):
            if not run.end.done():
                run.end.set_result(end)
        if any(end.server_is_dead for end in ends):
            self._give_back_the_rest()

    def _give_back_the_rest(self) -> None:
        rest = [*self._come, *(run for group in self._waiting for run in group)]
        self._come.clear()
        self._waiting.clear()
        for run in rest:
            if not run.end.done():
                run.end.set_result(NOT_SENT)


class HttpBatchRunner(HttpRunner):
    """Runs the predictions of a batch as one request. A prediction without a place in a batch goes alone."""

    def __init__(self, config: HttpConfig, options: RunnerOptions) -> None:
        super().__init__(config, options)
        self._batch = config.batch or BatchConfig()
        self.capabilities = Capabilities(batches=self._batch.most)
        self._rounds: dict[Batch, Rounds] = {}

    async def _follow(self, request: RunRequest, feed: Reporter) -> Ended:
        template = self._config.input
        if (missing := template.missing(request.input)) is not None:
            return Ended(outcome=Outcome.INVALID, error=f"The input has nothing at {missing.text}")
        is_alone = request.alone or self._has_list(request)
        shared = None if is_alone else template.shared(request.input)
        run = BatchRun(request, feed, shared, asyncio.get_running_loop().create_future())
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
            finally:  # also if it is canceled while it hangs up
                if rounds.is_over and self._rounds.get(place.batch) is rounds:
                    del self._rounds[place.batch]
                    await rounds.aclose()

    def _has_list(self, request: RunRequest) -> bool:
        return self._batch.lists and self._config.input.has_list(request.input)

    async def _send(self, runs: Sequence[BatchRun]) -> Sequence[Ended] | Ended:
        is_list = self._has_list(runs[0].request)
        given = [run.request.input for run in runs]
        body = self._config.input.fill_list(given[0]) if is_list else self._config.input.fill(*given)
        feeds = [run.feed for run in runs]
        trace = runs[0].request.trace  # a request has one trace: the other runs are in spans of their own
        try:
            answer = await self._post(body, *feeds, trace=trace)
        except httpx.TransportError as exc:
            return [self._lose(exc, has_begun=feed.has_begun) for feed in feeds]
        document = self._document(answer)
        if isinstance(document, Ended):
            return await self._settle(document)
        if is_list:
            return [end_of_list(document, self._config, self._batch, answer.headers)]
        return ends_of(document, self._config, self._batch, [run.request.cost for run in runs], answer.headers)


def ends_of(
    document: Raw, config: HttpConfig, batch: BatchConfig, costs: Sequence[float], headers: Mapping[str, str]
) -> list[Ended]:
    count = len(costs)
    try:
        items = _items(document, batch.items)
        if len(items) != count:
            raise answers.Unreadable(f"has {len(items)} items for {count} predictions")
        items = items if batch.index is None else _order(items, batch.index)
    except answers.Unreadable as exc:
        error = f"The model server's answer {exc}, so its outputs cannot be matched to predictions"
        return [Ended(outcome=Outcome.FAILED, error=error, code=MISMATCH)] * count
    used = split_usage(document, headers, items, batch, costs)
    return [_end(item, config, share) for item, share in zip(items, used, strict=True)]


def end_of_list(document: Raw, config: HttpConfig, batch: BatchConfig, headers: Mapping[str, str]) -> Ended:
    """Return the end of one prediction that had a list: the outputs of all items, or the first failure."""
    try:
        items = _items(document, batch.items)
        items = items if batch.index is None else _order(items, batch.index)
    except answers.Unreadable as exc:
        return Ended(outcome=Outcome.FAILED, error=f"The model server's answer {exc}", code=MISMATCH)
    ends = [_end(item, config, {}) for item in items]
    if failed := next((end for end in ends if end.outcome is not Outcome.SUCCEEDED), None):
        return failed
    [used] = split_usage(document, headers, [document], msgspec.structs.replace(batch, share=None), [1.0])
    output = Raw(b"[%b]" % b",".join(bytes(end.output or b"null") for end in ends))
    return Ended(outcome=Outcome.SUCCEEDED, output=output, metrics=used)


def _items(document: Raw, where: Pointer) -> list[Raw]:
    found = where.find(document)
    try:
        return answers.read_json(bytes(found or b""), list[Raw])
    except answers.Unreadable as exc:
        raise answers.Unreadable(f"has no list at {where.text!r}") from exc


def _order(items: list[Raw], index: Pointer) -> list[Raw]:
    places: dict[int, Raw] = {}
    for item in items:
        places[answers.read_json(bytes(index.find(item) or b"null"), int)] = item
    if sorted(places) != list(range(len(items))):
        raise answers.Unreadable(f"does not number its items from 0 at {index.text!r}")
    return [places[number] for number in range(len(items))]


def _end(item: Raw, config: HttpConfig, used: dict[str, Raw]) -> Ended:
    if error := answers.map_error(item, config.error):
        return replace(outcomes.end(outcomes.read_error(error), error), metrics=used)
    end = answers.map_end(item, config)
    return replace(end, metrics=used | end.metrics)


def split_usage(
    document: Raw, headers: Mapping[str, str], items: Sequence[Raw], batch: BatchConfig, costs: Sequence[float]
) -> list[dict[str, Raw]]:
    """Split what one request used over its runs: by the share in each item, else by cost. In the order of the items."""
    totals = {name: _number(bytes(where.find(document) or b"")) for name, where in batch.usage.items()}
    totals |= {name: _number(headers.get(header.lower(), "").encode()) for name, header in batch.usage_headers.items()}
    weights = _shares(items, batch.share) or costs
    parts = {name: split(total, weights) for name, total in totals.items() if total is not None}
    return [
        {name: Raw(msgspec.json.encode(part[index])) for name, part in parts.items()} for index in range(len(items))
    ]


def split(total: float, weights: Sequence[float]) -> list[float]:
    """Split in proportion, or evenly if all weights are 0. Parts of a whole number are whole and add up to it."""
    everything = math.fsum(weights)
    exact = [total * weight / everything if everything > 0 else total / len(weights) for weight in weights]
    if not isinstance(total, int):
        return [round(part, DIGITS) for part in exact]
    parts = [math.floor(part) for part in exact]
    by_cut = sorted(range(len(parts)), key=lambda index: parts[index] - exact[index])
    for index in by_cut[: total - sum(parts)]:
        parts[index] += 1
    return list(parts)


def _shares(items: Sequence[Raw], share: Pointer | None) -> list[float]:
    found = [] if share is None else [_number(bytes(share.find(item) or b"")) for item in items]
    numbers = [number for number in found if number is not None]
    return numbers if len(numbers) == len(items) else []


def _number(text: bytes) -> float | None:
    try:
        number = answers.read_json(text, int | float)  # type: ignore[arg-type]
    except answers.Unreadable:
        return None
    return number if 0 <= number <= MOST else None


def make(config: HttpConfig, options: RunnerOptions) -> HttpRunner:
    return (HttpRunner if config.batch is None else HttpBatchRunner)(config, options)
