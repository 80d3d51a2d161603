"""A certificate authority for names on this machine, and a webhook receiver that uses its certificates."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl in PATH")
        self.folder = folder
        self._openssl("req", "-x509", *KEY, "-subj", "/CN=test", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))

    def shown_by(self, name: str) -> ssl.SSLContext:
        alone = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl("req", *KEY, *alone)
        (self.folder / "names").write_text(f"subjectAltName=DNS:{name}\n")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context

    def _openssl(self, *line: str) -> None:
        subprocess.run(["openssl", *line], cwd=self.folder, check=True, capture_output=True)


class SecureSink:
    """A receiver over TLS. It keeps the server names of the handshakes and the heads of the requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.greeted: list[str | None] = []
        self.heads: list[str] = []


@asynccontextmanager
async def secure_sink(shown: ssl.SSLContext) -> AsyncGenerator[SecureSink]:
    sink = SecureSink(0)

    def greeted(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        sink.greeted.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sink.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    shown.sni_callback = greeted
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=shown) as server:
        sink.port = server.sockets[0].getsockname()[1]
        yield sink
