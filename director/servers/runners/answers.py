"""Read what a model server wrote, as if it meant harm: JSON, text, and the reasons and headers of a refusal.

Never raises anything but `Unreadable` for what the server sent, and re-encodes only what is no JSON in UTF-8: parts
that are only passed on stay `msgspec.Raw`.
"""

import codecs
import json
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.json_pointer import Pointer
from director.core.nesting import MOST_LEVELS, is_deeper
from director.core.runner_config import MappedConfig
from director.servers.runners import outcomes
from director.servers.runners.outcomes import Observation
from director.servers.runners.runner import Ended, Outcome

EXCERPT_CHARS: Final = 500
RETRY_AFTER_MAX_S: Final = 3600.0
SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?")
COMPLAINTS_MAX: Final = 20
# The server does not let the director in, whatever a caller sends. Its body may repeat the secret that it was sent
# 403 is one of them, unless a run was let in before
NO_ENTRY: Final = frozenset(status for status, seen in outcomes.STATUSES.items() if seen in outcomes.MAY_BE_LOCKED)
SERVER_AUTH: Final = outcomes.SERVER_AUTH
WRONG_KEY: Final = outcomes.WRONG_KEY

T = TypeVar("T")


class Unreadable(ValueError):
    """The server sent something that is not JSON, or not of the expected shape. The message says which, for people."""


# The marks at the start of UTF-8, UTF-16 and UTF-32. Without a mark, the last two have zeros in the first four bytes
MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
HALF_PAIR: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# Pairs of surrogates and escaped backslashes, or half of a pair. No other escape: each match costs a call
ESCAPE: Final = re.compile(
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\)+|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
REPLACEMENT: Final = rb"\ufffd"


TOO_DEEP: Final = "nested too deeply"


def read_json(body: bytes, shape: type[T]) -> T:
    """Decode `body` as `shape`. Raises `Unreadable`, also for invalid UTF-8 in `Raw` parts. Half of a surrogate pair
    becomes U+FFFD: most readers of JSON refuse all of a text with one.
    """
    try:
        if body.startswith(MARKS) or b"\0" in body[:4]:
            body = body.decode(json.detect_encoding(body)).encode()
        elif not body.isascii():
            body.decode()  # msgspec skips over Raw parts without a look at their UTF-8
        if HALF_PAIR.search(body):
            body = ESCAPE.sub(lambda found: REPLACEMENT if found[1] else found[0], body)
        if is_deeper(body, MOST_LEVELS):
            raise Unreadable(TOO_DEEP)
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as exc:
        raise Unreadable(f"not of the expected shape: {exc}") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise Unreadable("empty" if not body.strip() else f"not JSON: {exc}") from exc


CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def excerpt(body: bytes) -> str:
    return one_line(CONTROL.sub(" ", body[: EXCERPT_CHARS * 4].decode(errors="replace")))


def one_line(text: str) -> str:
    line = " ".join(text[: EXCERPT_CHARS * 4].split())
    return line if len(line) <= EXCERPT_CHARS else line[: EXCERPT_CHARS - 1] + "…"


class _Complaint(Struct):
    msg: str = ""
    loc: list[str | int] = msgspec.field(default_factory=list)


class _Error(Struct):
    message: str = ""


class _Refusal(Struct):
    detail: str | list[_Complaint] | None = None
    error: str | _Error | None = None
    message: str | None = None


def reason(body: bytes) -> str:
    try:
        refusal = read_json(body, _Refusal)
    except Unreadable:
        return excerpt(body)
    match refusal.detail:
        case list() as complaints if complaints:
            return one_line("; ".join(_complaint(complaint) for complaint in complaints[:COMPLAINTS_MAX]))
        case str() as detail if detail:
            return one_line(detail)
        case _:
            error = refusal.error.message if isinstance(refusal.error, _Error) else refusal.error
            said = error or refusal.message
            return one_line(said) if said else excerpt(body)


def _complaint(complaint: _Complaint) -> str:
    where = [str(part) for part in complaint.loc]
    for wrapping in ("body", "input"):  # a caller knows only what is inside `input`
        if where[:1] == [wrapping]:
            where = where[1:]
    return f"{'.'.join(where)}: {complaint.msg}" if where else complaint.msg


