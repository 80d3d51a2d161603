"""Test one delivery to a real receiver on loopback, also over TLS: it reaches only the checked address and name."""

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from email.utils import formatdate

import pytest
from replicate.webhook import Webhooks, WebhookSigningSecret
from standardwebhooks import Webhook

from director.core.webhooks import new_secret
from director.keeper.courier import PLACES, PLACES_PER_ENDPOINT
from director.webhooks.sender import (
    AT_ONCE,
    AT_ONCE_PER_ACCOUNT,
    AT_ONCE_PER_HOST,
    MOST_OF_ACCOUNT,
    AllowList,
    Delivery,
    Resolve,
    Sender,
)
from tests.support.authority import Authority, secure_sink
from tests.support.eventually import eventually
from tests.support.sink import Answer, Sink, sink

SECRET = new_secret()
BODY = '{"id":"p1","status":"succeeded","output":"grüße"}'.encode()
LOOPBACK = AllowList.parse("loopback")


@pytest.fixture
async def sender() -> AsyncGenerator[Sender]:
    sender = Sender(LOOPBACK)
    yield sender
    await sender.aclose()


async def deliver(sender: Sender, url: str, *, secrets: Sequence[str] = (SECRET,), account: str = "") -> Delivery:
    return await sender.send(
        url, message_id="p1-completed", body=BODY, secrets=secrets, now_s=time.time(), account=account
    )


async def test_delivery_has_the_exact_body_and_a_valid_signature(sender: Sender, receiver: Sink) -> None:
    assert await deliver(sender, receiver.url) == Delivery(ok=True, status=200)
    headers, body = receiver.received[0]
    assert body == BODY
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("director/")
    assert headers["webhook-id"] == "p1-completed"
    Webhook(SECRET).verify(body, dict(headers))
    Webhooks.validate(headers=dict(headers), body=body.decode(), secret=WebhookSigningSecret(key=SECRET), tolerance=60)


async def test_path_and_query_arrive_as_the_caller_wrote_them(sender: Sender, receiver: Sink) -> None:
    target = "/a//b/%2Fc?job=1&next=a%2Fb+c&flag"
    await deliver(sender, receiver.url.replace("/hook", target) + "#part")
    assert receiver.targets == [target]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 400, 401, 404, 410, 429, 500, 503])
async def test_only_a_2xx_is_a_success_and_a_410_wants_no_more(sender: Sender, receiver: Sink, status: int) -> None:
    receiver.answer = Answer(status=status)
    reason = "" if status < 300 else f"answered {status}"
    expected = Delivery(ok=status < 300, status=status, reason=reason, gone=status == 410)
    assert await deliver(sender, receiver.url) == expected


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_a_failure_and_is_not_followed(sender: Sender, receiver: Sink, status: int) -> None:
    async with sink() as elsewhere:
        receiver.answer = Answer(status=status, headers={"location": elsewhere.url})
        delivery = await deliver(sender, receiver.url)
        assert (delivery.ok, delivery.status) == (False, status)
        assert "redirects are not followed" in delivery.reason
        assert elsewhere.received == []


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("9" * 400, 86_400.0),
        ("-5", None),
        ("soon", None),
        ("1e3", None),
        ("nan", None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        (formatdate(0, usegmt=True), 0.0),
        (formatdate(4_000_000_000, usegmt=True), 86_400.0),
    ],
)
async def test_retry_after_is_honoured_within_reason(
    sender: Sender, receiver: Sink, value: str, wait_s: float | None
) -> None:
    receiver.answer = Answer(status=503, headers={"retry-after": value})
    assert (await deliver(sender, receiver.url)).retry_after_s == wait_s


async def test_retry_after_as_a_date_counts_from_the_attempt(sender: Sender, receiver: Sink) -> None:
    receiver.answer = Answer(status=503, headers={"retry-after": formatdate(1_000_090, usegmt=True)})
    delivery = await sender.send(receiver.url, message_id="p1", body=BODY, secrets=[SECRET], now_s=1_000_000)
    assert delivery.retry_after_s == pytest.approx(90, abs=1)


async def test_loopback_is_refused_unless_it_is_allowed(receiver: Sink) -> None:
    sender = Sender(AllowList())
    for host in ("127.0.0.1", "127.1", "localhost", "[::ffff:127.0.0.1]"):
        delivery = await deliver(sender, receiver.url.replace("127.0.0.1", host))
        assert delivery.rule == "private_address", host
        assert not delivery.ok
    assert receiver.received == []


