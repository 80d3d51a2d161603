"""Write logs to stderr as lines of JSON: a constant message with facts beside it. A line that fails never raises. On a
terminal the same lines are written for people.

No library may log a URL, since callers put secrets into theirs.
"""

import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TextIO

import msgspec
from msgspec import Raw

from director.core.settings import describe_former

BLANK: Final = vars(logging.makeLogRecord({}))
OF_EVERY_RECORD: Final = frozenset(BLANK) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}

LONG_FACT: Final = 100
UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"

# httpx logs every URL with its query at info; uvicorn logs every request.
QUIET: Final = ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error", "asyncio")


class Record(logging.LogRecord):
    """A log record with only what a line shows: to find the rest would take longer than the line itself."""

    def __init__(
        self, name: str, level: int, _path: str, _lineno: int, msg: object, args: Any, exc_info: Any, *_: object
    ) -> None:
        self.__dict__ = {
            "name": name,
            "levelno": level,
            "levelname": logging.getLevelName(level),
            "msg": msg,
            "args": args[0] if args and len(args) == 1 and isinstance(args[0], Mapping) else args,
            "exc_info": exc_info,
            "created": time.time(),
        }


for _name, _blank in BLANK.items():
    setattr(Record, _name, _blank)


def make_record(
    _logger: logging.Logger,
    name: str,
    level: int,
    path: str,
    lineno: int,
    msg: object,
    args: Any,
    exc_info: Any,
    _function: str | None = None,
    extra: Mapping[str, object] | None = None,
    _stack: str | None = None,
) -> logging.LogRecord:
    """Make a record as `Logger.makeRecord` does, without a look at each fact: 11,000 instructions, not 27,000."""
    record = Record(name, level, path, lineno, msg, args, exc_info)
    if extra is not None:
        record.__dict__ = {**extra, **record.__dict__}
    return record


class Lines(logging.StreamHandler[TextIO]):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(f"{self.format(record)}\n")  # flushed at the end of each line
        except Exception:  # noqa: BLE001 - no line is worth a crash
            self.handleError(record)


class JsonLines(logging.Formatter):
    def __init__(self, *, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": _message(record) if record.args else str(record.msg),
        }
        for name, fact in vars(record).items():
            if name not in OF_EVERY_RECORD:
                # a fact never hides a field of the line
                line[f"{name}_" if name in line or name == "exception" else name] = fact
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return _json(line).decode()


class PeopleLines(logging.Formatter):
    """Lines for a person at a terminal: time, level if not info, message, and facts. Nothing controls the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{at} {level}{_message(record) if record.args else record.msg}"
        long = []
        for name, fact in vars(record).items():
            if name in OF_EVERY_RECORD:
                continue
            shown = fact if isinstance(fact, str) else _fact(fact).decode()
            if "\n" in shown or len(shown) > LONG_FACT:
                long.append(f"{name}: {shown}")
            else:
                line += f"  {name}={shown}"
        if record.exc_info and record.exc_info[0] is not None:
            long.append(self.formatException(record.exc_info))
        lines = [line, *(f"    {each}" for text in long for each in text.splitlines())]
        return "\n".join("".join(one if one.isprintable() else UNPRINTABLE for one in each) for each in lines)


def configure(level: str, *, process: str) -> None:
    """Log from `level` on: for people where stderr is a terminal, else as JSON. Each line of JSON names this `process`:
    api, keeper, director.
    """
    logging._srcfile = None  # do not look for the caller of each log call
    logging.setLogRecordFactory(Record)
    logging.Logger.makeRecord = make_record  # type: ignore[assignment]
    handler = Lines(sys.stderr)
    handler.setFormatter(PeopleLines() if sys.stderr.isatty() else JsonLines(process=process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        library.setLevel(max(logging.WARNING, root.level))
    for sentence in describe_former(os.environ):
        root.warning("a former setting is still set", extra={"reason": sentence})


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a message that does not fit its arguments is still worth its words
        return str(record.msg)


def _time(created: float) -> str:
    millis = round(created * 1000)
    return f"{_second(millis // 1000)}.{millis % 1000:03}+00:00"


@lru_cache(1)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _json(line: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(line, enc_hook=_plain)
    except Exception:  # noqa: BLE001 - a fact may fail in any way: it is only a fact, and the line has to be written
        return msgspec.json.encode({name: Raw(_fact(value)) for name, value in line.items()})


def _fact(fact: object) -> bytes:
    try:
        return msgspec.json.encode(fact, enc_hook=_plain)
    except Exception:  # noqa: BLE001 - see above
        return msgspec.json.encode(_plain(fact))


def _plain(fact: object) -> str:
    try:
        text = fact if isinstance(fact, str) else repr(fact)
    except Exception:  # noqa: BLE001 - see above
        text = f"<{type(fact).__name__}>"
    return text.encode(errors="backslashreplace").decode()
