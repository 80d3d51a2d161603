"""Serve the real inbox on a listener of its own, so that model servers can reach it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from director.servers.runners.inbox import Inbox


@asynccontextmanager
async def serving(inbox: Inbox) -> AsyncGenerator[Inbox, None]:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it listens from here on, so callers need not wait
        inbox.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(Starlette(routes=list(inbox.routes())), lifespan="off", ws="none", log_level="warning")
        server = uvicorn.Server(config)
        listening = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield inbox
        finally:
            server.should_exit = True
            await listening