# Decide how a run ended from the HTTP answer of a model server. Pure: never raises for what a server wrote.

NULL: Final = Raw(b"null")
# Values in the place of an error that mean no error
NO_ERROR: Final = frozenset({b"null", b"false", b"0", b'""', b"{}", b"[]"})
# Media types of answers that are the output itself, as a file
FILE: Final = re.compile(
    r"(?:image|audio|video|model|font)/[a-z0-9][a-z0-9.+_-]{0,63}|application/(?:octet-stream|pdf|zip)"
)
NO_CONTENT: Final = frozenset({204, 205})
JSON_TEXT: Final = frozenset({"text/json", "text/x-json"})
HTML: Final = "text/html"  # also what Flask calls the JSON that a handler returns as a text
# Encodings of texts that a server may name. Python knows others, some of which take quadratic time
CHARSET: Final = re.compile(
    r"(?:utf|ucs|us-?ascii|ascii|iso|latin|l1$|windows-|cp|big5|gb|euc|shift|sjis|koi8|mac)[a-z0-9_-]{0,24}"
)
PACKED: Final[Mapping[str, tuple[int, ...]]] = {"gzip": (47,), "x-gzip": (47,), "deflate": (47, -15)}
GZIP: Final = b"\x1f"  # the first byte
MOST_WORDS: Final = 200
MOST_CHECKED: Final = 64 << 10  # bytes of an output: 66 ns each at most, for many empty objects
MANY_DIGITS: Final = 309  # of a number that may be beyond a double
HUGE: Final = re.compile(rb"[0-9]{%d}" % MANY_DIGITS)
BEYOND: Final = (1 << 1024) - (1 << 970)  # the least that a double rounds to Infinity
BEYOND_JSON: Final = "beyond what a reader of JSON can hold"


class Answer(Struct, frozen=True, kw_only=True):
    """An answer as received. `complete`: False if its body is longer than what was read. `headers`: lower-case names.
    `trouble`: why no answer came, with status 0. `is_silent`: it did not come in time. `is_framed`: it said where it
    ends, so it is known to be whole. `packed`: why its body could not be unpacked.
    """

    status: int = 0
    body: bytes = b""
    complete: bool = True
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    trouble: str = ""
    is_silent: bool = False
    is_framed: bool = True
    packed: str = ""

    @property
    def retry_after_s(self) -> float | None:
        """Retry-After in seconds, also if it is a date: then by the server's own clock, as in its `Date`."""
        text = self.headers.get("retry-after", "").strip()
        if SECONDS.fullmatch(text):
            return min(float(text[:32]), RETRY_AFTER_MAX_S)
        try:
            until, now = (parsedate_to_datetime(each) for each in (text, self.headers.get("date", "")))
            return min(max(0.0, (until - now).total_seconds()), RETRY_AFTER_MAX_S)
        except (ValueError, TypeError, OverflowError):  # no dates, or one of them without a zone
            return None

    @property
    def says_when(self) -> bool:
        """Whether the server says when to come again, in whatever form."""
        return bool(self.headers.get("retry-after", "").strip())

    @property
    def kind(self) -> str:
        return kind_in(self.headers)

    @property
    def is_file(self) -> bool:
        return self.is_ok and self.complete and not self.packed and FILE.fullmatch(self.kind) is not None

    @property
    def is_ok(self) -> bool:
        return 200 <= self.status < 300


def status_of(answer: Answer, *, asked: str = "") -> str:
    """Say how the server answered, and where a redirect leads, without its query: that may have a key."""
    location = answer.headers.get("location", "") if 300 <= answer.status < 400 else ""
    place = one_line(re.split(r"[?#]", location)[0])
    leads = f" and points to {place}, where redirects are not followed" if place else ""
    return f"The model server answered {answer.status}{f' to {asked}' if asked else ''}{leads}"


def kind_in(headers: Mapping[str, str]) -> str:
    """Return the media type. The first one, if a server sent several."""
    return headers.get("content-type", "").partition(";")[0].partition(",")[0].strip().lower()


