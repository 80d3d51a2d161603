"""What is said of each model: its description, who may see it, what is shown of it. Knows of no version but its name.

Anybody may see a public model, and its owner and operators a private one. That rule stands here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.core import keys
from director.core.accounts import Account
from director.core.redis_client import ask, text

__all__ = ("Model", "Models", "Visibility")

Visibility = Literal["public", "private"]


class Model(Struct, frozen=True, kw_only=True):
    """A named thing that can be run. '' where nothing is said.

    `latest`: see `Catalog.register`, '' before its first version. `default_example`: the id of one of its examples.
    """

    name: str
    created_ms: int
    latest: str = ""
    visibility: Visibility = "public"
    hardware: str = ""
    description: str = ""
    github_url: str = ""
    paper_url: str = ""
    license_url: str = ""
    weights_url: str = ""
    cover_image_url: str = ""
    default_example: str = ""
    is_official: bool = False
    former_runs: int = 0  # of versions that were deleted

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]

    def may_be_seen_by(self, account: Account) -> bool:
        """For whom it is no model at all, and neither are its versions and all that is made of them."""
        return self.visibility == "public" or self.may_be_changed_by(account)

    def may_be_changed_by(self, account: Account) -> bool:
        """May this account change what is said of it, and take it away?"""
        return self.owner == account.name or "admin" in account.scopes


# field of the hash -> of the struct
READ: Final = {"created" if name == "created_ms" else name: name for name in Model.__struct_fields__ if name != "name"}


class Models:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def get(self, name: str) -> Model | None:
        """A model by "owner/name"; None where there is none."""
        [found] = await self.many([name])
        return found

    async def many(self, names: Sequence[str]) -> list[Model | None]:
        """Each of these in this order, by one write to the socket."""

        async def read() -> list[Sequence[bytes | None]]:
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hmget(keys.model(name), list(READ))
            return await pipe.execute()

        replies = await ask(read) if names else []
        return [_model(name, values) for name, values in zip(names, replies, strict=True)]


def _model(name: str, values: Sequence[bytes | None]) -> Model | None:
    said: Mapping[str, str] = {
        field: text(value) for field, value in zip(READ.values(), values, strict=True) if value is not None
    }
    if "created_ms" not in said:
        return None
    return msgspec.convert({**said, "name": name}, Model, strict=False)
