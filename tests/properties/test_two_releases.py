"""The former release and this one work on one queue, call by call: nothing is lost, doubled, stranded or miscounted.

The walks and the model are those of one release alone.
"""

import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.properties.queue_machine import QueueMachine
from tests.properties.queue_steps import Wish
from tests.properties.test_queue_machine import BOUNDED, SCAN
from tests.support.former_scripts import CALLS, EitherScripts, FormerScripts, parameters
from tests.support.release import Release
from tests.support.servers import RedisServer, redis_server

pytestmark = pytest.mark.chaos

WALKS = settings(BOUNDED, max_examples=24)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """Start a server that the walks may kill."""
    with redis_server(config={"appendfsync": "no"}) as started:
        yield started


# Only tests/lua/test_two_releases.py makes this call: the walk reads Redis itself.
NOT_WALKED = {"stats"}


class MixedMachine(QueueMachine):
    """A walk in which either release carries out each call."""

    def __init__(self, server: RedisServer, former: Release) -> None:
        self.former = former
        super().__init__(server, scan=SCAN)

    async def _open(self) -> None:
        await super()._open()
        self.theirs = FormerScripts(self.former, self.server.url)
        either: Any = EitherScripts(self.scripts, self.theirs, random.Random(0))
        self.either = self.scripts = self.driver.scripts = either

    @initialize(seed=st.integers(0, 2**16))
    def toss_another_coin(self, seed: int) -> None:
        self.either.coin.seed(seed)

    def submit(self, wish: Wish, limits: tuple[float, int | None, int]) -> bool:
        """No run is of OpenAI's API, and none is planned: 0.3.0 starts it at once."""
        return super().submit(wish._replace(once_shown=False, cost=min(wish.cost, 2)), limits)

    def _together(self, calls: list[Coroutine[Any, Any, Any]], fault: str) -> list[Any]:
        with self.either.one_release():
            return super()._together(calls, fault)

    def _drain(self) -> None:
        """First make the calls that a walk rarely reaches by chance."""
        self.keep("recover")
        self.keep("retire")
        for is_put_back in (True, True, False, False):  # it leaves, and with the next step it is back
            if self.model.at("waiting", "delayed", "leaving"):
                self.leave_or_come_back(which=0, is_put_back=is_put_back)
        if any(p.is_dead for p in self.model.all.values()):
            self.decide_on_a_dead_letter(which=0, is_dropped=True)
        super()._drain()

    async def _close(self) -> None:
        await self.theirs.aclose()
        await super()._close()


def test_no_mixture_of_releases_loses_doubles_or_strands_a_prediction(own_server: RedisServer, former: Release) -> None:
    ours, theirs = Counter[str](), Counter[str]()

    class Counted(MixedMachine):
        def teardown(self) -> None:
            super().teardown()
            ours.update(self.either.carried_out)
            theirs.update(self.theirs.carried_out)

    run_state_machine_as_test(lambda: Counted(own_server, former), settings=WALKS)
    print(f"this release carried out {ours.total()} calls, {former.version} {theirs.total()}: {dict(theirs)}")
    assert min(ours.total(), theirs.total()) > (ours.total() + theirs.total()) / 3, "both had their share"
    assert [name for name in CALLS if not theirs[name]] == sorted(NOT_WALKED), "a call never went to the other release"


async def test_the_former_release_has_the_pinned_calls(former: Release, server: RedisServer) -> None:
    theirs = FormerScripts(former, server.url)
    found = {name: parameters(theirs.module, name) for name in CALLS}
    await theirs.aclose()
    assert found == CALLS
