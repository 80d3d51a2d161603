"""What a webhook says and the id it keeps: the same for whoever delivers it, director or courier."""

import random

import msgspec

from director.core.ids import PredictionId
from director.core.schema import Stored
from director.core.view import view
from director.webhooks.schedule import noted
from director.webhooks.sender import Delivery

__all__ = ("body", "first_outcome", "message_id")


def message_id(prediction_id: PredictionId, event: str, *, revivals: int = 0) -> str:
    """The `webhook-id`, by which a receiver knows a repetition: nothing in it changes between attempts.

    `event` is `completed` for the terminal one, and for the others a name that is used once in a prediction.
    What an operator revived begins and ends once more, so its `revivals` are named too: no receiver takes it for told.
    """
    life = f"_r{revivals}" if revivals else ""
    return f"msg_{prediction_id}{life}_{event}"


def body(stored: Stored) -> bytes:
    """The prediction as GET shows it at this moment."""
    return msgspec.json.encode(view(stored))


def first_outcome(delivery: Delivery) -> tuple[str, float | None]:
    """What the first attempt comes to, and in how many seconds there is another; None where there is none."""
    result = noted(delivery, tellings=0, jitter=random.random())  # noqa: S311 - spreads retries, guards nothing
    return result.outcome, result.delay_s
