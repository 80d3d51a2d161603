"""What operators do: dead letters, accounts and tokens of all, how models are run.

For tokens with the scope `admin` alone.
"""

from typing import Annotated, Final

from msgspec import Meta

from api.admin.accounts import (
    AccountChange,
    AccountDetail,
    AskedSuspension,
    AskedToken,
    MadeToken,
    NewAccount,
    SuspendedAccount,
    TokenView,
)
from api.admin.changes import MOST_IN_PAGE, ChangesView, Order
from api.admin.dead import ManyLetters, WholeLetter
from api.admin.models import ConfigView
from api.openapi.operation import BODY, NO_BODY, PAGED, PATH, TOKEN, Answer, Body, Operation, Operations, Parameter
from api.openapi.parameters import ACCOUNT, CURSOR, MODEL, PREDICTION_ID, TOKEN_ID
from api.openapi.queues import QUEUES
from director.core.model_config import ModelConfig
from director.core.schema import Page
from director.store.dead import DeadLetter, Done

ADMIN: Final = ("admin",)
DONE: Final = {200: Answer("What was done.", Done)}
DETAIL: Final = {200: Answer("The account as it is then.", AccountDetail)}

DEAD_LETTERS: Final[Operations] = {
    ("GET", "/admin/dead"): Operation(
        name="admin.dead.list",
        what="List dead letters of all accounts",
        scopes=ADMIN,
        parameters=(CURSOR, Parameter("queue", "Only of this queue.")),
        answers={200: Answer("A page, newest first.", Page[DeadLetter])},
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/admin/dead/{id}"): Operation(
        name="admin.dead.get",
        what="Get a dead letter, with its input",
        scopes=ADMIN,
        parameters=PREDICTION_ID,
        answers={200: Answer("The letter.", WholeLetter)},
        refusals=TOKEN | PATH,
    ),
    ("POST", "/admin/dead/revive"): Operation(
        name="admin.dead.revive_many",
        what="Return dead letters to their queues",
        scopes=ADMIN,
        body=Body(ManyLetters),
        answers=DONE,
        refusals=TOKEN | BODY,
    ),
    ("POST", "/admin/dead/drop"): Operation(
        name="admin.dead.drop_many",
        what="Give dead letters up",
        scopes=ADMIN,
        body=Body(ManyLetters),
        answers=DONE,
        refusals=TOKEN | BODY,
    ),
    ("POST", "/admin/dead/{id}/revive"): Operation(
        name="admin.dead.revive",
        what="Return a dead letter to its queue",
        scopes=ADMIN,
        parameters=PREDICTION_ID,
        answers=DONE,
        refusals=TOKEN | PATH,
    ),
    ("POST", "/admin/dead/{id}/drop"): Operation(
        name="admin.dead.drop",
        what="Give a dead letter up",
        scopes=ADMIN,
        parameters=PREDICTION_ID,
        answers=DONE,
        refusals=TOKEN | PATH,
    ),
}

