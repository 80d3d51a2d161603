import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from director.runtime.startup import Descriptors
from tests.support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@contextmanager
def limited_to(most: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_counts_once_a_second(clock: FakeClock) -> None:
    descriptors = Descriptors(clock)
    before = descriptors.open
    with limited_to(1_000), ExitStack() as files:
        for _ in range(10):
            files.enter_context(open(os.devnull))  # noqa: PTH123
        assert descriptors.open == before
        clock.pass_time(1)
        assert descriptors.open == before + 10


def test_a_crowd_that_comes_in_one_moment_is_not_let_in_unseen(clock: FakeClock) -> None:
    most = Descriptors(clock).open + 200
    descriptors, opened = Descriptors(clock), 0
    with limited_to(most), ExitStack() as files:
        while not descriptors.are_short:
            files.enter_context(open(os.devnull))  # noqa: PTH123
            opened += 1
    assert opened <= 0.9 * most - (most - 200) + 0.02 * most


def test_they_are_short_from_nine_tenths_on(clock: FakeClock) -> None:
    descriptors = Descriptors(clock)
    used = descriptors.open
    with limited_to(used * 2):
        assert descriptors.limit == used * 2
        assert not descriptors.are_short
    with limited_to(used + used // 10):
        assert descriptors.are_short


def test_where_none_is_left_to_count_with_they_are_short(clock: FakeClock) -> None:
    used = Descriptors(clock).open
    with ExitStack() as files, limited_to(used + 10):
        with suppress(OSError):
            while True:
                files.enter_context(open(os.devnull))  # noqa: PTH123
        assert Descriptors(clock).are_short
