from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from api.app import Api
from api.services.meters import Meters
from api.web.route import Route


async def show(request: Request) -> Response:
    return PlainTextResponse(f"{request.scope['route'].path} {request.scope['path_params']}")


async def otherwise(request: Request) -> Response:
    return PlainTextResponse(f"otherwise {request.url.path}")


PATHS = ("/a", "/a/{id}", "/a/all", "/a/{id}/b", "/c/{owner}/{name}/d")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    routes = [Route("GET", path, name=path, handler=show) for path in PATHS]
    routes += [Route("DELETE", "/a/{id}", name="delete", handler=show), Route("GET", "/x/{path:path}", handler=show)]
    app = Api(routes, otherwise=otherwise, meters=Meters())

    async def with_state(scope: dict[str, object], receive: object, send: object) -> None:
        await app({**scope, "state": {"services": None, "sites": None, "versions": None}}, receive, send)  # type: ignore[arg-type]

    transport = httpx.ASGITransport(with_state)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://director") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a", "/a {}"),
        ("/a/all", "/a/all {}"),
        ("/a/x", "/a/{id} {'id': 'x'}"),
        ("/a/all/b", "/a/{id}/b {'id': 'all'}"),
        ("/c/x/y/d", "/c/{owner}/{name}/d {'owner': 'x', 'name': 'y'}"),
        ("/v1/a/x", "/a/{id} {'id': 'x'}"),
        ("/v1/v1/a/x", "/a/{id} {'id': 'x'}"),
        ("/x/y/z.js", "/x/{path:path} {'path': 'y/z.js'}"),
        *((path, f"otherwise {path}") for path in ("/v1/v1/v1/a", "/v1/x/y", "/v1", "/a/", "/a//b", "/c/x//d", "/A")),
    ],
)
async def test_literal_parts_precede_names_under_three_bases(client: httpx.AsyncClient, path: str, found: str) -> None:
    assert (await client.get(path)).text == found


async def test_method_that_the_literal_path_lacks_goes_to_the_named_path(client: httpx.AsyncClient) -> None:
    assert (await client.delete("/a/all")).text == "/a/{id} {'id': 'all'}"


async def test_route_that_is_declared_twice_is_refused() -> None:
    routes = [Route("GET", "/a", name=name, handler=show) for name in ("one", "two")]
    with pytest.raises(ValueError, match="GET /a is declared twice"):
        Api(routes, otherwise=otherwise, meters=Meters())
