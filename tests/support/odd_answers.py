"""Odd answers of model servers, one row each, byte for byte as they are sent. Add a row for each that you meet.

A row says which kind of server sends it, and the end of the run. Each row runs once on its runner, and those of a
ready server run once more through a whole director, where each must run once and harm no other.
"""

import gzip
import json
import zlib
from typing import Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from tests.support.runner_conformance import CONFIGS

JSON: Final = "application/json"
SSE: Final = "text/event-stream"
# Else the next run could be sent on a connection that is just being closed, which is a death
CLOSE: Final = b"connection: close\r\n"
NDJSON: Final = "application/x-ndjson"
TEXT: Final = "text/plain; charset=utf-8"

KINDS: Final[dict[str, dict[str, Any]]] = {
    "http": {"kind": "http", "path": "/predict"},
    "mapped": {"kind": "http", "path": "/predict", "output": "/out", "error": "/why", "metrics": {"n": "/n"}},
    "cog": {"kind": "cog"},
    "streamed cog": {"kind": "cog"},
    "openai": {"kind": "openai", "model": "tiny"},
    "polling": CONFIGS["polling"] | {"input": {"$input": ""}, "away_s": 0.2},
    "polled": CONFIGS["polling"] | {"input": {"$input": ""}, "away_s": 0.2},
}


class Row(Struct, frozen=True):
    """`said`: pieces, sent one after the other; then the connection is closed. `end`: the outcome. `output` and
    `words`: what is shown, or a part of the error. `health`: the status of its health check meanwhile.
    `kind`: of the server, where it is not that of the rows around it.
    """

    name: str
    said: tuple[bytes, ...]
    end: str = "succeeded"
    output: Any = UNSET
    words: str = ""
    health: int = 200
    kind: str = ""

    @property
    def is_harmless(self) -> bool:
        """Whether it is a complete answer of a ready server."""
        return self.health == 200 and self.end in ("succeeded", "failed", "invalid")


def whole(body: bytes, kind: str = JSON, status: int = 200, head: bytes = b"") -> bytes:
    """Return an answer with a length. `head`: more lines of its head."""
    typed = b"content-type: %s\r\n" % kind.encode() if kind else b""
    lines = b"%bcontent-length: %d\r\n%b%b" % (typed, len(body), CLOSE, head)
    return b"HTTP/1.1 %d Said\r\n%b\r\n%b" % (status, lines, body)


def head_of(kind: str, more: bytes = b"") -> bytes:
    lines = b"content-type: %s\r\ntransfer-encoding: chunked\r\n%b%b" % (kind.encode(), CLOSE, more)
    return b"HTTP/1.1 200 OK\r\n%b\r\n" % lines


def pieces(*chunks: bytes, kind: str = SSE, more: bytes = b"", end: bytes = b"0\r\n\r\n") -> tuple[bytes, ...]:
    """Return a chunked answer: each chunk leaves by itself."""
    return (head_of(kind, more), *(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks), end)


def untyped(*chunks: bytes) -> tuple[bytes, ...]:
    head, *rest = pieces(*chunks)
    return (head.replace(b"content-type: %s\r\n" % SSE.encode(), b""), *rest)


def js(value: object) -> bytes:
    return json.dumps(value).encode()