def charset_in(headers: Mapping[str, str]) -> str:
    """Return the encoding that the server names, or UTF-8. Raises Unreadable for one that is not known here."""
    found = re.search(r"charset\s*=\s*[\"']?([^\s\"';,]*)", headers.get("content-type", ""), re.IGNORECASE)
    name = (found[1] if found else "").lower() or "utf-8"
    try:
        if CHARSET.match(name):
            return codecs.lookup(name).name
    except (LookupError, ValueError):
        pass
    raise Unreadable(f"in an encoding that is not known here, {one_line(name)[:40]!r}")


def judge_refusal(answer: Answer, *, error: Pointer | None = None, busy: tuple[int, ...] = outcomes.BUSY) -> Ended:
    return judge_refusal_as(answer, one_line(_words_of(answer, error)), busy=busy)


def judge_refusal_as(answer: Answer, said: str, *, busy: tuple[int, ...] = outcomes.BUSY) -> Ended:
    seen = outcomes.read_status(answer.status, said, busy=busy)
    if seen is Observation.LOCKED:
        return outcomes.lock_out(answer.status)
    words = status_of(answer)
    if said:
        words = said if seen is Observation.INVALID else f"{words}: {said}"
    ended = outcomes.end(seen, words, retry_after_s=answer.retry_after_s, says_when=answer.says_when)
    return replace(ended, may_be_full=answer.status in outcomes.FULL)


def read_words(answer: Answer, *, error: Pointer | None = None) -> str:
    return WRONG_KEY if answer.status in NO_ENTRY else _words_of(answer, error)


def _words_of(answer: Answer, error: Pointer | None) -> str:
    try:
        return map_error(read_document(answer.body), error) or reason(answer.body)
    except Unreadable:
        return reason(answer.body)


def unreadable(what: str, exc: Unreadable, body: bytes, *, is_framed: bool = True) -> Ended:
    """Return the end of a run whose answer came and cannot be read, with its own words. `what` is the subject."""
    words = excerpt(body)
    error = f"{what} {exc}" + (f": {words}" if words else "")
    return outcomes.end(Observation.UNREADABLE if is_framed else Observation.UNFRAMED, error)


def read_output(answer: Answer, *, is_mapped: bool) -> Raw:
    """Return the document of a 2xx answer: JSON, or its text as a string. Raises Unreadable. `is_mapped`: something in
    the document is asked for, so that it should be JSON whatever the server calls it.
    """
    if answer.status in NO_CONTENT:
        return NULL
    if answer.packed:
        raise Unreadable(answer.packed)
    kind = answer.kind
    if not kind.startswith("text/") or kind in JSON_TEXT:
        return read_document(_in_utf8(answer))
    text = _text_of(answer)
    if (is_mapped or kind == HTML) and text.lstrip()[:1] in ("{", "["):
        try:
            return read_document(text.encode())
        except Unreadable:
            pass
    return Raw(msgspec.json.encode(text))


def _text_of(answer: Answer) -> str:
    name = charset_in(answer.headers)
    try:
        return answer.body.decode(name).removeprefix("\ufeff")
    except UnicodeError as exc:
        raise Unreadable(f"not in {name}: {exc}"[:MOST_WORDS]) from exc


def _in_utf8(answer: Answer) -> bytes:
    """Return the body in UTF-8. JSON should always be, and a server that names another encoding says the truth."""
    if b"charset" not in answer.headers.get("content-type", "").lower().encode() or answer.body.isascii():
        return answer.body
    try:
        return answer.body.decode(charset_in(answer.headers)).encode()
    except (Unreadable, UnicodeError):
        return answer.body


