from typing import Any

import anyio
import pytest

from director.broker import news
from director.broker.news import Subscription


async def test_answer_read_before_its_ping_returns_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "SILENCE_S", 0.01)
    unused: Any = None
    listening = Subscription(unused, "always", on_message=unused, on_active=unused)
    pings = 0

    class Answering:
        async def ping(self) -> None:
            nonlocal pings
            pings += 1
            listening._is_silent = False

    answering: Any = Answering()
    with anyio.move_on_after(0.3):
        await listening._ask_where_it_is_silent(answering)
    assert pings >= 3
