"""What a webhook says and the id it keeps: the same for whoever delivers it, director or courier."""

import msgspec

from director.core.ids import PredictionId
from director.core.schema import Stored
from director.core.view import view

__all__ = ("body", "message_id")


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
