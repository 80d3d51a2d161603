"""Which store the settings name."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.files.links import Links
from director.files.local import LocalFiles
from director.files.store import FileStore, OutputStore
from director.files.through_api import ApiFiles


def output_store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "") -> OutputStore | None:
    """Where a director puts files: to the API, where the URL is one of it, else where the others have them.

    Raises as `store_in` does.
    """
    if _is_api(url):
        return ApiFiles(url.rstrip("/"), Links(redis, clock), clock)
    return store_in(folder, redis, clock, url=url, writes=True)


def store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "", writes: bool = False) -> FileStore | None:
    """The store that the settings name, a bucket rather than a folder; None where they name none.

    Raises SettingsError where there is no such store, or one that it `writes` and cannot.
    """
    if _is_api(url):
        raise SettingsError(
            "DIRECTOR_FILES_URL: only a director puts files to the API, which itself needs a folder or a bucket."
        )
    if url:
        try:
            from director.files.s3 import S3Files, bucket_of
        except ImportError as exc:
            raise SettingsError("DIRECTOR_FILES_URL needs a package: pip install 'director[s3]'.") from exc
        return S3Files(bucket_of(url), Links(redis, clock), clock)
    if not folder:
        return None
    store = LocalFiles(Path(folder), Links(redis, clock))
    if writes:
        store.prepare()
    return store


def _is_api(url: str) -> bool:
    return url.startswith(("http://", "https://"))


# Does the store of files work? Looked at when a process starts, and again where somebody asks a while later.
#
# Never raises for what a store does, and never waits for long: whoever asks has others to answer.

log = logging.getLogger(__name__)

GOOD_S: Final = 60.0  # each look is paid for
BAD_S: Final = 5.0
LONGEST_S: Final = 1.5  # below what a probe of a process waits


class StoreCheck:
    """One store's, for one process."""

    def __init__(self, store: OutputStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._reason = ""
        self._known_until: float | None = None
        self._looking = asyncio.Lock()

    async def missing(self) -> str:
        """What is wrong with it, in words for whoever runs it; '' when nothing is."""
        async with self._looking:
            if self._known_until is None or self._clock.monotonic() >= self._known_until:
                await self._look()
            return self._reason

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                reason = await self._store.probe()
        except TimeoutError:
            reason = f"the store of files did not answer within {LONGEST_S:g} s"
        except Exception as exc:  # noqa: BLE001 - a store is somebody else's: whatever it raises is its fault
            reason = f"the store of files fails: {type(exc).__name__}"
        if reason and reason != self._reason:
            log.error("the store of files does not work", extra={"reason": reason})
        elif self._reason and not reason:
            log.info("the store of files works again")
        self._reason = reason
        self._known_until = self._clock.monotonic() + (BAD_S if reason else GOOD_S)
