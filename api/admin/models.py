"""What operators say of how a model is run, over HTTP: read it, write it whole, take it back.

For tokens with the scope `admin` alone. Directors read what is written here every few seconds; what none of them could
go by is refused here already, in words that name the field.
"""

import re
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.auth import authenticate, named
from api.bodies import parse_model
from api.errors import InvalidField, config_changed, invalid_header, invalid_input, newer_release, not_found
from api.request import decode_json, read_body
from api.response import json_response
from api.sites.sites import parts_asked
from director.core.errors import SettingsError
from director.core.model_config import ModelConfig, StoredConfig
from director.core.view import iso
from director.store.model_configs import ConfigChanged

MAX_BODY: Final = 128 * 1024
REVISION: Final = re.compile(r'"([0-9]{1,15})"')


class ConfigView(Struct, frozen=True, kw_only=True):
    """What is written down of a model: revision 0 where nothing ever was. `config` has only what it says."""

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


async def get_config(request: Request) -> Response:
    """GET /admin/models/{owner}/{name}/config, with its revision as the ETag."""
    await authenticate(request, "admin")
    return await _answer(request, _named(request))


async def change_config(request: Request) -> Response:
    """PUT /admin/models/{owner}/{name}/config: all of it; with `If-Match`, only where it is still that revision."""
    operator = await authenticate(request, "admin")
    model, was = _named(request), _was(request)
    config = decode_json(await read_body(request, max_bytes=MAX_BODY), ModelConfig)
    await _write(request, model, config, by=named(operator), was=was)
    return await _answer(request, model)


async def remove_config(request: Request) -> Response:
    """DELETE /admin/models/{owner}/{name}/config: directors go by their own settings again."""
    operator = await authenticate(request, "admin")
    model, was = _named(request), _was(request)
    await _write(request, model, ModelConfig(), by=named(operator), was=was)
    return Response(status_code=204)


async def _write(request: Request, model: str, config: ModelConfig, *, by: str, was: int | None) -> None:
    try:
        await parts_asked(request).configs.put(model, config, by=by, was=was)
    except ConfigChanged as exc:
        raise config_changed() from exc
    except SettingsError as exc:
        raise invalid_input([InvalidField("invalid", "", str(exc))]) from exc


async def _answer(request: Request, model: str) -> Response:
    try:
        stored = await parts_asked(request).configs.get(model)
    except SettingsError as exc:
        raise newer_release() from exc
    if stored is None:
        raise not_found()
    return json_response(ConfigView.of(stored), headers={"ETag": f'"{stored.revision}"'})


def _named(request: Request) -> str:
    return parse_model(request.path_params["owner"], request.path_params["name"])


def _was(request: Request) -> int | None:
    given = request.headers.get("if-match", "*").strip()
    if given == "*":
        return None
    found = REVISION.fullmatch(given)
    if found is None:
        raise invalid_header("If-Match", 'a revision in quotes, like "3", or *')
    return int(found[1])
