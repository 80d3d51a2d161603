"""Read how a model is to be run, and have a change of it in force a few seconds later, while its director runs.

What cannot be gone by changes nothing: it is told in the log, once, and what was in force stays so.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from director.core.clock import Clock
from director.core.errors import BackendUnavailable, SettingsError
from director.core.model_config import ModelConfig, over
from director.core.settings import DirectorSettings
from director.store.model_configs import ModelConfigs

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0


class Configuring:
    """`settings`: as the director was started; `apply` brings others into force."""

    def __init__(
        self,
        configs: ModelConfigs,
        settings: DirectorSettings,
        clock: Clock,
        apply: Callable[[DirectorSettings], Awaitable[None]],
    ) -> None:
        self._configs = configs
        self._settings = settings
        self._clock = clock
        self._apply = apply
        self._config = ModelConfig()
        self._told = ""

    async def begin(self) -> DirectorSettings:
        """What is in force from the start. Waits for Redis; raises SettingsError for what nobody could go by."""
        while True:
            try:
                stored = await self._configs.get(self._settings.model)
            except BackendUnavailable as exc:
                log.warning("reading the configuration failed", extra={"error": str(exc)})
                await self._clock.sleep(LOOK_S)
                continue
            self._config = stored.config if stored else ModelConfig()
            return over(self._config, self._settings)

    async def run(self) -> None:
        """Look every few seconds, for ever."""
        while True:
            try:
                await self.run_once()
                self._told = ""
            except BackendUnavailable as exc:
                log.warning("reading the configuration failed", extra={"error": str(exc)})
            except SettingsError as exc:
                if str(exc) != self._told:
                    log.error("the configuration is not gone by", extra={"error": str(exc)})
                self._told = str(exc)
            await self._clock.sleep(LOOK_S)

    async def run_once(self) -> bool:
        """Bring what is written down into force where it is another; true when it was."""
        stored = await self._configs.get(self._settings.model)
        config = stored.config if stored else ModelConfig()
        if config == self._config:
            return False
        await self._apply(over(config, self._settings))
        self._config = config
        log.info("configuration in force", extra={"revision": stored.revision if stored else 0})
        return True
