"""Run operators' commands for `director` at another machine, so that it needs a token and not Redis's address."""

from typing import Annotated, Final

from msgspec import Meta, Struct, field
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.sites.sites import others
from api.web.errors import forbidden
from api.web.http import Request, decode_body, json_response
from api.web.route import OVERSEES, Answer, Body, Route
from director.cli.dispatch import run_line

MAX_BODY: Final = 1 << 20
MOST_WORDS: Final = 2_000


class CommandOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of `director`, without its first word. `width`: columns of the terminal, null for none. `input`: the
    first line of its standard input. `json`: print JSON.
    """

    line: Annotated[list[str], Meta(min_length=1, max_length=MOST_WORDS)]
    is_json: bool = field(default=False, name="json")
    width: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    input: Annotated[str, Meta(max_length=1_000)] = ""


class CommandOutput(Struct, frozen=True, kw_only=True):
    """The output of a command and its exit code. `error`: why it did nothing."""

    code: int
    out: str
    error: str


@Route(
    "POST",
    "/admin/commands",
    name="admin.commands.run",
    summary="Run a command of `director`",
    about=(
        "Those that read or change Redis: on queues, directors, dead letters, models, accounts and tokens. "
        "`director` calls this wherever it knows the API. Each command needs the scope of what it does: a "
        "viewer may list queues, and pause none. Files and other servers are never read."
    ),
    scopes=OVERSEES,
    body=Body(CommandOrder),
    answers={200: Answer("What it printed.", CommandOutput)},
)
async def run_command(request: Request) -> Response:
    asked = await decode_body(request, CommandOrder, max_bytes=MAX_BODY)
    services, account = request.services, request.account
    ran = await run_line(
        *(services, services.settings, account, asked.line),
        by=name_operator(account),
        width=asked.width,
        stdin=asked.input,
        is_json=asked.is_json,
        others={site.name: site.services for site in others(request)},
    )
    if ran.needs:
        raise forbidden(f"This token does not have the scope {ran.needs!r}.")
    return json_response(
        CommandOutput(code=ran.code, out=ran.out, error=ran.error), headers={"Cache-Control": "no-store"}
    )
