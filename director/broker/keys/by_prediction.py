"""How the keys of one prediction are spelled. All carry the hash tag of its partition."""

from director.broker.keys.by_partition import tag
from director.core.ids import PredictionId, partition_of, partition_of_model

__all__ = (
    "came",
    "channel",
    "events",
    "idempotency",
    "input_data",
    "output_data",
    "record",
    "weights",
)


def record(prediction_id: PredictionId) -> str:
    """hash · the prediction's truth, all but its bulk. No lifetime until terminal, then 7 days."""
    return f"{tag(partition_of(prediction_id))}:rec:{prediction_id}"


def input_data(prediction_id: PredictionId) -> str:
    """string · the caller's input, byte for byte. Written by enqueue. No lifetime until terminal, then 1 hour."""
    return f"{tag(partition_of(prediction_id))}:in:{prediction_id}"


def output_data(prediction_id: PredictionId) -> str:
    """hash · output and logs of a terminal prediction. Written by whatever ends it; 1 hour."""
    return f"{tag(partition_of(prediction_id))}:out:{prediction_id}"


def events(prediction_id: PredictionId) -> str:
    """list · its events, numbered by their place from 1. No lifetime until terminal, then 1 hour.

    Not a stream: a stream takes 4.3 KB for its first entry (measured on Valkey 9.1 and Redis 7.0), a list 0.1 KB.
    """
    return f"{tag(partition_of(prediction_id))}:ev:{prediction_id}"


def came(prediction_id: PredictionId) -> str:
    """string · `<number of the move> here|refused`, so that it arrives once. Written by arrive; 30 days."""
    return f"{tag(partition_of(prediction_id))}:came:{prediction_id}"


def channel(prediction_id: PredictionId) -> str:
    """channel · `PUBLISH <seq>` whenever events were added, never a payload."""
    return f"{tag(partition_of(prediction_id))}:ch:{prediction_id}"


def idempotency(*, account: str, model: str, digest: str) -> str:
    """string · `<id> <fingerprint of the body>`. Written by enqueue; 24 hours."""
    return f"{tag(partition_of_model(model))}:idem:{account}:{model}:{digest}"


def weights(training: PredictionId) -> str:
    """string · the key of the version whose weights are this training's files. Removed by the keeper once it is gone.

    Permanent.
    """
    return f"{tag(partition_of(training))}:weights:{training}"
