"""Receive the webhooks of a run: `python -m director.chaos.sink PORT JOURNAL SECRETS`.

The sink records every webhook that it answered. It checks the signature with its own implementation of Standard
Webhooks. `PUT /mode/ok`, `/mode/error` (answer 500) and `/mode/reset` (break the connection) set how it answers.
"""

import asyncio
import base64
import hmac
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from director.chaos.journal import Delivered, Journal, now_ms
from director.chaos.wire import Answer, Request, serve

MODES: Final = {"ok": 200, "error": 500, "reset": 0}
TOLERANCE_S: Final = 300


class Body(Struct, frozen=True):
    """The fields of a webhook's body that the sink reads."""

    id: str
    status: str


class Sink:
    """The receiver. `secrets` holds the signing secret of each tenant's webhooks."""

    def __init__(self, journal: Journal, secrets: dict[str, str]) -> None:
        self._journal = journal
        self._secrets = secrets
        self._status = MODES["ok"]

    async def __call__(self, request: Request) -> Answer:
        match request.method, *request.path.strip("/").split("/"):
            case "POST", "hook", tenant:
                return self._received(request, self._secrets[tenant])
            case "PUT", "mode", mode if mode in MODES:
                self._status = MODES[mode]
                return Answer()
            case "GET", "health":
                return Answer()
            case _:
                return Answer(404)

    def _received(self, request: Request, secret: str) -> Answer:
        body = msgspec.json.decode(request.body, type=Body)
        self._journal.write(
            Delivered(
                at=now_ms(),
                id=body.id,
                webhook_id=request.headers.get("webhook-id", ""),
                status=body.status,
                answered=self._status,
                signed=is_signed(request, secret),
            )
        )
        return Answer(self._status)


def is_signed(request: Request, secret: str) -> bool:
    """Return whether one of its signatures fits this body and id, at a time near now."""
    message_id = request.headers.get("webhook-id", "")
    timestamp = request.headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    signed = f"{message_id}.{timestamp}.".encode() + request.body
    key = base64.b64decode(secret.partition("_")[2])
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    given = request.headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(expected, signature) for signature in given)


def main() -> None:
    port, journal, secrets = sys.argv[1:]
    known = msgspec.json.decode(Path(secrets).read_bytes(), type=dict[str, str])
    asyncio.run(serve(Sink(Journal(Path(journal)), known), int(port)))


if __name__ == "__main__":
    main()
