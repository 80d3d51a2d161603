"""Serve the models of OpenAI's API: those that the token may call, also while none of their servers is up."""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.openai.find import find_called
from api.services.lookups import Lookups
from api.sites.sites import others
from api.web.http import Request, json_response, services_of
from api.web.route import Answer, reads
from director.store.models import Model


class OpenAiModel(Struct, frozen=True, kw_only=True):
    """A model as OpenAI's API shows it. `created`: seconds since 1970."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class OpenAiModels(Struct, frozen=True, kw_only=True):
    """The models that a token may call."""

    object: Literal["list"] = "list"
    data: list[OpenAiModel]


@reads(
    "/openai/v1/models",
    name="openai.models.list",
    summary="List the models of OpenAI's API",
    about="The list has what the token may call, also while no server of it is up: models, deployments of the "
    "account, and aliases. Models whose servers are of another kind are left out.",
    answers={200: Answer("All of them.", OpenAiModels)},
)
async def list_models(request: Request) -> Response:
    return json_response(OpenAiModels(data=list((await _list_callable(request)).values())))


MODEL: Final = {200: Answer("The model.", OpenAiModel)}


@reads(
    "/openai/v1/models/{id}",
    name="openai.models.get",
    summary="Get a model of OpenAI's API",
    about="The id is what a call gives as `model`, and its slash may be `/` or `%2F`. A model that the token may not "
    "call is a 404 with the code `model_not_found`.",
    answers=MODEL,
    refusals={400},
)
@reads(
    "/openai/v1/models/{owner}/{name}",
    name="openai.models.get_named",
    summary="Get a model of OpenAI's API by owner and name",
    about="It is the same as with the id `owner/name`: a path with `%2F` and one with `/` are equal.",
    answers=MODEL,
    refusals={400},
)
async def get_model(request: Request) -> Response:
    model = "/".join(request.path_params.values())
    version = (await find_called(request, model)).version
    named = OpenAiModel(id=model, created=version.created_ms // 1000, owned_by=_owner(version.model))
    return json_response((await _list_callable(request)).get(model, named))


async def _list_callable(request: Request) -> dict[str, OpenAiModel]:
    """Return what the token may call, by id: aliases, models, and deployments of the account."""
    home = services_of(request)
    visible = await _list_visible(request)
    models = {
        name: OpenAiModel(id=name, created=model.created_ms // 1000, owned_by=model.owner)
        for name, model in visible.items()
    }
    for each in await home.openai_models.deployments(request.account.name):
        # a deployment of a version that another server ran is judged by the model's latest
        if each.release.model in visible and not each.is_disabled:
            shown = OpenAiModel(id=each.full_name, created=each.created_ms // 1000, owned_by=each.owner)
            models.setdefault(each.full_name, shown)
    aliases = await home.lookups.aliases()
    named = {
        alias: replace(models[model], id=alias)
        for alias, target in aliases.items()
        if (model := target.partition(":")[0]) in models
    }
    return named | {name: model for name, model in models.items() if name not in aliases}


async def _list_visible(request: Request) -> dict[str, Model]:
    """Return the models that the account may see. The first site that has a record of a model decides."""
    account, found = request.account, dict[str, Model]()
    earlier: list[Lookups] = []
    for services in (services_of(request), *(site.services for site in others(request) if site.is_up)):
        for model in await services.openai_models.all():
            is_seen = model.may_be_seen_by(account) and model.name not in found
            if is_seen and all(
                [await one.model(model.name, account) for one in earlier if await one.has_model(model.name)]
            ):
                found[model.name] = model
        earlier.append(services.lookups)
    return found


def _owner(model: str) -> str:
    return model.partition("/")[0]
