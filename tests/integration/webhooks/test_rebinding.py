"""Test webhooks to names whose owner changes their address after the check. A real name server answers over UDP."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from director.core.webhooks import new_secret
from director.webhooks.sender import AllowList, Delivery, Sender
from tests.support.name_server import NameServer, name_server
from tests.support.sink import sink

PUBLIC = "93.184.215.14"
PRIVATE = ("127.0.0.1", "127.0.0.2", "169.254.169.254", "::1", "fd00::1")
NAME = "hooks.example"
HTTPS = 443


async def deliver(sender: Sender, url: str) -> Delivery:
    return await sender.send(url, message_id="p1", body=b"{}", secrets=[new_secret()], now_s=time.time())


@asynccontextmanager
async def asked(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> AsyncGenerator[NameServer]:
    async with name_server({NAME: addresses}) as names:
        monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
        yield names


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return where connections over HTTPS are asked for. None leaves this machine."""
    found: list[Any] = []

    def connect(_: socket.socket, address: Any) -> None:
        if address[1:2] == (HTTPS,):  # the API that other tests share looks for its Redis meanwhile
            found.append(address[:2])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    return found


@pytest.mark.parametrize("second", PRIVATE)
async def test_connection_goes_to_the_public_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch, connections: list[Any], second: str
) -> None:
    async with asked(monkeypatch, PUBLIC, second) as names:
        sender = Sender(AllowList())
        assert await deliver(sender, f"https://{NAME}/") == Delivery(ok=False, reason="no connection")
        assert (connections, names.lookups[NAME]) == ([(PUBLIC, HTTPS)], 1)
        assert (await deliver(sender, f"https://{NAME}/")).rule == "private_address"
        assert (connections, names.lookups[NAME]) == ([(PUBLIC, HTTPS)], 2)
        await sender.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of this machine")
async def test_webhook_arrives_where_it_was_checked_and_never_at_the_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator allows the first address alone; both of them accept connections."""
    trapped: list[Any] = []

    async def trap(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        trapped.append(writer.get_extra_info("peername"))
        writer.close()

    async with sink() as receiver:
        other = await asyncio.start_server(trap, "127.0.0.2", receiver.port)
        async with other, asked(monkeypatch, "127.0.0.1", "127.0.0.2") as names:
            sender, url = Sender(AllowList.parse("127.0.0.1")), f"http://{NAME}:{receiver.port}/"
            assert (await deliver(sender, url)).ok
            assert (len(receiver.received), names.lookups[NAME]) == (1, 1)
            refused = [(await deliver(sender, url)).rule for _ in range(3)]
            await sender.aclose()
    assert (refused, len(receiver.received), trapped) == (["private_address"] * 3, 1, [])
