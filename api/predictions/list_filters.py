"""Which predictions a list is asked for: read from its query, and kept in the links of its pages.

`created_after`, `created_before` and `source` are Replicate's; `status`, `model`, `version` and `account` are more.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from re import fullmatch
from typing import Final

from msgspec import Struct

from api.predictions.glances import Glance
from api.problems import InvalidField
from api.refusals import invalid_input
from director.core.ids import MODEL_NAME, VERSION_ID, PredictionId, lowest_id_at
from director.core.schema import Record
from director.core.states import Status
from director.store.accounts import ACCOUNT_NAME

__all__ = ("Filters",)

LATEST_MS: Final = (1 << 48) - 1  # of an id
SOURCES: Final = ("api", "web")

# what each may be, in words, and whether a text is that
KNOWN: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "created_after": ("Must be a date and time as RFC 3339 has it", lambda text: _id_at(text)),
    "created_before": ("Must be a date and time as RFC 3339 has it", lambda text: _id_at(text)),
    "status": (f"Must be one of {', '.join(Status)}", lambda text: text in list(Status)),
    "model": ("Must be owner/name", lambda text: fullmatch(MODEL_NAME, text)),
    "version": ("Must be 64 hex digits", lambda text: fullmatch(VERSION_ID, text)),
    "account": ("Must be the name of an account", lambda text: fullmatch(ACCOUNT_NAME, text)),
    "source": (f"Must be one of {', '.join(SOURCES)}", lambda text: text in SOURCES),
}


class Filters(Struct, frozen=True):
    """What was asked for, as it was given."""

    given: dict[str, str]

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "Filters":
        """422 that names every one that is none. An empty one is as good as none."""
        given = {name: query[name] for name in KNOWN if query.get(name)}
        faults = [
            InvalidField("format", name, KNOWN[name][0]) for name, text in given.items() if not KNOWN[name][1](text)
        ]
        if faults:
            raise invalid_input(faults)
        return cls(given)

    @property
    def account(self) -> str | None:
        return self.given.get("account")

    @property
    def oldest(self) -> PredictionId | None:
        """The first id that it may be."""
        return _id_at(self.given.get("created_after", ""))

    @property
    def newest(self) -> PredictionId | None:
        """The first id that is too new."""
        return _id_at(self.given.get("created_before", ""))

    def match(self, one: Glance | Record) -> bool:
        """Is it asked for? All of ours were made by the API."""
        if self.given.get("source", "api") != "api":
            return False
        return all(
            self.given.get(name, value) == value
            for name, value in (("status", one.status), ("model", one.model), ("version", one.version))
        )


def _id_at(text: str) -> PredictionId | None:
    """The first id of a moment; None where it is none. Without an offset it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        at_ms = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return lowest_id_at(min(max(at_ms, 0), LATEST_MS))
