"""Let few requests do heavy work at once, and none of them all for one account."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

import anyio

# Each takes a few megabytes of memory at most; one account cannot take all
MOST: Final = 16
MOST_EACH: Final = 4
PATIENCE_S: Final = 30.0
HURRY_S: Final = 3.0  # of a wait before an upload gives way for it; most uploads are over by then
# After that time, an upload below that pace gives way also to an account that would then have as many. Honest ones must
# not: each begins again at its first byte. With 256 KiB/s, 24 accounts at 200 KiB/s had 104 uploads done and 584 cut
TRICKLE_S: Final = 60.0
TRICKLE_BYTES_S: Final = 16 << 10


class _Upload:
    def __init__(self, account: str, received: Callable[[], int]) -> None:
        self.account = account
        self.granted = anyio.Event()
        self.scope = anyio.CancelScope()
        self.asked_s = anyio.current_time()
        self.began_s = 0.0
        self._received = received

    def pace(self, now_s: float) -> float:
        """Return the bytes that came in a second, on the average since it began."""
        return self._received() / max(HURRY_S, now_s - self.began_s)


class UploadSemaphore:
    """Lets few uploads go on at once. A free place goes to the account with the fewest. While an upload waits, the
    slowest one of the account with the most gives way. So callers that only trickle keep no others from their uploads.
    """

    def __init__(self, most: int = MOST, *, each: int = MOST_EACH) -> None:
        self._most = most
        self._each = each
        self._holders: set[_Upload] = set()
        self._waiting: list[_Upload] = []

    @asynccontextmanager
    async def hold(self, account: str, *, received: Callable[[], int]) -> AsyncGenerator[None]:
        """Hold a place. `received`: bytes of the upload so far. Raises TimeoutError where none came free in PATIENCE_S,
        or where the upload had to give way.
        """
        upload = _Upload(account, received)
        self._waiting.append(upload)
        self._grant()
        try:
            with anyio.fail_after(PATIENCE_S):
                while not upload.granted.is_set():
                    with anyio.move_on_after(HURRY_S):
                        await upload.granted.wait()
                    if not upload.granted.is_set():
                        self._make_room()
            with upload.scope:
                yield
            if upload.scope.cancelled_caught:
                raise TimeoutError
        finally:
            self._holders.discard(upload)
            if upload in self._waiting:
                self._waiting.remove(upload)
            self._grant()

    def _grant(self) -> None:
        while self._waiting and len(self._holders) < self._most and (upload := self._next()) is not None:
            self._waiting.remove(upload)
            self._holders.add(upload)
            upload.began_s = anyio.current_time()
            upload.granted.set()

    def _next(self, asked_by_s: float = math.inf) -> _Upload | None:
        """Return the upload that waits longest, of an account with the fewest places, of those asked for by then."""
        held = self._held
        allowed = [
            upload for upload in self._waiting if held[upload.account] < self._each and upload.asked_s <= asked_by_s
        ]
        return min(allowed, key=lambda upload: held[upload.account], default=None)

    @property
    def _held(self) -> Counter[str]:
        return Counter(upload.account for upload in self._holders)

    def _make_room(self) -> None:
        """Let one upload give way, if the account that is next after HURRY_S has fewer places. One at a time: it may
        need a moment to leave.
        """
        held, now_s = self._held, anyio.current_time()
        waits = self._next(asked_by_s=now_s - HURRY_S)
        if waits is None or any(upload.scope.cancel_called for upload in self._holders):
            return

        def gives_way(upload: _Upload) -> bool:
            more = held[upload.account] - held[waits.account]
            trickles = now_s - upload.began_s >= TRICKLE_S and upload.pace(now_s) < TRICKLE_BYTES_S
            return more > 1 or (more == 1 and trickles)

        def order(upload: _Upload) -> tuple[int, float]:
            return -held[upload.account], upload.pace(now_s)

        slowest = min(filter(gives_way, self._holders), key=order, default=None)
        if slowest is not None:
            slowest.scope.cancel()


class AccountSemaphore:
    """Let `most` requests work at once, and `each` of one account, in order. TimeoutError after `patience_s`."""

    def __init__(self, most: int, *, each: int, patience_s: float) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._patience_s = patience_s
        self._accounts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, account: str) -> AsyncGenerator[None]:
        own = self._accounts.setdefault(account, asyncio.Semaphore(self._each))
        async with AsyncExitStack() as held:
            async with asyncio.timeout(self._patience_s):
                # first, so that waiting for its own account keeps no other account waiting
                await held.enter_async_context(own)
                await held.enter_async_context(self._all)
            yield
