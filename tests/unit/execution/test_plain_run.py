"""A run without webhook, files, moderator or collector of spans pays for none of them."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec import Raw

import director
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.settings import DirectorSettings
from director.execution.active_claims import ActiveClaims
from director.execution.executor import Executor
from director.execution.tracker import Limits
from director.files.data_files import DataFiles
from director.servers.runners.runner import Began, Ended, Health, HealthStatus, Hear, OneAnswer, Outcome, RunRequest
from director.servers.servers import Server, Servers
from tests.support.clock import FakeClock
from tests.unit.execution.test_tracker import RECORD

PRODUCT = str(Path(director.__file__).parent)


class Script:
    async def finish(self, *_: object, **given: Any) -> bool:
        self.output = given["output"]
        return True

    def weigh(self, *_: object) -> None:
        pass


class Runner(OneAnswer):
    url = "http://127.0.0.1"

    async def hear(self, request: RunRequest, hear: Hear) -> None:
        hear(Began())
        hear(Ended(outcome=Outcome.SUCCEEDED, output=Raw(b'"x"')))


async def test_plain_run_takes_few_calls(caplog: pytest.LogCaptureFixture) -> None:
    script, runner, calls = Script(), Runner(), Counter[str]()
    servers = Servers([Server(runner, 1, health=Health(status=HealthStatus.READY))])
    given: dict[str, Any] = {"scripts": script, "post": None}
    executor = Executor(
        clock=FakeClock(),
        claims=ActiveClaims(),
        servers=servers,
        limits=Limits(),
        policy=Policy(),
        settings=DirectorSettings(),
        dice=lambda: 0.5,
        data_files=DataFiles(FakeClock()),
        **given,
    )

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            calls[frame.f_code.co_qualname] += 1

    for counted in (None, count):  # the first run of a queue makes its series
        [permit] = servers.permits.take()
        sys.setprofile(counted)
        await executor.execute(Claim(RECORD, Raw(b"{}")), permit)
        sys.setprofile(None)
    assert script.output == b'"x"'
    assert not caplog.records, "it came to its end"
    assert calls.total() <= 89, calls.most_common()
