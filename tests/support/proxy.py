"""A link between a client and a Redis server that can lose or delay replies. The requests always arrive."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from director.lab.chaos.proxy import Connection, Link


class LosingProxy(Link):
    """A link to a port of this machine. `lost`: the replies that were lost since the last order to lose one."""

    def __init__(self, target_port: int) -> None:
        super().__init__("client:redis", seed=1)
        self._target_port = target_port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def lost(self) -> int:
        return int(self._lost.is_set())

    def lead_to(self, port: int) -> None:
        """Send new connections to another port. Open connections stay."""
        self._target_port = port

    async def opened(self) -> Connection:
        return await asyncio.open_connection("127.0.0.1", self._target_port)


@asynccontextmanager
async def losing_proxy(target_port: int) -> AsyncGenerator[LosingProxy, None]:
    proxy = LosingProxy(target_port)
    await proxy.listen(proxy.opened)
    try:
        yield proxy
    finally:
        await proxy.stop()
