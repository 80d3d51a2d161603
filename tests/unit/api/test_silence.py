from typing import Any

import anyio
import pytest

from api.services import waiters
from api.services.waiters import Waiters
from director.core.clock import SystemClock


async def test_answer_read_before_its_ping_returns_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "SILENCE_S", 0.01)
    unused: Any = None
    waiting = Waiters(unused, has_ended=unused, read=unused, clock=SystemClock(), most=1)
    pings = 0

    class Answering:
        async def ping(self) -> None:
            nonlocal pings
            pings += 1
            waiting._is_silent = False

    subscription: Any = Answering()
    with anyio.move_on_after(0.3):
        await waiting._ask_where_it_is_silent(subscription)
    assert pings >= 3