class Unpacker:
    """Unpack a body that a server compressed although it was asked not to, at most `most` bytes of it. A server may
    compress each chunk by itself.
    """

    def __init__(self, encoding: str, most: int) -> None:
        """Raises Unreadable for a compression that is not known here."""
        self._ways = list(PACKED.get(encoding.strip().lower(), ()))
        if not self._ways:
            raise Unreadable(f"compressed with {one_line(encoding)[:40]!r}, though it was asked not to be")
        self._left = most
        self._way = self._ways.pop(0)
        self._unpacker = zlib.decompressobj(self._way)
        self.has_begun = False

    def feed(self, packed: bytes) -> bytes:
        """Return what is new. Raises Unreadable, also if it is more than `most` in all."""
        found = bytearray()
        while packed:
            if self._unpacker.eof:
                if not packed.startswith(GZIP):  # zeros, which pad it, or nothing of its own
                    break
                self._unpacker = zlib.decompressobj(self._way)
            found += self._unpack(packed)
            packed = self._unpacker.unused_data
        return bytes(found)

    def _unpack(self, packed: bytes) -> bytes:
        try:
            unpacked = self._unpacker.decompress(packed, self._left + 1)
        except zlib.error as exc:
            if self.has_begun or not self._ways:
                raise Unreadable(f"compressed, and cannot be unpacked: {exc}") from exc
            self._way = self._ways.pop(0)
            self._unpacker = zlib.decompressobj(self._way)
            return self._unpack(packed)
        self.has_begun = True
        self._left -= len(unpacked)
        if self._left < 0:
            raise FrameTooLarge
        return unpacked

    def end(self) -> None:
        """Raises Unreadable if it is cut off."""
        if self.has_begun and not self._unpacker.eof:
            raise Unreadable("compressed, and cut off")


def encoding_in(headers: Mapping[str, str]) -> str:
    name = headers.get("content-encoding", "").strip().lower()
    return "" if name == "identity" else name


def file_end(answer: Answer) -> Ended:
    """Return the end of a run whose answer is a file: a data URI, which is stored where files are."""
    return Ended(
        outcome=Outcome.SUCCEEDED, output=Raw(b'"data:%b;base64,%b"' % (answer.kind.encode(), b64encode(answer.body)))
    )


def is_whole(answer: Answer, document: Raw) -> bool:
    """Return whether an answer is known to be whole. Objects and lists show their end, no text does."""
    return answer.is_framed or answer.status in NO_CONTENT or bytes(document).lstrip()[:1] in (b"{", b"[")


def unproven(ended: Ended, *, is_whole: bool) -> Ended:
    """Return the end of a run, in doubt if its output may be only the beginning: a server that died looks the same."""
    return ended if is_whole or ended.outcome is not Outcome.SUCCEEDED else replace(ended, in_doubt=True)


def too_large(max_body: int) -> Ended:
    """Return the end of a run whose answer is too large. The same input would give as much again."""
    return outcomes.end(Observation.TOO_LARGE, f"The model's output is larger than {max_body} bytes")


def read_document(body: bytes) -> Raw:
    return Raw(bytes(read_json(body, Raw)))


def legible(output: Raw) -> Raw:
    """Return an output that each reader of JSON can read. Raises Unreadable for a number beyond the range of a double:
    some read Infinity, which is no JSON, and some refuse all of the text. Of a large output that is not checked.
    """
    text = bytes(output)
    if len(text) > MOST_CHECKED:
        return output
    try:
        found = msgspec.json.decode(text)
        if HUGE.search(text) and not fits(found):
            raise Unreadable(f"{BEYOND_JSON}: a number of more than 308 digits")
    except msgspec.DecodeError as exc:
        raise Unreadable(f"{BEYOND_JSON}: {exc}"[:MOST_WORDS]) from exc
    except RecursionError:
        pass
    return output


def legible_or_none(output: Raw | None) -> Raw | None:
    """Return the output of a run that did not succeed, if each reader of JSON can read it."""
    try:
        return None if output is None else legible(output)
    except Unreadable:
        return None


def legible_metrics(found: dict[str, Raw]) -> dict[str, Raw]:
    """Return the metrics without those that not each reader can read."""
    legible_ones = {}
    for name, value in found.items():
        with suppress(Unreadable):
            legible_ones[name] = legible(value)
    return legible_ones


def fits(value: object) -> bool:
    match value:
        case int():
            return abs(value) < BEYOND
        case list():
            return all(map(fits, value))
        case dict():
            return all(map(fits, value.values()))
    return True


def document_or_text(data: bytes) -> Raw:
    """Return the data of an event: JSON, or its text as a string. Raises Unreadable for what looks like JSON."""
    try:
        return read_document(data)
    except Unreadable:
        if data[:1] in (b"{", b"["):
            raise
        return text_of_event(data)


