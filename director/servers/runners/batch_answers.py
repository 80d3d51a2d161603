"""What one answer says of each of the runs that went to a server together.

Pure. Never guesses whose an output is: where the numbers do not fit, nobody gets any.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from director.core.json_pointer import Pointer
from director.core.runner_config import BatchConfig, HttpConfig
from director.servers.runners.http_answers import mapped_end, mapped_error
from director.servers.runners.runner import Ended, Outcome
from director.servers.runners.untrusted import Unreadable, read_json
from director.servers.runners.usage import used_by

__all__ = ("MISMATCH", "ends_of")

MISMATCH: Final = "batch_mismatch"


def ends_of(
    document: Raw, config: HttpConfig, batch: BatchConfig, costs: Sequence[float], headers: Mapping[str, str]
) -> list[Ended]:
    """The ends of the runs that cost so much each, in the order of the request."""
    count = len(costs)
    try:
        items = _items(document, batch.items)
        if len(items) != count:
            raise Unreadable(f"has {len(items)} items for {count} predictions")
        items = items if batch.index is None else _ordered(items, batch.index)
    except Unreadable as exc:
        error = f"The model server's answer {exc}, so that nobody can tell whose they are"
        return [Ended(outcome=Outcome.FAILED, error=error, code=MISMATCH)] * count
    used = used_by(document, headers, items, batch, costs)
    return [_end(item, config, share) for item, share in zip(items, used, strict=True)]


def _items(document: Raw, where: Pointer) -> list[Raw]:
    found = where.find(document)
    try:
        return read_json(bytes(found or b""), list[Raw])
    except Unreadable as exc:
        raise Unreadable(f"has no list at {where.text!r}") from exc


def _ordered(items: list[Raw], index: Pointer) -> list[Raw]:
    """By the number that each item says it has. Each is there once."""
    places: dict[int, Raw] = {}
    for item in items:
        places[read_json(bytes(index.find(item) or b"null"), int)] = item
    if sorted(places) != list(range(len(items))):
        raise Unreadable(f"does not number its items from 0 at {index.text!r}")
    return [places[number] for number in range(len(items))]


def _end(item: Raw, config: HttpConfig, used: dict[str, Raw]) -> Ended:
    if error := mapped_error(item, config.error):
        return Ended(outcome=Outcome.FAILED, error=error, metrics=used)
    end = mapped_end(item, config)
    return replace(end, metrics=used | end.metrics)
