"""Which store the settings name."""

from pathlib import Path

from redis.asyncio import Redis

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.links import Links
from director.core.stores.local import LocalFiles
from director.core.stores.store import FileStore

__all__ = ("store_in",)


def store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "", writes: bool = False) -> FileStore | None:
    """The store that the settings name, a bucket rather than a folder; None where they name none.

    Raises SettingsError where there is no such store, or one that it `writes` and cannot.
    """
    if url:
        try:
            from director.core.stores.s3 import S3Files, bucket_of
        except ImportError as exc:
            raise SettingsError("DIRECTOR_FILES_URL needs a package: pip install 'director[s3]'.") from exc
        return S3Files(bucket_of(url), Links(redis, clock), clock)
    if not folder:
        return None
    store = LocalFiles(Path(folder), Links(redis, clock))
    if writes:
        store.prepare()
    return store
