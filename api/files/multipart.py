"""Read a multipart/form-data body part by part, holding only a piece at a time, with a bound on each part. Refuses a
body that arrives too slowly. Raises only Problems and Starlette's ClientDisconnect.
"""

import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from email.header import decode_header, make_header
from typing import Final
from urllib.parse import unquote_to_bytes

import anyio
from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from api.web.errors import Problem, file_too_large, malformed, too_slow, trickle

MOST_PARTS: Final = 16
LONGEST_TYPE: Final = 1024
SILENCE_S: Final = 30.0
# Slower than any usual line, and fast enough that callers that only trickle hold few uploads
LEAST_BYTES_S: Final = 16 << 10
JUDGED_S: Final = 30.0  # of waiting for the caller: time in the store does not count
FRAMING_BYTES: Final = 256 << 10  # of a body beside its largest part: boundaries, headers and the other parts
BLOCK_BYTES: Final = 256 << 10


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
            raise _too_large(max_bytes)
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
                raise _too_large(self._max_bytes)
            yield piece

    async def _next(self) -> Part | bytes | type[_End] | None:
        while not self._found and not self._is_over:
            piece = await self._read()
            if piece is None:
                raise malformed("The body ends before its last boundary.")
            self._room -= len(piece)
            if self._room < 0:
                raise _too_large(self._max_bytes)
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


# Names of files come in more spellings than one: plain, with RFC 5987's charset (`filename*=UTF-8''na%C3%AFve.png`), in
# RFC 2231's numbered pieces, or as encoded words of mail. RFC 7578 forbids all but the first, and clients send them
PARAMETER: Final = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)')
PIECE: Final = re.compile(r"([^*]+)\*(?:(\d{1,3})(\*)?)?")
EXTENDED: Final = re.compile(r"([A-Za-z0-9_-]{1,40})'[^']{0,40}'(.*)", re.DOTALL)
CHARSET: Final = re.compile(
    r"utf-?8|us-ascii|iso-8859-\d{1,2}|windows-\d{3,4}|gb2312|gbk|gb18030|big5|shift[_-]jis|euc-(?:jp|kr)|koi8-[ru]",
    re.IGNORECASE,
)
BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
ENCODED_WORDS: Final = re.compile(r"(?:=\?[A-Za-z0-9_-]{1,40}\?[BbQq]\?[^?\s]*\?=\s*)+")
AS_FORMS_ESCAPE: Final = {"%22": '"', "%0D": "\r", "%0A": "\n"}
NAMED_AS: Final = "filename*=UTF-8''na%C3%AFve.png"


def _part(headers: dict[bytes, bytes]) -> Part:
    value = _text(headers.get(b"content-disposition", b""))
    kind, parameters = value.partition(";")[0], _parameters(value)
    if kind.strip().lower() != "form-data" or (name := _read_parameter(parameters, "name")) is None:
        raise _unreadable()
    kind = headers.get(b"content-type", b"").decode("latin-1").strip()
    return Part(name, _read_parameter(parameters, "filename"), kind)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _parameters(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in PARAMETER.finditer(value):
        given = match[2].strip()
        if len(given) > 1 and given[0] == given[-1] == '"':
            given = re.sub(r'\\(["\\])', r"\1", given[1:-1])
        found.setdefault(match[1].lower(), given)
    return found


def _read_parameter(parameters: dict[str, str], name: str) -> str | None:
    """Return a parameter in the best of its spellings. Raises a 400 if the only one cannot be decoded."""
    plain = parameters.get(name)
    pieces = [
        (match, given) for key, given in parameters.items() if (match := PIECE.fullmatch(key)) and match[1] == name
    ]
    extended = _decode_extended(
        [(int(match[2] or 0), not match[2] or bool(match[3]), given) for match, given in pieces]
    )
    if extended is not None:
        return extended
    if plain is None:
        if pieces:
            raise malformed(f"The name of a part cannot be decoded: it must be as in {NAMED_AS}")
        return None
    if ENCODED_WORDS.fullmatch(plain):
        with suppress(ValueError, LookupError):  # binascii's errors are ValueErrors
            return str(make_header(decode_header(plain)))
    for escaped, letter in AS_FORMS_ESCAPE.items():
        plain = plain.replace(escaped, letter)
    return plain


def _decode_extended(pieces: Sequence[tuple[int, bool, str]]) -> str | None:
    """Decode `name*`, or `name*0`, `name*1*`, … by their numbers. None without any, or if one cannot be decoded."""
    if not pieces:
        return None
    ordered = sorted(pieces)
    charset, whole = "utf-8", b""
    for place, (_, is_encoded, given) in enumerate(ordered):
        text = given
        if is_encoded and place == 0:
            if (found := EXTENDED.fullmatch(given)) is None or not CHARSET.fullmatch(found[1]):
                return None
            charset, text = found[1], found[2]
        if is_encoded and BAD_PERCENT.search(text):
            return None
        whole += unquote_to_bytes(text) if is_encoded else text.encode(charset, errors="replace")
    try:
        return whole.decode(charset)
    except (UnicodeDecodeError, LookupError):
        return None


def _too_large(limit: int) -> Problem:
    return file_too_large(f"Files must be less than {limit >> 20}MB in size", limit=limit)


def _unreadable() -> Problem:
    return malformed("The body cannot be read as multipart/form-data.")
