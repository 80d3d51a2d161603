"""Make and read prediction ids, and compute the partition of each id and model.

An id is 130 bits as 26 characters of Crockford's base32, lower case, most significant first:

    48 milliseconds since 1970 · 10 partition · 6 site · 2 format · 64 random

Callers treat it as opaque. The API reads from it which server to ask, so a GET needs no look-up, and ids sort by time.
This layout cannot change: ids outlive releases. A new layout takes the next format number. Format 3, the last, is for
ids of callers' files: 48 bits of milliseconds, then random bits but for the format. So neither is taken for the other.
"""

import hashlib
import secrets
from functools import lru_cache
from typing import Final, Literal, NewType

PredictionId = NewType("PredictionId", str)
FileId = NewType("FileId", str)
Partition = NewType("Partition", int)
QueueName = NewType("QueueName", str)

Kind = Literal["", "training", "procedure"]
"""Kind of a run; '' is a prediction."""

VERSION_DIGITS: Final = 12  # of a version in the name of its queue, and wherever it is shown
MODEL_NAME: Final = r"^[a-z0-9][a-z0-9._-]{0,63}/[a-z0-9][a-z0-9._-]{0,63}$"
QUEUE_NAME: Final = MODEL_NAME[:-1] + rf":[0-9a-f]{{{VERSION_DIGITS}}}(~[a-z]+)?$"
VERSION_ID: Final = r"^[0-9a-f]{64}$"
QUEUE_END: Final = rf"^[0-9a-f]{{{VERSION_DIGITS}}}(~(training|procedure))?$"  # of a queue's name, after the colon

PARTITIONS: Final = 1024
FORMAT: Final = 0
FILE_FORMAT: Final = 3
LENGTH: Final = 26
ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
# two letters at once: each prediction takes one new id, and one more as the bound of a list
PAIRS: Final = tuple(first + second for first in ALPHABET for second in ALPHABET)
SHIFTS: Final = tuple(range((LENGTH - 2) * 5, -1, -10))
VALUES: Final = {letter: value for value, letter in enumerate(ALPHABET)}
DIGITS: Final = str.maketrans(ALPHABET, "0123456789abcdefghijklmnopqrstuv")  # as `int` reads them


LANES: Final = ("high", "normal", "low")
IDLE: Final = "idle"  # the lane of what runs only while nothing waits in the others
ALL_LANES: Final = (*LANES, IDLE)


def new_prediction_id(*, model: str, now_ms: int, site: int = 0) -> PredictionId:
    return PredictionId(_encode(now_ms, partition_of_model(model), site, secrets.randbits(64)))


def new_file_id(now_ms: int) -> FileId:
    return FileId(_encode(now_ms, secrets.randbits(10), secrets.randbits(6), secrets.randbits(64), FILE_FORMAT))


def lowest_id_at(now_ms: int) -> PredictionId:
    """Return the smallest id that could have been made at `now_ms`: a bound for listing by time."""
    return PredictionId(_encode(now_ms, 0, 0, 0))


def is_prediction_id(text: str) -> bool:
    """Return whether `text` has the form of a prediction id. Others are answered without asking Redis."""
    return _is_id(text, FORMAT)


def is_file_id(text: str) -> bool:
    return _is_id(text, FILE_FORMAT)


@lru_cache(maxsize=1_000)  # each step of a prediction asks several times
def partition_of(prediction_id: PredictionId) -> Partition:
    """Return the partition whose hash tag every key of this prediction has."""
    return Partition(_number(prediction_id) >> 72 & 0x3FF)


def site_of(prediction_id: PredictionId) -> int:
    return _number(prediction_id) >> 66 & 0x3F


def created_ms_of(prediction_id: PredictionId | FileId) -> int:
    """Return the time at which the id was made, in milliseconds since 1970."""
    return _number(prediction_id) >> 82


@lru_cache(maxsize=1_000)
def partition_of_model(model: str) -> Partition:
    """Return a stable hash of "owner/name". All versions share it, so an idempotency key holds across a deploy."""
    return Partition(int.from_bytes(hashlib.sha256(model.encode()).digest()[:4]) % PARTITIONS)


@lru_cache(maxsize=1_000)
def queue_name(model: str, version: str, kind: Kind = "") -> QueueName:
    """Return the queue of one version of a model. A part of the version keeps the name, and each record, small. A
    kind other than prediction follows the version, so all before the last colon is always the model.
    """
    return QueueName(f"{model}:{version[:VERSION_DIGITS]}" + (f"~{kind}" if kind else ""))


def model_and_kind(queue: QueueName) -> tuple[str, str]:
    """Return model and kind of a queue's runs. Queues that agree in both differ only in the version."""
    model, _, rest = queue.rpartition(":")
    return model, rest.partition("~")[2]


def is_queue_of_predictions(queue: QueueName) -> bool:
    return "~" not in queue


def version_id(model: str, schema: bytes, predictor: bytes) -> str:
    """Return a version's id, 64 hex digits from its three parts, for a version without an image digest."""
    digest = hashlib.sha256()
    for part in (model.encode(), schema, predictor):
        # each part's length goes first, so that no part's end can pass for the next part's beginning
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _is_id(text: str, kind: int) -> bool:
    return len(text) == LENGTH and all(letter in VALUES for letter in text) and _number(text) >> 64 & 3 == kind


def _encode(now_ms: int, partition: int, site: int, random_bits: int, kind: int = FORMAT) -> str:
    number = (((now_ms << 10 | partition) << 6 | site) << 2 | kind) << 64 | random_bits
    return "".join([PAIRS[number >> shift & 1023] for shift in SHIFTS])


def _number(prediction_id: str) -> int:
    return int(prediction_id.translate(DIGITS), 32)


TICKET_LENGTH: Final = 26
TICKET_LETTERS: Final = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in range(256))  # equally likely


def new_ticket() -> str:
    """Return what makes the address of a prediction's event stream unguessable."""
    return secrets.token_bytes(TICKET_LENGTH).translate(TICKET_LETTERS).decode()
