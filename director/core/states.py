"""Define the statuses of a prediction and the events of its webhooks."""

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The statuses of Replicate's API."""

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    ABORTED = "aborted"


class WebhookEvent(StrEnum):
    """The events that a webhook can ask for."""

    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"


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
"""Which status may follow which. docs/lifecycle.md draws this table."""

TERMINAL: Final = frozenset(status for status, following in TRANSITIONS.items() if not following)
"""The statuses that a prediction never leaves."""
