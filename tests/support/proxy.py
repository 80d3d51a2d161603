"""A TCP proxy between a client and a server that can lose or delay replies. The requests always arrive.

It never changes a byte.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

__all__ = ("LosingProxy", "losing_proxy")


class LosingProxy:
    """`lose_next_reply` cuts the connection whose next request contains `marker`, after the server has answered it.
    Each reply comes `delay_s` later.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._marker: bytes | None = None
        self.port = 0
        self.lost = 0
        self.delay_s = 0.0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_next_reply(self, marker: bytes) -> None:
        """Lose the reply to the next request with `marker`: bytes that no other request contains."""
        self._marker = marker

    def lead_to(self, port: int) -> None:
        """Send new connections to another port, as when a name gets another address. Open connections stay.

        Without a listener there each new connection ends at once.
        """
        self._target_port = port

    async def serve(self, client: SocketStream) -> None:
        async with client:
            try:
                server = await anyio.connect_tcp("127.0.0.1", self._target_port)
            except OSError:
                return
            await self._pass_on(client, server)

    async def _pass_on(self, client: SocketStream, server: SocketStream) -> None:
        async with server:
            doomed = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(self._requests, client, server, doomed)
                await self._replies(server, client, doomed)
                group.cancel_scope.cancel()

    async def _requests(self, client: ByteStream, server: ByteStream, doomed: anyio.Event) -> None:
        try:
            async for chunk in client:
                if self._marker is not None and self._marker in chunk:
                    self._marker = None
                    doomed.set()
                await server.send(chunk)
            await server.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # one side has closed; the other side will notice

    async def _replies(self, server: ByteStream, client: ByteStream, doomed: anyio.Event) -> None:
        try:
            async for chunk in server:
                if doomed.is_set():
                    self.lost += 1
                    return
                await anyio.sleep(self.delay_s)
                await client.send(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return


@asynccontextmanager
async def losing_proxy(target_port: int) -> AsyncGenerator[LosingProxy, None]:
    """Run a proxy on a free loopback port in front of the server on `target_port`."""
    proxy = LosingProxy(target_port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        proxy.port = int(listener.extra(SocketAttribute.local_port))  # noqa: S610 - not Django's
        group.start_soon(listener.serve, proxy.serve)
        yield proxy
        group.cancel_scope.cancel()
