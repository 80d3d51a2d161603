"""Files, the account, and this document."""

from typing import Annotated, Any, Final

from msgspec import Meta

from api.accounts import OwnAccountView, WebhookSecret
from api.files.files import File
from api.openapi.bodies import FileUpload
from api.openapi.operation import (
    BODY,
    HOST,
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
from api.openapi.parameters import CURSOR, FILE_ID
from director.core.schema import Page

Bytes = Annotated[str, Meta(extra_json_schema={"format": "binary"})]
ANY_TYPE: Final = "*/*"
PARTS: Final = ("Accept-Ranges", "ETag")
BYTES: Final = {
    200: Answer("The bytes.", Bytes, ANY_TYPE, headers=PARTS),
    206: Answer("The part that was asked for.", Bytes, ANY_TYPE, headers=(*PARTS, "Content-Range")),
}
PART: Final = (
    Parameter("Range", "The part that is wanted, such as `bytes=0-999`.", place="header"),
    Parameter("If-Range", "The `ETag` of what is there already: of anything else, all of it.", place="header"),
)
SIGNED: Final = (
    Parameter("owner", "Whose file it is."),
    Parameter("expiry", "Until when the address is good, in seconds since 1970."),
    Parameter("signature", "What makes it good."),
)

FILES: Final[Operations] = {
    ("POST", "/files"): Operation(
        name="files.create",
        what="Give a file for inputs",
        scopes=("run",),
        body=Body(FileUpload, "multipart/form-data"),
        answers={201: Answer("The file.", File, headers=("Location",))},
        refusals=TOKEN | BODY | {501},
    ),
    ("GET", "/files"): Operation(
        name="files.list",
        what="List the files of the account",
        scopes=("read",),
        parameters=(CURSOR,),
        answers={200: Answer("A page, newest first.", Page[File])},
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/files/{id}"): Operation(
        name="files.get",
        what="Tell of a file",
        scopes=("read",),
        parameters=FILE_ID,
        answers={200: Answer("What is known of it.", File)},
        refusals=TOKEN | HOST | PATH,
    ),
    ("DELETE", "/files/{id}"): Operation(
        name="files.delete",
        what="Delete a file",
        scopes=("run",),
        parameters=FILE_ID,
        answers={204: NO_BODY},
        refusals=TOKEN | PATH,
    ),
    ("GET", "/files/{id}/download"): Operation(
        name="files.download",
        what="Fetch the bytes of a file at a signed address",
        parameters=(*FILE_ID, *SIGNED, *PART),
        answers=BYTES,
        refusals=OPEN | PATH | {416, 503},
    ),
    ("GET", "/files/{id}/download/{name}"): Operation(
        name="files.download.named",
        what="Fetch the bytes of a file at a signed address that ends in its name",
        parameters=(
            *FILE_ID,
            Parameter("name", "Any: it is for who looks at its ending.", str, "path"),
            *SIGNED,
            *PART,
        ),
        answers=BYTES,
        refusals=OPEN | PATH | {416, 503},
    ),
    ("GET", "/outputs/{name}"): Operation(
        name="outputs.get",
        what="Fetch a file of an output at its signed address",
        parameters=(
            Parameter("name", "The file.", str, "path"),
            Parameter("expires", "Until when the address is good, in seconds since 1970."),
            Parameter("signature", "What makes it good."),
            *PART,
        ),
        answers=BYTES,
        refusals=OPEN | PATH | {403, 416, 503},
    ),
}

ACCOUNTS_OWN: Final[Operations] = {
    ("GET", "/account"): Operation(
        name="account.get",
        what="Tell who the caller is",
        scopes=("read",),
        answers={200: Answer("The account.", OwnAccountView)},
        refusals=TOKEN,
    ),
    ("GET", "/webhooks/default/secret"): Operation(
        name="webhooks.default.secret.get",
        what="Get what the account's webhooks are signed with",
        scopes=("run",),
        answers={200: Answer("The secret.", WebhookSecret)},
        refusals=TOKEN | PATH,
    ),
    ("GET", "/openapi.json"): Operation(
        name="openapi.get",
        what="Get this document",
        parameters=(Parameter("If-None-Match", "The `ETag` of the document that is there already.", place="header"),),
        answers={
            200: Answer("The document.", dict[str, Any], headers=("ETag",)),
            304: Answer("It is still the same.", headers=("ETag",)),
        },
        refusals=OPEN | HOST,
    ),
}
