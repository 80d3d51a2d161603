"""Make a webhook's id and body, the same in director and courier, and send it as a step of the prediction's trace."""

from collections.abc import Sequence

import msgspec

from director.core.ids import PredictionId
from director.core.schema import Record, Stored
from director.core.view import view
from director.core.webhook_url import host_of
from director.runtime.tracing import Facts, Tracing, facts_of
from director.webhooks.sender import Delivery, Sender


def message_id(prediction_id: PredictionId, event: str, *, revivals: int = 0) -> str:
    """Return the `webhook-id`, by which a receiver recognises a repetition: it is the same for all attempts.

    `event` is `completed` for the terminal webhook, and for others a name that is used once in a prediction. A revived
    prediction starts and ends again, so its `revivals` are in the id: its webhooks are not repetitions.
    """
    life = f"_r{revivals}" if revivals else ""
    return f"msg_{prediction_id}{life}_{event}"


def body(stored: Stored) -> bytes:
    """Return the prediction as GET shows it at this moment."""
    return msgspec.json.encode(view(stored))


async def send_traced(
    sender: Sender,
    tracing: Tracing,
    record: Record,
    *,
    event: str,
    attempt: int = 1,
    message_id: str,
    body: bytes,
    secrets: Sequence[str],
    now_s: float,
) -> Delivery:
    """Send as `Sender.send` does, with a span of the prediction's trace if tracing is on. `attempt` counts from 1.

    The span names no more of the receiver than its host.
    """
    facts = _facts(tracing, record, event, attempt) if tracing.is_on else None
    span = tracing.begin("webhook", record.trace, kind="client", facts=facts)
    delivery: Delivery | None = None
    try:
        delivery = await sender.send(
            record.webhook, message_id=message_id, body=body, secrets=secrets, now_s=now_s, trace=span.headers
        )
        return delivery
    finally:
        if tracing.is_on:
            span.end(_answer(delivery), error=_error(delivery))


def _facts(tracing: Tracing, record: Record, event: str, attempt: int) -> Facts:
    webhook: Facts = {"event": event, "attempt": attempt, "server.address": host_of(record.webhook)}
    return {**facts_of(tracing, record), **webhook}


def _answer(delivery: Delivery | None) -> Facts:
    return {"http.response.status_code": delivery.status} if delivery is not None and delivery.status else {}


def _error(delivery: Delivery | None) -> str:
    if delivery is None:
        return "left"
    if delivery.ok:
        return ""
    return delivery.rule or ("refused" if delivery.status else "no_answer")
