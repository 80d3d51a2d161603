import asyncio

import httpx
import pytest
from starlette.applications import Starlette

from director.servers.runners.inbox import Inbox, Mailbox

BASE = "http://127.0.0.1:4900"


async def post(inbox: Inbox, url: str, body: bytes = b"{}") -> int:
    transport = httpx.ASGITransport(app=Starlette(routes=list(inbox.routes())))
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        return (await client.post(url, content=body)).status_code


async def test_callback_without_a_listener_is_answered_and_dropped() -> None:
    inbox = Inbox(BASE)
    with inbox.subscribe("one"):
        pass
    assert await post(inbox, inbox.url_for("one")) == 200


async def test_wrong_secret_is_not_found() -> None:
    inbox, other = Inbox(BASE), Inbox(BASE)
    with inbox.subscribe("one") as mailbox:
        assert await post(inbox, other.url_for("one")) == 404
        assert await post(inbox, f"{BASE}/inbox/%C3%BC/one") == 404
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.get(), 0)


async def test_a_callback_over_the_limit_is_refused_and_not_kept() -> None:
    inbox = Inbox(BASE, max_body=10)
    with inbox.subscribe("one") as mailbox:
        assert await post(inbox, inbox.url_for("one"), b"x" * 11) == 413
        assert await post(inbox, inbox.url_for("one"), b"x" * 10) == 200
        assert await mailbox.get() == b"x" * 10


async def test_newest_callbacks_replace_the_oldest() -> None:
    mailbox = Mailbox(max_bytes=10)
    for body in (b"1" * 4, b"2" * 4, b"3" * 4):
        mailbox.put(body)
    assert [await mailbox.get(), await mailbox.get()] == [b"2" * 4, b"3" * 4]


async def test_a_flood_of_small_callbacks_is_bounded_too() -> None:
    mailbox = Mailbox(max_bytes=1_000_000)
    for n in range(1000):
        mailbox.put(b"%d" % n)
    assert await mailbox.get() == b"936"
