"""Sign a webhook as Standard Webhooks ask, so that its receiver knows who sent it and that nobody changed it.

Pure: knows no clock and sends nothing. Never shows a secret, not even a malformed one in an error.
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
KEY_BYTES: Final = range(24, 65)  # what Standard Webhooks allow

# the dot separates id, timestamp and body in what is signed, so an id that has one could be read two ways
MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


def new_secret() -> str:
    """A fresh secret. Its alphabet is the standard one, padded: clients split on `_` and decode with `atob`."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def headers(secrets: Sequence[str], *, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of one attempt. The id stays the same over attempts, the timestamp does not."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": sign(secrets, message_id=message_id, timestamp_s=timestamp_s, body=body),
    }


def sign(secrets: Sequence[str], *, message_id: str, timestamp_s: int, body: bytes) -> str:
    """One `v1,<base64>` per secret, in their order: while a secret is rotated, either of the two verifies."""
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
