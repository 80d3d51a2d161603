"""How the setup of a model server went, as its version has it in the catalogue: the last one that ended, and no other.

Pure. What the server says of itself is bounded and read for what it means, never believed to be well-formed.
"""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct

__all__ = ("MOST_LOG_BYTES", "SetupRun", "read_setup_run", "setup_run")

MOST_LOG_BYTES: Final = 64 * 1024
LONGEST_TIME: Final = 64

Status = Literal["succeeded", "failed"]


class SetupRun(Struct, frozen=True, kw_only=True):
    """One setup that ended. Times are the server's own, None where it does not tell them.

    `logs`: the end of what it printed. `server`: its address, which is for operators alone.
    """

    status: Status
    started_at: str | None
    completed_at: str | None
    logs: str
    server: str


def setup_run(status: Status, *, started_at: str, completed_at: str, logs: str, server: str) -> SetupRun:
    """Of what a server says."""
    return SetupRun(
        status=status,
        started_at=_time(started_at),
        completed_at=_time(completed_at),
        logs=logs.encode(errors="replace")[-MOST_LOG_BYTES:].decode(errors="ignore"),
        server=server,
    )


def read_setup_run(stored: bytes | str | None) -> SetupRun | None:
    """As a director wrote it; None where none did, or one of another release that is not understood."""
    try:
        return msgspec.json.decode(stored, type=SetupRun) if stored else None
    except msgspec.DecodeError:
        return None


def _time(said: str) -> str | None:
    """RFC 3339 in UTC with milliseconds; None for what is no time. One without a zone is taken for UTC."""
    if len(said) > LONGEST_TIME:
        return None
    try:
        at = datetime.fromisoformat(said)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
