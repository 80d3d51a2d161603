"""Store the configurations of models, which operators write and directors read.

Every change is logged with its operator and the names of the fields. Values are not logged, since a template may be
confidential. The caller has checked that the operator may.
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
    """The configuration changed since it was read: read it again, and decide again."""


class ModelConfigs:
    """Configurations in Redis. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock) -> None:
        self._redis: Any = redis  # redis-py says str or bytes; ours answers in bytes
        self._scripts = scripts
        self._clock = clock
        self._changes = Changes(redis, scripts, clock)

    async def get(self, model: str) -> StoredConfig | None:
        """Return the configuration of a model, or None if the model does not exist.

        Raises SettingsError if it cannot be read: a newer release wrote it.
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
        """Replace the whole configuration, and return the new revision. `was` is the revision that was read.

        Raises UnknownModel, ConfigChanged, and SettingsError for a configuration that no director could apply.
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
        """Remove the configuration, and return the new revision. Raises UnknownModel and ConfigChanged."""
        return await self.put(model, NOTHING, by=by, was=was)
