import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.errors import SettingsError
from director.core.webhooks import parse_webhook_url, read_webhook_url
from director.webhooks.sender import AllowList, Refused, Resolve, Unresolved, check_address, is_public

NOTHING_ALLOWED = AllowList()
LOOPBACK = AllowList.parse("loopback")

# names and what they resolve to; every other host is left to the real resolver, which is told to ask no name server
NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "localhost.": ["127.0.0.1"],
    "localhost.localdomain": ["127.0.0.1"],
    "127.0.0.1.": ["127.0.0.1"],
    "127.0.0.1.rebind.example": ["127.0.0.1"],
    "169.254.169.254.": ["169.254.169.254"],
    "metadata.google.internal": ["169.254.169.254"],
    "kubernetes.default": ["10.96.0.1"],
    "a-service_1": ["172.18.0.3"],
    "mixed.example": ["93.184.215.14", "10.0.0.7"],
    "mixed-v6.example": ["2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:10.0.0.7"],
    "nat64.example": ["64:ff9b::a9fe:a9fe"],
    "receiver.internal": ["10.1.2.3"],
    "public.example": ["93.184.215.14"],
    "nowhere.example": [],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    if host in NAMES:
        return NAMES[host]
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return [str(sockaddr[0]) for *_, sockaddr in answers]


def answering(*answers: list[str]) -> Resolve:
    """A name server that changes its mind: one list per question."""
    left = iter(answers)

    async def ask(host: str, port: int) -> Sequence[str]:
        return next(left)

    return ask


LEADS_INSIDE = [
    # one address, many spellings
    "127.0.0.1", "127.0.0.2", "127.255.255.254", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7F.0.0.1",
    "0x7f.1", "0177.0.0.1", "017700000001", "127.0x1", "127.00.00.01", "0", "0.0.0.0", "0x0", "00", "0.1",
    # private, shared, link-local, documentation, benchmark, multicast, reserved
    "10.0.0.1", "10.1", "167772161", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.257", "0xc0a80001",
    "100.64.0.1", "100.100.100.200", "100.127.255.255", "169.254.169.254", "2852039166", "0xa9fea9fe",
    "0251.0376.0251.0376", "168.63.129.16", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "4294967295",
    # IPv6, and IPv4 inside it
    "[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:10.0.0.1]",
    "[::ffff:0.0.0.0]", "[::ffff:0:127.0.0.1]", "[::127.0.0.1]", "[::a9fe:a9fe]", "[::8.8.8.8]",
    "[64:ff9b::a9fe:a9fe]", "[64:ff9b::127.0.0.1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::a9fe:a9fe]",
    "[64:ff9b:1::808:808]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2002:a00:1::]", "[2001::1]",
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "[2001:10::1]", "[2001:db8::1]", "[3fff::1]", "[3fff:fff::1]",
    "[fc00::1]", "[fd00:ec2::254]", "[fd20:ce::254]", "[fe80::1]", "[fec0::1]", "[feff::1]", "[ff02::1]",
    "[ff0e::1]", "[100::1]", "[5f00::1]", "[4000::1]", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]",
    # names
    "localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "127.0.0.1.", "127.0.0.1.rebind.example",
    "169.254.169.254.", "metadata.google.internal", "kubernetes.default", "a-service_1", "mixed.example",
    "mixed-v6.example", "nat64.example", "receiver.internal",
]  # fmt: skip

MALFORMED = [
    "", ":80", "user@93.184.215.14", "user:secret@93.184.215.14", "@93.184.215.14", "93.184.215.14@127.0.0.1",
    "public.example\\@127.0.0.1", "127.0.0.1\\@public.example", "public.example%40127.0.0.1", "127.0.0.1%2epublic",
    "127%2e0%2e0%2e1", "%31%32%37.0.0.1", "１２７.0.0.1", "①②⑦.⓪.⓪.①", "127。0。0。1", "ⓛocalhost", "bücher.example",
    "a..b", ".example", "public.example..", "..", "a" * 64 + ".example", ".".join(["a" * 60] * 5), "[::1", "::1",
    "[::1]]", "[[::1]]", "[127.0.0.1]", "[localhost]", "[v1.x]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%25lo]",
    "[::1]x", "[::ffff:127.1]", "127.0.0.1 ", "127.0.0.1 .example", "pub\tlic.example", "pub\nlic.example",
    "public.example\r", "public.example\x00", "public.example:0", "public.example:65536", "public.example:-1",
    "public.example:８０", "public.example:80:80", "public.example:http", "*.example", "<script>", "a,b", "$host",
]  # fmt: skip


