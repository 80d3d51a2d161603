"""Give each test a machine that can vanish."""

from collections.abc import Iterator

import pytest

from tests.support.far_host import FarHost
from tests.support.servers import far_host


@pytest.fixture
def far() -> Iterator[FarHost]:
    with far_host() as host:
        yield host