def text_of_event(data: bytes) -> Raw:
    return Raw(msgspec.json.encode(data.decode()))


def map_end(document: Raw, config: MappedConfig) -> Ended:
    """Return the end of a successful run: what its answer holds where the configuration points to."""
    output = config.output.find(document)
    if output is None:
        what = f"The model server's answer has nothing at {config.output.text}"
        return outcomes.end(Observation.UNREADABLE, f"{what}: {excerpt(bytes(document))}")
    try:
        return Ended(outcome=Outcome.SUCCEEDED, output=legible(output), metrics=map_metrics(document, config))
    except Unreadable as exc:
        return unreadable("The model server's answer is", exc, bytes(output))


def map_metrics(document: Raw, config: MappedConfig) -> dict[str, Raw]:
    if not config.metrics:
        return {}
    found = {name: pointer.find(document) for name, pointer in config.metrics.items()}
    return legible_metrics({name: value for name, value in found.items() if value is not None and value != NULL})


def map_error(document: Raw, error: Pointer | None) -> str:
    found = error.find(document) if error is not None else None
    if found is None or bytes(found) in NO_ERROR:
        return ""
    try:
        return one_line(read_json(bytes(found), str))
    except Unreadable:
        return excerpt(bytes(found))


def told_error(document: Raw) -> str:
    """Return the words of an object that is nothing but an error; '' for an output. In a stream a server has no status
    left to say it by. An output may have a member `error` too, as a figure or beside others.
    """
    try:
        members = read_json(bytes(document), dict[str, Raw])
    except Unreadable:
        return ""
    if not members.keys() <= OF_AN_ERROR:
        return ""
    error, status = (bytes(members.get(name, NULL)).strip() for name in ("error", "status"))
    if error[:1] in (b'"', b"{"):
        return reason(bytes(document)) if error not in NO_ERROR else ""
    # it only says that there is one: its words are elsewhere
    says_so = error == b"true" or status.strip(b'"').lower().decode() in ERROR_EVENTS
    return map_error(members.get("message", members.get("detail", NULL)), Pointer("")) if says_so else ""


# Parse streams as the network brings them: events, lines or text. Pure: keeps at most one unfinished event, up to its
# limit

EVENT_STREAM: Final = "text/event-stream"
JSON: Final = "application/json"
DONE: Final = b"[DONE]"
ERROR_EVENTS: Final = frozenset({"error", "failed", "failure", "fatal", "exception"})
# Members of an object that is an error and no output, if all of its members are among them
OF_AN_ERROR: Final = frozenset(
    {
        *("error", "error_type", "error_code", "type", "code", "status", "status_code", "message", "detail"),
        *("traceback", "id", "request_id"),
    }
)
LINES: Final = re.compile(r"application/(?:x-)?(?:nd-?json|json-?lines|jsonl|json-seq|stream\+json|json-stream)")
BOM: Final = b"\xef\xbb\xbf"
FIELDS: Final = (b"data", b"event", b"id", b"retry")
FIELD: Final = re.compile(rb"(?:data|event|id|retry)(?::|\r|\n)|:")


class Frame(Struct, frozen=True):
    event: str
    data: bytes
    is_text: bool = False  # as it came, and no field of an event


class FrameTooLarge(ValueError):
    """One event is larger than the limit. The rest of the stream cannot be read."""


class Parser(Protocol):
    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the events that end within `chunk`. Raises `FrameTooLarge`; the parser then cannot be used further."""
        ...

    def end(self) -> list[Frame]:
        """Return the event that the end of the stream ends. Raises Unreadable."""
        ...


class LineParser:
    """Each line that is not blank is an event. A server may mark each with the RS of RFC 7464."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._tail) + lines[0]
            self._tail = bytearray(rest)
        else:
            self._tail += rest
        if len(self._tail) > self._max_bytes:
            raise FrameTooLarge
        return [Frame("message", line) for each in lines if (line := each.strip(b" \t\r\x1e"))]

    def end(self) -> list[Frame]:
        return self.feed(b"\n")


