"""A name server on loopback whose answers change, and a lookup in place of `socket.getaddrinfo` that really asks it.
The resolver of the C library asks only port 53 of the servers in /etc/resolv.conf.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

A: Final = 1
AAAA: Final = 28
INTERNET: Final = 1
LIFETIME_S: Final = 0  # an attacker wants to be asked again
ASKS: Final = 0x0100
ANSWERS: Final = 0x8180
NO_SUCH_NAME: Final = 3
HEADER: Final = struct.Struct("!6H")
QUESTION: Final = struct.Struct("!2H")
ANSWER: Final = struct.Struct("!3HIH")
NAME_ABOVE: Final = 0xC000 | HEADER.size  # in an answer: the name of the question
PATIENCE_S: Final = 5.0


class NameServer(asyncio.DatagramProtocol):
    """`names`: the address that each name has at its first lookup, at the second and so on; the last one stays.
    `lookups` counts them.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self.lookups: Counter[str] = Counter()
        self._names = names
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        number = HEADER.unpack_from(data)[0]
        name, end = _read_name(data)
        kind, _ = QUESTION.unpack_from(data, end)
        question = data[HEADER.size : end + QUESTION.size]
        if name not in self._names:
            self._transport.sendto(HEADER.pack(number, ANSWERS | NO_SUCH_NAME, 1, 0, 0, 0) + question, addr)
            return
        given = self._names[name]
        address = ip_address(given[min(self.lookups[name], len(given) - 1)])
        self.lookups[name] += kind == A  # the second question of a lookup
        answer = b""
        if kind == (A if address.version == 4 else AAAA):
            answer = ANSWER.pack(NAME_ABOVE, kind, INTERNET, LIFETIME_S, len(address.packed)) + address.packed
        self._transport.sendto(HEADER.pack(number, ANSWERS, 1, int(bool(answer)), 0, 0) + question + answer, addr)

    def getaddrinfo(self, host: str | bytes, port: Any, *_: Any, **__: Any) -> list[Any]:
        host = host if isinstance(host, str) else host.decode()
        try:
            found = [ip_address(host)]
        except ValueError:
            found = [one for kind in (AAAA, A) for one in self._ask(host, kind)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        families = {4: (socket.AF_INET, ()), 6: (socket.AF_INET6, (0, 0))}
        return [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(one), int(port), *rest))
            for one in found
            for family, rest in [families[one.version]]
        ]

    def _ask(self, host: str, kind: int) -> list[IPv4Address | IPv6Address]:
        question = _written_name(host) + QUESTION.pack(kind, INTERNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(PATIENCE_S)
            asking.sendto(HEADER.pack(7, ASKS, 1, 0, 0, 0) + question, self._transport.get_extra_info("sockname"))
            data = asking.recv(512)
        packed = data[HEADER.size + len(question) + ANSWER.size :]
        return [ip_address(packed)] if packed else []


def _written_name(host: str) -> bytes:
    labels = [label.encode() for label in host.removesuffix(".").split(".")]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _read_name(data: bytes) -> tuple[str, int]:
    """Return the name of the question, and where it ends."""
    labels, at = [], HEADER.size
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels), at + 1


@asynccontextmanager
async def name_server(names: Mapping[str, Sequence[str]]) -> AsyncGenerator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: NameServer(names), local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
