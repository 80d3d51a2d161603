"""Tickets: what makes the address of a prediction's event stream unguessable, so that following it needs no token.

Made when a prediction of a model that can stream is accepted, and kept in its record alone: whoever was shown the
prediction may follow it. An address is 52 characters, the id and its ticket, as Replicate's are. It is never logged.
"""

import hmac
import re
import secrets
from typing import Final

from msgspec import Struct

from director.core.ids import PredictionId, is_prediction_id

__all__ = ("Address", "new_ticket", "read_address")

LENGTH: Final = 26
LETTERS: Final = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in range(256))  # each equally often
ADDRESS: Final = re.compile(r"([0-9a-z]{26})([a-z2-7]{26})")


class Address(Struct, frozen=True):
    """Which prediction, and what was shown to prove that one may follow it."""

    id: PredictionId
    ticket: str

    def opens(self, ticket: str) -> bool:
        """Is this the ticket in the prediction's record? One without a ticket is opened by nothing."""
        return bool(ticket) and hmac.compare_digest(self.ticket, ticket)


def new_ticket() -> str:
    """130 bits, as 26 characters."""
    return secrets.token_bytes(LENGTH).translate(LETTERS).decode()


def read_address(text: str) -> Address | None:
    """The last part of a stream's URL; None where it cannot be one of ours, so that a guess asks Redis nothing."""
    match = ADDRESS.fullmatch(text)
    if match is None or not is_prediction_id(match[1]):
        return None
    return Address(PredictionId(match[1]), match[2])
