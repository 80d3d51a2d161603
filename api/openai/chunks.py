"""Write a call's events as the chunks of OpenAI's API, byte for byte as the model server sent them."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from api.openai.ends import DONE, NO_CHUNK, Failure, as_chunks, error_event, event, failure, failure_of
from api.openai.lenient import read_leniently
from api.services.stream_events import BEGINNINGS, KEEP_ALIVE_S, RETRIED, Mark
from api.services.stream_readers import Stop
from api.web.http import type_of
from director.core.schema import Event, Stored
from director.core.states import Status
from director.core.view import OUTPUTS

HEAD_S: Final = 2.0  # for which the head is held: an end before it has a status of its own
LOST: Final = "The model server was lost after a part of the answer was sent. Send the call again."
REMOVED: Final = "The rest of this answer was removed before it was read."


class EndedEarly(Exception):
    """The call failed before anything of its answer was sent, so the answer can be this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code)
        self.failure = failure


class Cut(Stop):
    """The stream cannot go on, though the prediction may. `rest`: what is left to send before the error."""

    def __init__(self, failure: Failure, rest: bytes = b"") -> None:
        super().__init__(failure.code)
        self.failure = failure
        self.rest = rest


class _Options(Struct):
    include_usage: bool | None = None


class _Sent(Struct):
    stream_options: _Options | None = None


class _Choice(Struct):
    index: int = 0


class _Chunk(Struct):
    choices: tuple[_Choice, ...] = ()


Choices = tuple[int, ...]
"""The indexes of a chunk's choices. A call with `n` has a role for each."""


class Chunks:
    """The format of a call's stream. `restarts`: another run may follow one that was shown. `is_open`: the head is
    sent. `write_comment`: returns what a silent stream says, and after how many seconds of silence the next one is due.

    A run that sent only chunks with a role may be repeated, and its reader does not notice: those of the next run are
    left out. `mark.items` counts the others.
    """

    def __init__(self, *, restarts: bool, write_comment: Callable[[], Awaitable[tuple[bytes, float]]]) -> None:
        self.mark = Mark()
        self.at_end = False
        self.silence_s = HEAD_S
        self.is_open = False
        self._restarts = restarts
        self._write_comment = write_comment
        self._roles: Counter[Choices] = Counter()  # chunks with a role alone: of this run
        self._roles_sent: Counter[Choices] = Counter()  # of all runs together

    def events(self, events: Sequence[Event]) -> bytes:
        """Raises Cut for output that is no chunk, and after a restart unless that is allowed or nothing was sent."""
        frames: list[bytes] = []
        seq, items, self.at_end = self.mark.seq, self.mark.items, False
        # of the run: its frames from `start` on are not sent yet
        start, is_sent, roles_sent = 0, items > 0, self._roles_sent.copy()
        for one in events:
            if one.kind in OUTPUTS:
                if type_of(one.data) != "object":
                    raise Cut(failure("model_failed", NO_CHUNK), b"".join(frames))
                if one.kind == "output" or self._is_new_role(one.data):
                    frames.append(event(one.data))
                items += one.kind == "output"
            elif one.kind == "completed":
                self.at_end = True
                break
            elif one.kind in BEGINNINGS:  # `created` too: a log from which a failover took events
                if is_sent and not self._restarts:
                    raise Cut(failure("server_lost", LOST), b"".join(frames))
                if is_sent:
                    frames.append(RETRIED)
                    self._roles_sent = Counter()
                elif items:
                    del frames[start:]
                    self._roles_sent = roles_sent
                self._roles, items = Counter(), 0
                start, is_sent, roles_sent = len(frames), False, self._roles_sent.copy()
            seq = one.seq
        self.mark = Mark(seq, items)
        return b"".join(frames)

    def _is_new_role(self, chunk: bytes) -> bool:
        """Count one more of the run, for its choices. Returns False if an earlier run had as many for these."""
        choices = _choices_of(chunk)
        self._roles[choices] += 1
        if self._roles[choices] <= self._roles_sent[choices]:
            return False
        self._roles_sent[choices] = self._roles[choices]
        return True

    def rest(self, output: Raw | None, logs: str, *, most_bytes: int) -> tuple[bytes, bool]:
        return b"", True  # the output is the same once more, as one answer

    def end(self, stored: Stored) -> bytes:
        """Raises EndedEarly for a failure before the head."""
        if stored.record.status is not Status.SUCCEEDED:
            return self._fail(failure_of(stored))
        if self.at_end and (self.mark.items or self._roles):
            return DONE
        if self.mark.items:
            return self.end_as_removed()
        answer = b"" if stored.output is None else bytes(stored.output)
        if not answer:
            return DONE
        if type_of(answer) != "object":
            return self._fail(failure("model_failed", NO_CHUNK))
        chunks = as_chunks(answer, with_usage=_wants_usage(stored.input))
        return b"".join([*map(event, chunks), DONE])

    def end_as_removed(self) -> bytes:
        return self._fail(failure("data_removed", REMOVED, status=410))

    async def comment(self) -> bytes:
        text, self.silence_s = await self._write_comment()
        return text

    def _fail(self, failed: Failure) -> bytes:
        if not self.is_open:
            raise EndedEarly(failed)
        return error_event(failed)


def next_silence_s(reading: int, *, waits: bool) -> float:
    """Return how long a stream is silent until its next comment, while this many streams are read."""
    return max(PLACE_S, reading / PLACES_PER_S) if waits else KEEP_ALIVE_S


PLACE_S: Final = 5.0  # between two comments on the place in the queue
PLACES_PER_S: Final = 100  # of all streams together


def _choices_of(chunk: bytes) -> Choices:
    try:
        return tuple(choice.index for choice in msgspec.json.decode(chunk, type=_Chunk).choices)
    except msgspec.DecodeError:
        return ()


def _wants_usage(given: Raw | None) -> bool:
    try:
        sent = msgspec.json.decode(given or b"{}", type=_Sent)
    except msgspec.ValidationError:
        return False
    except msgspec.DecodeError:
        options = (read_leniently(bytes(given or b"")) or {}).get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True
    return sent.stream_options is not None and bool(sent.stream_options.include_usage)
