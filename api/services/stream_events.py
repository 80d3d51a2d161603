"""Turn a prediction's event log into server-sent events, byte for byte. Pure. Every frame has a name and an id, since
official clients drop frames without them, and lines end in LF alone. Any API process can continue after an id.
Everything is sent exactly once: what the log lacks comes from the final record.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.schema import Event, Stored
from director.core.states import Status
from director.core.view import LINES_DROPPED, OUTPUTS, RESTARTS

KEEP_ALIVE: Final = b": keep-alive\n\n"
KEEP_ALIVE_S: Final = 10.0
RETRIED: Final = b": retried\n\n"
REMOVED: Final = "The output of this prediction was removed."
NULL: Final = Raw(b"null")
# A bare CR ends a line too, and progress bars are full of them
LINE_END: Final = re.compile(r"\r\n|\r|\n")
ID: Final = re.compile(r"(\d{1,10}):(\d{1,10}):(\d{1,10})(?::(error|done))?", re.ASCII)
# Output and logs start again with each of these events, for the reader too
BEGINNINGS: Final = RESTARTS | {"created"}
PIECE_CHARS: Final = 16 * 1024  # of logs in one event

DONE: Final = {
    Status.SUCCEEDED: "{}",
    Status.FAILED: '{"reason":"error"}',
    Status.CANCELED: '{"reason":"canceled"}',
    Status.ABORTED: '{"reason":"canceled"}',  # clients know no other word for it
}


class Mark(Struct, frozen=True):
    """A position in an event stream. As text it is a frame's id: `seq:items:chars`, with a fourth word at the end.
    `seq`: the last event that was handled. `items`, `chars`: how much of the attempt's output and logs was sent by
    then. `end`: how much of the end was sent.
    """

    seq: int = 0
    items: int = 0
    chars: int = 0
    end: Literal["", "error", "done"] = ""

    def __str__(self) -> str:
        place = f"{self.seq}:{self.items}:{self.chars}"
        return f"{place}:{self.end}" if self.end else place

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """Read an id. Returns the very beginning for a text that is no id of ours."""
        match = ID.fullmatch(text)
        if match is None:
            return cls()
        end = cast(Literal["", "error", "done"], match[4] or "")
        return cls(int(match[1]), int(match[2]), int(match[3]), end)


class Frames:
    """Makes the frames for one reader at `mark`. `at_end`: the log has no more, but the final record may have. After
    `silence_s` without a frame a comment is sent.
    """

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.at_end = False
        self.silence_s = KEEP_ALIVE_S

    def events(self, events: Sequence[Event]) -> bytes:
        frames, self.at_end = [], False  # it may have started again
        for event in events:
            if event.kind == "completed":
                self.at_end = True
                break
            frames.append(self._next(event))
        return b"".join(frames)

    def rest(self, output: Raw | None, logs: str, *, most_bytes: int) -> tuple[bytes, bool]:
        """Return frames for what the final record has and the log lacked, and whether these are all. Frames that are
        not all have at least `most_bytes`. Logs whose beginning was dropped are left as they were sent.
        """
        frames, size = [], 0
        items = _items(output)
        last = 0 if logs.startswith(LINES_DROPPED) else len(logs)
        while size < most_bytes:
            mark = self.mark
            if mark.chars < last:
                piece = logs[mark.chars : min(last, mark.chars + PIECE_CHARS)]
                frames.append(self._frame("logs", piece, chars=mark.chars + len(piece)))
            elif mark.items < len(items):
                frames.append(self._frame("output", _text(items[mark.items]), items=mark.items + 1))
            else:
                return b"".join(frames), True
            size += len(frames[-1])
        return b"".join(frames), False

    def end(self, stored: Stored) -> bytes:
        status = stored.record.status
        return self._end(DONE[status], stored.record.error if status is Status.FAILED else None)

    def end_as_removed(self) -> bytes:
        return self._end(DONE[Status.FAILED], REMOVED)

    async def comment(self) -> bytes:
        return KEEP_ALIVE

    def _next(self, event: Event) -> bytes:
        mark = self.mark
        match event.kind:
            case kind if kind in OUTPUTS:
                return self._frame("output", _text(event.data), seq=event.seq, items=mark.items + 1)
            case "logs":
                text = msgspec.json.decode(event.data, type=str)
                return self._frame("logs", text, seq=event.seq, chars=mark.chars + len(text))
            case kind if kind in BEGINNINGS:
                self.mark = Mark(event.seq)
                return RETRIED if mark.items or mark.chars else b""
            case _:
                self.mark = replace(mark, seq=event.seq)
                return b""

    def _end(self, done: str, error: str | None) -> bytes:
        frames = []
        if error is not None and not self.mark.end:
            detail = msgspec.json.encode({"detail": error}).decode()
            frames.append(self._frame("error", detail, end="error"))
        frames.append(self._frame("done", done, end="done"))
        return b"".join(frames)

    def _frame(self, name: str, text: str, **place: object) -> bytes:
        self.mark = replace(self.mark, **place)
        data = "\n".join(f"data: {line}" for line in LINE_END.split(text))
        return f"event: {name}\nid: {self.mark}\n{data}\n\n".encode()


def _text(item: bytes | Raw) -> str:
    data = bytes(item)
    if data.startswith(b'"'):
        try:
            return msgspec.json.decode(data, type=str)
        except msgspec.DecodeError:
            pass  # a lone surrogate, which JSON can write and UTF-8 cannot: shown as JSON, too
    return data.decode(errors="replace")


def _items(output: Raw | None) -> list[Raw]:
    if output is None or output == NULL:
        return []
    return msgspec.json.decode(output, type=list[Raw]) if bytes(memoryview(output)[:1]) == b"[" else [output]
