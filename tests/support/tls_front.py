"""Put TLS in front of a plain server, as an ingress does: official clients accept file addresses with https only."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

CHUNK: Final = 65_536


@asynccontextmanager
async def tls_front(shown: ssl.SSLContext, *, target_port: int) -> AsyncGenerator[int]:
    passing: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        passing[task] = writer
        with suppress(OSError):  # one side has closed; the other side notices
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target_port)
            await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer), return_exceptions=True)
        del passing[task]

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=shown)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in passing.values():
            writer.transport.abort()
        await asyncio.gather(*filter(None, passing), return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()
