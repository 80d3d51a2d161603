"""Store aliases: other names of models in OpenAI's API, such as `gpt-4o` for `acme/llm`. Operators set them.

An alias goes before a model or a deployment of the same name, so no account can take its calls. What it stands for need
not exist: a call of it is then refused as that of an unknown model.
"""

import re
from typing import Any, Final

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, texts
from director.core.errors import SettingsError
from director.core.ids import MODEL_NAME
from director.store.changes import Changes

MOST: Final = 1_000  # every API process holds all of them
PART: Final = r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}"
ALIAS: Final = f"^{PART}(/{PART})?$"
TARGET: Final = f"{MODEL_NAME[:-1]}(:[0-9a-f]{{64}})?$"


class Aliases:
    def __init__(self, redis: Redis, changes: Changes) -> None:
        self._redis: Any = redis  # ours answers in bytes
        self._changes = changes

    async def all(self) -> dict[str, str]:
        """Return what each alias stands for: owner/name, or owner/name:version."""
        return dict(sorted(texts(await ask(lambda: self._redis.hgetall(keys.aliases()))).items()))

    async def put(self, alias: str, model: str, *, by: str) -> None:
        """Set an alias, new or not. Raises SettingsError for an unfit one, for the name of a model, and beyond MOST."""
        if not re.fullmatch(ALIAS, alias):
            raise SettingsError(
                f"An alias has letters, digits, and . _ : @ + - with at most one /, not {alias[:80]!r}."
            )
        if not re.fullmatch(TARGET, model):
            raise SettingsError("An alias stands for a model: owner/name, or owner/name:version.")
        name = alias.partition(":")[0]
        if await ask(lambda: self._redis.exists(keys.model(name))):
            raise SettingsError(f"There is a model {name}: an alias would take its calls.")
        async with self._changes.noting("alias_set", by=by, alias=alias, model=model):
            known = await self.all()
            if alias not in known and len(known) >= MOST:
                raise SettingsError(f"There are {MOST:,} aliases already: remove one first.")
            await ask(lambda: self._redis.hset(keys.aliases(), alias, model))

    async def remove(self, alias: str, *, by: str) -> bool:
        """Remove an alias. Return False if it is unknown."""
        async with self._changes.noting("alias_removed", by=by, alias=alias) as note:
            is_removed = bool(await ask(lambda: self._redis.hdel(keys.aliases(), alias)))
            if not is_removed:
                note.void()
        return is_removed
