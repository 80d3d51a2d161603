"""Accept the files that callers give for inputs, show and delete them, and serve them at signed addresses. A file goes
to the store piece by piece, is visible only once it is whole, and only to its own account. Its content is untrusted, so
it is served only as a download.
"""

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import quote

import anyio
from anyio import to_thread
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace
from starlette.responses import Response

from api.files.multipart import Form, Part
from api.files.outputs import BYTES, PART, serve_file, store_of
from api.services.services import Services
from api.web import errors
from api.web.errors import InvalidField, Problem
from api.web.http import PAGE_SIZE, Request, answer_page, base_url, cursor_of, decode_json, json_response
from api.web.route import CURSOR, Answer, Body, Parameter, Route, deletes, reads, stores
from director.core.errors import BackendFull, BackendUnavailable
from director.core.ids import FileId, is_file_id, lowest_id_at, new_file_id
from director.core.schema import Page
from director.core.view import iso
from director.files.store import CallerFileName, FileStore, ending_of
from director.store.accounts import Account
from director.store.caller_files import GRACE_S, CallerFile

AHEAD_BYTES: Final = 8 << 20
log = logging.getLogger(__name__)
PATH: Final = "/files"
MAX_FILE_BYTES: Final = 100 << 20
LONGEST_S: Final = GRACE_S / 4  # the longest that an upload may take
# time for the store beyond LONGEST_S: a store that is cancelled before it sees the error may leave pieces behind
STORING_S: Final = 60.0
RETRY_S: Final = 5


class Shape(Struct, frozen=True):
    """The parts of a form: the name of the one with the file, the fields with the most bytes that are read of each, and
    the most bytes of the file.
    """

    content: str
    fields: Mapping[str, int]
    max_bytes: int


OURS: Final = Shape("content", {"filename": 255, "type": 255, "metadata": 1 << 10}, MAX_FILE_BYTES)
ANYTHING: Final = 64 << 10  # of a part with an unknown name
LONGEST_NAME: Final = 255
BLOCK: Final = 4096  # bytes of a disk that the smallest file takes
NAMELESS: Final = "file"
PLAIN_TYPE: Final = "application/octet-stream"
MEDIA_TYPE: Final = re.compile(
    r"[A-Za-z0-9][\w.+-]{0,63}/[A-Za-z0-9][\w.+-]{0,127}(; ?[\w-]{1,32}=[\w.+-]{1,64}){0,3}", re.A
)
SIGNED: Final = (
    Parameter("owner", "Whose file it is."),
    Parameter("expiry", "Until when the address is good, in seconds since 1970."),
    Parameter("signature", "What makes it good."),
)


class FileUpload(Struct, kw_only=True):
    """The parts of a form. `content` is the file; the others may stand before or after it."""

    content: Annotated[
        str, Meta(extra_json_schema={"format": "binary", "contentMediaType": "application/octet-stream"})
    ]
    filename: Annotated[str, Meta(description="At most 255 bytes.")] | UnsetType = UNSET
    type: Annotated[str, Meta(description="A media type; application/octet-stream without.")] | UnsetType = UNSET
    metadata: Annotated[str, Meta(description="A JSON object of at most 1 KiB.")] | UnsetType = UNSET


class FileUrls(Struct, frozen=True):
    """`get` is the address of the metadata, not of the bytes."""

    get: str


class File(Struct, frozen=True, kw_only=True):
    """A caller's file on the wire. Official clients fail without `name` and `etag`."""

    id: FileId
    name: str
    content_type: str
    size: int
    etag: str
    checksums: dict[str, str]
    metadata: Raw
    created_at: str
    expires_at: str
    urls: FileUrls


@stores(
    "POST",
    "/files",
    name="files.create",
    summary="Upload a file for inputs",
    about=(
        "Use the file's `urls.get` as the value of an input that takes a file. A file is at most 100 MiB, belongs "
        "to the account alone and is deleted after a day. A service without a file store answers 501."
    ),
    body=Body(FileUpload, "multipart/form-data"),
    answers={201: Answer("The file.", File, headers=("Location",))},
    refusals={501},
)
async def create_file(request: Request) -> Response:
    """Answer 501 where no files are stored: the JavaScript client then sends data URIs, but not after a 4xx."""
    base, life_ms = base_url(request), int(request.services.settings.files_ttl_s * 1000)
    view = _view(await store_upload(request, OURS, lambda upload: upload.record(life_ms=life_ms)), base)
    return json_response(view, 201, {"Location": view.urls.get})


