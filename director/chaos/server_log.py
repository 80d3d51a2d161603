"""What the server itself wrote down: its append-only file has every change in the one order in which they were made.

The file says what scripts did, not what they were asked to do: an entry that was read appears as an `XCLAIM` with the
server's own time. Reads the file of a server that is at rest, or of one that goes on; never asks the server anything.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from director.chaos.journal import Arrived, Breaker, Claimed

__all__ = ("NEVER_REWRITTEN", "server_log", "size")

# a rewrite keeps what is, and forgets how it came about
NEVER_REWRITTEN: Final = {"auto-aof-rewrite-percentage": "0"}
FOLDER: Final = "appendonlydir"
MANIFEST: Final = "*.manifest"
LISTED: Final = re.compile(r"^file (\S+) seq (\d+) type i", re.MULTILINE)
RECORD: Final = re.compile(r"^\{p\d+\}:rec:(\w{26})$")
META: Final = re.compile(r"^\{p\d+\}:q:(.+):meta$")
STREAM: Final = re.compile(r"^\{p\d+\}:q:.+:[a-z]+:s(\d+)$")


Told = Arrived | Breaker | Claimed


def size(data: Path) -> int:
    """How long the log of the server with this data folder is by now: where reading may begin later."""
    return sum(path.stat().st_size for path in _files(data))


def server_log(data: Path, *, start: int = 0) -> Iterator[Told]:
    """Who was accepted, who was handed out and what a breaker held, from this place on, in the order of the changes."""
    reader = Reader()
    for number, command in enumerate(chain.from_iterable(_parts(data, start))):
        if (line := reader.line(number, command)) is not None:
            yield line


def _parts(data: Path, start: int) -> Iterator[Iterator[list[bytes]]]:
    for path in _files(data):
        with path.open("rb") as file:
            file.seek(start)
            yield _commands(file)
        start = max(0, start - path.stat().st_size)


def _files(data: Path) -> list[Path]:
    """The parts that are made of commands, oldest first."""
    [manifest] = (data / FOLDER).glob(MANIFEST)
    listed = sorted((int(number), name) for name, number in LISTED.findall(manifest.read_text()))
    return [data / FOLDER / name for _, name in listed]


def _commands(file: BinaryIO) -> Iterator[list[bytes]]:
    """Each whole command. A kill may have cut the last one: the server then forgets it too."""
    while head := file.readline():
        if not head.startswith(b"*"):
            continue  # a remark, such as the time
        command = []
        for _ in range(int(head[1:])):
            length = file.readline()
            if not length.endswith(b"\n"):
                return
            command.append(file.read(int(length[1:]) + 2)[:-2])
        yield command


class Reader:
    """What the commands so far say of entries: whose each is, and where the last one of each prediction was read."""

    def __init__(self) -> None:
        self._entries: dict[tuple[bytes, bytes], tuple[str, int]] = {}
        self._reads: dict[str, tuple[int, int]] = {}
        self._open: set[str] = set()
        self._now = 0

    def line(self, number: int, command: list[bytes]) -> Told | None:
        """What this command tells of an arrival, a claim or a breaker, if it does."""
        match command:
            case [b"XADD", stream, mid, *fields] if found := STREAM.match(stream.decode()):
                self._entries[stream, mid] = _pairs(fields)["id"], int(found[1])
            case [b"XCLAIM", stream, _, _, _, mid, b"TIME", at, *_] if (stream, mid) in self._entries:
                prediction_id, place = self._entries[stream, mid]
                self._reads[prediction_id] = place, int(at)
                self._now = int(at)
            case [b"HSET", key, *fields] if found := RECORD.match(key.decode()):
                return self._record(number, found[1], _pairs(fields))
            case [b"HSET", key, *fields] if found := META.match(key.decode()):
                return self._meta(number, found[1], _pairs(fields))
            case _:
                pass
        return None

    def _meta(self, number: int, queue: str, fields: dict[str, str]) -> Breaker | None:
        """A change tells no time of its own: it is that of the last entry that was read."""
        is_open = bool(fields.get("breaker"))
        if "breaker" not in fields or is_open is (queue in self._open):
            return None
        self._open ^= {queue}
        return Breaker(at=self._now, number=number, queue=queue, is_open=is_open)

    def _record(self, number: int, prediction_id: str, fields: dict[str, str]) -> Told | None:
        if "created" in fields:
            return Arrived(
                at=int(fields["created"]),
                number=number,
                id=prediction_id,
                tenant=fields["account"],
                queue=fields["queue"],
                lane=fields["lane"],
            )
        if fields.get("token") and "claimed" in fields:
            stream, delivered = self._reads.pop(prediction_id, (-1, 0))
            return Claimed(
                at=int(fields["claimed"]),
                number=number,
                id=prediction_id,
                stream=stream,
                holder=fields.get("holder", ""),
                delivered=delivered,
            )
        return None


def _pairs(fields: list[bytes]) -> dict[str, str]:
    named = zip(fields[::2], fields[1::2], strict=True)
    return {name.decode(): value.decode(errors="replace") for name, value in named}  # a webhook's URL may be any bytes