ACCOUNTS: Final[Operations] = {
    ("GET", "/admin/accounts"): Operation(
        name="admin.accounts.list",
        what="List accounts",
        scopes=ADMIN,
        parameters=(CURSOR,),
        answers={200: Answer("A page, by name.", Page[AccountDetail])},
        refusals=TOKEN | PAGED,
    ),
    ("POST", "/admin/accounts"): Operation(
        name="admin.accounts.create",
        what="Make an account",
        scopes=ADMIN,
        body=Body(NewAccount),
        answers={201: Answer("The account.", AccountDetail)},
        refusals=TOKEN | BODY | {409},
    ),
    ("GET", "/admin/accounts/{name}"): Operation(
        name="admin.accounts.get",
        what="Get an account, its limits and what became of them lately",
        scopes=ADMIN,
        parameters=ACCOUNT,
        answers={200: Answer("The account.", AccountDetail)},
        refusals=TOKEN | PATH,
    ),
    ("PATCH", "/admin/accounts/{name}"): Operation(
        name="admin.accounts.update",
        what="Change an account's type, its limits, or both",
        scopes=ADMIN,
        parameters=ACCOUNT,
        body=Body(AccountChange),
        answers=DETAIL,
        refusals=TOKEN | BODY | PATH,
    ),
    ("POST", "/admin/accounts/{name}/suspend"): Operation(
        name="admin.accounts.suspend",
        what="Let nothing of an account start any more",
        scopes=ADMIN,
        parameters=ACCOUNT,
        body=Body(AskedSuspension),
        answers={200: Answer("The account, and what became of its predictions.", SuspendedAccount)},
        refusals=TOKEN | BODY | PATH,
    ),
    ("POST", "/admin/accounts/{name}/resume"): Operation(
        name="admin.accounts.resume",
        what="Let what is held of an account run",
        scopes=ADMIN,
        parameters=ACCOUNT,
        answers=DETAIL,
        refusals=TOKEN | PATH,
    ),
    ("GET", "/admin/accounts/{name}/tokens"): Operation(
        name="admin.accounts.tokens.list",
        what="List the tokens of an account, without their secrets",
        scopes=ADMIN,
        parameters=ACCOUNT,
        answers={200: Answer("All of them, oldest first.", Page[TokenView])},
        refusals=TOKEN | PATH,
    ),
    ("POST", "/admin/accounts/{name}/tokens"): Operation(
        name="admin.accounts.tokens.create",
        what="Make a token",
        scopes=ADMIN,
        parameters=ACCOUNT,
        body=Body(AskedToken),
        answers={201: Answer("The token, this once with its secret.", MadeToken)},
        refusals=TOKEN | BODY | PATH,
    ),
    ("DELETE", "/admin/accounts/{name}/tokens/{id}"): Operation(
        name="admin.accounts.tokens.revoke",
        what="Revoke a token",
        scopes=ADMIN,
        parameters=TOKEN_ID,
        answers={204: NO_BODY},
        refusals=TOKEN | PATH,
    ),
}

IF_MATCH: Final = Parameter(
    "If-Match", "The revision that was read, in quotes: refused if it is another.", str, "header"
)
CONFIG: Final = {200: Answer("What is written down, as it is then.", ConfigView, headers=("ETag",))}

MODELS: Final[Operations] = {
    ("GET", "/admin/models/{owner}/{name}/config"): Operation(
        name="admin.models.config.get",
        what="Get how a model is run, as far as that is written down",
        scopes=ADMIN,
        parameters=MODEL,
        answers=CONFIG,
        refusals=TOKEN | PATH | {501},
    ),
    ("PUT", "/admin/models/{owner}/{name}/config"): Operation(
        name="admin.models.config.put",
        what="Write down how a model is run, in force in its directors within seconds",
        scopes=ADMIN,
        parameters=(*MODEL, IF_MATCH),
        body=Body(ModelConfig),
        answers=CONFIG,
        refusals=TOKEN | BODY | PATH | {412},
    ),
    ("DELETE", "/admin/models/{owner}/{name}/config"): Operation(
        name="admin.models.config.delete",
        what="Take that back: directors go by their own settings again",
        scopes=ADMIN,
        parameters=(*MODEL, IF_MATCH),
        answers={204: NO_BODY},
        refusals=TOKEN | PATH | {412, 422},
    ),
}

AUDIT: Final[Operations] = {
    ("GET", "/admin/audit"): Operation(
        name="admin.audit.list",
        what="List what operators changed: who, when and what",
        scopes=ADMIN,
        parameters=(
            Parameter(
                "after", "The `next` of the page before.", Annotated[str, Meta(pattern="^[0-9]{1,15}-[0-9]{1,15}$")]
            ),
            Parameter("order", "`asc`, the oldest first, or `desc`.", Order),
            Parameter("limit", "At most so many; 100 without.", Annotated[int, Meta(ge=1, le=MOST_IN_PAGE)]),
        ),
        answers={200: Answer("A page.", ChangesView)},
        refusals=TOKEN | {422},
    ),
}

OPERATORS: Final[Operations] = {**DEAD_LETTERS, **ACCOUNTS, **MODELS, **AUDIT, **QUEUES}