def bare(body: bytes, kind: str = JSON) -> bytes:
    """Return an answer that does not say where it ends."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n%b\r\n%b" % (kind.encode(), CLOSE, body)


PNG: Final = b"\x89PNG\r\n\x1a\n\x00"
BEYOND: Final = (1 << 1024) - (1 << 970)  # halfway between the largest double and the next power of two
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
MEMBERS: Final = gzip.compress(b"one ") + gzip.compress(b"two")
GZIPPED: Final = b"content-encoding: gzip\r\n"
NESTED: Final = b"[" * 900 + b"]" * 900  # can be read, and not be written

HTTP: Final = (
    # ---- encodings and JSON ----
    Row("object", (whole(b'{"a": 1}'),), output={"a": 1}),
    Row("number", (whole(b"42"),), output=42),
    Row("null", (whole(b"null"),), output=None),
    Row("false", (whole(b"false"),), output=False),
    Row("space around", (whole(b" \r\n\t[1] \n"),), output=[1]),
    Row("NaN", (whole(b'{"score": NaN}'),), "failed", words="not JSON"),
    Row("Infinity", (whole(b'{"max": -Infinity}'),), "failed", words="-Infinity"),
    Row("single quotes", (whole(b"{'a': 1}"),), "failed", words="{'a': 1}"),
    Row("comments", (whole(b'{"a": 1 /* one */}'),), "failed", words="/* one */"),
    Row("trailing comma", (whole(b'{"a": 1,}'),), "failed", words="not JSON"),
    Row("two values", (whole(b'{"a": 1} {"a": 2}'),), "failed", words="not JSON"),
    Row("half a document", (whole(b'{"a": [1, 2'),), "failed", words="not JSON"),
    Row("Python's None", (whole(b"None"),), "failed", words="None"),
    Row("undefined", (whole(b"undefined"),), "failed", words="undefined"),
    Row("XML", (whole(b"<a>1</a>", "application/xml"),), "failed", words="<a>1</a>"),
    Row("large number", (whole(b"9" * 300),), output=int("9" * 300)),
    Row("largest number", (whole(b"%d" % (BEYOND - 1)),), output=BEYOND - 1),
    Row("number that rounds to Infinity", (whole(b"%d" % BEYOND),), "failed", words="308 digits"),
    Row("huge number", (whole(b"9" * 400),), "failed", words="308 digits"),
    Row("huge number deep inside", (whole(b'{"a": [1, {"b": -%b}]}' % (b"9" * 400)),), "failed", words="308"),
    Row("digits in a text", (whole(b'"%b"' % (b"9" * 400)),), output="9" * 400),
    Row("large exponent", (whole(b"[1e308, -1E+308, 1e-400]"),), output=[1e308, -1e308, 0]),
    Row("huge exponent", (whole(b"[1e400]"),), "failed", words="[1e400]"),
    Row("huge exponent in a text", (whole(b'["1e400"]'),), output=["1e400"]),
    Row("huge exponent, elsewhere", (whole(b'{"out": 1, "n": 1e400, "more": 1e999}'),), output=1, kind="mapped"),
    Row("huge exponent, mapped", (whole(b'{"out": -1E+309}'),), "failed", words="-1E+309", kind="mapped"),
    Row("huge exponent in a stream", (whole(b"1\n1e400\n", NDJSON),), "failed", words="1e400"),
    Row("leading zero", (whole(b"[01]"),), "failed", words="not JSON"),
    Row("deep", (whole(DEEP),), "failed", words="deep"),
    Row("mark of UTF-8", (whole(b'\xef\xbb\xbf{"a": 1}'),), output={"a": 1}),
    Row("UTF-16", (whole('{"a": "é"}'.encode("utf-16")),), output={"a": "é"}),
    Row("UTF-16 without a mark", (whole('{"a": "é"}'.encode("utf-16-le")),), output={"a": "é"}),
    Row("UTF-32", (whole('["é"]'.encode("utf-32")),), output=["é"]),
    Row("Latin-1, named", (whole('["é"]'.encode("latin-1"), f"{JSON}; charset=iso-8859-1"),), output=["é"]),
    Row("Latin-1, unnamed", (whole('["é"]'.encode("latin-1")),), "failed", words="not JSON"),
    Row("UTF-8 called something", (whole('["é"]'.encode(), f"{JSON}; charset=banana"),), output=["é"]),
    Row("half a pair", (whole(b'["\\ud83d!"]'),), output=["\ufffd!"]),
    Row("second half first", (whole(b'["\\ude00\\ud83d"]'),), output=["\ufffd\ufffd"]),
    Row("whole pair", (whole(b'["\\ud83d\\ude00"]'),), output=["😀"]),
    Row("escaped escape", (whole(b'["\\\\ud83d"]'),), output=["\\ud83d"]),
    Row("surrogate in UTF-8", (whole(b'["\xed\xa0\xbd"]'),), "failed", words="not JSON"),
    Row("NUL between", (whole(b'{"a":\x001}'),), "failed", words="not JSON"),
    Row("NUL in a text", (whole(b'["a\\u0000b"]'),), output=["a\0b"]),
    Row("only NULs", (whole(b"\0" * 8),), "failed", words="not JSON"),
    Row("binary", (whole(bytes(range(256))),), "failed", words="not JSON"),
    Row("no type", (whole(b'{"a": 1}', ""),), output={"a": 1}),
    Row("no type and no JSON", (whole(b"hello", ""),), "failed", words="hello"),
    Row("type of its own", (whole(b"[1]", "application/vnd.acme+json; v=1"),), output=[1]),
    Row("type in capitals", (whole(b"hi", "TEXT/PLAIN"),), output="hi"),
    Row("two types", (whole(b"hi", "text/plain", head=b"content-type: application/json\r\n"),), output="hi"),
    # ---- empty ----
    Row("empty JSON", (whole(b""),), "failed", words="empty"),
    Row("blank JSON", (whole(b" \n"),), "failed", words="empty"),
    Row("empty without a type", (whole(b"", ""),), "failed", words="empty"),
    Row("empty text", (whole(b"", TEXT),), output=""),
    Row("204", (b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",), output=None),
    Row("205", (whole(b"", "", 205),), output=None),
    Row("206", (whole(b"[1]", status=206),), output=[1]),
    Row("202", (whole(b"{}", status=202),), "failed", words="polled"),
    Row("299", (whole(b"[1]", status=299),), output=[1]),
    # ---- text ----
    Row("text", (whole("é.".encode(), TEXT),), output="é."),
    Row("text of a number", (whole(b"42", TEXT),), output="42"),
    Row("text of JSON", (whole(b'{"a": 1}', TEXT),), output='{"a": 1}'),
    Row("JSON called HTML", (whole(b'{"a": 1}', "text/html"),), output={"a": 1}),
    Row("page", (whole(b"<h1>no</h1>", "text/html"),), output="<h1>no</h1>"),
    Row("CSV", (whole(b"a,b\r\n1,2\r\n", "text/csv"),), output="a,b\r\n1,2\r\n"),
    Row("text with a mark", (whole(b"\xef\xbb\xbfhi", TEXT),), output="hi"),
    Row("text in Latin-1", (whole(b"\xe9", "text/plain; charset=ISO-8859-1"),), output="é"),
    Row("text in Shift JIS", (whole("日".encode("shift_jis"), 'text/plain; charset="Shift_JIS"'),), output="日"),
    Row("text in no UTF-8", (whole(b"\xe9", TEXT),), "failed", words="not in utf-8"),
    Row("text in an unknown encoding", (whole(b"hi", "text/plain; charset=x-user"),), "failed", words="x-user"),
    Row("text in a codec of bytes", (whole(b"aGk=", "text/plain; charset=base64"),), "failed", words="base64"),
    Row("text with NUL", (whole(b"a\0b", TEXT),), output="a\0b"),
    Row("text where JSON is asked for", (whole(b'{"out": 1}', TEXT),), output=1, kind="mapped"),
    Row("text and nothing to point at", (whole(b"hi", TEXT),), "failed", words='"hi"', kind="mapped"),
    Row("nothing there", (whole(b'{"output": 1}'),), "failed", words="nothing at /out", kind="mapped"),
    Row("list instead", (whole(b"[1, 2]"),), "failed", words="[1, 2]", kind="mapped"),
    Row("error in a 200", (whole(b'{"out": 1, "why": "too long"}'),), "failed", words="too long", kind="mapped"),
    Row(
        "error of another type",
        (whole(b'{"out": 1, "why": {"code": 7}}'),),
        "failed",
        words='{"code": 7}',
        kind="mapped",
    ),
    Row("no error", (whole(b'{"out": 1, "why": null}'),), output=1, kind="mapped"),
    Row("metric of another type", (whole(b'{"out": 1, "n": {"a": []}}'),), output=1, kind="mapped"),
    Row(
        "words of a dead engine",
        (whole(b'{"why": "EngineDeadError: see above"}'),),
        "lost",
        words="Engine",
        kind="mapped",
    ),
    Row("file", (whole(PNG, "image/png"),), output="data:image/png;base64,iVBORw0KGgoA"),
    Row("empty file", (whole(b"", "image/png"),), output="data:image/png;base64,"),
    # ---- streams ----
    Row("text in chunks", pieces(b"Hel", b"lo", kind=TEXT), output="Hello"),
    Row("character cut in two", pieces(b"a\xc3", b"\xa9b", kind=TEXT), output="aéb"),
    Row("character cut off", pieces(b"ab", b"\xc3", kind=TEXT), "failed", words="not in utf-8"),
    Row("CSV in chunks", pieces(b"a,b\n", b"1,2\n", kind="text/csv"), output="a,b\n1,2\n"),
    Row("JSON in chunks", pieces(b'{"a', b'": "\xc3', b'\xa9"}', kind=JSON), output={"a": "é"}),
    Row("NDJSON", (whole(b'{"a": 1}\n{"a": 2}\n', NDJSON),), output=[{"a": 1}, {"a": 2}]),
    Row("NDJSON by CRLF", (whole(b"1\r\n\r\n2\r\n", NDJSON),), output=[1, 2]),
    Row("NDJSON without the last end", (whole(b"1\n2", NDJSON),), output=[1, 2]),
    Row("NDJSON cut in lines", pieces(b'{"a"', b': 1}\n{"a": ', b"2}\n", kind=NDJSON), output=[{"a": 1}, {"a": 2}]),
    Row("NDJSON with a bad line", (whole(b"1\noops\n3\n", NDJSON),), "failed", words="oops"),
    Row("lines without a type", untyped(b'{"a": 1}\n', b'{"a": 2}\n'), output=[{"a": 1}, {"a": 2}]),
    Row("lines without a type, cut anywhere", untyped(b'{"a"', b": 1}", b"\n", b"\n", b"2"), output=[{"a": 1}, 2]),
    Row(
        "lines without a type, mapped", untyped(b'{"out": 1}\n', b'{"out": 2, "n": 3}\n'), output=[1, 2], kind="mapped"
    ),
    Row("one line without a type", untyped(b'{"a"', b": 1}\n"), output={"a": 1}),
    Row("one line without a type, mapped", untyped(b'{"out"', b": 1}\n"), output=1, kind="mapped"),
    Row("many lines without a type, one value", untyped(b"{\n", b'"a": 1\n', b"}\n"), output={"a": 1}),
    Row("nothing without a type", untyped(), "failed", words="empty"),
    Row("text without a type", untyped(b"hello ", b"you"), "failed", words="hello you"),
    Row("second line without a type cut off", untyped(b"1\n", b'{"a": '), "failed", words="last piece"),
    Row("error in an event", pieces(b"data: 1\n\n", b'data: {"error": "boom"}\n\n'), "failed", words="boom"),
    Row(
        "error object in an event",
        pieces(b'data: {"error": {"message": "boom", "code": 500}, "status": 500}\n\n'),
        "failed",
        words="boom",
    ),
    *(
        Row(f"error in an event, {name}", pieces(b"data: %b\n\n" % data), "failed", words="boom")
        for name, data in {
            "with ids": b'{"error": {"message": "boom"}, "id": 1, "request_id": "r"}',
            "as a flag": b'{"error": true, "message": "boom"}',
            "as a status": b'{"status": "error", "message": "boom"}',
        }.items()
    ),
    Row(
        "no error by its flag and status",
        pieces(b'data: {"error": false, "status": "ok", "message": "hi"}\n\n'),
        output=[{"error": False, "status": "ok", "message": "hi"}],
    ),
    Row("error in a line", (whole(b'1\n{"error": "boom", "error_type": "x"}\n', NDJSON),), "failed", words="boom"),
    Row("dead engine in an event", pieces(b'data: {"error": "EngineDeadError"}\n\n'), "lost", words="Engine"),
    Row(
        "error beside an output",
        pieces(b'data: {"error": "", "text": "a"}\n\n'),
        output=[{"error": "", "text": "a"}],
    ),
    Row("error as a figure", pieces(b'data: {"error": 0.25}\n\n'), output=[{"error": 0.25}]),
    Row("no error in an event", pieces(b'data: {"error": null}\n\n'), output=[{"error": None}]),
    Row("error in a 200, unmapped", (whole(b'{"error": "boom"}'),), output={"error": "boom"}),
    Row("text called events", pieces(b"a", b" b", "é".encode()), output="a bé"),
    Row("text called events, in halves", pieces(b"\n", b"da", b"te: \xc3", b"\xa9"), output="\ndate: é"),
    Row("text called events, of JSON's look", pieces(b"{", b"[1"), output="{[1"),
    Row("events after blank lines", pieces(b"\r\n\n", b"d", b"ata: a\n\n"), output=["a"]),
    Row("events after a comment", pieces(b":", b" hello\n\nid: 1\ndata: a\n\n"), output=["a"]),
    Row("events after a mark", pieces(b"\xef\xbb", b"\xbfdata: a\n\n"), output=["a"]),
    Row("blank lines called events", pieces(b"\n", b"\n\n"), "failed", words="empty"),
    Row("the start of a field called events", pieces(b"dat"), "failed", words="empty"),
    Row("NDJSON cut off", pieces(b'1\n{"a": ', kind=NDJSON), "failed", words="last piece"),
    Row("NDJSON cut off on a dead server", pieces(b'1\n{"a', kind=NDJSON), "lost", words="503", health=503),
    Row("NDJSON with NaN", (whole(b"[NaN]\n", NDJSON),), "failed", words="NaN"),
    Row("JSON sequence", (whole(b"\x1e1\n\x1e2\n", "application/json-seq"),), output=[1, 2]),
    Row("JSON lines", (whole(b"1\n2\n", "application/jsonl"),), output=[1, 2]),
    Row("NDJSON of a field", (whole(b'{"out": "a"}\n{"done": true, "n": 7}\n', NDJSON),), output=["a"], kind="mapped"),
    Row(
        "NDJSON with an error", (whole(b'{"out": "a"}\n{"why": "no"}\n', NDJSON),), "failed", words="no", kind="mapped"
    ),
    Row("NDJSON of nothing", (whole(b"\n\n", NDJSON),), "failed", words="empty"),
    Row("events", pieces(b"data: 1\n\n", b'data: {"a": 2}\n\n'), output=[1, {"a": 2}]),
    Row("events of text", pieces(b"data: Hel\n\n", b"data: lo\n\n", b"data: [DONE]\n\n"), output=["Hel", "lo"]),
    Row("events with heartbeats", pieces(b": hi\n\ndata:\n\nevent: ping\ndata: 5\n\n", b"data: 1\n\n"), output=[1]),
    Row("event without its blank line", pieces(b"data: 1\n\n", b"data: 2"), output=[1, 2]),
    Row("event cut in its lines", pieces(b"da", b"ta: 1", b"\r", b"\n\r\ndata: 2\r\n\r\n"), output=[1, 2]),
    Row("event by CR", pieces(b"data: 1\r\rdata: 2\r\r"), output=[1, 2]),
    Row("event in two lines", pieces(b'data: {"a":\ndata: 1}\n\n'), output=[{"a": 1}]),
    Row("event with no UTF-8", pieces(b"data: a\xff\n\n"), output=["a\ufffd"]),
    Row("event with a mark", pieces(b"\xef\xbb\xbfdata: 1\n\n"), output=[1]),
    Row("event of an error", pieces(b'event: error\ndata: "it broke"\n\n'), "failed", words="it broke"),
    Row("event of an error on a dead server", pieces(b"event: error\ndata: no\n\n"), "lost", health=503),
    Row("event of a failure", pieces(b"event: Failed\ndata: boom\n\n"), "failed", words="boom"),
    Row("event of a heartbeat in capitals", pieces(b"event: PING\ndata: 5\n\ndata: 1\n\n"), output=[1]),
    Row("events of nothing", pieces(b": hi\n\n"), "failed", words="empty"),
    Row("event with half a document", pieces(b'data: {"a": \n\ndata: 1\n\n'), "failed", words="not JSON"),
    # ---- framing ----
    Row("length too short", (whole(b'{"a"') + b": 1}",), "failed", words="not JSON"),
    Row("length too long", (whole(b"[1]").replace(b"length: 3", b"length: 30"),), "lost", words="connection"),
    Row("two lengths", (whole(b"[1]", head=b"content-length: 3\r\n"),), "failed", words="no HTTP"),
    Row("length of no number", (whole(b"[1]").replace(b"length: 3", b"length: x"),), "failed", words="no HTTP"),
    Row("no length", (bare(b'{"a": 1}'),), output={"a": 1}),
    Row("no length, cut off", (bare(b'{"a": '),), "failed", words="not JSON"),
    Row("no length, cut off by a death", (bare(b'{"a": '),), "lost", words="not ready", health=503),
    *(
        row
        for name, kind, body, output in (
            ("text", TEXT, b"half a sen", "half a sen"),
            ("empty text", TEXT, b"", ""),
            ("file", "image/png", PNG, "data:image/png;base64,iVBORw0KGgoA"),
            ("number", JSON, b"12", 12),
            ("NDJSON", NDJSON, b"1\n2\n", [1, 2]),
            ("events", SSE, b"data: 1\n\n", [1]),
        )
        for row in (
            Row(f"no length: {name}", (bare(body, kind),), output=output),
            Row(f"no length, by a death: {name}", (bare(body, kind),), "lost", words="not ready", health=503),
        )
    ),
    Row("no length, closed", (bare(b'{"a": 1}'),), output={"a": 1}, health=503),
    Row("no length, done", (bare(b"data: 1\n\ndata: [DONE]\n\n", SSE),), output=[1], health=503),
    Row("chunks cut off", pieces(b"[1", kind=JSON, end=b""), "lost", words="connection"),
    Row("chunk of no number", (head_of(JSON), b"zz\r\n[1]\r\n"), "failed", words="no HTTP"),
    Row("trailers", pieces(b"[1]", kind=JSON, end=b"0\r\nx-checksum: 1\r\n\r\n"), output=[1]),
    Row("extension of a chunk", (head_of(JSON), b"3;x=y\r\n[1]\r\n0\r\n\r\n"), output=[1]),
    Row("hints before", (b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", whole(b"[1]")), output=[1]),
    Row("continue before", (b"HTTP/1.1 100 Continue\r\n\r\n" + whole(b"[1]"),), output=[1]),
    Row("two answers", (whole(b"[1]") + whole(b"[2]"),), output=[1]),
    Row("HTTP/1.0", (whole(b"[1]").replace(b"HTTP/1.1", b"HTTP/1.0"),), output=[1]),
    Row("no reason", (whole(b"[1]").replace(b" Said", b""),), output=[1]),
    Row("LF only", (whole(b"[1]").replace(b"\r\n", b"\n"),), "failed", words="no HTTP"),
    Row("other protocol", (b"SSH-2.0-OpenSSH_9.2\r\n",), "failed", words="no HTTP"),
    Row("nothing at all", (b"",), "lost", words="connection"),
    Row("half a head", (b"HTTP/1.1 200 OK\r\ncontent-ty",), "lost", words="connection"),
    Row("gzip", (whole(gzip.compress(b"[1]"), head=b"content-encoding: gzip\r\n"),), output=[1]),
    Row("deflate", (whole(zlib.compress(b"[1]"), head=b"content-encoding: deflate\r\n"),), output=[1]),
    Row("raw deflate", (whole(zlib.compress(b"[1]")[2:-4], head=b"content-encoding: deflate\r\n"),), output=[1]),
    Row("brotli", (whole(b"\x0b\x01", head=b"content-encoding: br\r\n"),), "failed", words="'br'"),
    Row("gzip in members", (whole(MEMBERS, TEXT, head=GZIPPED),), output="one two"),
    Row("gzip with zeros behind", (whole(gzip.compress(b"[1]") + b"\0" * 9, head=GZIPPED),), output=[1]),
    Row(
        "gzip of lines",
        pieces(gzip.compress(b"1\n"), gzip.compress(b"2\n3"), kind=NDJSON, more=GZIPPED),
        output=[1, 2, 3],
    ),
    Row("gzip cut off", (whole(gzip.compress(b"one " * 9)[:-9], TEXT, head=GZIPPED),), "failed", words="cut"),
    Row("gzip of lines cut off", pieces(MEMBERS[:-9], kind=NDJSON, more=GZIPPED), "failed", words="cut off"),
    Row("gzip of nothing", (whole(b"", TEXT, head=GZIPPED),), output=""),
    Row("brotli of a file", (whole(PNG, "image/png", head=b"content-encoding: br\r\n"),), "failed", words="br"),
    Row("gzip of a file cut off", (whole(gzip.compress(PNG)[:-9], "image/png", head=GZIPPED),), "failed"),
    Row("said to be gzip", (whole(b"[1]", head=b"content-encoding: gzip\r\n"),), output=[1]),
    Row("gzip of events", pieces(gzip.compress(b"data: 1\n\n"), more=b"content-encoding: gzip\r\n"), output=[1]),
    Row("gzip that explodes", (whole(gzip.compress(b"[" * 9_000_000), head=b"content-encoding: gzip\r\n"),), "failed"),
    # ---- statuses ----
    Row("301", (whole(b"", status=301, head=b"location: /there\r\n"),), "failed", words="/there"),
    Row("304", (b"HTTP/1.1 304 Same\r\nconnection: close\r\n\r\n",), "failed", words="304"),
    Row("400", (whole(b'{"detail": "too long"}', status=400),), "invalid", words="too long"),
    Row("404", (whole(b"{}", status=404),), "failed", words="404"),
    Row("418", (whole(b"teapot", TEXT, 418),), "failed", words="teapot"),
    Row("422", (whole(b'{"detail": [{"loc": ["body", "a"], "msg": "no"}]}', status=422),), "invalid", words="a: no"),
    Row("500", (whole(b"<h1>Oops</h1>", "text/html", 500),), "failed", words="Oops"),
    Row("500 without words", (whole(b"", status=500),), "failed", words="500"),
    Row("500 of a dead server", (whole(b"no", TEXT, 500),), "lost", words="not ready", health=503),
    Row("500 of a lost replica", (whole(b"The actor died unexpectedly.", TEXT, 500),), "lost", words="actor"),
    *(
        Row(name, (whole(words, TEXT, status),), "lost", words=words.decode())
        for name, status, words in (
            ("500 of vLLM's V0", 500, b"MQEngineDeadError: Engine loop is not running"),
            ("500 of a dead core", 500, b"EngineCore died"),
            ("400 of a dead core", 400, b"EngineCore encountered an issue."),
            ("500 of TorchServe", 500, b"Worker died."),
            ("500 of TorchServe without a worker", 500, b"Model m has no worker to serve inference request."),
            ("500 of Triton", 500, b"Stub process 'm_0_0' is not healthy."),
            ("500 of Ollama", 500, b"llama runner process has terminated: signal: killed"),
            ("500 of a pool", 500, b"A process in the process pool was terminated abruptly while it ran"),
            ("500 of LiteLLM", 500, b"litellm.InternalServerError: OpenAIException - Connection error."),
        )
    ),
    Row("422 that repeats words", (whole(b"'EngineDeadError' is no color", TEXT, 422),), "invalid"),
    Row("408", (whole(b"took too long", TEXT, 408),), "failed", words="took too long"),
    Row("504", (whole(b"took too long", TEXT, 504),), "failed", words="took too long"),
    Row("504 and not ready", (whole(b"late", TEXT, 504),), "lost", words="not ready", health=503),
    Row("502", (whole(b"bad gateway", TEXT, 502),), "lost", words="bad gateway"),
    Row("503", (whole(b"full", TEXT, 503),), "refused", words="full"),
    Row("507", (whole(b"no space", TEXT, 507),), "failed", words="no space"),
    Row("599", (whole(b"odd", TEXT, 599),), "failed", words="odd"),
    Row("999", (whole(b"odd", TEXT, 999),), "failed", words="999"),
)


def chunk(delta: object = UNSET, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if delta is UNSET else delta, "finish_reason": finish}
    return b"data: %b\n\n" % js({"choices": [choice], **more})


def said(*events: bytes) -> tuple[bytes, ...]:
    """Return a stream of OpenAI's API with `Hi` around these events."""
    return pieces(chunk({"content": "H"}), *events, chunk({"content": "i"}), chunk(None, "stop"), DONE)


