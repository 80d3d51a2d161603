"""Choose the file store that the settings name, and check that it works."""

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

log = logging.getLogger(__name__)

GOOD_S: Final = 60.0  # each check of a bucket costs money
BAD_S: Final = 5.0
LONGEST_S: Final = 1.5  # shorter than the timeout of a probe of the process


def output_store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "") -> OutputStore | None:
    """Return the store for a director's outputs: the API if `url` is HTTP, else the store that `store_in` returns.

    Raises as `store_in` does.
    """
    if _is_api(url):
        return ApiFiles(url.rstrip("/"), Links(redis, clock), clock)
    return store_in(folder, redis, clock, url=url, writes=True)


def store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "", writes: bool = False) -> FileStore | None:
    """Return the store that the settings name, a bucket before a folder, or None if they name none.

    Raises SettingsError if the store cannot exist, or cannot be written although this process `writes`.
    """
    if _is_api(url):
        raise SettingsError(
            "DIRECTOR_FILES_URL: only a director can store files through the API, which needs a folder or a bucket."
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


class StoreCheck:
    """Checks one store for one process: at its start, and again when asked after a time.

    Errors of the store are never raised, and a check never takes long: the asking process has other requests to answer.
    """

    def __init__(self, store: OutputStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._reason = ""
        self._known_until: float | None = None
        self._looking = asyncio.Lock()

    async def missing(self) -> str:
        """Return what is wrong with the store, in words for the operator, or '' if it works."""
        async with self._looking:
            if self._known_until is None or self._clock.monotonic() >= self._known_until:
                await self._look()
            return self._reason

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                reason = await self._store.probe()
        except TimeoutError:
            reason = f"the file store did not answer within {LONGEST_S:g} s"
        except Exception as exc:  # noqa: BLE001 - the store's library may raise anything
            reason = f"the file store fails: {type(exc).__name__}"
        if reason and reason != self._reason:
            log.error("the file store does not work", extra={"reason": reason})
        elif self._reason and not reason:
            log.info("the file store works again")
        self._reason = reason
        self._known_until = self._clock.monotonic() + (BAD_S if reason else GOOD_S)
