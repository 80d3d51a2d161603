"""What every PUT of a run to a Cog server has in common: the request's body, and the answer when it is one whole.

Never decides which transport a run takes, and never sends anything.
"""

import secrets
from typing import Final

import msgspec
from msgspec import Raw, Struct

from director.servers.runners.cog_answers import Again, Answer, read_answer, too_large
from director.servers.runners.cog_kinds import Kind
from director.servers.runners.connections import read_body
from director.servers.runners.exchange import Exchange
from director.servers.runners.runner import Ended, RunRequest

__all__ = ("Run", "create_body", "read_whole")

REFUSAL_BYTES: Final = 64 * 1024  # what is read of an answer that tells no end


class Run(Struct, frozen=True, kw_only=True):
    """A run, and what is known of the server that it goes to."""

    request: RunRequest
    coglet: bool
    kind: Kind
    is_array: bool
    max_body: int
    path: str
    attempt: str = msgspec.field(default_factory=lambda: secrets.token_hex(4))

    @property
    def key(self) -> str:
        """A name for callbacks of this attempt alone: what an earlier one of the same id still sends is nobody's."""
        return f"{self.request.id}.{self.attempt}"


class _Create(Struct, omit_defaults=True):
    input: Raw
    webhook: str | None = None
    webhook_events_filter: tuple[str, ...] = ()


def create_body(run: Run, *, webhook: str | None = None, events: tuple[str, ...] = ()) -> bytes:
    """The PUT's body. The caller's input goes through as it is."""
    return msgspec.json.encode(_Create(run.request.input, webhook, events))


async def read_whole(run: Run, response: Exchange) -> Ended | Again:
    """Read an answer that is one body, and say what it means."""
    is_end = response.status_code == 200
    body, complete = await read_body(response, run.max_body if is_end else REFUSAL_BYTES)
    if is_end and not complete:
        return too_large(run.max_body)
    return read_answer(
        Answer(
            prediction_id=run.request.id,
            status=response.status_code,
            body=body,
            retry_after=response.headers.get("retry-after"),
            coglet=run.coglet,
        )
    )