DONE: Final = b"data: [DONE]\n\n"
HI: Final = ["H", "i"]
PACKER: Final = zlib.compressobj(wbits=31)
FLUSHED: Final = PACKER.compress(chunk({"content": "Hi"}) + DONE) + PACKER.flush(zlib.Z_SYNC_FLUSH)
CALL: Final = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
CALLS: Final = {**CALL, "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}

OPENAI: Final = (
    Row("gzip cut off after the end", pieces(FLUSHED, more=GZIPPED), output=["Hi"]),
    *(
        Row(f"between: {name}", said(beat), output=HI)
        for name, beat in {
            "data and nothing": b"data:\n\n",
            "data and a blank": b"data: \n\n",
            "comment": b": ping\n\n",
            "event without data": b"event: ping\n\n",
            "retry alone": b"retry: 3000\n\n",
            "id alone": b"id: 7\n\n",
            "event ping": b"event: ping\ndata:\n\n",
            "blank lines": b"\n\n\n",
            "CRLF": b"data: \r\n\r\n",
            "word": b"data: ping\n\n",
            "null": b"data: null\n\n",
            "number": b"data: 5\n\n",
            "unknown field": b"banana: 1\n\n",
            "empty object": b"data: {}\n\n",
            "choices null": b'data: {"choices": null}\n\n',
            "choices empty": b'data: {"choices": []}\n\n',
            "choices of another type": b'data: {"choices": {"a": 1}}\n\n',
            "choice null": b'data: {"choices": [null]}\n\n',
            "delta null": b'data: {"choices": [{"index": 0, "delta": null}]}\n\n',
            "content null": b'data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}\n\n',
            "content of another type": b'data: {"choices": [{"delta": {"content": 5}}]}\n\n',
            "index null": b'data: {"choices": [{"index": null, "delta": {}}]}\n\n',
            "usage null": b'data: {"choices": [], "usage": null}\n\n',
            "usage of another type": b'data: {"choices": [], "usage": {"prompt_tokens": "5"}}\n\n',
            "error null": b'data: {"choices": [], "error": null}\n\n',
            "error empty": b'data: {"choices": [], "error": {}}\n\n',
            "NaN beside": b'data: {"choices": [{"delta": {}, "logprobs": {"a": NaN}}]}\n\n',
            "event of its own": b'event: usage\ndata: {"usage": {"prompt_tokens": 1}}\n\n',
        }.items()
    ),
    Row(
        "half of a pair",
        said(b'data: {"choices": [{"delta": {"content": "\\ud83d"}}]}\n\n'),
        output=["H", "\ufffd", "i"],
    ),
    Row("no UTF-8", said(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'), output=["H", "\ufffd", "i"]),
    Row("parts of a content", said(chunk({"content": [{"type": "text", "text": "e"}]})), output=["H", "e", "i"]),
    Row(
        "no space after data",
        pieces(chunk({"content": "Hi"}, "stop").replace(b"data: ", b"data:"), DONE),
        output=["Hi"],
    ),
    Row("no end, a reason", pieces(chunk({"content": "Hi"}, "stop")), output=["Hi"]),
    Row("an end, no reason", pieces(chunk({"content": "Hi"}), DONE), output=["Hi"]),
    Row("neither", pieces(chunk({"content": "Hi"})), "failed", words="stopped before"),
    Row("neither, and dead", pieces(chunk({"content": "Hi"})), "lost", words="not ready", health=503),
    Row("cut off", pieces(chunk({"content": "Hi"}), end=b""), "lost", words="connection"),
    Row("end without its blank line", pieces(chunk({"content": "Hi"}), b"data: [DONE]"), output=["Hi"]),
    Row("reason of another type", pieces(chunk({"content": "Hi"}), chunk(None, 5), DONE), output=["Hi"]),  # type: ignore[arg-type]
    Row("garbage", pieces(b"data: {]\n\n"), "failed", words="{]"),
    Row("error object", said(b'data: {"error": {"message": "it broke", "code": 500}}\n\n'), "failed", words="it broke"),
    Row("error text", said(b'data: {"error": "it broke"}\n\n'), "failed", words="it broke"),
    Row("error of another shape", said(b'data: {"error": {"detail": ["no"]}}\n\n'), "failed", words="no"),
    Row("error in a list", said(b'data: {"error": ["it broke"]}\n\n'), "failed", words="it broke"),
    Row(
        "error with a code of text",
        said(b'data: {"error": {"message": "no", "code": "bad_thing"}}\n\n'),
        "failed",
        words="no",
    ),
    Row("error event", said(b"event: error\ndata: it broke\n\n"), "failed", words="it broke"),
    Row("error event of JSON", said(b'event: error\ndata: {"message": "it broke"}\n\n'), "failed", words="it broke"),
    Row("error on a dead server", said(b'data: {"error": {"message": "no"}}\n\n'), "lost", health=503),
    Row(
        "dead engine", said(b'data: {"error": {"message": "EngineCore encountered an issue", "code": 400}}\n\n'), "lost"
    ),
    Row(
        "invalid in the stream",
        said(b'data: {"error": {"message": "too long", "code": 400}}\n\n'),
        "invalid",
        words="too long",
    ),
    Row("500", (whole(b'{"error": {"message": "no"}}', status=500),), "failed", words="no"),
    Row("500 and dead", (whole(b'{"error": {"message": "no"}}', status=500),), "lost", words="no", health=503),
    Row("type in capitals", pieces(chunk({"content": "Hi"}, "stop"), kind="Text/Event-Stream"), output=["Hi"]),
    Row(
        "gzip",
        pieces(gzip.compress(chunk({"content": "Hi"}, "stop")), more=b"content-encoding: gzip\r\n"),
        output=["Hi"],
    ),
    Row(
        "not streamed",
        (whole(js({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})),),
        output=["Hi"],
    ),
    Row("no completion", (whole(b"<html>"),), "failed", words="ignores `stream`"),
    Row("empty", (whole(b""),), "failed", words="empty"),
    Row("empty stream", pieces(), "failed", words="stopped before"),
    *(
        Row(f"in place of choices: {name}", pieces(b"data: %b\n\n" % piece, DONE), "failed", words=words)
        for name, piece, words in (
            ("nothing", b"", "without a choice"),
            ("an unknown object", b'{"response": "boom"}', "boom"),
            ("an object of an error", b'{"object": "error", "message": "boom"}', "boom"),
            ("a type of an error", b'{"type": "error", "detail": "boom"}', "boom"),
            ("a list of errors", b'{"errors": ["boom"]}', "boom"),
            ("a code of an error", b'{"text": "boom", "error_code": 50001}', "boom"),
        )
    ),
    Row(
        "object of an error in the text",
        said(b'data: {"object": "error", "message": "boom", "code": 500}\n\n'),
        "failed",
        words="boom",
    ),
    Row(
        "error in a choice",
        said(b'data: {"choices": [{"error": {"message": "boom"}, "finish_reason": "error"}]}\n\n'),
        "failed",
        words="boom",
    ),
    Row("reason error", pieces(chunk({"content": "H"}), chunk(None, "error"), DONE), "failed", words="error"),
    Row("reason abort", pieces(chunk({"content": "H"}), chunk(None, "abort"), DONE), "failed", words="abort"),
    Row("reason abort, and dead", pieces(chunk(None, "abort"), DONE), "lost", words="abort", health=503),
    Row(
        "reason of an object",
        said(b'data: {"choices": [{"finish_reason": {"type": "abort"}}]}\n\n'),
        "failed",
        words="abort",
    ),
    Row("event named failed", said(b"event: Failed\ndata: boom\n\n"), "failed", words="boom"),
    Row("error nested too deeply", said(b"event: error\ndata: %b\n\n" % NESTED), "failed"),
    Row(
        "deltas of another type beside tool calls",
        pieces(chunk({"content": "H"}), chunk({"tool_calls": [CALLS]}), chunk("x"), b'data: {"choices": 5}\n\n', DONE),
        output={"choices": [{"index": 0, "finish_reason": None, "message": {"content": "H", "tool_calls": [CALLS]}}]},
    ),
    Row("no text", pieces(chunk({"content": ""}, "stop"), DONE), output=[]),
    *(
        Row(
            f"tool calls with {name}",
            pieces(chunk({"tool_calls": [CALL | {"x": "X"}]}, "stop").replace(b'"X"', number), DONE),
            "failed",
            words="beyond",
        )
        for name, number in (
            ("a huge exponent", b"1e400"),
            ("many digits", b"9" * 400),
            ("thousands of digits", b"9" * 5_000),
        )
    ),
    Row(
        "tool calls beside a huge number",
        pieces(chunk({"tool_calls": [CALL]}, "stop").replace(b"{", b'{"x": %b, ' % (b"9" * 5_000), 1), DONE),
    ),
    *(
        Row(
            f"usage of {len(count)} digits",
            said(b'data: {"usage": {"completion_tokens": %b}}\n\n' % count),
            output=["H", "i"],
        )
        for count in (b"9" * 400, b"9" * 5_000)
    ),
    Row(
        "dead engine with a huge code",
        said(b'data: {"error": {"message": "EngineDeadError", "code": 1e400}}\n\n'),
        "lost",
    ),
    Row(
        "tool calls",
        pieces(
            chunk({"role": "assistant", "content": None, "tool_calls": [CALL]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]}),
            chunk(None, "tool_calls"),
            DONE,
        ),
        output={
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {"role": "assistant", "content": None, "tool_calls": [CALLS]},
                }
            ]
        },
    ),
    Row(
        "text and a refusal",
        pieces(chunk({"content": "H"}), chunk({"content": "m"}), chunk({"refusal": "No."}, "stop"), DONE),
        output={"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hm", "refusal": "No."}}]},
    ),
    Row(
        "only reasoning",
        pieces(chunk({"reasoning_content": "Hm"}), chunk({"reasoning_content": "m"}, "length"), DONE),
        output={"choices": [{"index": 0, "finish_reason": "length", "message": {"reasoning_content": "Hmm"}}]},
    ),
    Row(
        "two choices",
        (
            whole(
                js({"choices": [{"index": n, "message": {"content": f"{n}"}, "finish_reason": "stop"} for n in (0, 1)]})
            ),
        ),
        output={"choices": [{"index": n, "finish_reason": "stop", "message": {"content": f"{n}"}} for n in (0, 1)]},
    ),
)


