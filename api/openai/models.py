"""Serve the models of OpenAI's API: those that the token may call, also while none of their servers is up."""

from typing import Final, Literal

from msgspec import Struct
from starlette.responses import Response

from api.openai.find import find_called
from api.web.http import Request, json_response
from api.web.route import Answer, reads

OBJECT: Final = "model"


class OpenAiModel(Struct, frozen=True, kw_only=True):
    """A model as OpenAI's API shows it. `created`: seconds since 1970."""

    id: str
    object: Literal["model"] = OBJECT
    created: int
    owned_by: str


MODEL: Final = {200: Answer("The model.", OpenAiModel)}


@reads(
    "/openai/v1/models/{id}",
    name="openai.models.get",
    summary="Get a model of OpenAI's API",
    about="The id is what a call gives as `model`, and its slash may be `/` or `%2F`. A model that the token may not "
    "call is a 404 with the code `model_not_found`.",
    answers=MODEL,
)
@reads(
    "/openai/v1/models/{owner}/{name}",
    name="openai.models.get_named",
    summary="Get a model of OpenAI's API by owner and name",
    about="It is the same as with the id `owner/name`: a path with `%2F` and one with `/` are equal.",
    answers=MODEL,
)
async def get_model(request: Request) -> Response:
    model = "/".join(request.path_params.values())
    called = await find_called(request, model)
    owner = called.version.model.partition("/")[0]
    return json_response(OpenAiModel(id=model, created=called.version.created_ms // 1000, owned_by=owner))