class TextParser:
    """Each piece of text is an event, as it came, except that no character is cut in two."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Raises Unreadable for an encoding that is not known here."""
        self._name = charset_in(headers)
        self._decoder = codecs.getincrementaldecoder(self._name)()
        self._at_start = True

    def feed(self, chunk: bytes) -> list[Frame]:
        return self._decode(chunk)

    def end(self) -> list[Frame]:
        return self._decode(b"", final=True)

    def _decode(self, chunk: bytes, *, final: bool = False) -> list[Frame]:
        try:
            text = self._decoder.decode(chunk, final)
        except UnicodeError as exc:
            raise Unreadable(f"not in {self._name}: {exc}"[:MOST_WORDS]) from exc
        if self._at_start:
            text = text.removeprefix("\ufeff")
        self._at_start = self._at_start and not text
        return [Frame("message", text.encode(), is_text=True)] if text else []


class EventParser:
    """Server-sent events, or text under their name: BentoML sends each word as it is. The first bytes tell them apart:
    after blank lines, a stream of events starts with a field that the standard knows or a comment.
    """

    def __init__(self, max_bytes: int, headers: Mapping[str, str]) -> None:
        self._max_bytes = max_bytes
        self._events = SseParser(max_bytes)
        self._headers = headers
        self._held = b""
        self._chosen: Parser | None = None

    def feed(self, chunk: bytes) -> list[Frame]:
        if self._chosen is not None:
            return self._chosen.feed(chunk)
        self._held += chunk
        line = self._held.removeprefix(BOM).lstrip(b"\r\n")
        if FIELD.match(line):
            return self._choose(self._events)
        if BOM.startswith(line) or any(name.startswith(line) for name in FIELDS):
            return [] if len(self._held) <= self._max_bytes else self._choose(self._events)
        return self._choose(TextParser(self._headers))

    def _choose(self, parser: Parser) -> list[Frame]:
        self._chosen = parser
        return parser.feed(self._held)

    def end(self) -> list[Frame]:
        if self._chosen is not None:
            return self._chosen.end()
        return [*self._choose(self._events), *self._events.end()]


class UntypedParser:
    """An answer without a type, as LitServe streams: lines, if its first line is JSON and more follows. Else it is one
    answer, and `whole` has it at the end.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._lines: LineParser | None = None
        self._first_ends: int | None = None
        self._is_one = False

    @property
    def whole(self) -> bytes | None:
        return None if self._lines is not None else bytes(self._held)

    def feed(self, chunk: bytes) -> list[Frame]:
        if self._lines is not None:
            return self._lines.feed(chunk)
        seen = len(self._held)
        self._held += chunk
        if len(self._held) > self._max_bytes:
            raise FrameTooLarge
        if self._is_one:
            return []
        if self._first_ends is None:
            found = self._held.find(b"\n", seen)
            if found < 0:
                return []
            self._first_ends = found
            self._is_one = not _is_json(bytes(self._held[:found]))
        if self._is_one or not self._held[max(seen, self._first_ends) :].strip():
            return []
        self._lines = LineParser(self._max_bytes)
        return self._lines.feed(bytes(self._held))

    def end(self) -> list[Frame]:
        return [] if self._lines is None else self._lines.end()


def _is_json(line: bytes) -> bool:
    try:
        read_document(line)
    except Unreadable:
        return False
    return True


class SseParser:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail = bytearray()  # a line that has no end yet
        self._after_cr = False  # the last chunk ended with CR: a LF that follows belongs to it
        self._at_start = True
        self._event = "message"
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[Frame]:
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
            # The standard drops an event without data; a keep-alive comment looks like that
            frame = Frame(self._event or "message", _valid(b"\n".join(self._data))) if self._data else None
            self._event, self._data, self._data_bytes = "message", [], 0
            return frame
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

    def end(self) -> list[Frame]:
        """Return an event that lacks the blank line after it. Many servers leave that out at the end."""
        return self.feed(b"\n\n")


def _valid(data: bytes) -> bytes:
    """Return the data in valid UTF-8. The standard replaces what is not."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return data.decode(errors="replace").encode()
    return data
