"""Hold an account to the bytes that it may have in Redis, whatever takes them: its limit, and its share while memory is
short.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from api.services import Services
from api.web.errors import Code
from api.web.http import Request
from director.core.data_bytes import FOR_EVER_MS, NOTHING, Counted
from director.core.errors import BackendUnavailable, DataRefused

LONGEST_RETRY_S: Final = 60  # clients sleep for this long


class DataLimit(NamedTuple):
    """The most bytes that an account may have now, None for no limit, and the code of a refusal."""

    most: int | None
    code: Code

    @classmethod
    def of(cls, services: Services, most_data: int | None, bytes_more: int) -> "DataLimit":
        """Return what holds for these bytes more. They count in `services.memory` until `give_back`."""
        share = services.memory.share(bytes_more)
        if share is None or (most_data is not None and most_data < share):
            return cls(most_data, Code.DATA_FULL)
        return cls(share, Code.MEMORY_SHORT)

    def refusal(self, refused: Sequence[int]) -> DataRefused:
        """Return the error for the reply of a script: bytes that the account has, and ms until there is room."""
        used, retry_after_ms = refused
        retry_after_s = max(1, min(LONGEST_RETRY_S, math.ceil(retry_after_ms / 1000)))
        return DataRefused(self.code, limit=self.most or 0, used=used, retry_after_s=retry_after_s)


async def retain(request: Request, owner: str, size: int) -> None:
    """Count bytes that stay until `owner` deletes them, before they are written. Raises DataRefused, but not for an
    operator, who writes for another account.
    """
    services, account = request.services, request.account
    if size <= 0:
        return
    limit = DataLimit(None, Code.DATA_FULL)
    if account.name == owner:
        limit = DataLimit.of(services, account.limits.max_data_bytes, size)
    refused = await services.scripts.retain(owner, size, most=limit.most)
    if refused is not None:
        services.memory.give_back(size)
        raise limit.refusal(refused)


async def uncount(request: Request, owner: str, size: int) -> None:
    """Count bytes no longer that were not written, or that are gone. If Redis is away, a keeper does so in a minute."""
    if size > 0:
        with contextlib.suppress(BackendUnavailable):
            await request.services.scripts.weigh(owner, NOTHING, Counted(size, FOR_EVER_MS))