async def test_malformed_url_is_refused_without_repeating_it(sender: Sender) -> None:
    delivery = await deliver(sender, "https://user:secret@127.0.0.1/?token=secret")
    assert delivery.rule == "bad_url"
    assert "secret" not in delivery.reason


async def test_connection_goes_to_the_checked_address_without_a_second_lookup(receiver: Sink) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    sender = Sender(LOOPBACK, resolve=rebinding)
    url = receiver.url.replace("127.0.0.1", "hook.example")
    assert (await deliver(sender, url)).ok
    assert asked == ["hook.example"]
    assert receiver.received[0].headers["host"] == url.split("/")[2]
    assert (await deliver(sender, url)).refused  # the second attempt resolves the name again and checks it again
    assert len(receiver.received) == 1


async def test_each_address_of_a_name_is_tried_until_one_takes_a_connection(receiver: Sink) -> None:
    async def three(host: str, port: int) -> Sequence[str]:
        return ["::1", "127.0.0.9", "127.0.0.1"]  # the receiver listens on the last alone

    sender, url = Sender(LOOPBACK, resolve=three), receiver.url.replace("127.0.0.1", "hook.example")
    assert (await deliver(sender, url)).ok
    receiver.answer = Answer(reset=True)
    assert not (await deliver(sender, url)).ok
    assert len(receiver.received) == 2, "what was sent is sent to no other address"


async def test_address_that_is_not_allowed_refuses_its_name(receiver: Sink) -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1", "10.0.0.1"]

    url = receiver.url.replace("127.0.0.1", "hook.example")
    assert (await deliver(Sender(LOOPBACK, resolve=both), url)).rule == "private_address"
    assert receiver.received == []


async def test_unresolved_name_is_a_failure_but_breaks_no_rule(sender: Sender) -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    delivery = await deliver(Sender(LOOPBACK, resolve=unknown), "https://nowhere.example/?token=secret")
    assert delivery == Delivery(ok=False, reason="nowhere.example does not resolve")


async def test_receiver_that_never_answers_is_given_up() -> None:
    async with sink() as receiver:
        receiver.answer = Answer(delay_s=60)
        delivery = await deliver(Sender(LOOPBACK, timeout_s=0.3), receiver.url)
        assert delivery == Delivery(ok=False, reason="no answer within 0.3 s")


