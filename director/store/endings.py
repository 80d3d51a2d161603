"""Read the message with which a prediction's end reaches the API process that holds its caller's response open.

`lua/lib/settle.lua` writes it: a line of words, then the texts whose sizes the line gives. If the end is too large for
a message, the id comes alone. A newer release adds words and texts after those known here.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from director.core.ids import PredictionId
from director.core.schema import Stored
from director.core.states import TERMINAL, Status

WORDS: Final = 4  # id, status, started, completed
TEXTS: Final = 5  # code, error, metrics, output, logs
NONE: Final = "-"


class Ending(Struct, frozen=True, kw_only=True):
    """The facts that the end adds to a prediction that was just accepted."""

    status: Status
    started: int | None
    completed: int
    code: str
    error: str
    metrics: str
    output: bytes
    logs: str

    def of(self, filed: Stored) -> Stored:
        """Return the prediction as it ended."""
        record = replace(
            filed.record,
            status=self.status,
            started=self.started,
            completed=self.completed,
            code=self.code,
            error=self.error,
            metrics=self.metrics,
        )
        output = Raw(self.output) if self.output else None
        return Stored(record=record, input=filed.input, output=output, logs=self.logs)


def heard(message: bytes) -> tuple[PredictionId, Ending | None]:
    """Return which prediction ended and its end. The end is None if the record must be read, or the message is not
    understood.
    """
    head, _, rest = message.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    try:
        return PredictionId(words[0]), _ending(words, rest)
    except ValueError:
        return PredictionId(words[0]), None


def _ending(words: Sequence[str], rest: bytes) -> Ending | None:
    if len(words) < WORDS + TEXTS:
        return None
    status, started, completed = words[1:WORDS]
    texts: list[bytes] = []
    for size in map(int, words[WORDS : WORDS + TEXTS]):
        texts.append(rest[:size])
        rest = rest[size:]
    code, error, metrics, output, logs = texts
    return Ending(
        status=_terminal(status),
        started=None if started == NONE else int(started),
        completed=int(completed),
        code=code.decode(),
        error=error.decode(),
        metrics=metrics.decode(),
        output=output,
        logs=logs.decode(),
    )


def _terminal(word: str) -> Status:
    """Raises ValueError for a status that is unknown or not terminal."""
    status = Status(word)
    if status not in TERMINAL:
        raise ValueError(word)
    return status
