"""What is said of one route: its summary, what it takes, what it answers, and who may ask.

Says nothing of how that is written down: see `document.py`. What many routes have in common has a name here.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from api.auth import Scope

JSON: Final = "application/json"

# Statuses of refusals that routes have in common
OPEN: Final = frozenset({431})  # asks for no token, and nothing of Redis
TOKEN: Final = OPEN | {401, 403, 429, 503}
HOST: Final = frozenset({400})  # answers with addresses, on the host that was asked for
PATH: Final = frozenset({404})
BODY: Final = frozenset({400, 408, 413, 422})
PAGED: Final = HOST | {422}
# 404: the prediction that an Idempotency-Key names is gone; 500: the model's schema is at fault
CREATE: Final = TOKEN | BODY | {402, 404, 500}


class Parameter(Struct, frozen=True):
    """One of a path, a query or the headers. `type`: as msgspec knows types."""

    name: str
    what: str
    type: Any = str
    place: Literal["path", "query", "header"] = "query"


class Body(Struct, frozen=True):
    """What is sent."""

    type: Any
    media_type: str = JSON


class Answer(Struct, frozen=True):
    """One that is no refusal. Without a type it has no body."""

    what: str
    type: Any = None
    media_type: str = JSON
    headers: tuple[str, ...] = ()


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. `scopes`: of which a token must have one; none where no token is asked for."""

    name: str
    what: str
    answers: Mapping[int, Answer]
    refusals: frozenset[int]
    scopes: tuple[Scope, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None


Operations = Mapping[tuple[str, str], Operation]
"""By method and path, as in the table of routes."""

NO_BODY: Final = Answer("Done; there is no body.")
