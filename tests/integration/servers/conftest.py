"""Give tests of runners a model server, an inbox and a gate."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from director.servers.runners.inbox import Inbox
from tests.support.inbox import serving
from tests.support.model_server import ModelServer, model_server


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[ModelServer, None]:
    async with model_server() as server:
        yield server


@pytest.fixture(scope="module")
async def inbox() -> AsyncGenerator[Inbox, None]:
    async with serving(Inbox("")) as inbox:
        yield inbox


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"
