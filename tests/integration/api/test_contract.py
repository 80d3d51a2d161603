"""Test that every answer of the API follows its OpenAPI document and that no request causes an internal error."""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from api.admin.overview import MOST_SNAPSHOTS
from api.app import ROUTES
from api.web.openapi import encode_document
from tests.support.contract import Scene, scene
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION

if TYPE_CHECKING:  # loading it takes two seconds of each process that collects tests
    from schemathesis import Case

DOCUMENT = msgspec.json.decode(encode_document("http://director.test", ROUTES))
# deletions come last, so that the resources exist for the other requests
OPERATIONS = sorted(
    (
        f"{method.upper()} {path}"
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
        if not method.startswith("x-")
    ),
    key=lambda name: name.startswith("DELETE"),
)
FEW, MANY = 6, 200
LONGEST_S = 20.0
ENDLESS = {"GET /admin/live": {"snapshots": 1}}  # without this the request never ends, or takes seconds each time
ALLOWED = {str(count) for count in range(1, MOST_SNAPSHOTS + 1)}

# The fields that a body needs in order to get past validation
RUN = {"version": MODEL}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "POST /predictions": RUN,
    "POST /procedures": RUN,
    "POST /predictions/batch": {"predictions": [{"input": {}, **RUN}, {"input": {}}, 1]},
    "POST /models": {"owner": ACCOUNT},
    "POST /deployments": {"model": MODEL, "version": VERSION, "min_instances": 0, "max_instances": 1},
    "POST /models/{owner}/{name}/versions/{id}/trainings": {"destination": f"{ACCOUNT}/mine"},
}


pytestmark = pytest.mark.not_on("cluster", "sentinel", why="its API has a server of its own")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scene(tmp_path_factory.mktemp("files"))) as started,
    ):
        yield started


@cache
def operations() -> dict[str, Any]:
    import schemathesis

    found = [each.ok() for each in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]
    return {f"{one.method.upper()} {one.path}": one for one in found}


def cases_of(name: str, service: Scene) -> "st.SearchStrategy[Case]":
    from schemathesis import GenerationMode

    operation = operations()[name]
    path = operation.path.strip("/")
    kinds = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    for real in next((values for start, values in service.real.items() if path.startswith(f"{start}/")), ()):
        wanted = {key: value for key, value in real.path.items() if f"{{{key}}}" in path}
        query = dict(real.query) if real.query and name.startswith("GET") else None
        kinds.append(operation.as_strategy(path_parameters=wanted or None, query=query).map(partial(filled_in, name)))
    if name in BODIES:
        kinds.append(operation.as_strategy().map(partial(filled_in, name)))
    return st.one_of(kinds).map(partial(filled_in, name)) if name in ENDLESS else st.one_of(kinds)


def filled_in(name: str, case: "Case") -> "Case":
    for field, few in ENDLESS.get(name, {}).items():
        if str((case.query or {}).get(field, MOST_SNAPSHOTS)) in ALLOWED:
            case.query = {**(case.query or {}), field: few}
    if name in BODIES and isinstance(case.body, dict):
        case.body = {**case.body, **BODIES[name]}
    return case


def try_out(service: Scene, name: str, examples: int) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    judges = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
    ]

    @hypothesis.given(case=cases_of(name, service))
    @hypothesis.settings(
        max_examples=examples, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
    )
    def holds(case: "Case") -> None:
        headers = {"Authorization": f"Bearer {service.token}"}
        base = service.url if case.path.startswith("/openai/") else f"{service.url}/v1"
        case.call_and_validate(base_url=base, headers=headers, checks=judges, timeout=LONGEST_S)

    holds()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_follows_the_contract(service: Scene, name: str) -> None:
    try_out(service, name, FEW)


@pytest.mark.heavy
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_to_many_more_requests_follows_the_contract(service: Scene, name: str) -> None:
    try_out(service, name, MANY)
