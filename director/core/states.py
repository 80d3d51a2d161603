"""Define the statuses of a prediction, the codes of its end and the events of its webhooks."""

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The statuses of Replicate's API, each with its documentation below it."""

    STARTING = "starting"
    """It waits: for its turn, for a director, or for another attempt."""
    PROCESSING = "processing"
    """It runs on a model server."""
    SUCCEEDED = "succeeded"
    """The model answered, and its output is stored."""
    FAILED = "failed"
    """It has an `error` and, if the service decided it, a `code`."""
    CANCELED = "canceled"
    """Its caller canceled it, or its deadline passed after the run had begun."""
    ABORTED = "aborted"
    """Its deadline passed before the run began."""


class WebhookEvent(StrEnum):
    """The events that a webhook can ask for, each with its documentation below it."""

    START = "start"
    """Once, when the run begins."""
    OUTPUT = "output"
    """When output arrives, at most twice a second."""
    LOGS = "logs"
    """When the model prints, at most twice a second."""
    COMPLETED = "completed"
    """At the end, whatever the status. It is repeated until the receiver accepts it."""


TRANSITIONS: Final[dict[Status, frozenset[Status]]] = {
    # aborted: the deadline passed in the queue
    Status.STARTING: frozenset({Status.PROCESSING, Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.ABORTED}),
    # starting: another attempt
    Status.PROCESSING: frozenset({Status.STARTING, Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
    Status.ABORTED: frozenset(),
}
"""Which status may follow which. docs/explanation/lifecycle.md draws this table."""

TERMINAL: Final = frozenset(status for status, following in TRANSITIONS.items() if not following)
"""The statuses that a prediction never leaves."""

END_CODES: Final = {
    "batch_mismatch": "The model server answered a batch with another number of outputs than it got inputs.",
    "deadline_exceeded": "`Cancel-After` or the lifetime of its queue passed. Its status says whether a run had begun.",
    "destination_gone": "The model that a training should make a version of was deleted.",
    "director_lost": "The director that ran it went silent, and no attempt is left. It is a dead letter.",
    "drained": "Its director was drained after the run had begun, and it may not run again.",
    "input_lost": "Its input is gone from Redis.",
    "invalid_input": "The model server refused the input.",
    "model_failed": "The model's own code raised an error. `error` has its text.",
    "moderation_refused": "The moderator refused the output.",
    "moderation_unavailable": "The moderator gave no verdict within the run limit.",
    "output_not_stored": "A file of the output could not be stored.",
    "output_too_large": "The output is larger than `DIRECTOR_MAX_OUTPUT_BYTES`.",
    "refused": "The model server had no room for it, again and again.",
    "server_auth": "The model server refuses the director. Correct `DIRECTOR_SERVER_HEADER`.",
    "server_canceled": "The model server stopped the run unasked, and no attempt is left. It is a dead letter.",
    "server_lost": "The model server died during the run, and no attempt is left. It is a dead letter.",
    "start_by_exceeded": "It could not start within `X-Start-By`.",
    "timed_out": "The run took longer than `DIRECTOR_RUN_LIMIT_S`.",
    "too_many_claims": "It was claimed too often without ever starting. It is a dead letter.",
}
"""The codes of ends that the service decided, for the `code` of a prediction."""
