"""A policy that is tried: how the queue is made, what it promises, and what each account may have of it.

Pure, but for reading the file. `fifo` is no policy of the queue: it is one line for all, to compare with.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from director.broker.scripts import Admission
from director.core.account_limits import Count
from director.core.errors import SettingsError
from director.core.objectives import NONE, Lane, Objective
from director.core.policy import Policy
from director.core.shards import MAX_STREAMS

__all__ = ("FAIR", "FIFO", "Share", "Tried", "tried")

EVERY_OTHER: Final = "*"
MOST_NAME: Final = 14  # as much of a name as a column of a table has room for


class Share(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one account may have, as an operator sets it."""

    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    max_running: Count | None = None
    max_queued: Count | None = None


class Tried(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode` and `max_queued` as `director queues bound` has them. `accounts`: by name, and `*` for every other."""

    name: str = ""
    fifo: bool = False
    streams: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] = 16
    size: Annotated[int, Meta(ge=1, le=MAX_STREAMS)] = 2
    mode: Admission = "absorb"
    max_queued: Count | None = None
    objectives: Mapping[Lane, Objective] = NONE
    accounts: Mapping[str, Share] = {}

    @property
    def policy(self) -> Policy:
        """What a director would register. What has ended is not asked for again, and leaves the server at once."""
        streams, size = (1, 1) if self.fifo else (self.streams, self.size)
        return Policy(streams=streams, size=size, objectives=self.objectives, data_ttl_s=1, record_ttl_s=1)

    def share_of(self, account: str) -> Share:
        return self.accounts.get(account) or self.accounts.get(EVERY_OTHER) or Share()


FAIR: Final = Tried(name="fair")
FIFO: Final = Tried(name="fifo", fifo=True)
NAMED: Final = {each.name: each for each in (FAIR, FIFO)}


def tried(text: str) -> Tried:
    """`fair`, as a queue is by default; `fifo`, one line for all; or a TOML file. Raises SettingsError."""
    if text in NAMED:
        return NAMED[text]
    path = Path(text)
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        read = msgspec.convert(given, Tried)
    except OSError as exc:
        known = " and ".join(NAMED)
        raise SettingsError(f"{text} cannot be read: {exc.strerror}. A policy is a file, or {known}.") from exc
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as exc:
        raise SettingsError(f"{text}: {exc}.") from exc
    _check(text, read)
    return replace(read, name=(read.name or path.stem)[:MOST_NAME])


def _check(text: str, read: Tried) -> None:
    if (read.mode == "bounded") != (read.max_queued is not None):
        raise SettingsError(f'{text}: `max_queued` goes with mode "bounded", and only with it.')
    if read.size > read.streams:
        raise SettingsError(f"{text}: a shard of {read.size} streams does not fit into {read.streams}.")
    if read.fifo and read.accounts:
        raise SettingsError(f"{text}: in one line for all no account has anything of its own; leave out `accounts`.")
