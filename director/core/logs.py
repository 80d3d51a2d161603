"""Logs as JSON lines on stderr: a constant message, the facts beside it, and never a crash for the sake of a line.

Decides nothing about what is logged, except that no library may log a URL: callers put secrets into theirs.
"""

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Raw

__all__ = ("JsonLines", "configure")

# What every record has; the rest of its attributes are facts.
OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}

# httpx tells every URL at info, with its query; uvicorn tells every request.
QUIET: Final = ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error", "asyncio")


class JsonLines(logging.Formatter):
    """One record, one line of JSON: time, level, logger, process, message, then the facts under their own names."""

    def __init__(self, *, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": _message(record),
        }
        for name, fact in _facts(record):
            # a fact never hides what the line says of itself
            line[f"{name}_" if name in line or name == "exception" else name] = fact
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return _json(line).decode()


def configure(level: str, *, process: str) -> None:
    """Let this process log, from `level` on. `process` names it in every line: api, keeper, director."""
    # a line tells neither caller nor thread, and finding them out takes longer than all else of it
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process=process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        library.setLevel(max(logging.WARNING, root.level))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a message that does not fit its arguments is still worth its words
        return str(record.msg)


def _facts(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    return ((name, fact) for name, fact in vars(record).items() if name not in OF_EVERY_RECORD)


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
    """Any object as text that can be encoded: a lone surrogate cannot, and `repr` may itself fail."""
    try:
        text = fact if isinstance(fact, str) else repr(fact)
    except Exception:  # noqa: BLE001 - see above
        text = f"<{type(fact).__name__}>"
    return text.encode(errors="backslashreplace").decode()
