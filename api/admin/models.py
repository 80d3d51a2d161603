"""Let operators read a model's configuration, and with the scope `admin` replace and remove it, and set aliases.
Directors read a configuration every few seconds. What they could not follow is refused.
"""

import re
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.responses import Response

from api.accounts.auth import name_operator
from api.predictions.bodies import parse_model
from api.web.errors import config_changed, invalid_field, invalid_header, newer_release, not_found
from api.web.http import Request, decode_body, json_response
from api.web.route import NO_BODY, Answer, Body, Parameter, administers, oversees
from director.core.errors import SettingsError
from director.core.model_config import ModelConfig, StoredConfig
from director.core.view import iso
from director.store.aliases import ALIAS, TARGET
from director.store.models import ConfigChanged

MAX_BODY: Final = 128 * 1024
REVISION: Final = re.compile(r'"([0-9]{1,15})"')


class ConfigView(Struct, frozen=True, kw_only=True):
    """The stored configuration of a model: revision 0 where nothing ever was. `config` has only what it says."""

    revision: int
    config: ModelConfig
    changed_at: str | None
    changed_by: str | None

    @classmethod
    def of(cls, stored: StoredConfig) -> "ConfigView":
        return cls(
            revision=stored.revision,
            config=stored.config,
            changed_at=None if stored.changed_ms is None else iso(stored.changed_ms),
            changed_by=stored.changed_by or None,
        )


IF_MATCH: Final = Parameter(
    "If-Match", "The revision that was read, in quotes: refused if it is another.", str, "header"
)
CONFIG: Final = {200: Answer("What is written down, as it is then.", ConfigView, headers=("ETag",))}


@oversees(
    "/admin/models/{owner}/{name}/config",
    name="admin.models.config.get",
    summary="Get the configuration of a model",
    about="A field that is missing keeps the setting of the director. The `ETag` is the revision.",
    answers=CONFIG,
    refusals={501},
)
async def get_config(request: Request) -> Response:
    return await _answer(request, _read_name(request))


@administers(
    "PUT",
    "/admin/models/{owner}/{name}/config",
    name="admin.models.config.put",
    summary="Replace the configuration of a model",
    about=(
        "The body replaces the whole configuration, and directors follow it within seconds. Send the revision that "
        "you read as `If-Match`, and a change in between is refused with 412 `config_changed`."
    ),
    parameters=(IF_MATCH,),
    body=Body(ModelConfig),
    answers=CONFIG,
    refusals={412},
)
async def change_config(request: Request) -> Response:
    model, was = _read_name(request), _was(request)
    config = await decode_body(request, ModelConfig, max_bytes=MAX_BODY)
    await _write(request, model, config, by=name_operator(request.account), was=was)
    return await _answer(request, model)


@administers(
    "DELETE",
    "/admin/models/{owner}/{name}/config",
    name="admin.models.config.delete",
    summary="Remove the configuration of a model",
    about="Directors use their own settings again within seconds.",
    parameters=(IF_MATCH,),
    answers={204: NO_BODY},
    refusals={412, 422},
)
async def remove_config(request: Request) -> Response:
    model, was = _read_name(request), _was(request)
    await _write(request, model, ModelConfig(), by=name_operator(request.account), was=was)
    return Response(status_code=204)


class AliasChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An alias, and the model that it stands for from now on: owner/name, or owner/name:version. Null removes it."""

    alias: Annotated[str, Meta(pattern=ALIAS)]
    model: Annotated[str, Meta(pattern=TARGET)] | None


class AliasesView(Struct, frozen=True):
    """All aliases, with what each stands for."""

    aliases: dict[str, str]


ALIASES: Final = {200: Answer("All aliases, as they are then.", AliasesView)}


# of the home, whichever site the request names: accounts are there too
@oversees(
    "/admin/aliases",
    site="home",
    name="admin.aliases.list",
    summary="List the aliases of models",
    about="An alias is another name of a model in OpenAI's API, such as `gpt-4o` for `acme/llm`.",
    answers=ALIASES,
)
async def list_aliases(request: Request) -> Response:
    return json_response(AliasesView(await request.services.aliases.all()))


@administers(
    "PATCH",
    "/admin/aliases",
    site="home",
    name="admin.aliases.update",
    summary="Set or remove an alias of a model",
    about=(
        "The body has one alias and its model, or null to remove it. Every process follows within a second. The model "
        "need not exist: calls are refused until it does."
    ),
    body=Body(AliasChange),
    answers=ALIASES,
    refusals={404},
)
async def change_alias(request: Request) -> Response:
    change = await decode_body(request, AliasChange, max_bytes=MAX_BODY)
    aliases, by = request.services.aliases, name_operator(request.account)
    if change.model is None:
        if not await aliases.remove(change.alias, by=by):
            raise not_found()
    else:
        try:
            await aliases.put(change.alias, change.model, by=by)
        except SettingsError as exc:
            raise invalid_field("invalid", "alias", str(exc)) from exc
    request.services.lookups.forget_aliases()
    return await list_aliases(request)


async def _write(request: Request, model: str, config: ModelConfig, *, by: str, was: int | None) -> None:
    try:
        await request.services.configs.put(model, config, by=by, was=was)
    except ConfigChanged as exc:
        raise config_changed() from exc
    except SettingsError as exc:
        raise invalid_field("invalid", "", str(exc)) from exc


async def _answer(request: Request, model: str) -> Response:
    try:
        stored = await request.services.configs.get(model)
    except SettingsError as exc:
        raise newer_release() from exc
    if stored is None:
        raise not_found()
    return json_response(ConfigView.of(stored), headers={"ETag": f'"{stored.revision}"'})


def _read_name(request: Request) -> str:
    return parse_model(request.path_params["owner"], request.path_params["name"])


def _was(request: Request) -> int | None:
    given = request.headers.get("if-match", "*").strip()
    if given == "*":
        return None
    found = REVISION.fullmatch(given)
    if found is None:
        raise invalid_header("If-Match", 'a revision in quotes, like "3", or *')
    return int(found[1])
