"""Parse server-sent events, chunk by chunk, in whatever pieces the network brings them.

Pure: it never reads from anywhere, and keeps at most one unfinished event, up to its limit.
"""

from typing import Final

from msgspec import Struct

EVENT_STREAM: Final = "text/event-stream"
BOM: Final = b"\xef\xbb\xbf"


class Frame(Struct, frozen=True):
    """One event. `data` is as it was sent: its lines joined by a newline."""

    event: str
    data: bytes


class FrameTooLarge(ValueError):
    """One event is larger than the limit. The rest of the stream cannot be read."""


class SseParser:
    """Takes chunks and returns the events that they complete. Comments, `id` and `retry` are skipped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail = bytearray()  # a line that has no end yet
        self._after_cr = False  # the last chunk ended with CR: a LF that follows belongs to it
        self._at_start = True
        self._event = "message"
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the events that end within `chunk`. Raises `FrameTooLarge`; the parser then cannot be used further."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        lines: list[bytes] = []
        if end:
            lines = (bytes(self._tail) + chunk[:end]).splitlines()
            self._tail = bytearray()
        self._tail += chunk[end:]
        frames = [frame for line in lines if (frame := self._take(line)) is not None]
        if len(self._tail) + self._data_bytes > self._max_bytes:
            raise FrameTooLarge
        return frames

    def _take(self, line: bytes) -> Frame | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max_bytes:
                raise FrameTooLarge
        elif name == b"event":
            self._event = value.decode(errors="replace")
        return None

    def _dispatch(self) -> Frame | None:
        # The standard drops an event without data; a keep-alive comment looks like that
        frame = Frame(self._event or "message", b"\n".join(self._data)) if self._data else None
        self._event, self._data, self._data_bytes = "message", [], 0
        return frame
