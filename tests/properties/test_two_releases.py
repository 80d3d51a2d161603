"""The former release and this one at one queue, call by call: nothing is lost, doubled, stranded or counted wrong.

The walks are those of one release alone, and so is the model that they are held to.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.properties.queue_machine import QueueMachine
from tests.properties.test_queue_machine import SCAN
from tests.support.release import EitherScripts, Release, TheirScripts
from tests.support.servers import RedisServer, redis_server

pytestmark = pytest.mark.chaos

WALKS = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """It is killed."""
    with redis_server(config={"appendfsync": "no"}) as started:
        yield started


class MixedMachine(QueueMachine):
    """`either`: what of each release was called."""

    def __init__(self, server: RedisServer, former: Release) -> None:
        self.former = former
        super().__init__(server, scan=SCAN)

    async def _open(self) -> None:
        await super()._open()
        self.theirs = TheirScripts(self.former, self.server.url)
        either: Any = EitherScripts(self.scripts, self.theirs.scripts, random.Random(0))
        self.either = self.scripts = self.driver.scripts = either

    @initialize(seed=st.integers(0, 2**16))
    def toss_another_coin(self, seed: int) -> None:
        self.either.coin.seed(seed)

    async def _close(self) -> None:
        await self.theirs.aclose()
        await super()._close()


def test_any_order_of_anything_by_either_release_loses_doubles_and_strands_nothing(
    own_server: RedisServer, former: Release
) -> None:
    calls = {"ours": 0, "theirs": 0}

    class Counted(MixedMachine):
        def teardown(self) -> None:
            super().teardown()
            for whose, count in self.either.calls.items():
                calls[whose] += count

    run_state_machine_as_test(lambda: Counted(own_server, former), settings=WALKS)
    print(f"{former.tag} and this one: {calls}")
    assert min(calls.values()) > sum(calls.values()) / 3, "both had their share"
