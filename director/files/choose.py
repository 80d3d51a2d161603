"""Which store the settings name."""

from pathlib import Path

from redis.asyncio import Redis

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.files.links import Links
from director.files.local import LocalFiles
from director.files.store import FileStore, OutputStore
from director.files.through_api import ApiFiles

__all__ = ("output_store_in", "store_in")


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