@reads(
    "/files",
    name="files.list",
    summary="List the files of the account",
    about="A file that expired a moment ago may be missing from its page.",
    parameters=(CURSOR,),
    answers={200: Answer("A page, newest first.", Page[File])},
)
async def list_files(request: Request) -> Response:
    account, services, cursor, base = request.account, request.services, cursor_of(request), base_url(request)
    newest_first = cursor is None or not cursor.backwards
    bound = {} if cursor is None else {"high" if newest_first else "low": f"({cursor.at}"}
    found = await services.caller_files.ids(account.name, count=PAGE_SIZE + 1, newest_first=newest_first, **bound)
    ids = found[:PAGE_SIZE]
    known = await services.caller_files.find(account.name, ids)
    views = [_view(known[file_id], base) for file_id in ids if file_id in known]
    return answer_page(request, PATH, views, ids, has_more=len(found) > PAGE_SIZE)


@reads(
    "/files/{id}",
    name="files.get",
    summary="Get the description of a file",
    about=(
        "The answer has name, size and checksums. It does not have the bytes: a model server gets a signed address "
        "for them."
    ),
    answers={200: Answer("What is known of it.", File)},
    refusals={400},
)
async def get_file(request: Request) -> Response:
    return json_response(_view(await find_file(request, request.path_params["id"]), base_url(request)))


@deletes(
    "/files/{id}",
    name="files.delete",
    summary="Delete a file",
    about="The file is gone at once. A prediction that has fetched it already keeps its copy.",
)
async def delete_file(request: Request) -> Response:
    await remove_file(request.services, await find_file(request, request.path_params["id"]))
    return Response(status_code=204)


async def remove_file(services: Services, file: CallerFile) -> None:
    await services.caller_files.remove(file)
    await services.scripts.delist(file.id, account=file.account, is_file=True, counted=file.counts)
    await services.scripts.stow(file.account, file.id)
    if services.files is not None:
        await _discard(services.files, file.stored_as)


async def serve_content(request: Request, file: CallerFile) -> Response:
    """Answer with the bytes of a caller's file, as a download."""
    opened = None if request.services.files is None else await request.services.files.open(file.stored_as)
    if opened is None:
        raise errors.file_not_found()
    headers = {
        "Content-Type": file.content_type,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
    }
    return serve_file(request, opened, digest=file.md5, headers=headers)


@Route(
    "GET",
    "/files/{id}/download",
    name="files.download",
    summary="Download a file at a signed address",
    about=(
        "Model servers that were given this address fetch an input here. The signature is the permission, so no "
        "token is needed. Anything wrong with the address is a 404."
    ),
    parameters=(*SIGNED, *PART),
    answers=BYTES,
    refusals={416, 503},
    is_open=True,
)
@Route(
    "GET",
    "/files/{id}/download/{name}",
    name="files.download.named",
    summary="Download a file at a signed address with its name",
    about=(
        "The name at the end is for model servers that look at a file's ending. Otherwise this is the same as the "
        "address without it."
    ),
    parameters=(*SIGNED, *PART),
    answers=BYTES,
    refusals={416, 503},
    is_open=True,
)
async def download_file(request: Request) -> Response:
    services, query = request.services, request.query_params
    owner, expiry, signature = (query.get(name, "") for name in ("owner", "expiry", "signature"))
    file_id = _id_of(request.path_params["id"])
    if not await services.links.may_download(owner, file_id, expiry=expiry, signature=signature):
        raise errors.file_not_found()
    return await serve_content(request, await find_file(request, file_id, owner=owner))