def ended(**fields: Any) -> bytes:
    return js({"status": "succeeded", "output": "ok", **fields})


def frame(event: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def streamed(*frames: bytes, end: bytes = b"") -> tuple[bytes, ...]:
    """Return a stream of coglet with these frames before its end."""
    return pieces(frame("start", b'{"status": "processing"}'), *frames, end or frame("completed", ended(output=["ok"])))


COG: Final = (
    Row("logs of another type", (whole(ended(logs=["a"])),), output="ok"),
    Row("metrics of another type", (whole(ended(metrics=[1])),), output="ok"),
    Row("metrics null", (whole(ended(metrics=None, logs=None, error=None)),), output="ok"),
    Row("unknown fields", (whole(ended(version={"a": 1}, started_at=5)),), output="ok"),
    Row("no output", (whole(b'{"status": "succeeded"}'),), output=None),
    Row("error of another type", (whole(b'{"status": "failed", "error": {"a": 1}}'),), "failed", words='{"a": 1}'),
    Row("error null", (whole(b'{"status": "failed", "error": null}'),), "failed", words="without saying why"),
    Row("huge exponent", (whole(b'{"status": "succeeded", "output": [1e400]}'),), "failed", words="1e400"),
    *(
        Row(
            f"huge exponent, {status}",
            (
                whole(
                    b'{"status": "%b", "error": "no", "output": [1e400], "metrics": {"n": 1e400, "m": 2}}'
                    % status.encode()
                ),
            ),
            status,
            output=None,
        )
        for status in ("failed", "canceled")
    ),
    Row(
        "huge exponent in metrics",
        (whole(b'{"status": "succeeded", "output": 1, "metrics": {"a": 1e400}}'),),
        output=1,
    ),
    Row("NaN", (whole(b'{"status": "succeeded", "output": NaN}'),), "failed", words="NaN"),
    Row("mark", (whole(b"\xef\xbb\xbf" + ended()),), output="ok"),
    Row("half a pair", (whole(b'{"status": "succeeded", "output": "\\ud83d"}'),), output="\ufffd"),
    Row("half a pair in logs", (whole(b'{"status": "succeeded", "output": "ok", "logs": "\\ud83d"}'),), output="ok"),
    Row("status of another type", (whole(b'{"status": 5}'),), "failed", words="shape"),
    Row("status unknown", (whole(b'{"status": "exploded"}'),), "failed", words="'exploded'"),
    Row("status not an end", (whole(b'{"status": "processing"}'),), "failed", words="before the run had ended"),
    Row("no JSON", (whole(b"Internal Server Error"),), "failed", words="Internal Server Error"),
    Row("empty", (whole(b""),), "failed", words="empty"),
    Row("a list", (whole(b"[1]"),), "failed", words="[1]"),
    Row("another prediction", (whole(ended(id="b" * 26, output="secret")),), "failed", words="another prediction"),
    Row("500", (whole(b"Internal Server Error", TEXT, 500),), "failed", words="Internal Server Error"),
    Row("500 and not ready", (whole(b"oh", TEXT, 500),), "lost", words="not ready", health=503),
    Row("404", (whole(b'{"detail": "Not Found"}', status=404),), "failed", words="Not Found"),
    Row("422", (whole(b'{"detail": "no"}', status=422),), "invalid", words="no"),
    Row("429", (whole(b"{}", status=429),), "refused", words="429"),
    Row("502", (whole(b"{}", status=502),), "lost", words="502"),
    Row("gzip", (whole(gzip.compress(ended()), head=b"content-encoding: gzip\r\n"),), output="ok"),
    Row("cut off", (whole(ended())[:-5],), "lost", words="connection"),
)

STREAMED: Final = (
    Row("nothing between", streamed(), output=["ok"]),
    Row("heartbeat", streamed(b": keep-alive\n\n"), output=["ok"]),
    Row("unknown event", streamed(frame("banana", b"{]")), output=["ok"]),
    Row("log of another type", streamed(frame("log", b'{"data": 5}')), output=["ok"]),
    Row("log of no JSON", streamed(frame("log", b"{]")), output=["ok"]),
    Row("output without a chunk", streamed(frame("output", b"{}")), output=["ok"]),
    Row("metric of another type", streamed(frame("metric", b'{"name": 5}')), output=["ok"]),
    Row("metric of NaN", streamed(frame("metric", b'{"name": "a", "value": NaN}')), output=["ok"]),
    Row("end of no JSON", streamed(end=frame("completed", b"<html>")), "failed", words="<html>"),
    Row("end without its blank line", streamed(end=frame("completed", ended())[:-2]), output="ok"),
    Row("no end", streamed(end=b": bye\n\n"), "failed", words="stopped before"),
    Row("no end and not ready", streamed(end=b": bye\n\n"), "lost", words="not ready", health=503),
    Row("error event", streamed(end=frame("error", b"what?")), "failed", words="what?"),
    Row("end cut in chunks", streamed(b"event: comp", b"leted\nda", end=b"ta: %b\n\n" % ended(output="é")), output="é"),
)

STATE: Final = b'{"state": "done", "result": {"items": 7}}'
POLLING: Final = (
    Row("id", (whole(b'{"job": {"id": "ok"}}'),), output=7),
    Row("id of a number", (whole(b'{"job": {"id": 7}}'),), output=7),
    Row("id called text", (whole(b'{"job": {"id": "ok"}}', "text/html"),), output=7),
    Row("no id", (whole(b'{"jobs": []}'),), "failed", words="without an id"),
    Row("id null", (whole(b'{"job": {"id": null}}'),), "failed", words="without an id"),
    Row("id of dots", (whole(b'{"job": {"id": ".."}}'),), "failed", words="without an id"),
    Row("no JSON", (whole(b"accepted", TEXT),), "failed", words="accepted"),
    Row("empty", (whole(b""),), "failed", words="empty"),
    Row("500", (whole(b"no", TEXT, 500),), "failed", words="no"),
    Row("500 and dead", (whole(b"no", TEXT, 500),), "lost", words="not ready", health=503),
    Row("422", (whole(b'{"detail": "no"}', status=422),), "invalid", words="no"),
    Row("cut off", (whole(b'{"job": {"id": "ok"}}')[:-3],), "lost", words="connection"),
)

POLLED: Final = (
    Row("done", (whole(STATE),), output=7),
    Row("done in capitals", (whole(STATE.replace(b"done", b"DONE")),), output=7),
    Row("mark", (whole(b"\xef\xbb\xbf" + STATE),), output=7),
    Row("done without a result", (whole(b'{"state": "done"}'),), "failed", words="nothing at /result/items"),
    Row("failed without a word", (whole(b'{"state": "failed"}'),), "failed", words="without saying why"),
    Row("failed with an object", (whole(b'{"state": "failed", "problem": {"a": 1}}'),), "failed", words='{"a": 1}'),
    Row("unknown state", (whole(b'{"state": "banana"}'),), "failed", words="'banana'"),
    Row("state of another type", (whole(b'{"state": 5}'),), "failed", words="'5'"),
    Row("no state", (whole(b"{}"),), "failed", words="nothing at /state"),
    Row("state null", (whole(b'{"state": null}'),), "failed", words="'null'"),
    Row("always no JSON", (whole(b"<html>"),), "failed", words="<html>"),
    Row("always 500", (whole(b"oh no", TEXT, 500),), "failed", words="oh no"),
    Row("always 502", (whole(b"oh no", TEXT, 502),), "lost", words="502"),
    *(
        Row(f"always {status} and not ready", (whole(b"oh no", TEXT, status),), "lost", words=f"{status}", health=503)
        for status in (408, 409, 429, 503, 504)
    ),
    Row("always 500 and dead", (whole(b"oh no", TEXT, 500),), "lost", words="not ready", health=503),
    Row("event", pieces(b"event: done\ndata: %b\n\n" % STATE), output=7),
    Row("event without its blank line", pieces(b"event: done\ndata: %b" % STATE), output=7),
    Row(
        "event of a type in capitals",
        pieces(b"event: done\ndata: %b\n\n" % STATE, kind="Text/Event-Stream; charset=utf-8"),
        output=7,
    ),
    Row("event in gzip", pieces(gzip.compress(b"event: done\ndata: %b\n\n" % STATE), more=GZIPPED), output=7),
    Row("event in gzip cut off", pieces(MEMBERS[:-9], more=GZIPPED), "failed", words="cut off"),
    Row("event of no JSON", pieces(b"event: done\ndata: [NaN]\n\n"), "failed", words="not JSON"),
    Row("event of a failure", pieces(b"event: failed\ndata: CUDA boom\n\n"), "failed", words="CUDA boom"),
    Row("event of a failure cut off", pieces(b"event: failed\ndata: {boom"), "failed", words="{boom"),
    Row(
        "event without its blank line and a length",
        (bare(b"event: failed\ndata: bo", SSE),),
        "failed",
        words="stopped before",
    ),
    Row("events of nothing", pieces(), "failed", words="stopped before"),
    Row("events of nothing and dead", pieces(), "lost", words="not ready", health=503),
    Row("events of a 500", (whole(b"data: oh no\n\n", SSE, 500),), "failed", words="oh no"),
    Row("forgotten", (whole(b"{}", status=404),), "lost", words="not known"),
)


def _of(kind: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row if row.kind else replace(row, kind=kind) for row in rows)


ROWS: Final = (
    *_of("http", HTTP),
    *_of("openai", OPENAI),
    *_of("cog", COG),
    *_of("streamed cog", STREAMED),
    *_of("polling", POLLING),
    *_of("polled", POLLED),
)
