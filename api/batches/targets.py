"""Find what a line calls. A line is read as its POST would be: the same bodies, models and refusals."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from msgspec import Raw, Struct

from api.models.deployments import choose_version, find_usable
from api.openai.calls import read_call
from api.openai.find import find_called
from api.predictions import bodies
from api.predictions.intake import Called
from api.services.lookups import VersionRef
from api.sites.sites import no_version
from api.web import errors
from api.web.http import Request

OPENAI: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}
PREDICTIONS: Final = "/v1/predictions"
NAMED: Final = re.compile(r"/v1/(models|deployments)/([^/]{1,64})/([^/]{1,64})/predictions")


class Target(Struct, frozen=True, kw_only=True):
    """A model that a line runs. `name`: what the body calls it, or the name in the path."""

    kind: Literal["openai", "version", "models", "deployments"]
    name: str
    asked: bodies.CreatePrediction

    @property
    def key(self) -> tuple[str, str]:
        """Lines with the same key find the same model."""
        return self.kind, self.name


def is_endpoint(text: str) -> bool:
    return text in OPENAI or text == PREDICTIONS or NAMED.fullmatch(text) is not None


def replicate_may_have(endpoint: str, url: str) -> bool:
    """Return whether a line may have this url: a batch of `/v1/predictions` may have each route of Replicate's."""
    return endpoint == PREDICTIONS and NAMED.fullmatch(url) is not None


def read_target(url: str, body: bytes) -> Target:
    """Read the body of a line. Raises the Problem of its POST."""
    if (endpoint := OPENAI.get(url)) is not None:
        call = read_call(body)
        if call.stream:
            raise errors.invalid_field("enum", "stream", "must be false: a batch has no streams")
        asked = bodies.CreatePrediction(
            body=body,
            input=Raw(body),
            endpoint=endpoint,
            affinity=bodies.digest_of(call.prompt_cache_key) if call.prompt_cache_key else "",
        )
        return Target(kind="openai", name=call.model, asked=asked)
    if (found := NAMED.fullmatch(url)) is not None:
        kind: Literal["models", "deployments"] = "models" if found[1] == "models" else "deployments"
        asked = bodies.parse_create(body, version=False)
        return Target(kind=kind, name=f"{found[2]}/{found[3]}", asked=asked)
    asked = bodies.parse_create(body, version=True)
    return Target(kind="version", name=asked.version or "", asked=asked)


async def find_target(request: Request, target: Target, item: str = "") -> Called:
    """Return the version that a line runs. Raises the Problem of its POST. `item`: which line of its batch it is."""
    return await FINDERS[target.kind](request, target.name, item)


async def _find_version(request: Request, name: str, _: str) -> Called:
    return await _find(request, bodies.parse_version(name), errors.invalid_version)


async def _find_model(request: Request, name: str, _: str) -> Called:
    return await _find(request, VersionRef(model=bodies.parse_model(*name.split("/"))), errors.not_found)


async def _find_deployed(request: Request, name: str, item: str) -> Called:
    deployment = await find_usable(request, *name.split("/"))
    if deployment is None:
        raise errors.not_found()
    called = await choose_version(request, deployment, item)
    if called is None:
        ref = VersionRef(model=deployment.release.model, version=deployment.release.version)
        raise await no_version(request, ref, errors.invalid_version)
    return called


async def _find(request: Request, ref: VersionRef, refusal: errors.Refusal) -> Called:
    version = await request.versions.find_named(ref, request.account)
    if version is None:
        raise await no_version(request, ref, refusal)
    return Called(version)


FINDERS: Final[Mapping[str, Callable[[Request, str, str], Awaitable[Called]]]] = {
    "openai": find_called,
    "version": _find_version,
    "models": _find_model,
    "deployments": _find_deployed,
}
