"""Serve files as OpenAI's API has them: the inputs of batches, and what batches wrote. They are those of `/v1/files`,
with another shape and life.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from api.files.files import Shape, Upload, find_file, remove_file, serve_content, store_upload
from api.files.outputs import BYTES, PART
from api.web.errors import invalid_field
from api.web.http import Request, json_response, number_of
from api.web.route import Answer, Body, Parameter, changes, one_of, reads, stores
from director.core.ids import FileId
from director.store.caller_files import CallerFile

PREFIX: Final = "file-"
BATCH: Final = "batch"
OTHER_PURPOSE: Final = "user_data"  # the purpose of what came to /v1/files
MAX_FILE_BYTES: Final = 200 << 20
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
SHAPE: Final = Shape("file", {"purpose": 64, ANCHOR: 64, SECONDS: 20}, MAX_FILE_BYTES)
CREATED_AT: Final = "created_at"  # the one anchor of OpenAI's API
LIFE_S: Final = range(3600, 30 * 86400 + 1)
PAGE: Final = 1_000
MOST_IN_PAGE: Final = 10_000
AT_ONCE: Final = 1_000
MOST_STEPS: Final = 20  # of AT_ONCE files that one request looks through for a purpose


class OpenAiUpload(Struct, kw_only=True):
    """The parts of a form."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary", "contentMediaType": "application/octet-stream"})]
    purpose: Annotated[str, one_of(BATCH)]


class OpenAiFile(Struct, frozen=True, kw_only=True):
    """A file as OpenAI's API shows it. Times are in seconds since 1970."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class OpenAiFiles(Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[OpenAiFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Struct, frozen=True, kw_only=True):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


FOUND: Final = {200: Answer("The file.", OpenAiFile)}
AFTER: Final = Parameter("after", "The `last_id` of the page before.")
ORDER: Final = Parameter("order", "`desc`, the default, has the newest first.", one_of("asc", "desc"))


@stores(
    "POST",
    "/openai/v1/files",
    name="openai.files.create",
    summary="Upload the input of a batch",
    about=(
        "The form has the parts `file` and `purpose`, which is `batch`. A file has at most "
        f"{MAX_FILE_BYTES >> 20} MiB, belongs to the account alone, and is deleted after "
        "`DIRECTOR_BATCH_TTL_S`, or as `expires_after` says. A service without a file store answers 501."
    ),
    body=Body(OpenAiUpload, "multipart/form-data"),
    answers=FOUND,
    refusals={501},
)
async def create_file(request: Request) -> Response:
    life_s = request.services.settings.batch_ttl_s

    def describe(upload: Upload) -> CallerFile:
        if upload.fields.get("purpose") != BATCH:
            upload.fault("enum", "purpose", f"must be {BATCH}")
        if upload.fields.get(ANCHOR, CREATED_AT) != CREATED_AT:
            upload.fault("enum", ANCHOR, f"must be {CREATED_AT}")
        seconds = upload.fields.get(SECONDS, "")
        if seconds and not (seconds.isascii() and seconds.isdecimal() and int(seconds) in LIFE_S):
            upload.fault("number", SECONDS, f"must be a whole number from {LIFE_S[0]} to {LIFE_S[-1]}")
            seconds = ""
        return upload.record(life_ms=int((int(seconds) if seconds else life_s) * 1000), purpose=BATCH)

    return json_response(show_file(await store_upload(request, SHAPE, describe)))


@reads(
    "/openai/v1/files",
    name="openai.files.list",
    summary="List the files of OpenAI's API",
    about="The list has all files of the account, also those that came to `/v1/files`: their purpose is `user_data`. "
    "One request looks through 20,000 files for a purpose, so a page of a rare one may be short.",
    parameters=(
        Parameter("purpose", "Only files with it."),
        Parameter("limit", "The most to return; 1,000 without it.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
        AFTER,
        ORDER,
    ),
    answers={200: Answer("A page.", OpenAiFiles)},
    refusals={422},
)
async def list_files(request: Request) -> Response:
    query, account, files = request.query_params, request.account.name, request.services.caller_files
    limit = number_of(request, "limit", default=PAGE, least=1, most=MOST_IN_PAGE)
    newest_first, purpose = query.get("order") != "asc", query.get("purpose", "")
    at, found, has_more = query.get("after", "").removeprefix(PREFIX), list[CallerFile](), True
    steps = 0
    while has_more and len(found) <= limit and steps < MOST_STEPS:
        steps += 1
        bound = {} if not at else {"high" if newest_first else "low": f"({at}"}
        ids = await files.ids(account, count=AT_ONCE, newest_first=newest_first, **bound)
        known = await files.find(account, ids)
        found += [file for each in ids if (file := known.get(each)) and purpose in ("", file.purpose or OTHER_PURPOSE)]
        has_more = len(ids) == AT_ONCE
        at = ids[-1] if ids else at
    if has_more and not found:
        raise invalid_field("other", "purpose", f"None of {MOST_STEPS * AT_ONCE:,} files has it: list without it")
    shown = list(map(show_file, found[:limit]))
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    page = OpenAiFiles(data=shown, first_id=first, last_id=last, has_more=has_more or len(found) > limit)
    return json_response(page)


@reads(
    "/openai/v1/files/{id}",
    name="openai.files.get",
    summary="Get a file of OpenAI's API",
    about="The answer has name, size and purpose. `/content` has the bytes.",
    answers=FOUND,
)
async def get_file(request: Request) -> Response:
    return json_response(show_file(await _find(request)))


@reads(
    "/openai/v1/files/{id}/content",
    name="openai.files.content",
    summary="Download a file of OpenAI's API",
    about="The bytes of an input, or of what a batch wrote. A `Range` is taken.",
    parameters=PART,
    answers=BYTES,
    refusals={416},
)
async def get_content(request: Request) -> Response:
    return await serve_content(request, await _find(request))


@changes(
    "DELETE",
    "/openai/v1/files/{id}",
    name="openai.files.delete",
    summary="Delete a file of OpenAI's API",
    about="The file is gone at once. A batch that still reads it ends as `failed`, with the lines that it ran.",
    answers={200: Answer("It is gone.", DeletedFile)},
    frees=True,
)
async def delete_file(request: Request) -> Response:
    file = await _find(request)
    await remove_file(request.services, file)
    return json_response(DeletedFile(id=PREFIX + file.id))


async def _find(request: Request) -> CallerFile:
    return await find_openai_file(request, request.path_params["id"])


async def find_openai_file(request: Request, text: str) -> CallerFile:
    """Return a file of the account by its id, with or without the prefix. Raises a 404."""
    return await find_file(request, text.removeprefix(PREFIX))


def file_id_of(file_id: FileId | str) -> str | None:
    return PREFIX + file_id if file_id else None


def show_file(file: CallerFile) -> OpenAiFile:
    return OpenAiFile(
        id=PREFIX + file.id,
        bytes=file.size,
        created_at=file.created // 1000,
        expires_at=file.expires // 1000,
        filename=file.name,
        purpose=file.purpose or OTHER_PURPOSE,
    )
