"""Test which settings of a director are in force while the stored configuration of its model changes."""

import asyncio
from typing import Any

import pytest

from director.core.errors import BackendUnavailable, SettingsError
from director.core.model_config import ModelConfig, StoredConfig
from director.core.settings import DirectorSettings
from director.execution.live_settings import LOOK_AGAIN_S, LiveSettings
from tests.support.clock import FakeClock
from tests.support.eventually import eventually

RUNNER = {"kind": "http", "path": "/run"}
GIVEN = DirectorSettings(model="acme/echo", servers=("http://127.0.0.1:5000",), run_limit_s=60)


class Stored:
    """The stored configuration, and the settings that were brought into force."""

    def __init__(self, config: ModelConfig | None, *, keeps: tuple[str, ...] = ()) -> None:
        self.answer: ModelConfig | Exception | None = config
        self.refusal: Exception | None = None
        self.brought: list[DirectorSettings] = []
        self.clock = FakeClock()
        configs: Any = self
        self.live = LiveSettings(GIVEN, configs, self.clock, keeps=keeps)

    async def get(self, model: str) -> StoredConfig | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return None if self.answer is None else StoredConfig(config=self.answer, revision=1)

    async def bring_into_force(self, settings: DirectorSettings) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.brought.append(settings)


async def test_stored_configuration_lies_over_what_was_given() -> None:
    stored = Stored(ModelConfig(run_limit_s=9, runner=RUNNER))
    await stored.live.begin()
    assert (stored.live.now.run_limit_s, stored.live.now.runner) == (9, "http")
    assert stored.live.given == GIVEN


async def test_stored_runner_does_not_replace_one_that_is_kept() -> None:
    stored = Stored(ModelConfig(run_limit_s=9, runner=RUNNER), keeps=("runner", "runner_config"))
    await stored.live.begin()
    now = stored.live.now
    assert (now.run_limit_s, now.runner, now.runner_config) == (9, GIVEN.runner, GIVEN.runner_config)


@pytest.mark.parametrize("refusal", [BackendUnavailable("away"), SettingsError("no server")])
async def test_change_that_failed_is_tried_again(refusal: Exception) -> None:
    stored = Stored(None)
    await stored.live.begin()
    assert stored.live.now == GIVEN
    following = asyncio.create_task(stored.live.follow(stored.bring_into_force))
    stored.answer, stored.refusal = ModelConfig(run_limit_s=9), refusal
    for _ in range(3):
        stored.clock.pass_time(LOOK_AGAIN_S)
        await asyncio.sleep(0)
    assert stored.live.now == GIVEN
    stored.refusal = None

    def pass_time() -> bool:
        stored.clock.pass_time(LOOK_AGAIN_S)
        return stored.live.now.run_limit_s == 9

    await eventually(pass_time, "the change is in force")
    assert [settings.run_limit_s for settings in stored.brought] == [9]
    following.cancel()