async def test_name_server_that_never_answers_is_given_up() -> None:
    async def silent(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    delivery = await deliver(Sender(LOOPBACK, timeout_s=0.05, resolve=silent), "https://slow.example/")
    assert delivery == Delivery(ok=False, reason="no answer within 0.05 s")


async def test_huge_answer_is_not_read_to_its_end(sender: Sender, receiver: Sink) -> None:
    receiver.answer = Answer(body_bytes=512 * 1024 * 1024)
    assert await deliver(sender, receiver.url) == Delivery(ok=True, status=200)
    assert receiver.sent_bytes < 32 * 1024 * 1024  # the bytes in the socket buffers


@pytest.mark.parametrize("status", [200, 500])
async def test_status_counts_even_if_the_answer_never_ends(receiver: Sink, status: int) -> None:
    receiver.answer = Answer(status=status, stall=True)
    delivery = await deliver(Sender(LOOPBACK, timeout_s=0.3), receiver.url)
    assert (delivery.ok, delivery.status) == (status == 200, status)


async def test_refused_connection_is_a_failure(sender: Sender) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    delivery = await deliver(sender, f"http://127.0.0.1:{port}/?token=secret")
    assert delivery == Delivery(ok=False, reason="no connection")


async def test_reset_connection_is_a_failure(sender: Sender, receiver: Sink) -> None:
    receiver.answer = Answer(reset=True)
    assert await deliver(sender, receiver.url) == Delivery(ok=False, reason="the connection broke")
    assert len(receiver.received) == 1  # a POST with an unknown outcome is not repeated without the caller's knowledge


@pytest.mark.parametrize("answer", [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000])
async def test_answer_that_is_not_http_is_a_failure(sender: Sender, answer: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        delivery = await deliver(sender, f"http://127.0.0.1:{port}/")
    assert not delivery.ok
    assert delivery.reason in ("closed the connection or did not answer in HTTP", "the connection broke")


async def test_https_to_a_plain_http_receiver_fails_and_names_tls(sender: Sender, receiver: Sink) -> None:
    delivery = await deliver(sender, receiver.url.replace("http:", "https:"))
    assert not delivery.ok
    assert delivery.reason.startswith("TLS: ")


async def test_proxies_of_the_environment_are_not_used(receiver: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await deliver(Sender(LOOPBACK), receiver.url)).ok


async def test_state_of_one_delivery_is_not_carried_into_the_next(sender: Sender, receiver: Sink) -> None:
    receiver.answer = Answer(headers={"set-cookie": "session=1; Path=/"})
    assert (await deliver(sender, receiver.url)).ok
    assert (await deliver(sender, receiver.url)).ok
    assert "cookie" not in receiver.received[1].headers
    # a kept connection would be used for another name at the same address
    assert receiver.peers[0] != receiver.peers[1]


async def test_malformed_secret_raises_and_nothing_is_sent(sender: Sender, receiver: Sink) -> None:
    with pytest.raises(ValueError, match="begins with whsec_"):
        await deliver(sender, receiver.url, secrets=["hello"])
    assert receiver.received == []


async def test_dead_host_uses_only_its_own_permits(receiver: Sink) -> None:
    async with sink() as dead:
        dead.answer = Answer(delay_s=60)

        async def by_name(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        sender = Sender(LOOPBACK, resolve=by_name)
        waiting = [
            asyncio.create_task(deliver(sender, dead.url.replace("127.0.0.1", "dead.example")))
            for _ in range(AT_ONCE_PER_ACCOUNT + 4)
        ]
        await dead.arrived(AT_ONCE_PER_ACCOUNT)
        assert (await deliver(sender, receiver.url)).ok
        assert dead.open == len(dead.received) == AT_ONCE_PER_ACCOUNT
        # the host returns: the waiting deliveries did not fail, and are delivered
        dead.answer = Answer()
        dead.close()
        assert all(delivery.ok for delivery in await asyncio.gather(*waiting))
        assert len(dead.received) == AT_ONCE_PER_ACCOUNT + 4


async def test_hanging_receivers_of_one_account_delay_no_other_at_their_host(receiver: Sink) -> None:
    async def told(account: str) -> float:
        began = time.monotonic()
        delivery = await sender.send(
            receiver.url, message_id="p1", body=BODY, secrets=[SECRET], now_s=time.time(), account=account
        )
        assert delivery.ok
        return time.monotonic() - began

    sender = Sender(LOOPBACK)
    control_s = max([await told("b") for _ in range(5)])
    receiver.answers.extend([Answer(delay_s=10)] * AT_ONCE_PER_ACCOUNT)
    hanging = [asyncio.create_task(told("a")) for _ in range(32)]
    await receiver.arrived(5 + AT_ONCE_PER_ACCOUNT)
    async with asyncio.timeout(5):
        assert await told("b") <= max(5 * control_s, 0.5)
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    await sender.aclose()


def waiting(sender: Sender) -> dict[str, "deque[asyncio.Future[None]]"]:
    """Return the deliveries of each account that wait for a place at a host."""
    return next((places._waiting for places in sender._by_host.values()), {})


async def test_full_host_serves_the_account_with_the_fewest_deliveries_first() -> None:
    asked: list[str] = []
    go = asyncio.Event()

    async def held(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        await go.wait()
        return ["10.0.0.1"]

    sender = Sender(AllowList(), resolve=held)

    def send(account: str) -> "asyncio.Task[Delivery]":
        url = "https://relay.example/"
        sending = sender.send(url, message_id="p1", body=BODY, secrets=[SECRET], now_s=0, account=account)
        return asyncio.create_task(sending)

    tasks = [send(account) for account in "acde" for _ in range(AT_ONCE_PER_ACCOUNT + 8)]
    await eventually(lambda: sum(map(len, waiting(sender).values())), "all others wait", until=(4 * 8).__eq__)
    await eventually(lambda: len(asked), "the host is full", until=AT_ONCE_PER_HOST.__eq__)
    last = send("b")
    await eventually(lambda: waiting(sender), "it waits too", until=lambda accounts: "b" in accounts)
    tasks[0].cancel()
    await eventually(lambda: len(asked), "one more is served", until=(AT_ONCE_PER_HOST + 1).__eq__)
    [places] = sender._by_host.values()
    assert places._held["b"] == 1
    go.set()
    assert (await last).refused
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not places._held


async def test_wait_for_a_connection_takes_no_time_of_an_attempt(receiver: Sink) -> None:
    before = 2 * AT_ONCE_PER_ACCOUNT  # two rounds of attempts, each as long as an attempt may take
    lookups = 0

    async def silent_at_first(host: str, port: int) -> Sequence[str]:
        nonlocal lookups
        lookups += 1
        if lookups <= before:
            await asyncio.Event().wait()
        return ["127.0.0.1"]

    sender = Sender(LOOPBACK, timeout_s=0.6, resolve=silent_at_first)
    *earlier, last = await asyncio.gather(
        *(
            sender.send(receiver.url, message_id="p1", body=BODY, secrets=[SECRET], now_s=1_000_000)
            for _ in range(before + 1)
        )
    )
    assert not any(delivery.ok for delivery in earlier)
    assert last.ok
    assert int(receiver.received[0].headers["webhook-timestamp"]) > 1_000_000


async def test_silent_hosts_of_one_account_leave_connections_for_others(receiver: Sink) -> None:
    silent_hosts: list[str] = []

    async def silent(host: str, port: int) -> Sequence[str]:
        if host == "living.example":
            return ["127.0.0.1"]
        silent_hosts.append(host)
        await asyncio.Event().wait()
        raise AssertionError

    sender = Sender(LOOPBACK, resolve=silent)
    hosts = [f"https://h{number // PLACES_PER_ENDPOINT}.example/" for number in range(2 * PLACES)]
    sending = [asyncio.create_task(deliver(sender, host, account="a")) for host in hosts]
    await eventually(lambda: len(silent_hosts), "it has all that it may have", until=MOST_OF_ACCOUNT.__eq__)
    async with asyncio.timeout(5):
        assert (await deliver(sender, receiver.url.replace("127.0.0.1", "living.example"), account="b")).ok
    for task in sending:
        task.cancel()


async def test_deliveries_beyond_all_permits_wait_and_none_fails() -> None:
    now, most, full, go = 0, 0, asyncio.Event(), asyncio.Event()

    async def counted(host: str, port: int) -> Sequence[str]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == AT_ONCE:
            full.set()
        await go.wait()
        now -= 1
        return ["10.0.0.1"]

    sender = Sender(AllowList(), resolve=counted)
    hosts = [f"https://h{number}.example/" for number in range(AT_ONCE + 16)]
    sending = asyncio.gather(*(deliver(sender, host, account="ab"[number % 2]) for number, host in enumerate(hosts)))
    await full.wait()
    go.set()
    assert all(delivery.refused for delivery in await sending)  # each got its attempt
    assert most == AT_ONCE


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


async def deliver_tls(
    url: str, *, tls: ssl.SSLContext | None, ask: Resolve | None = None, allow: AllowList = LOOPBACK
) -> Delivery:
    sender = Sender(allow, resolve=ask or leading_home()[0], tls=tls)
    try:
        return await sender.send(url, message_id="p1", body=b"{}", secrets=[SECRET], now_s=time.time())
    finally:
        await sender.aclose()


@pytest.mark.parametrize("host", ["hook.example", "hook.example."])
async def test_tls_and_host_header_use_the_name_of_the_receiver(authority: Authority, host: str) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        ask, asked = leading_home("10.0.0.1")
        delivery = await deliver_tls(f"https://{host}:{sink.port}/a?b", tls=authority.trusted(), ask=ask)
        assert delivery == Delivery(ok=True, status=200)
        assert (asked, sink.greeted) == ([host], ["hook.example"])
        [head] = sink.heads
        assert head.startswith("POST /a?b HTTP/1.1\r\n")
        assert f"\r\nhost: {host}:{sink.port}\r\n" in head.lower()


@pytest.mark.parametrize("host", ["other.example", "sub.hook.example", "127.0.0.1"])
async def test_receiver_with_another_name_gets_nothing(authority: Authority, host: str) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        delivery = await deliver_tls(f"https://{host}:{sink.port}/?token=secret", tls=authority.trusted())
        assert not delivery.ok
        assert delivery.reason.startswith("TLS: ")
        assert "secret" not in delivery.reason
        assert sink.heads == []


async def test_unknown_authority_is_refused_even_from_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure_sink(authority.shown_by("hook.example")) as sink:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.folder / "ca.pem"))
        delivery = await deliver_tls(f"https://hook.example:{sink.port}/", tls=None)
        assert not delivery.ok
        assert delivery.reason.startswith("TLS: ")
        assert sink.heads == []
