"""Parse a webhook's URL, and say in words what is wrong with one that cannot be used. Pure: the form never shows where
a host leads. `127.1`, `2130706433` and names that resolve to them pass here, and the sender refuses them after
resolving.
"""

import re
import unicodedata
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

MAX_CHARACTERS: Final = 2_048
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

# labels have letters, digits, - and _ (container names have it); two parsers could read a percent sign, a backslash or
# a non-ASCII digit as two different hosts
HOST_NAME: Final = re.compile(r"(?=.{1,253}\.?\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
BRACKETED: Final = re.compile(r"\[[^\[\]]+\](:[0-9]*)?")


class WebhookUrl(Struct, frozen=True, kw_only=True):
    """A parsed URL. `host` is in lower case without brackets; `target` is path and query, without the fragment."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of the Host header, with the port only if it is not the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_webhook_url(text: str) -> str | None:
    """Return None for a usable URL, else the reason in words for the caller."""
    try:
        read_webhook_url(text)
    except ValueError as exc:
        return str(exc)
    return None


def host_of(url: str) -> str:
    """Return the host, with any port but the scheme's default; '?' for an unusable URL. The rest may be secret."""
    try:
        return read_webhook_url(url).authority
    except ValueError:  # an older release may have accepted what this one refuses
        return "?"


def read_webhook_url(text: str) -> WebhookUrl:
    """Parse a URL. Raises ValueError that says what is wrong without repeating the URL: its query may be secret."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"is longer than {MAX_CHARACTERS:,} characters")
    # before parsing: urlsplit silently drops line breaks and tabs, and strips surrounding space
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError("has a control character")
    if text != text.strip():
        raise ValueError("begins or ends with a space")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL: its host or port cannot be read") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError("must be an absolute URL that begins with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user name or password")
    if port == 0:
        raise ValueError("has port 0")
    return WebhookUrl(
        scheme=parts.scheme,
        host=_host(parts.netloc, parts.hostname),
        port=port or DEFAULT_PORTS[parts.scheme],
        target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def _host(netloc: str, host: str | None) -> str:
    if not host:
        raise ValueError("has no host")
    if not netloc.isascii():
        raise ValueError("must write its host in ASCII: the xn-- form of an international name")
    if "[" in netloc or "]" in netloc:
        return _ipv6(netloc, host)
    if not HOST_NAME.fullmatch(host):
        raise ValueError("has a host that is neither a name nor an address")
    return host


def _ipv6(netloc: str, host: str) -> str:
    try:
        if not BRACKETED.fullmatch(netloc):  # urlsplit ignores text between the bracket and the port
            raise ValueError
        address = IPv6Address(host)
    except ValueError:
        raise ValueError("has brackets around something that is not an IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("has an IPv6 address with a zone, which means something on one machine only")
    return address.compressed
