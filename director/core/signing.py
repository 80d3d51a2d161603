"""Sign a webhook by the Standard Webhooks specification, so that its receiver can verify sender and body. Pure: it
reads no clock and sends nothing. Errors never show a secret, not even a malformed one.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets as randomness
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "whsec_"
KEY_BYTES: Final = range(24, 65)  # as Standard Webhooks allow

# a dot separates id, timestamp and body in the signed text, so an id with a dot would be ambiguous
MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


def new_secret() -> str:
    """Return a new secret in standard base64 with padding: clients split on `_` and decode with `atob`."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def headers(secrets: Sequence[str], *, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
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