async def store_upload(request: Request, shape: Shape, record: "Callable[[Upload], CallerFile]") -> CallerFile:
    """Store the file of a request's form, as `record` describes it once all of it is here. Deletes what was stored of a
    file that is refused.
    """
    account, services, store = request.account, request.services, store_of(request)
    services.gate.pass_through()
    form = Form(request, max_bytes=shape.max_bytes, longest_s=LONGEST_S)
    upload = Upload(services, store, form, account, shape)
    try:
        async with services.uploading.hold(account.name, received=lambda: form.received):
            file = await _store_file(services, upload, record)
    except TimeoutError as exc:
        raise errors.too_many_uploads(retry_after=RETRY_S) from exc
    log.info("file stored", extra={"file": file.id, "size": file.size})
    return file


async def _store_file(services: Services, upload: "Upload", record: "Callable[[Upload], CallerFile]") -> CallerFile:
    file = None
    try:
        with anyio.fail_after(LONGEST_S + STORING_S):
            await upload.take()
            file = record(upload).with_count()
            await upload.count(file)
            await services.caller_files.add(file)
    except BackendFull:  # the caller will try again
        await upload.discard(file)
        raise
    except BackendUnavailable:
        raise  # the record may have been written: the keeper finds out and cleans up
    except TimeoutError as exc:
        await upload.discard(file)
        raise errors.too_slow(seconds=LONGEST_S) from exc
    except BaseException:  # also if canceled: a part of a file must not stay
        await upload.discard(file)
        raise
    return file


class Upload:
    """Streams a file's content to the store with size and checksums, and collects the form's fields. Room in the
    account's quota is taken 8 MiB ahead, so that a large file needs few calls. What a process took before it died is
    free again within an hour.
    """

    def __init__(self, services: Services, store: FileStore, form: Form, account: Account, shape: Shape) -> None:
        self._services = services
        self._scripts = services.scripts
        self._most_data = account.limits.max_data_bytes
        self._most = account.limits.max_files_bytes
        self._until_ms = services.clock.now_ms() + int(GRACE_S * 1000)
        self._room = 0
        self._store = store
        self._form = form
        self._shape = shape
        self._created = services.clock.now_ms()
        self._name = CallerFileName(account.name, new_file_id(self._created), "bin")
        self._content: Part | None = None
        self.fields: dict[str, str] = {}
        self._faults: list[InvalidField] = []
        self._size = 0
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._error: Exception | None = None

    async def take(self) -> None:
        while (part := await self._form.next_part()) is not None:
            if part.name == self._shape.content and self._content is None:
                self._content = part
                await self._keep(part)
            else:
                await self._read(part)

    def record(self, *, life_ms: int, purpose: str = "") -> CallerFile:
        """Describe the file. Raises a 422 with all that `fault` noted."""
        if self._content is None:
            self.fault("required", "", f"{self._shape.content} is required")
        name = _plain(self.fields.get("filename") or (self._content and self._content.filename) or NAMELESS)
        if len(name.encode()) > LONGEST_NAME:
            self.fault("string_lte", "filename", f"String length must be less than or equal to {LONGEST_NAME}")
        metadata = self.fields.get("metadata", "").strip() or "{}"
        if not _is_object(metadata.encode()):
            self.fault("invalid_type", "metadata", "Must be a JSON object")
        if self._faults:
            raise errors.invalid_input(self._faults)
        kind = self.fields.get("type") or (self._content and self._content.content_type) or ""
        return CallerFile(
            id=self._name.id,
            account=self._name.account,
            name=name,
            ending=self._name.ending,
            content_type=kind if MEDIA_TYPE.fullmatch(kind) else PLAIN_TYPE,
            size=self._size,
            sha256=self._sha256.hexdigest(),
            md5=self._md5.hexdigest(),
            metadata=Raw(metadata.encode()),
            created=self._created,
            expires=self._created + life_ms,
            purpose=purpose,
        )

    async def count(self, file: CallerFile) -> None:
        """Count the file in the store and its record in Redis. Raises DataRefused."""
        counts = file.counts
        limit = self._services.memory.limit(self._most_data, counts.bytes)
        said = await self._scripts.enlist(
            file.id,
            account=file.account,
            oldest=lowest_id_at(0),  # expired ones are taken off once the file is recorded
            life_ms=file.expires - file.created,
            counts=counts,
            most=limit.most,
        )
        if isinstance(said, list):
            self._services.memory.uncount(counts.bytes)
            raise limit.refusal(said)
        self._room = max(file.size, BLOCK)
        stowed = await self._scripts.stow(file.account, file.id, self._room, most=self._most, until_ms=file.expires)
        if not stowed.fits:
            raise errors.no_room_for_file(limit=self._most or 0)

    async def discard(self, file: CallerFile | None) -> None:
        """Delete what was stored. `file`: as it may have been listed and recorded: a call that failed or was canceled
        may have been carried out.
        """
        if self._content is not None:
            with anyio.CancelScope(shield=True):
                if file is not None:
                    with suppress(BackendUnavailable):
                        await self._services.caller_files.remove(file)
                await _discard(self._store, self._name)
                with suppress(BackendUnavailable):  # the room is free within an hour anyway
                    if self._room:
                        await self._scripts.stow(self._name.account, self._name.id)
                    if file is not None:  # nothing is taken off for a file that is not on the list
                        await self._scripts.delist(file.id, account=file.account, is_file=True, counted=file.counts)

    async def _keep(self, part: Part) -> None:
        self._name = replace(self._name, ending=ending_of(self.fields.get("filename") or part.filename or ""))
        try:
            await self._store.put(self._name, self._blocks(), content_type=PLAIN_TYPE)
        except Exception as exc:  # a store is third-party code: whatever it raises, the file was not stored
            if self._error is not None:
                raise self._error from None
            log.exception("a file could not be stored", extra={"file": self._name.id})
            raise errors.file_not_stored(retry_after=RETRY_S) from exc

    async def _blocks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for block in self._form.blocks():
                self._size += len(block)
                await self._take_room()
                await to_thread.run_sync(self._sum, block)
                yield block
        except Exception as exc:
            self._error = exc  # the store may turn it into another exception
            raise

    async def _take_room(self) -> None:
        if self._most is None or self._size <= self._room:
            return
        for size in (self._size + AHEAD_BYTES, self._size):
            name, most, until_ms = self._name, self._most, self._until_ms
            if (await self._scripts.stow(name.account, name.id, size, most=most, until_ms=until_ms)).fits:
                self._room = size
                return
        raise errors.no_room_for_file(limit=self._most)

    def _sum(self, block: bytes) -> None:
        self._sha256.update(block)
        self._md5.update(block)

    async def _read(self, part: Part) -> None:
        known, content = self._shape.fields, self._shape.content
        most = known.get(part.name, ANYTHING)
        value = await self._form.whole(most=most)
        if part.name == content:
            self.fault("additional_property_not_allowed", "", f"{content} is given twice")
        elif part.name in known and value is None:
            self.fault("string_lte", part.name, f"String length must be less than or equal to {most}")
        elif part.name in known and value is not None:
            self.fields[part.name] = value.decode(errors="replace")

    def fault(self, kind: str, field: str, description: str) -> None:
        self._faults.append(InvalidField(kind, field, description))


