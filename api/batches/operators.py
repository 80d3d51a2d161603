"""Let operators see the batches of all accounts, download what they wrote, and cancel them, with the scope `operate`.
With `view` one may only look.
"""

import re
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import asdict
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.batches.batches import BATCH, BatchView, show_batch
from api.files.files import find_file, serve_content
from api.files.outputs import BYTES, PART
from api.web.errors import file_not_found, invalid_field, not_found
from api.web.http import PAGE_SIZE, Cursor, Request, cursor_of, json_response, page_response
from api.web.route import CURSOR, Answer, Parameter, operates, oversees
from director.core.ids import FileId, is_file_id
from director.core.schema import Page
from director.store.accounts import ACCOUNT_NAME
from director.store.batches import Batch, Batches, Kind

PATH: Final = "/admin/batches"


class BatchOfAccount(BatchView, frozen=True, kw_only=True):
    """A batch with its account."""

    account: str


SHOWN: Final = {200: Answer("The batch.", BatchOfAccount)}


@oversees(
    PATH,
    name="admin.batches.list",
    summary="List batches of all accounts",
    about="Each has the account that it belongs to. Batches are kept for `DIRECTOR_BATCH_TTL_S`.",
    site="home",
    parameters=(CURSOR, Parameter("account", "Only of this account.", Annotated[str, Meta(pattern=ACCOUNT_NAME)])),
    answers={200: Answer("A page, newest first.", Page[BatchOfAccount])},
    refusals={422},
)
async def list_all(request: Request) -> Response:
    account, cursor = request.query_params.get("account", ""), cursor_of(request, is_place=is_file_id)
    if account and not re.fullmatch(ACCOUNT_NAME, account):
        raise invalid_field("format", "account", "Is not the name of an account")
    batches, after = _batches(request), None if cursor is None else FileId(cursor.at)
    if account:
        pairs = [(account, each) for each in await batches.newest(account, after=after, count=PAGE_SIZE + 1)]
    else:
        pairs = await batches.newest_of_all(after=after, count=PAGE_SIZE + 1)
    shown = pairs[:PAGE_SIZE]
    found = await batches.of_any(shown, whole=False)
    older = Cursor(shown[-1][1]) if len(pairs) > PAGE_SIZE else None
    views = [_show(request, each) for each in found if each is not None]
    return page_response(request, PATH, views, older=older, kept={"account": account} if account else None)


@oversees(
    f"{PATH}/{{id}}",
    name="admin.batches.get",
    summary="Get a batch of any account",
    about="The counts are those of the lines that are written: they grow with each part, within five minutes.",
    site="home",
    answers=SHOWN,
)
async def get_one(request: Request) -> Response:
    return json_response(_show(request, await _find(request)))


@operates(
    f"{PATH}/{{id}}/cancel",
    name="admin.batches.cancel",
    summary="Cancel a batch of any account",
    about="As its account would. What has ended is in its files. A batch that has ended stays as it is.",
    site="home",
    answers=SHOWN,
)
async def cancel_one(request: Request) -> Response:
    batch, services, by = await _find(request), request.services, name_operator(request.account)
    async with services.changes.noting("batch_canceled", by=by, account=batch.account, batch=batch.id) as note:
        word = await _batches(request).cancel(batch, now_ms=services.clock.now_ms())
        if word != "written":
            note.void()
    return json_response(_show(request, await _find(request)))


def _serve(name: str, kind: Kind, what: str) -> None:
    @oversees(
        f"{PATH}/{{id}}/{name}",
        name=f"admin.batches.{name}",
        summary=f"Download the {what} of a batch of any account",
        about="One JSON object a line. Before the end of the batch, and where there are no such lines, it is a 404.",
        site="home",
        parameters=PART,
        answers=BYTES,
        refusals={416},
    )
    async def download(request: Request) -> Response:
        batch = await _find(request)
        file_id = batch.output if kind == "output" else batch.error
        if not file_id:
            raise file_not_found()
        return await serve_content(request, await find_file(request, file_id, owner=batch.account))


_serve("output", "output", "lines that succeeded")
_serve("errors", "error", "lines that did not succeed")


async def _find(request: Request) -> Batch:
    batch_id = request.path_params["id"].removeprefix(BATCH)
    if is_file_id(batch_id):
        found = await _batches(request).find(FileId(batch_id))
        if found is not None:
            return found
    raise not_found()


def _batches(request: Request) -> Batches:
    return Batches(request.services.redis, request.services.scripts)


def _show(request: Request, batch: Batch) -> BatchOfAccount:
    return BatchOfAccount(account=batch.account, **asdict(show_batch(batch, request.services.clock.now_ms())))