@pytest.mark.parametrize("host", LEADS_INSIDE)
async def test_a_host_that_leads_inside_is_refused_for_its_address(host: str) -> None:
    url = f"https://{host}/hook"
    assert parse_webhook_url(url) is None  # its spelling is no reason
    with pytest.raises(Refused, match=r"is not a public address$"):
        await check_address(url, NOTHING_ALLOWED, resolve=resolve)


@pytest.mark.parametrize("host", MALFORMED)
async def test_a_malformed_host_is_refused_before_anyone_is_asked(host: str) -> None:
    url = f"https://{host}/hook"
    assert parse_webhook_url(url)
    with pytest.raises(Refused, match=r"^the URL "):
        await check_address(url, NOTHING_ALLOWED, resolve=answering())


@pytest.mark.parametrize(
    ("url", "ip", "port"),
    [
        ("https://93.184.215.14", "93.184.215.14", 443),
        ("https://1572394766:8443/", "93.184.215.14", 8443),
        ("https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/x", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", 443),
        ("https://[2001:4860:4860:0:0:0:0:8888]/", "2001:4860:4860::8888", 443),
        ("https://[::ffff:8.8.8.8]/", "8.8.8.8", 443),
        ("https://[64:ff9b::808:808]/", "64:ff9b::808:808", 443),  # how an IPv6-only cluster sees 8.8.8.8
        ("https://[2002:808:808::1]/", "2002:808:808::1", 443),
        ("HTTPS://PUBLIC.example/Hook", "93.184.215.14", 443),
        ("https://public.example:/hook", "93.184.215.14", 443),
    ],
)
async def test_a_public_address_is_handed_out_to_connect_to(url: str, ip: str, port: int) -> None:
    target = await check_address(url, NOTHING_ALLOWED, resolve=resolve)
    assert (target.ips[0], target.url.port) == (ip, port)


@pytest.mark.parametrize("port", [22, 25, 80, 6379, 8000, 8080, 65535])
async def test_public_host_on_a_port_other_than_https_is_refused(port: int) -> None:
    with pytest.raises(Refused, match=f"port {port} is not one of 443, 8443") as caught:
        await check_address(f"https://public.example:{port}/", NOTHING_ALLOWED, resolve=resolve)
    assert caught.value.rule == "port_not_allowed"


@pytest.mark.parametrize("url", ["http://93.184.215.14/", "http://public.example:443/", "HTTP://public.example:8443/"])
async def test_public_host_needs_tls_unless_the_operator_allows_it(url: str) -> None:
    with pytest.raises(Refused, match=r"use https://$") as caught:
        await check_address(url, NOTHING_ALLOWED, resolve=resolve)
    assert caught.value.rule == "http_not_allowed"
    allowed = AllowList.parse("public.example, 93.184.215.0/24")
    assert (await check_address(url, allowed, resolve=resolve)).ips == ("93.184.215.14",)


async def test_host_is_resolved_once_and_the_checked_address_is_used() -> None:
    rebinding = answering(["93.184.215.14"], ["127.0.0.1"])
    target = await check_address("https://public.example/", NOTHING_ALLOWED, resolve=rebinding)
    assert target.ips == ("93.184.215.14",)
    with pytest.raises(Refused):  # the next attempt asks again, and sees the change
        await check_address("https://public.example/", NOTHING_ALLOWED, resolve=rebinding)


@pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError("label too long"), None])
async def test_host_without_an_address_breaks_no_rule(error: Exception | None) -> None:
    async def ask(host: str, port: int) -> Sequence[str]:
        if error:
            raise error
        return []

    with pytest.raises(Unresolved, match=r"nowhere\.example does not resolve"):
        await check_address("https://nowhere.example/", NOTHING_ALLOWED, resolve=ask)


