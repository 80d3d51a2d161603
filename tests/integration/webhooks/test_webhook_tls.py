"""Test a delivery over TLS: it goes to the checked address, under the requested name, and to no other host."""

import ssl
import time
from collections.abc import Sequence

import pytest

from director.core.signing import new_secret
from director.webhooks.addresses import AllowList, Resolve
from director.webhooks.sender import Delivery, Sender
from tests.support.authority import Authority, secure_sink
from tests.unit.webhooks.test_addresses import LEADS_INSIDE, resolve

pytestmark = pytest.mark.anyio

LOOPBACK = AllowList.parse("loopback")
SECRET = new_secret()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def leading_home(*then: str) -> tuple[Resolve, list[str]]:
    """Make a name server that answers with this machine first and with `then` afterwards. Return it with its log."""
    asked: list[str] = []

    async def ask(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 or not then else then

    return ask, asked


async def deliver(
    url: str, *, tls: ssl.SSLContext | None, ask: Resolve | None = None, allow: AllowList = LOOPBACK
) -> Delivery:
    sender = Sender(allow, resolve=ask or leading_home()[0], tls=tls)
    try:
        return await sender.send(url, message_id="p1", body=b"{}", secrets=[SECRET], now_s=time.time())
    finally:
        await sender.aclose()


async def test_tls_and_host_header_use_the_name_of_the_receiver(authority: Authority) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        ask, asked = leading_home("10.0.0.1")
        delivery = await deliver(f"https://hook.example:{sink.port}/a?b", tls=authority.trusted(), ask=ask)
        assert delivery == Delivery(ok=True, status=200)
        assert (asked, sink.greeted) == (["hook.example"], ["hook.example"])
        [head] = sink.heads
        assert head.startswith("POST /a?b HTTP/1.1\r\n")
        assert f"\r\nhost: hook.example:{sink.port}\r\n" in head.lower()


async def test_trailing_dot_of_a_host_name_is_ignored(authority: Authority) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        assert (await deliver(f"https://hook.example.:{sink.port}/", tls=authority.trusted())).ok
        assert sink.greeted == ["hook.example"]


@pytest.mark.parametrize("host", ["other.example", "sub.hook.example", "127.0.0.1"])
async def test_receiver_with_another_name_gets_nothing(authority: Authority, host: str) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        delivery = await deliver(f"https://{host}:{sink.port}/?token=secret", tls=authority.trusted())
        assert not delivery.ok
        assert delivery.reason.startswith("TLS: ")
        assert "secret" not in delivery.reason
        assert sink.heads == []


async def test_certificate_of_an_unknown_authority_is_refused(authority: Authority) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        delivery = await deliver(f"https://hook.example:{sink.port}/", tls=None)
        assert not delivery.ok
        assert delivery.reason.startswith("TLS: ")
        assert sink.heads == []


async def test_authority_from_the_environment_is_not_trusted(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.folder / "ca.pem"))
        assert not (await deliver(f"https://hook.example:{sink.port}/", tls=None)).ok
        assert sink.heads == []


async def test_host_with_an_internal_address_is_never_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(AllowList(), resolve=resolve)

    async def connected(*_: object) -> None:
        raise AssertionError("a host was connected to")

    monkeypatch.setattr(sender._transport, "handle_async_request", connected)
    for host in LEADS_INSIDE:
        for url in (f"https://{host}/", f"http://{host}:8080/?token=secret"):
            delivery = await sender.send(url, message_id="p1", body=b"{}", secrets=[SECRET], now_s=1)
            assert (delivery.refused, delivery.status) == (True, None), host
            assert "secret" not in delivery.reason


async def test_name_that_resolves_inside_at_second_look_is_never_reached(authority: Authority) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        ask, asked = leading_home("10.0.0.1")
        sender = Sender(LOOPBACK, resolve=ask, tls=authority.trusted())
        url = f"https://hook.example:{sink.port}/"
        said = [
            await sender.send(url, message_id="p1", body=b"{}", secrets=[SECRET], now_s=time.time()) for _ in range(2)
        ]
        await sender.aclose()
        assert [(one.ok, one.refused) for one in said] == [(True, False), (False, True)]
        assert (len(asked), len(sink.heads)) == (2, 1)
