"""What operators see of queues, directors and owed webhooks, and do with queues. For the scope `admin` alone."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from api.admin.overview import LONGEST_HOST, MOST_SNAPSHOTS
from api.admin.queues import (
    LONGEST_FILTER,
    STATES,
    AskedBound,
    AskedMigration,
    AskedPause,
    AskedSize,
    Drained,
    Migrated,
    QueueDetail,
)
from api.openapi.operation import BODY, PAGED, PATH, TOKEN, Answer, Body, Operation, Operations, Parameter
from api.openapi.parameters import CURSOR, QUEUE, one_of
from director.core.samples import MOST as MOST_SAMPLES
from director.core.schema import Page
from director.diagnosis.views import DirectorView, QueueView
from director.store.living import LiveView
from director.store.owed import OwedView

ADMIN: Final = ("admin",)
QUEUE_THEN: Final = {200: Answer("The queue as it is then.", QueueView)}
HISTORY: Final = Parameter(
    "history", "How many samples of its last hour, one each ten seconds.", Annotated[int, Meta(ge=0, le=MOST_SAMPLES)]
)


class LiveEvent(Struct, frozen=True):
    """One server-sent event. `data`: queues, directors, owed webhooks, findings as JSON; of `away`, why none."""

    event: Literal["snapshot", "away"]
    data: str


QUEUES: Final[Operations] = {
    ("GET", "/admin/queues"): Operation(
        name="admin.queues.list",
        what="List queues with their numbers",
        scopes=ADMIN,
        parameters=(
            CURSOR,
            Parameter("q", "Only those with this in their names.", Annotated[str, Meta(max_length=LONGEST_FILTER)]),
        ),
        answers={200: Answer("A page, by name.", Page[QueueView])},
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/admin/queues/{owner}/{name}/{version}"): Operation(
        name="admin.queues.get",
        what="Get a queue, with its streams, its accounts and how its model is run",
        scopes=ADMIN,
        parameters=(*QUEUE, HISTORY),
        answers={200: Answer("The queue.", QueueDetail)},
        refusals=TOKEN | PATH | {422},
    ),
    ("GET", "/admin/queues/{owner}/{name}/{version}/predictions"): Operation(
        name="admin.queues.predictions",
        what="List what is live in a queue, of all accounts",
        scopes=ADMIN,
        parameters=(*QUEUE, CURSOR, Parameter("state", "Only what is so.", one_of(*STATES))),
        answers={200: Answer("A page, oldest first; of what is delayed, who is due first.", Page[LiveView])},
        refusals=TOKEN | PATH | PAGED,
    ),
    ("POST", "/admin/queues/{owner}/{name}/{version}/pause"): Operation(
        name="admin.queues.pause",
        what="Hand nothing out any more, of one account or at all",
        scopes=ADMIN,
        parameters=QUEUE,
        body=Body(AskedPause),
        answers=QUEUE_THEN,
        refusals=TOKEN | PATH | BODY,
    ),
    ("POST", "/admin/queues/{owner}/{name}/{version}/resume"): Operation(
        name="admin.queues.resume",
        what="Hand out again what waits",
        scopes=ADMIN,
        parameters=QUEUE,
        body=Body(AskedPause),
        answers=QUEUE_THEN,
        refusals=TOKEN | PATH | BODY,
    ),
    ("POST", "/admin/queues/{owner}/{name}/{version}/drain"): Operation(
        name="admin.queues.drain",
        what="Pause a queue, and learn whether anything still runs",
        scopes=ADMIN,
        parameters=QUEUE,
        answers={200: Answer("How far it is.", Drained)},
        refusals=TOKEN | PATH,
    ),
    ("POST", "/admin/queues/{owner}/{name}/{version}/resize"): Operation(
        name="admin.queues.resize",
        what="Change the streams of each lane",
        scopes=ADMIN,
        parameters=QUEUE,
        body=Body(AskedSize),
        answers=QUEUE_THEN,
        refusals=TOKEN | PATH | BODY,
    ),
    ("POST", "/admin/queues/{owner}/{name}/{version}/bound"): Operation(
        name="admin.queues.bound",
        what="Say what becomes of more than a queue can run",
        scopes=ADMIN,
        parameters=QUEUE,
        body=Body(AskedBound),
        answers=QUEUE_THEN,
        refusals=TOKEN | PATH | BODY,
    ),
    ("POST", "/admin/queues/{owner}/{name}/{version}/migrate"): Operation(
        name="admin.queues.migrate",
        what="Move what waits to the queue of another version",
        scopes=ADMIN,
        parameters=QUEUE,
        body=Body(AskedMigration),
        answers={200: Answer("What was moved.", Migrated)},
        refusals=TOKEN | PATH | BODY,
    ),
    ("GET", "/admin/directors"): Operation(
        name="admin.directors.list",
        what="List directors, with their servers and what they hold",
        scopes=ADMIN,
        parameters=(CURSOR, Parameter("queue", "Only of this queue.")),
        answers={200: Answer("A page, by name.", Page[DirectorView])},
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/admin/owed"): Operation(
        name="admin.owed.get",
        what="Get the webhooks that are owed",
        scopes=ADMIN,
        parameters=(Parameter("host", "Only to this host.", Annotated[str, Meta(max_length=LONGEST_HOST)]),),
        answers={200: Answer("What is owed, those whose next attempt comes first.", OwedView)},
        refusals=TOKEN | {422},
    ),
    ("GET", "/admin/live"): Operation(
        name="admin.live",
        what="Watch queues and directors as server-sent events",
        scopes=ADMIN,
        parameters=(
            Parameter("snapshots", "End after so many; without, never.", Annotated[int, Meta(ge=1, le=MOST_SNAPSHOTS)]),
        ),
        answers={200: Answer("A snapshot each few seconds.", LiveEvent, "text/event-stream")},
        refusals=TOKEN | {422},
    ),
}