@pytest.mark.parametrize(
    ("allow", "url", "ip"),
    [
        ("loopback", "http://127.0.0.1:5000/", "127.0.0.1"),
        ("loopback", "http://127.1:5000/", "127.0.0.1"),
        ("loopback", "http://localhost:5000/", "127.0.0.1"),
        ("loopback", "http://[::1]:5000/", "::1"),
        ("loopback", "http://[::ffff:127.0.0.1]:5000/", "127.0.0.1"),
        ("10.0.0.0/8", "http://10.1.2.3:9/", "10.1.2.3"),
        ("10.1.2.3", "http://receiver.internal:9/", "10.1.2.3"),
        ("fd00::/8", "http://[fd00::1]:9/", "fd00::1"),
        ("receiver.internal", "http://receiver.internal:9/", "10.1.2.3"),
        ("Receiver.Internal.", "http://RECEIVER.internal:9/", "10.1.2.3"),
        ("localhost", "http://localhost.:9/", "127.0.0.1"),
        ("10.0.0.0/8", "https://mixed.example/", "93.184.215.14"),  # one answer public, the other allowed
    ],
)
async def test_what_the_operator_allows_is_reached_on_any_port(allow: str, url: str, ip: str) -> None:
    assert (await check_address(url, AllowList.parse(allow), resolve=resolve)).ips[0] == ip


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("loopback", "http://0.0.0.0/"),  # the same machine, but not what was allowed
        ("loopback", "http://[::]/"),
        ("loopback", "http://10.0.0.1/"),
        ("loopback", "http://[64:ff9b::127.0.0.1]/"),  # the loopback of the translator
        ("loopback", "http://169.254.169.254/"),
        ("10.0.0.0/8", "http://11.0.0.1:9/"),
        ("10.0.0.0/8", "http://localhost/"),
        ("receiver.internal", "http://10.1.2.3/"),  # the name is allowed, not its address
        ("receiver.internal", "http://kubernetes.default/"),
        ("10.0.0.0/8", "https://mixed.example:9/"),  # its public half may only be reached on a web port
    ],
)
async def test_what_the_operator_allows_opens_nothing_else(allow: str, url: str) -> None:
    with pytest.raises(Refused):
        await check_address(url, AllowList.parse(allow), resolve=resolve)


def test_an_allow_list_is_read_from_one_setting() -> None:
    allow = AllowList.parse(" loopback, Receiver.internal. ,10.0.0.0/8,192.168.1.4,fd00::/8,, ")
    assert allow.hosts == {"receiver.internal"}
    expected = ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "192.168.1.4/32", "fd00::/8")
    assert allow.networks == tuple(map(ip_network, expected))
    assert AllowList.parse("") == NOTHING_ALLOWED


