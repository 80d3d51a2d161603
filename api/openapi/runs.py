"""Predictions, trainings and procedures, and the streams of what happens to them."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from api.openapi.bodies import BatchRequest, PredictionRequest, TrainingRequest, VersionPredictionRequest
from api.openapi.operation import (
    BODY,
    CREATE,
    NO_BODY,
    OPEN,
    PAGED,
    PATH,
    TOKEN,
    Answer,
    Body,
    Operation,
    Operations,
    Parameter,
)
from api.openapi.parameters import FILTERS, HOW, MODEL, PREDICTION_ID, VERSION_OF_MODEL, WAIT
from api.predictions.events import MOST_AFTER, MOST_IN_PAGE, Events, Webhooks
from api.predictions.predictions import BatchResults
from director.core.schema import Page, Prediction
from director.diagnosis.story import Story

SHOWN: Final = {200: Answer("As it is now.", Prediction)}
LISTED: Final = {200: Answer("A page, newest first.", Page[Prediction])}
MADE: Final = ("Location", "Preference-Applied", "Idempotency-Replayed")
CREATED: Final = {
    201: Answer("Accepted; where it was waited for, it has ended.", Prediction, headers=MADE),
    202: Answer("Accepted, and has not ended in the time that it was waited for.", Prediction, headers=MADE),
}
ADDRESS: Final = Parameter("address", "The last part of `urls.stream`, which is the permission.", place="path")
STREAM: Final = "text/event-stream"


class StreamEvent(Struct, frozen=True):
    """One server-sent event. `data`: of output one item, of logs a text, of others an object as JSON."""

    id: str
    event: Literal["output", "logs", "error", "done"]
    data: str


RUNS: Final[Operations] = {
    ("POST", "/predictions"): Operation(
        name="predictions.create",
        what="Create a prediction of a version, or of the latest version of a model",
        scopes=("run",),
        parameters=(WAIT, *HOW),
        body=Body(VersionPredictionRequest),
        answers=CREATED,
        refusals=CREATE,
    ),
    ("GET", "/predictions"): Operation(
        name="predictions.list",
        what="List the predictions of the account",
        scopes=("read",),
        parameters=FILTERS,
        answers=LISTED,
        refusals=TOKEN | PAGED,
    ),
    ("POST", "/predictions/batch"): Operation(
        name="predictions.batch",
        what="Create many predictions, each judged by itself",
        scopes=("run",),
        parameters=HOW,
        body=Body(BatchRequest),
        answers={200: Answer("What became of each, in the order of the request.", BatchResults)},
        refusals=TOKEN | BODY,
    ),
    ("GET", "/predictions/{id}"): Operation(
        name="predictions.get",
        what="Get a prediction",
        scopes=("read",),
        parameters=PREDICTION_ID,
        answers=SHOWN,
        refusals=TOKEN | PATH,
    ),
    ("DELETE", "/predictions/{id}"): Operation(
        name="predictions.delete",
        what="Let go of a prediction that has ended, with its data and files",
        scopes=("run",),
        parameters=PREDICTION_ID,
        answers={204: NO_BODY},
        refusals=TOKEN | PATH | {409},
    ),
    ("GET", "/predictions/{id}/explain"): Operation(
        name="predictions.explain",
        what="Tell the story of a prediction so far, and what is next",
        scopes=("read", "admin"),
        parameters=PREDICTION_ID,
        answers={200: Answer("Its story.", Story)},
        refusals=TOKEN | PATH,
    ),
    ("GET", "/predictions/{id}/events"): Operation(
        name="predictions.events",
        what="List what happened to a prediction, in order and numbered",
        scopes=("read",),
        parameters=(
            *PREDICTION_ID,
            Parameter("after", "The `next` of the page before.", Annotated[int, Meta(ge=0, le=MOST_AFTER)]),
            Parameter("limit", "At most so many; 100 without.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
        ),
        answers={200: Answer("A page.", Events)},
        refusals=TOKEN | PATH | {422},
    ),
    ("GET", "/predictions/{id}/webhooks"): Operation(
        name="predictions.webhooks",
        what="Tell how the webhook of a prediction's end goes",
        scopes=("read", "admin"),
        parameters=PREDICTION_ID,
        answers={200: Answer("Every attempt, and when the next one is.", Webhooks)},
        refusals=TOKEN | PATH,
    ),
    ("POST", "/predictions/{id}/webhooks/redeliver"): Operation(
        name="predictions.webhooks.redeliver",
        what="Tell the end of a prediction to its webhook again",
        scopes=("run", "admin"),
        parameters=PREDICTION_ID,
        answers={200: Answer("It is told at once.", Webhooks)},
        refusals=TOKEN | PATH | {409, 410},
    ),
    ("POST", "/predictions/{id}/cancel"): Operation(
        name="predictions.cancel",
        what="Cancel a prediction",
        scopes=("run",),
        parameters=PREDICTION_ID,
        answers=SHOWN,
        refusals=TOKEN | PATH,
    ),
    ("POST", "/models/{owner}/{name}/predictions"): Operation(
        name="models.predictions.create",
        what="Create a prediction of the latest version of a model",
        scopes=("run",),
        parameters=(*MODEL, WAIT, *HOW),
        body=Body(PredictionRequest),
        answers=CREATED,
        refusals=CREATE,
    ),
    ("POST", "/deployments/{owner}/{name}/predictions"): Operation(
        name="deployments.predictions.create",
        what="Create a prediction of the version of a deployment's current release",
        scopes=("run",),
        parameters=(*MODEL, WAIT, *HOW),
        body=Body(PredictionRequest),
        answers=CREATED,
        refusals=CREATE,
    ),
    ("GET", "/streams/{address}"): Operation(
        name="streams.read",
        what="Follow a prediction as it happens, as server-sent events",
        parameters=(
            ADDRESS,
            Parameter("Last-Event-ID", "Go on after this event.", place="header"),
            Parameter("last_event_id", "The same, for who cannot send the header."),
        ),
        answers={
            200: Answer("Its output and logs, from the start or after an event.", StreamEvent, STREAM),
            204: Answer("The end was told already."),
        },
        refusals=OPEN | PATH | {410, 503},
    ),
    ("OPTIONS", "/streams/{address}"): Operation(
        name="streams.preflight",
        what="What a browser asks before it follows a stream",
        parameters=(ADDRESS,),
        answers={204: NO_BODY},
        refusals=OPEN,
    ),
    ("POST", "/models/{owner}/{name}/versions/{id}/trainings"): Operation(
        name="trainings.create",
        what="Create a training, which makes a version of its destination",
        scopes=("run",),
        parameters=(*VERSION_OF_MODEL, WAIT, *HOW),
        body=Body(TrainingRequest),
        answers=CREATED,
        refusals=CREATE,
    ),
    ("GET", "/trainings"): Operation(
        name="trainings.list",
        what="List the trainings of the account",
        scopes=("read",),
        parameters=FILTERS,
        answers=LISTED,
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/trainings/{id}"): Operation(
        name="trainings.get",
        what="Get a training",
        scopes=("read",),
        parameters=PREDICTION_ID,
        answers=SHOWN,
        refusals=TOKEN | PATH,
    ),
    ("POST", "/trainings/{id}/cancel"): Operation(
        name="trainings.cancel",
        what="Cancel a training",
        scopes=("run",),
        parameters=PREDICTION_ID,
        answers=SHOWN,
        refusals=TOKEN | PATH,
    ),
    ("POST", "/procedures"): Operation(
        name="procedures.create",
        what="Create a procedure: a prediction that waits apart from others",
        scopes=("run",),
        parameters=(WAIT, *HOW),
        body=Body(VersionPredictionRequest),
        answers=CREATED,
        refusals=CREATE,
    ),
    ("GET", "/procedures"): Operation(
        name="procedures.list",
        what="List the procedures of the account",
        scopes=("read",),
        parameters=FILTERS,
        answers=LISTED,
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/procedures/{id}"): Operation(
        name="procedures.get",
        what="Get a procedure",
        scopes=("read",),
        parameters=PREDICTION_ID,
        answers=SHOWN,
        refusals=TOKEN | PATH,
    ),
    ("POST", "/procedures/{id}/cancel"): Operation(
        name="procedures.cancel",
        what="Cancel a procedure",
        scopes=("run",),
        parameters=PREDICTION_ID,
        answers=SHOWN,
        refusals=TOKEN | PATH,
    ),
}
