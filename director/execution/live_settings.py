"""Keep the settings of a director that are in force: those given, with the stored configuration of its model on top."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from director.core.clock import Clock
from director.core.errors import BackendUnavailable, SettingsError
from director.core.model_config import ModelConfig, over, usable
from director.core.settings import DirectorSettings
from director.store.models import ModelConfigs

log = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 2.0


class LiveSettings:
    """`now`: the settings in force. `left_out`: servers of the stored configuration, and what is wrong with each.
    `keeps`: names of settings that a stored configuration does not change.
    """

    def __init__(
        self, given: DirectorSettings, configs: ModelConfigs, clock: Clock, *, keeps: Sequence[str] = ()
    ) -> None:
        self.given = self.now = given
        self.left_out: Sequence[str] = ()
        self._configs = configs
        self._clock = clock
        self._keeps = keeps
        self._config = ModelConfig()
        self._error = ""

    async def begin(self) -> None:
        """Read the stored configuration. Waits while Redis is away. Raises SettingsError for an unusable one."""
        while True:
            try:
                self._config, _ = await self._read()
            except BackendUnavailable as exc:
                log.warning("reading the configuration failed", extra={"error": str(exc)})
                await self._clock.sleep(LOOK_AGAIN_S)
                continue
            self.now = self._put_over(self._config)
            return

    async def follow(self, bring_into_force: Callable[[DirectorSettings], Awaitable[None]]) -> None:
        """Bring each change of the stored configuration into force. An unusable one is only logged, once."""
        while True:
            try:
                config, revision = await self._read()
                if config != self._config:
                    settings = self._put_over(config)
                    await bring_into_force(settings)
                    self.now, self._config = settings, config
                    log.info("configuration in force", extra={"revision": revision})
                self._error = ""
            except BackendUnavailable as exc:
                log.warning("reading the configuration failed", extra={"error": str(exc)})
            except SettingsError as exc:
                if str(exc) != self._error:
                    log.error("the configuration cannot be used", extra={"error": str(exc)})
                self._error = str(exc)
            await self._clock.sleep(LOOK_AGAIN_S)

    async def _read(self) -> tuple[ModelConfig, int]:
        stored = await self._configs.get(self.given.model)
        if stored is None:
            return ModelConfig(), 0
        config, left_out = usable(stored.config)
        if left_out and left_out != self.left_out:
            log.error("servers of the stored configuration are left out: change it", extra={"servers": left_out})
        self.left_out = left_out
        return config, stored.revision

    def _put_over(self, config: ModelConfig) -> DirectorSettings:
        settings = over(config, self.given)
        return replace(settings, **{name: getattr(self.given, name) for name in self._keeps})
