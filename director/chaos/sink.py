"""The caller's webhook receiver: `python -m director.chaos.sink PORT JOURNAL SECRETS`.

Writes down every webhook that it answered, and whether its signature was good by a reading of Standard Webhooks of its
own. Takes orders: `PUT /mode/ok`, `/mode/error` (answer 500), `/mode/reset` (break the connection).
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


class Told(Struct, frozen=True):
    """What is read of a webhook's body."""

    id: str
    status: str


class Sink:
    """The receiver. `secrets`: tenant → the secret that its webhooks are to be signed with."""

    def __init__(self, journal: Journal, secrets: dict[str, str]) -> None:
        self._journal = journal
        self._secrets = secrets
        self._status = MODES["ok"]

    async def __call__(self, request: Request) -> Answer:
        """Answer one request."""
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
        told = msgspec.json.decode(request.body, type=Told)
        self._journal.write(
            Delivered(
                at=now_ms(),
                id=told.id,
                webhook_id=request.headers.get("webhook-id", ""),
                status=told.status,
                answered=self._status,
                signed=is_signed(request, secret),
            )
        )
        return Answer(self._status)


def is_signed(request: Request, secret: str) -> bool:
    """Is one of its signatures that of this body, with this id, at a time near now?"""
    message_id = request.headers.get("webhook-id", "")
    timestamp = request.headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    signed = f"{message_id}.{timestamp}.".encode() + request.body
    key = base64.b64decode(secret.partition("_")[2])
    wanted = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    given = request.headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(wanted, signature) for signature in given)


def main() -> None:
    """Serve until killed."""
    port, journal, secrets = sys.argv[1:]
    known = msgspec.json.decode(Path(secrets).read_bytes(), type=dict[str, str])
    asyncio.run(serve(Sink(Journal(Path(journal)), known), int(port)))


if __name__ == "__main__":
    main()