async def find_file(request: Request, text: str, *, owner: str | None = None) -> CallerFile:
    """Return a file of the account, or of `owner`. Raises a 404."""
    file = await request.services.caller_files.get(owner or request.account.name, _id_of(text))
    if file is None:
        raise errors.file_not_found()
    return file


def _id_of(text: str) -> FileId:
    if not is_file_id(text):
        raise errors.file_not_found()
    return FileId(text)


async def _discard(store: FileStore, name: CallerFileName) -> None:
    try:
        await store.discard(name)
    except Exception:  # a store is third-party code, and the keeper deletes files without a record
        log.warning("a file is left to the keeper", extra={"file": name.id}, exc_info=True)


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(decode_json(text, object), dict)
    except Problem:
        return False


def _plain(name: str) -> str:
    """Return the last part of a path, with slashes or backslashes, with nothing that breaks a line."""
    return errors.make_printable(re.split(r"[/\\]", name)[-1], limit=len(name)) or NAMELESS


def _view(file: CallerFile, base: str) -> File:
    return File(
        id=file.id,
        name=file.name,
        content_type=file.content_type,
        size=file.size,
        etag=file.md5,
        checksums={"sha256": file.sha256, "md5": file.md5},
        metadata=file.metadata,
        created_at=iso(file.created),
        expires_at=iso(file.expires),
        urls=FileUrls(f"{base}/v1{PATH}/{file.id}"),
    )
