"""Read a multipart/form-data body part by part, holding only a piece at a time, with a bound on each part. Refuses a
body that arrives too slowly. Raises only Problems and Starlette's ClientDisconnect.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import anyio
from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from api.errors import Problem, file_too_large, malformed, too_slow, trickle

MOST_PARTS: Final = 16
LONGEST_TYPE: Final = 1024
SILENCE_S: Final = 30.0
# Slower than any usual line, and fast enough that callers that only trickle hold few upload turns
LEAST_BYTES_S: Final = 16 << 10
JUDGED_S: Final = 30.0  # of waiting for the caller: time in the store does not count
FRAMING_BYTES: Final = 256 << 10  # of a body beside its largest part: boundaries, headers and the other parts
BLOCK_BYTES: Final = 256 << 10
WORDS: Final = (b"name", b"filename")


class Part(Struct, frozen=True):
    """The head of a part, as it came, read as UTF-8. `filename` is None for a plain field."""

    name: str
    filename: str | None
    content_type: str


class _End: ...


class Form:
    """The form in a request's body. `max_bytes` bounds its largest part, `longest_s` the time for the whole body. Read
    each part from `next_part` to its end with `blocks` or `whole` before the next.
    """

    def __init__(self, request: Request, *, max_bytes: int, longest_s: float) -> None:
        given = request.headers.get("content-type", "")
        # ignored when too long: parsing takes time quadratic in the length
        kind, options = parse_options_header(given if len(given) <= LONGEST_TYPE else "")
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise malformed("The body must be multipart/form-data, with a boundary.")
        announced = request.headers.get("content-length", "")
        # cut, because Python refuses to read a number of thousands of digits
        if announced.isdecimal() and int(announced[:20]) > max_bytes + FRAMING_BYTES:
            raise file_too_large(limit=max_bytes)
        self._max_bytes = max_bytes
        self._longest_s = longest_s
        self._over_at: float | None = None
        self._room = max_bytes + FRAMING_BYTES
        self._body: AsyncIterator[bytes] = request.stream()
        self._found: deque[Part | bytes | type[_End]] = deque()
        self._parts = 0
        self._is_over = False
        self._waited_s = 0.0
        self._size = 0
        self.received = 0  # bytes of the body so far
        self._header = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # type: ignore[arg-type]
        except FormParserError as exc:
            raise _unreadable() from exc

    async def next_part(self) -> Part | None:
        found = await self._next()
        assert found is None or isinstance(found, Part)  # noqa: S101 - each part is taken to its end first
        return found

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """Yield the content of the part in blocks of about 256 KiB."""
        block = bytearray()
        async for piece in self._pieces():
            block += piece
            if len(block) >= BLOCK_BYTES:
                yield bytes(block)
                block.clear()
        if block:
            yield bytes(block)

    async def whole(self, *, most: int) -> bytes | None:
        whole = bytearray()
        async for piece in self._pieces():
            whole += piece[: most + 1 - len(whole)]
        return bytes(whole) if len(whole) <= most else None

    async def _pieces(self) -> AsyncIterator[bytes]:
        size = 0
        while isinstance(piece := await self._next(), bytes):
            size += len(piece)
            if size > self._max_bytes:
                raise file_too_large(limit=self._max_bytes)
            yield piece

    async def _next(self) -> Part | bytes | type[_End] | None:
        while not self._found and not self._is_over:
            piece = await self._read()
            if piece is None:
                raise malformed("The body ends before its last boundary.")
            self._room -= len(piece)
            if self._room < 0:
                raise file_too_large(limit=self._max_bytes)
            try:
                self._parser.write(piece)
            except FormParserError as exc:
                raise _unreadable() from exc
        return self._found.popleft() if self._found else None

    async def _read(self) -> bytes | None:
        now_s = anyio.current_time()
        self._over_at = self._over_at or now_s + self._longest_s
        left_s = self._over_at - now_s
        try:
            with anyio.fail_after(max(0.0, min(SILENCE_S, left_s))):
                piece = await anext(self._body, None)
        except TimeoutError as exc:
            raise too_slow(seconds=SILENCE_S if left_s > SILENCE_S else self._longest_s) from exc
        self.received += len(piece or b"")
        self._refuse_slow(len(piece or b""), anyio.current_time() - now_s)
        return piece

    def _refuse_slow(self, size: int, waited_s: float) -> None:
        """Raise a 408 if the body came too slowly during the last 30 seconds of waiting for it."""
        self._size, self._waited_s = self._size + size, self._waited_s + waited_s
        if self._waited_s < JUDGED_S:
            return
        if self._size < LEAST_BYTES_S * self._waited_s:
            raise trickle(bytes_s=LEAST_BYTES_S)
        self._size, self._waited_s = 0, 0.0

    def _callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_part(0),
            "on_header_value": self._header_part(1),
            "on_header_end": self._end_header,
            "on_headers_finished": lambda: self._found.append(_part(self._headers)),
            "on_part_data": lambda data, start, end: self._found.append(data[start:end]),
            "on_part_end": lambda: self._found.append(_End),
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise malformed(f"The body has too many parts: at most {MOST_PARTS} are accepted.")
        self._headers = {}

    def _header_part(self, place: int) -> object:
        def more(data: bytes, start: int, end: int) -> None:
            self._header[place] += data[start:end]

        return more

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header[:] = b"", b""

    def _end(self) -> None:
        self._is_over = True


def _part(headers: dict[bytes, bytes]) -> Part:
    kind, options = parse_options_header(headers.get(b"content-disposition", b"").decode("latin-1"))
    if kind != b"form-data" or b"name" not in options:
        raise _unreadable()
    name, filename = (None if word is None else word.decode(errors="replace") for word in map(options.get, WORDS))
    return Part(name or "", filename, headers.get(b"content-type", b"").decode("latin-1").strip())


def _unreadable() -> Problem:
    return malformed("The body cannot be read as multipart/form-data.")
