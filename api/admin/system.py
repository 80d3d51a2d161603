"""Show operators the service itself: releases, Redis, sites, and settings without secrets."""

import re
from typing import Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from api.sites.sites import Sites
from api.web.http import Request, json_response
from api.web.route import Answer, oversees
from director import __version__
from director.broker.redis_client import describe, infos
from director.core.data_bytes import Fullness
from director.core.settings import PREFIX, ApiSettings
from director.core.view import iso

SECRET: Final = re.compile("token|secret|password|key|header")
HIDDEN: Final = "(hidden)"


class RedisView(Struct, frozen=True, kw_only=True):
    """The server. `durability`: the level that it reaches. Without a `maxmemory` the limit is 0."""

    kind: str
    version: str
    durability: str
    memory_bytes: int
    memory_limit_bytes: int
    since: str


class SiteView(Struct, frozen=True, kw_only=True):
    """One site of several. `state`: `ready`, or why not."""

    name: str
    state: str


class SettingView(Struct, frozen=True, kw_only=True):
    """One setting of this process. `is_set`: it differs from its default. A secret only shows that it is set."""

    name: str
    value: str
    default: str
    is_set: bool


class SystemView(Struct, frozen=True, kw_only=True):
    """The process that answers, its Redis, all sites if there are several, and the settings in force."""

    version: str
    redis: RedisView
    sites: list[SiteView]
    settings: list[SettingView]


@oversees(
    "/admin/system",
    name="admin.system.get",
    summary="Get the release, Redis, sites and settings of the API",
    about=(
        "The answer is of the process that gives it: other API processes may have other settings. Addresses come "
        "without passwords and queries, and secrets are not shown."
    ),
    answers={200: Answer("The process as it is.", SystemView)},
)
async def get_system(request: Request) -> Response:
    services = request.services
    sites: Sites | None = request.sites
    server = await services.gate.check_recently()
    memory = Fullness.of(await infos(services.redis, "memory"))
    up_s = min(int(one["uptime_in_seconds"]) for one in await infos(services.redis, "server"))
    return json_response(
        SystemView(
            version=__version__,
            redis=RedisView(
                kind=server.kind,
                version=server.version,
                durability=server.level,
                memory_bytes=memory.used,
                memory_limit_bytes=memory.limit,
                since=iso(services.clock.now_ms() - 1000 * up_s),
            ),
            sites=[
                SiteView(name=one.name, state="ready" if one.is_up else one.reason)
                for one in (sites.all if sites else ())
            ],
            settings=settings_of(services.settings),
        )
    )


def settings_of(settings: ApiSettings) -> list[SettingView]:
    found = []
    for field in msgspec.structs.fields(type(settings)):
        value, default = getattr(settings, field.name), field.default
        found.append(
            SettingView(
                name=PREFIX + field.name.upper(),
                value=_show_value(field.name, value),
                default=_show_value(field.name, default),
                is_set=value != default,
            )
        )
    return found


def _show_value(name: str, value: object) -> str:
    if value in ("", (), None):
        return ""
    if SECRET.search(name):
        return HIDDEN
    if isinstance(value, bool):
        return str(value).lower()  # as one writes it in the environment
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return describe(text) if "://" in text and name != "public_url" else text
