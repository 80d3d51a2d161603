"""Parse the URL of a webhook, and sign its messages by the Standard Webhooks specification. Pure: nothing is resolved
or sent, and no clock is read.

The form of a URL never shows where its host leads. `127.1`, `2130706433` and names that resolve to them pass here, and
the sender refuses them after resolving. Errors show no secret, not even a malformed one.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets as randomness
import unicodedata
from collections.abc import Sequence
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

PREFIX: Final = "whsec_"
KEY_BYTES: Final = range(24, 65)  # as Standard Webhooks allow

# a dot separates id, timestamp and body in the signed text, so an id with a dot would be ambiguous
MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


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


def new_secret() -> str:
    """Return a new secret in standard base64 with padding: clients split on `_` and decode with `atob`."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def sign_headers(secrets: Sequence[str], *, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the three headers of one attempt. All attempts share the id but not the timestamp."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": sign(secrets, message_id=message_id, timestamp_s=timestamp_s, body=body),
    }


def sign(secrets: Sequence[str], *, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return one `v1,<base64>` per secret, in order: while a secret is rotated, either one verifies."""
    if not secrets:
        raise ValueError("no webhook secret to sign with")
    if not MESSAGE_ID.fullmatch(message_id):
        raise ValueError("a webhook id is 1 to 256 letters, digits, - or _")
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp_s, body)
    return " ".join(f"v1,{_signature(_key(secret), signed)}" for secret in secrets)


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


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        raise ValueError(f"a webhook secret begins with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        # from None: the cause could quote what it could not decode
        raise ValueError(f"a webhook secret is standard base64, padded, after {PREFIX}") from None
    if len(key) not in KEY_BYTES:
        raise ValueError(f"a webhook secret has {KEY_BYTES.start} to {KEY_BYTES.stop - 1} bytes, this one {len(key)}")
    return key