@pytest.mark.parametrize(
    "entry",
    ["10.0.0.5/8", "10.0.0.0/33", "10.0.0", "10.*", "*.internal", "http://a.b", "a.b:80", "a b", "256.1.1.1", "bücher"],
)
def test_a_bad_entry_in_an_allow_list_is_named(entry: str) -> None:
    with pytest.raises(SettingsError) as caught:
        AllowList.parse(f"loopback, {entry}")
    assert repr(entry) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com", "http://example.com/", "https://example.com:8443/a/b?c=d&e=%2F#part", "http://a_b:1/x",
        "https://example.com/ü?name=ö", "https://example.com?x=1", "https://example.com/@user", "https://xn--bcher-kva.de/",
        "https://" + "a" * 63 + ".com/", "https://example.com/" + "x" * 2028,
    ],
)  # fmt: skip
def test_a_usable_url_passes(url: str) -> None:
    assert parse_webhook_url(url) is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "absolute URL"),
        ("example.com/hook", "absolute URL"),
        ("/hook", "absolute URL"),
        ("//example.com/hook", "absolute URL"),
        ("ftp://example.com/", "absolute URL"),
        ("file:///etc/passwd", "absolute URL"),
        ("javascript:alert(1)", "absolute URL"),
        ("gopher://127.0.0.1:6379/_", "absolute URL"),
        ("https:example.com", "no host"),
        ("https:///hook", "no host"),
        ("https://?a", "no host"),
        (" https://example.com/", "space"),
        ("https://example.com/\n", "control character"),
        ("https://example.com/\x7f", "control character"),
        ("https://example.com/\ud800", "control character"),
        ("https://example.com/" + "x" * 2029, "2,048 characters"),
        ("https://u:p@example.com/", "user name or password"),
        ("https://example.com:99999/", "host or port"),
    ],
)
def test_invalid_url_is_explained_without_repeating_it(url: str, reason: str) -> None:
    explained = parse_webhook_url(url)
    assert explained
    assert reason in explained
    assert not url.strip() or url.strip() not in explained


@pytest.mark.parametrize(
    ("url", "authority", "target"),
    [
        ("https://Example.com", "example.com", "/"),
        ("https://example.com:443/a", "example.com", "/a"),
        ("http://example.com:443?q=a%2Fb+c", "example.com:443", "/?q=a%2Fb+c"),
        ("http://[0:0::1]:80/x?y#z", "[::1]", "/x?y"),
        ("https://[::1]:8443//x", "[::1]:8443", "//x"),
    ],
)
def test_a_url_is_taken_apart_as_it_will_be_sent(url: str, authority: str, target: str) -> None:
    read = read_webhook_url(url)
    assert (read.authority, read.target) == (authority, target)


NEVER_PUBLIC = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
    "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "::/96", "64:ff9b:1::/48", "100::/64", "2001::/32",
    "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
]  # fmt: skip


@given(st.sampled_from(NEVER_PUBLIC).flatmap(lambda network: st.ip_addresses(network=network)))
def test_no_address_of_a_special_network_is_public(address: IPv4Address | IPv6Address) -> None:
    assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_ipv4_address_is_judged_the_same_in_every_ipv6_form(address: IPv4Address) -> None:
    inside = int(address)
    disguises = (0xFFFF << 32 | inside, 0x64FF9B << 96 | inside, 0x2002 << 112 | inside << 80 | 1)
    assert {is_public(IPv6Address(disguise)) for disguise in disguises} == {is_public(address)}


@given(st.ip_addresses())
def test_public_address_is_of_no_excluded_kind(address: IPv4Address | IPv6Address) -> None:
    kinds = (address.is_private, address.is_loopback, address.is_link_local, address.is_multicast,
             address.is_reserved, address.is_unspecified)  # fmt: skip
    embedded = ("::ffff:0:0/96", "64:ff9b::/96", "2002::/16")  # the last one is private for some Pythons
    carries_ipv4 = any(address in ip_network(network) for network in embedded if address.version == 6)
    assert carries_ipv4 or not (is_public(address) and any(kinds))


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("100.64.0.0", "100.63.255.255"),
        ("100.127.255.255", "100.128.0.0"),
        ("172.31.255.255", "172.32.0.0"),
        ("224.0.0.0", "223.255.255.255"),
        ("2001:1ff::1", "2001:200::1"),
        ("3fff:fff::1", "3fff:1000::1"),
    ],
)
def test_the_ends_of_special_networks_are_exact(inside: str, outside: str) -> None:
    assert not is_public(ip_address(inside))
    assert is_public(ip_address(outside))


@given(st.text(max_size=40), st.sampled_from(["https://public.example/", "http://[2606:2800::1]:8080/a?", ""]))
def test_reading_a_url_either_succeeds_or_says_why(text: str, before: str) -> None:
    reason = parse_webhook_url(before + text)
    assert reason is None or reason
    if reason is None:
        assert read_webhook_url(before + text).target.startswith("/")
