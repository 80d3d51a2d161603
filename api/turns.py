"""Turns: so many at once, of one account and of all. Who comes later waits, and is not kept waiting for ever.

In order of arrival. One account never holds more than its part, however many of its requests wait.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

__all__ = ("Turns",)


class Turns:
    """`most` at once, `each` of one account; a wait of more than `patience_s` is a TimeoutError."""

    def __init__(self, most: int, *, each: int, patience_s: float) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._patience_s = patience_s
        self._accounts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, account: str) -> AsyncGenerator[None]:
        """A turn of this account, for as long as the block takes."""
        own = self._accounts.setdefault(account, asyncio.Semaphore(self._each))
        async with AsyncExitStack() as held:
            async with asyncio.timeout(self._patience_s):
                await held.enter_async_context(own)  # first: who waits for its own account keeps nobody else
                await held.enter_async_context(self._all)
            yield
