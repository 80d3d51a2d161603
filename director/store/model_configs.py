"""The configurations of models, as operators write them down and directors read them.

Every change is in the log of changes, with who made it and which fields it says; never with what they are, since a
template may hold what is nobody's business. Judges nobody: whoever calls has asked whether the operator may.
"""

import secrets
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import SettingsError, UnknownModel
from director.core.model_config import ModelConfig, StoredConfig, judge
from director.store.changes import Changes

FIELDS: Final = ("created", "config_rev", "config", "config_at", "config_by")
NOTHING: Final = ModelConfig()


class ConfigChanged(SettingsError):
    """Somebody else changed it since it was read: read it again, and decide anew."""


class ModelConfigs:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._scripts = scripts
        self._clock = clock
        self._changes = Changes(redis, scripts, clock)

    async def get(self, model: str) -> StoredConfig | None:
        """What is written down of a model; None where there is no such model.

        Raises SettingsError where it cannot be read: a newer release wrote it.
        """
        found: list[bytes | None] = await ask(lambda: self._redis.hmget(keys.model(model), FIELDS))
        created, revision, config, at_ms, by = found
        if created is None:
            return None
        try:
            return StoredConfig(
                revision=int(revision or 0),
                config=msgspec.json.decode(config, type=ModelConfig) if config else NOTHING,
                changed_ms=int(at_ms) if at_ms else None,
                changed_by=(by or b"").decode(),
            )
        except msgspec.DecodeError as exc:
            raise SettingsError(f"The configuration of {model} cannot be read here: {exc}") from exc

    async def put(self, model: str, config: ModelConfig, *, by: str, was: int | None = None) -> int:
        """Write it down, whole, and take back all that it does not say; the new revision. `was`: the one that was read.

        Raises UnknownModel, ConfigChanged, and SettingsError for what no director could go by.
        """
        judge(config)
        text = b"" if config == NOTHING else msgspec.json.encode(config)
        said = sorted(msgspec.to_builtins(config))
        async with self._changes.noting("model_configured", by=by, model=model, was=was, fields=said):
            word, revision = await self._scripts.configure(
                model, text, by=by, at_ms=self._clock.now_ms(), was=was, nonce=secrets.token_hex(8)
            )
            if word == "unknown":
                raise UnknownModel(model)
            if word == "changed":
                raise ConfigChanged(f"It is revision {revision} by now, and not {was}: read it again.")
        return revision

    async def remove(self, model: str, *, by: str, was: int | None = None) -> int:
        """Take all of it back; the new revision. Raises UnknownModel and ConfigChanged."""
        return await self.put(model, NOTHING, by=by, was=was)
