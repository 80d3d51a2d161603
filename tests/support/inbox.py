"""An inbox that model servers can reach: the real one, on a listener of its own.

Never reads what is in it.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from director.servers.runners.inbox import Inbox

__all__ = ("serving",)


@asynccontextmanager
async def serving(inbox: Inbox) -> AsyncGenerator[Inbox, None]:
    """Give it an address, and serve there until the test is done with it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it listens from here on, so nobody need wait for it
        inbox.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(Starlette(routes=list(inbox.routes())), lifespan="off", ws="none", log_level="warning")
        server = uvicorn.Server(config)
        listening = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield inbox
        finally:
            server.should_exit = True
            await listening
