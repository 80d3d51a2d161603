"""Define the parameters and answers that several routes share."""

from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta

from api.bodies import LARGEST_COST, LONGEST_AFFINITY, LONGEST_LIFE_S, SMALLEST_COST
from api.route import Answer, Parameter, Route
from director.core.ids import LANES, MODEL_NAME, QUEUE_END, VERSION_ID
from director.core.schema import Page, Prediction
from director.core.states import Status
from director.store.accounts import ACCOUNT_NAME

# Refusals of a route that creates a prediction. 404: the prediction that an Idempotency-Key names is gone. 500: the
# model's schema is unusable.
CREATE: Final = frozenset({402, 404, 500})
NO_BODY: Final = Answer("Done; there is no body.")
SHOWN: Final = {200: Answer("As it is now.", Prediction)}
LISTED: Final = {200: Answer("A page, newest first.", Page[Prediction])}
MADE: Final = ("Location", "Preference-Applied", "Idempotency-Replayed")
CREATED: Final = {
    201: Answer("Accepted; where it was waited for, it has ended.", Prediction, headers=MADE),
    202: Answer("Accepted, and has not ended in the time that it was waited for.", Prediction, headers=MADE),
}
deletes: Final = partial(Route, "DELETE", scopes=("run",), answers={204: NO_BODY})
creates: Final = partial(Route, "POST", scopes=("run",), bucket="create", answers=CREATED, refusals=CREATE)


def one_of(*words: str) -> Any:
    """Return the type of a text that is one of these words."""
    return Annotated[str, Meta(extra_json_schema={"enum": list(words)})]


Id = Annotated[str, Meta(pattern="^[0-9a-hjkmnp-tv-z]{26}$")]
NamePart = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]

CURSOR: Final = Parameter("cursor", "Where the page begins: part of the `next` and `previous` of another one.")
PREDICTION_ID: Final = (Parameter("id", "The id of a prediction.", Id, "path"),)
OWNER_AND_NAME: Final = (
    Parameter("owner", "Who has it.", NamePart, "path"),
    Parameter("name", "Its name.", NamePart, "path"),
)
VERSION_OF_MODEL: Final = (
    *OWNER_AND_NAME,
    Parameter("id", "The id of a version.", Annotated[str, Meta(pattern=VERSION_ID)], "path"),
)
QUEUE: Final = (
    *OWNER_AND_NAME,
    Parameter(
        "version",
        "The first 12 digits of a version, and behind a `~` the kind of its runs where they are no predictions.",
        Annotated[str, Meta(pattern=QUEUE_END)],
        "path",
    ),
)

FILTERS: Final = (
    CURSOR,
    Parameter("created_after", "A date and time, as RFC 3339 has it."),
    Parameter("created_before", "A date and time, as RFC 3339 has it."),
    Parameter("status", "Only of this status.", one_of(*Status)),
    Parameter("model", "Only of this model, `owner/name`.", Annotated[str, Meta(pattern=MODEL_NAME)]),
    Parameter("version", "Only of this version.", Annotated[str, Meta(pattern=VERSION_ID)]),
    Parameter("account", "Of this account: with the scope `admin`.", Annotated[str, Meta(pattern=ACCOUNT_NAME)]),
    Parameter("source", "`web` finds nothing here.", one_of("api", "web")),
)

WAIT: Final = Parameter(
    "Prefer", "`wait`, or `wait=n`: hold the response until it has ended, or for n seconds, at most 60.", place="header"
)
# How to run a prediction. All but WAIT apply to each prediction of a batch
HOW: Final = (
    Parameter(
        "Cancel-After",
        "A duration such as 90s or 1h30m, from 5 s to 24 h: not ended by then, it ends.",
        place="header",
    ),
    Parameter("X-Start-By", f"1 to {LONGEST_LIFE_S} seconds: not begun by then, it fails.", place="header"),
    Parameter("X-Priority", "The lane, as far as the token may.", one_of(*LANES), "header"),
    Parameter("X-Site", "Of several sites, the name of the one that has it.", place="header"),
    Parameter("X-Cost", f"How much it takes, from {SMALLEST_COST} to {LARGEST_COST}; 1 without.", place="header"),
    Parameter(
        "X-Affinity-Key",
        "Predictions with the same one like the same server, which is warm for it.",
        Annotated[str, Meta(min_length=1, max_length=LONGEST_AFFINITY)],
        "header",
    ),
    Parameter(
        "Idempotency-Key",
        "Asking twice for the same is asking once, for a day.",
        Annotated[str, Meta(min_length=1, max_length=255)],
        "header",
    ),
)
