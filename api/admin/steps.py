"""Let operators follow the logs of steps and changes from a cursor on, with a scope over all accounts. The server
keeps no cursor: a reader sends its cursors with each call.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.responses import Response

from api.web.errors import invalid_field
from api.web.http import Request, decode_body, json_response
from api.web.route import OVERSEES, Answer, Body, Route
from director.broker.keys import queue_partition
from director.core.ids import PARTITIONS
from director.store.logs import CHANGES, AuditLog, Batch, Cursor, News

MAX_BODY: Final = 128 * 1024  # a cursor takes about 40 bytes
LONGEST_NAME: Final = 200
Number = Annotated[int, Meta(ge=CHANGES, lt=PARTITIONS)]


class AskedSteps(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far each log was read, by its partition; -1 is the log of changes. A log that is missing begins at its oldest
    entry. Without `after` only the ends of the logs are answered. `first`: as the last answer said. `queue`: only the
    log of this queue and that of changes.
    """

    after: dict[Number, Cursor] | None = None
    first: Number = CHANGES
    queue: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""


class StepsView(News, frozen=True, kw_only=True):
    """A batch of each log that has news, with the cursor to send next. `more`: ask again at once. `queue`: the full
    name of the queue that was asked for.
    """

    queue: str = ""


@Route(
    "QUERY",
    "/admin/steps",
    site="asked",
    name="admin.steps.read",
    summary="Read the steps of all predictions, and the changes by operators",
    about=(
        "`director tail` and `director audit` read this. An answer has about 2,000 entries at most, and nothing is "
        "changed: send the cursors that it gave to go on."
    ),
    scopes=OVERSEES,
    body=Body(AskedSteps),
    answers={200: Answer("What came after the cursors.", StepsView)},
)
async def read_steps(request: Request) -> Response:
    asked, services = await decode_body(request, AskedSteps, max_bytes=MAX_BODY), request.services
    queue = await services.queues.find(asked.queue) if asked.queue else None
    if asked.queue and queue is None:
        raise invalid_field("enum", "queue", "There is no such queue")
    log = AuditLog(services.redis, [queue_partition(queue)] if queue else [])
    news = _of_ends(await log.ends()) if asked.after is None else await log.read_all(asked.after, first=asked.first)
    return json_response(StepsView(batches=news.batches, first=news.first, more=news.more, queue=queue or ""))


def _of_ends(ends: Mapping[int, Cursor]) -> News:
    return News(batches=[Batch(partition=partition, cursor=cursor) for partition, cursor in ends.items()])
