"""Each route, called with the wrong token, shows and changes nothing of another account."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from msgspec import Struct, field
from redis.asyncio import Redis

from api.app import ROUTES
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.settings import ApiSettings
from director.files.choose import store_in
from director.files.local import LocalFiles
from director.store.accounts import ROLES, Accounts, Role
from director.store.catalog import Catalog
from tests.support.api import api_client
from tests.support.keyspace import Keyspace, dump
from tests.support.possessions import ALIAS, OWNER, REPEATED, STRANGER, Maker, Possessions
from tests.support.possessions import HIDDEN_VERSION as HIDDEN_VERSION_ID
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer

Route = tuple[str, str]


class Try(Struct, frozen=True, kw_only=True):
    """A request with something of amber's, as $name. `owner`: amber's answer. `right`: the address that opens."""

    answer: int
    at: dict[str, str] = field(default_factory=dict)
    query: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    owner: int = 0
    makes: bool = False
    right: str = ""


def each(names: str, **options: Any) -> list[Try]:
    return [Try(answer=404, at={"id": f"${name}"}, **options) for name in names.split()]


PREDICTIONS: Final = "waiting running ended dead of_batch of_model of_deployment"
NEW_BATCH: Final = {"endpoint": "/v1/completions", "completion_window": "24h"}
HIDDEN: Final = {"owner": OWNER, "name": "hidden-model"}
SHOWN: Final = {"owner": OWNER, "name": "shown-model"}
DESK: Final = {"owner": OWNER, "name": "$desk"}
HIDDEN_VERSION: Final = {**HIDDEN, "id": "$hidden_version"}
HIDDEN_QUEUE: Final = {**HIDDEN, "version": HIDDEN_VERSION_ID[:12]}
CHANGES_OF_A_QUEUE: Final[dict[str, dict[str, Any]]] = {
    "pause": {"body": {"account": OWNER}},
    "resume": {"body": {"account": OWNER}},
    "drain": {},
    "resize": {"body": {"streams": 4}},
    "bound": {"body": {"mode": "reject"}},
    "migrate": {"body": {"to": "$hidden"}, "owner": 422},  # both names are the same queue
}
OF_HIDDEN: Final = ("$hidden", "$hidden_version", "$hidden:$hidden_version")
AMBER: Final = {"name": OWNER}
RUNS: Final[dict[str, Any]] = {"input": {}}
NEW_DESK: Final = {"hardware": "cpu", "min_instances": 0, "max_instances": 1}
TRAININGS: Final = "/models/{owner}/{name}/versions/{id}/trainings"
ECHO: Final = dict(zip(("owner", "name"), MODEL.split("/"), strict=True))
ECHO_VERSION: Final = {**ECHO, "id": VERSION}
LIST: Final = [Try(answer=200)]
FOR_OPERATORS: Final = [Try(answer=403)]
# a wrong header is read once the model was found: no call of its owner waits for a director then
CALLS: Final = [
    Try(answer=404, body={"model": model, "stream": stream}, headers={"x-cost": "none"}, owner=400)
    for model in ("$hidden", "$hidden:$hidden_version", f"{OWNER}/$desk", ALIAS)
    for stream in (False, True)
]


def again(path: str, *, answer: int = 201, **at: str) -> Try:
    return Try(answer=answer, at=at, body=REPEATED[path], headers={"idempotency-key": path}, makes=True)


TRIES: Final[Mapping[Route, Sequence[Try]]] = {
    ("POST", "/predictions"): [
        *(Try(answer=422, body={**RUNS, "version": version}) for version in OF_HIDDEN),
        again("/predictions"),
    ],
    ("GET", "/predictions"): [*LIST, Try(answer=403, query=f"account={OWNER}")],
    ("POST", "/predictions/batch"): [
        Try(answer=200, body={"predictions": [{**RUNS, "version": version} for version in OF_HIDDEN]}),
        again("/predictions/batch", answer=200),
    ],
    ("GET", "/predictions/{id}"): each(PREDICTIONS),
    ("DELETE", "/predictions/{id}"): [*each("ended waiting"), *each("running", owner=409)],
    ("GET", "/predictions/{id}/explain"): each(f"{PREDICTIONS} training procedure"),
    ("GET", "/predictions/{id}/events"): each(PREDICTIONS),
    ("GET", "/predictions/{id}/webhooks"): each("ended waiting"),
    ("POST", "/predictions/{id}/webhooks/redeliver"): [*each("ended"), *each("waiting", owner=409)],
    ("POST", "/predictions/{id}/cancel"): each(PREDICTIONS),
    ("GET", "/streams/{address}"): [Try(answer=404, at={"address": "$wrong_stream"}, right="$right_stream")],
    ("GET", "/models"): LIST,
    ("GET", "/models/states"): [Try(answer=200, query="models=$hidden")],
    ("POST", "/models"): [
        Try(answer=403, body={"owner": OWNER, "name": name, "visibility": "public", "hardware": "cpu"}, owner=owner)
        for name, owner in (("new", 0), ("hidden-model", 409))
    ],
    ("QUERY", "/models"): [Try(answer=200, body="unlisted")],
    ("GET", "/models/{owner}/{name}"): [Try(answer=404, at=HIDDEN)],
    ("PATCH", "/models/{owner}/{name}"): [
        Try(answer=404, at=HIDDEN, body={"description": "mine"}),
        Try(answer=403, at=SHOWN, body={"description": "mine"}),
    ],
    ("DELETE", "/models/{owner}/{name}"): [Try(answer=404, at=HIDDEN, owner=422), Try(answer=403, at=SHOWN, owner=403)],
    ("GET", "/models/{owner}/{name}/readme"): [Try(answer=404, at=HIDDEN)],
    ("GET", "/models/{owner}/{name}/examples"): [Try(answer=404, at=HIDDEN)],
    ("POST", "/models/{owner}/{name}/predictions"): [
        Try(answer=404, at=HIDDEN, body=RUNS),
        again(f"/models/{MODEL}/predictions", **ECHO),
    ],
    ("GET", "/models/{owner}/{name}/versions"): [Try(answer=404, at=HIDDEN)],
    ("GET", "/models/{owner}/{name}/versions/{id}"): [Try(answer=404, at=HIDDEN_VERSION)],
    ("DELETE", "/models/{owner}/{name}/versions/{id}"): [Try(answer=404, at=HIDDEN_VERSION, owner=422)],
    ("POST", TRAININGS): [
        Try(answer=404, at=HIDDEN_VERSION, body={**RUNS, "destination": "$shown"}),
        Try(answer=404, at=ECHO_VERSION, body={**RUNS, "destination": "$hidden"}),
        Try(answer=404, at=ECHO_VERSION, body={**RUNS, "destination": "$shown"}),
        again(f"/models/{MODEL}/versions/{VERSION}/trainings", answer=404, **ECHO_VERSION),
    ],
    ("GET", "/trainings"): LIST,
    ("GET", "/trainings/{id}"): each("training"),
    ("POST", "/trainings/{id}/cancel"): each("training"),
    ("POST", "/procedures"): [
        *(Try(answer=422, body={**RUNS, "version": version}) for version in OF_HIDDEN),
        again("/procedures"),
    ],
    ("GET", "/procedures"): LIST,
    ("GET", "/procedures/{id}"): each("procedure"),
    ("POST", "/procedures/{id}/cancel"): each("procedure"),
    ("GET", "/deployments"): LIST,
    ("POST", "/deployments"): [
        Try(answer=422, body={"name": "new", "model": "$hidden", "version": "$hidden_version", **NEW_DESK})
    ],
    ("GET", "/deployments/{owner}/{name}"): [Try(answer=404, at=DESK)],
    ("PATCH", "/deployments/{owner}/{name}"): [Try(answer=404, at=DESK, body={"max_instances": 2})],
    ("DELETE", "/deployments/{owner}/{name}"): [Try(answer=404, at=DESK)],
    ("POST", "/deployments/{owner}/{name}/predictions"): [Try(answer=404, at=DESK, body=RUNS)],
    ("GET", "/deployments/{owner}/{name}/split"): [Try(answer=404, at=DESK)],
    ("POST", "/deployments/{owner}/{name}/split"): [
        Try(answer=404, at=DESK, body={"version": "$hidden_version", "share": 10}, owner=422)  # it has that already
    ],
    ("POST", "/deployments/{owner}/{name}/promote"): [Try(answer=404, at=DESK, owner=422)],
    ("POST", "/deployments/{owner}/{name}/rollback"): [Try(answer=404, at=DESK, owner=422)],
    ("POST", "/openai/v1/chat/completions"): CALLS,
    ("POST", "/openai/v1/completions"): CALLS,
    ("POST", "/openai/v1/embeddings"): CALLS,
    ("GET", "/openai/v1/models"): LIST,
    ("GET", "/openai/v1/models/{id}"): [Try(answer=404, at={"id": ALIAS})],
    ("GET", "/openai/v1/models/{owner}/{name}"): [Try(answer=404, at=HIDDEN), Try(answer=404, at=DESK)],
    ("GET", "/openai/v1/files"): LIST,
    ("GET", "/openai/v1/files/{id}"): each("file"),
    ("GET", "/openai/v1/files/{id}/content"): each("file"),
    ("DELETE", "/openai/v1/files/{id}"): each("input"),
    ("POST", "/openai/v1/batches"): [Try(answer=404, body={"input_file_id": "$file", **NEW_BATCH})],
    ("GET", "/openai/v1/batches"): LIST,
    ("GET", "/openai/v1/batches/{id}"): each("batch"),
    ("POST", "/openai/v1/batches/{id}/cancel"): each("batch"),
    ("GET", "/collections/{slug}"): [Try(answer=200, at={"slug": "best"})],
    ("GET", "/search"): [Try(answer=200, query="query=unlisted")],
    ("GET", "/files"): LIST,
    ("GET", "/files/{id}"): each("file"),
    ("DELETE", "/files/{id}"): each("file"),
    ("GET", "/files/{id}/download"): each("file", query="$wrong_download", right="$right_download"),
    ("GET", "/files/{id}/download/{name}"): [
        Try(answer=404, at={"id": "$file", "name": "x"}, query="$wrong_download", right="$right_download")
    ],
    ("GET", "/outputs/{name}"): [
        Try(answer=403, at={"name": "$made"}, query="$wrong_output", right="$right_output"),
    ],
    ("GET", "/account"): LIST,
    ("GET", "/account/limits"): LIST,
    ("GET", "/account/tokens"): LIST,
    ("GET", "/usage"): [*LIST, Try(answer=200, query=f"account={OWNER}&by=model,token")],
    ("GET", "/webhooks/default/secret"): LIST,
    ("GET", "/admin/queues"): FOR_OPERATORS,
    ("GET", "/admin/queues/{owner}/{name}/{version}"): [Try(answer=403, at=HIDDEN_QUEUE)],
    ("GET", "/admin/queues/{owner}/{name}/{version}/predictions"): [Try(answer=403, at=HIDDEN_QUEUE)],
    **{
        ("POST", f"/admin/queues/{{owner}}/{{name}}/{{version}}/{act}"): [Try(answer=403, at=HIDDEN_QUEUE, **asked)]
        for act, asked in CHANGES_OF_A_QUEUE.items()
    },
    ("GET", "/admin/directors"): FOR_OPERATORS,
    ("GET", "/admin/owed"): FOR_OPERATORS,
    ("POST", "/admin/owed/redeliver"): [Try(answer=403, body={"host": "hooks.example.com"})],
    ("GET", "/admin/live"): [Try(answer=403, query="snapshots=1")],
    ("GET", "/admin/predictions"): FOR_OPERATORS,
    ("POST", "/admin/predictions/cancel"): [Try(answer=403, body={"ids": ["$running"]})],
    ("POST", "/admin/predictions/retry"): [Try(answer=403, body={"ids": ["$running"]})],
    ("POST", "/admin/predictions/{id}/cancel"): [Try(answer=403, at={"id": "$running"})],
    ("POST", "/admin/predictions/{id}/retry"): [Try(answer=403, at={"id": "$running"})],
    ("GET", "/admin/batches"): [*FOR_OPERATORS, Try(answer=403, query=f"account={OWNER}")],
    ("GET", "/admin/batches/{id}"): [Try(answer=403, at={"id": "$batch"})],
    ("POST", "/admin/batches/{id}/cancel"): [Try(answer=403, at={"id": "$batch"})],
    ("GET", "/admin/batches/{id}/output"): [Try(answer=403, at={"id": "$batch"}, owner=404)],  # it has not ended
    ("GET", "/admin/batches/{id}/errors"): [Try(answer=403, at={"id": "$batch"}, owner=404)],
    ("GET", "/admin/dead"): FOR_OPERATORS,
    ("POST", "/admin/dead/revive"): [Try(answer=403, body={"ids": ["$dead"]})],
    ("POST", "/admin/dead/drop"): [Try(answer=403, body={"ids": ["$dead"]})],
    ("GET", "/admin/dead/{id}"): [Try(answer=403, at={"id": "$dead_too"})],
    ("POST", "/admin/dead/{id}/revive"): [Try(answer=403, at={"id": "$dead_too"})],
    ("POST", "/admin/dead/{id}/drop"): [Try(answer=403, at={"id": "$dead_as_well"})],
    ("POST", "/admin/commands"): [Try(answer=403, body={"line": ["queues", "pause", "$hidden"]})],
    ("QUERY", "/admin/steps"): [Try(answer=403, body={"after": {}})],
    ("GET", "/admin/audit"): FOR_OPERATORS,
    ("GET", "/admin/history"): FOR_OPERATORS,
    ("GET", "/admin/system"): FOR_OPERATORS,
    ("GET", "/admin/usage"): [*FOR_OPERATORS, Try(answer=403, query=f"account={OWNER}")],
    ("GET", "/admin/accounts"): FOR_OPERATORS,
    ("POST", "/admin/accounts"): [Try(answer=403, body={"name": "new"})],
    ("GET", "/admin/accounts/{name}"): [Try(answer=403, at=AMBER)],
    ("PATCH", "/admin/accounts/{name}"): [Try(answer=403, at=AMBER, body={"type": "user"})],
    ("POST", "/admin/accounts/{name}/suspend"): [Try(answer=403, at=AMBER, body={"policy": "end"})],
    ("POST", "/admin/accounts/{name}/resume"): [Try(answer=403, at=AMBER)],
    ("GET", "/admin/accounts/{name}/tokens"): [Try(answer=403, at=AMBER)],
    ("POST", "/admin/accounts/{name}/login-links"): [Try(answer=403, at=AMBER, body={})],
    ("POST", "/admin/accounts/{name}/tokens"): [Try(answer=403, at=AMBER, body={})],
    ("PATCH", "/admin/accounts/{name}/tokens/{id}"): [
        Try(answer=403, at={**AMBER, "id": "$token_id"}, body={"label": "x"})
    ],
    ("DELETE", "/admin/accounts/{name}/tokens/{id}"): [Try(answer=403, at={**AMBER, "id": "$token_id"})],
    ("GET", "/admin/aliases"): FOR_OPERATORS,
    ("PATCH", "/admin/aliases"): [Try(answer=403, body={"alias": ALIAS, "model": "$hidden"})],
    ("GET", "/admin/models/{owner}/{name}/config"): [Try(answer=403, at=SHOWN)],
    ("PUT", "/admin/models/{owner}/{name}/config"): [Try(answer=403, at=SHOWN, body={"slots": 2})],
    ("DELETE", "/admin/models/{owner}/{name}/config"): [Try(answer=403, at=SHOWN)],
}
NOTHING_OF_AN_ACCOUNT: Final[Mapping[Route, str]] = {
    ("GET", "/openapi.json"): "the contract of all this, the same for everybody",
    ("POST", "/files"): "makes a file of the caller's own, and names no other",
    ("POST", "/openai/v1/files"): "makes a file of the caller's own, and names no other",
    ("POST", "/account/login-link"): "makes a link of the caller's own token, and names no other",
    ("GET", "/collections"): "names of what operators wrote for all",
    ("GET", "/hardware"): "what operators wrote for all",
}
WITHOUT_A_TOKEN: Final[Mapping[Route, str]] = {
    ("GET", "/openapi.json"): "anybody may read the contract",
    ("GET", "/streams/{address}"): "the ticket in the address is the permission",
    ("GET", "/files/{id}/download"): "the signature is the permission: a model server has no token",
    ("GET", "/files/{id}/download/{name}"): "the signature is the permission",
    ("GET", "/outputs/{name}"): "the signature is the permission: a browser has no token",
}
RUN_SOMETHING: Final = (
    ("POST", "/predictions"),
    ("POST", "/predictions/batch"),
    ("POST", "/models/{owner}/{name}/predictions"),
    ("POST", TRAININGS),
    ("POST", "/procedures"),
    ("POST", "/deployments"),
    ("POST", "/deployments/{owner}/{name}/predictions"),
    ("POST", "/openai/v1/chat/completions"),
    ("POST", "/openai/v1/completions"),
    ("POST", "/openai/v1/embeddings"),
    ("POST", "/openai/v1/batches"),
)
# The scope `admin` opens these: models and deployments of all, lists, and predictions by their ids
OPEN_TO_OPERATORS: Final = {
    *(
        route
        for route in TRIES
        if route[1].startswith(("/admin", "/models", "/deployments", "/collections", "/openai"))
    ),
    *(("POST", path) for path in ("/predictions", "/predictions/batch", "/procedures")),
    *(("GET", path) for path in ("/predictions", "/trainings", "/procedures", "/search")),
    *(("GET", f"/{path}/{{id}}") for path in ("predictions", "trainings", "procedures")),
    *(("POST", f"/{path}/{{id}}/cancel") for path in ("predictions", "trainings", "procedures")),
    *(("GET", f"/predictions/{{id}}/{what}") for what in ("events", "explain", "webhooks")),
    ("POST", "/predictions/{id}/webhooks/redeliver"),
    ("QUERY", "/models"),
}
READS: Final = ("GET", "QUERY")
EVERY_ROUTE: Final = [(route.method, route.path) for route in ROUTES if route.name]
ASKED_FOR_A_TOKEN: Final = [
    (route, one) for route in EVERY_ROUTE if route not in WITHOUT_A_TOKEN for one in TRIES.get(route, [Try(answer=0)])
]


class Door:
    def __init__(self, api: httpx.AsyncClient, redis: Redis, possessions: Possessions) -> None:
        self.api = api
        self.redis = redis
        self.possessions = possessions

    async def send(self, route: Route, one: Try, token: str | None) -> httpx.Response:
        method, path = route
        fill = self.possessions.fill
        base = "" if path.startswith("/openai/") else "/v1"
        url = base + fill(path.format(**one.at)) + (f"?{fill(one.query)}" if one.query else "")
        headers = one.headers | ({} if token is None else {"authorization": f"Bearer {token}"})
        if one.body is None or isinstance(one.body, str):
            return await self.api.request(method, url, content=one.body, headers=headers)
        body = json.loads(fill(json.dumps(one.body)))
        return await self.api.request(method, url, json=body, headers=headers)

    async def keyspace(self) -> Keyspace:
        """Return all keys but the signs of life of processes, which come by themselves."""
        return {key: value for key, value in (await dump(self.redis)).items() if key != keys.processes()}

    def is_amber(self, key: str) -> bool:
        return any(name in key for name in (OWNER, *self.possessions.secrets))


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path) -> ApiSettings:
    return ApiSettings(redis_url=server.url, files_dir=str(tmp_path), openai=True, cache_s=0, cancel_wait_s=0)


@pytest.fixture
async def tokens(redis: Redis) -> dict[str, str]:
    accounts = Accounts(redis)
    whose = {
        "owner": (OWNER, ("read", "run")),
        "stranger": (STRANGER, ("read", "run")),
        "only reads": (OWNER, ("read",)),
        "only runs": (OWNER, ("run",)),
        "operator": ("ops", ("read", "run", "admin")),
        **{f"as {role}": ("ops", scopes) for role, scopes in ROLES.items()},
    }
    return {name: await accounts.create_token(account, scopes=scopes) for name, (account, scopes) in whose.items()}


@pytest.fixture
async def door(
    settings: ApiSettings, tokens: dict[str, str], redis: Redis, scripts: Scripts, catalog: Catalog
) -> AsyncIterator[Door]:
    store = store_in(settings.files_dir, redis, SystemClock())
    assert isinstance(store, LocalFiles)
    async with api_client(settings) as api:
        api.headers["Authorization"] = f"Bearer {tokens['owner']}"
        possessions = await Maker(api, redis, scripts, catalog, store).make()
        del api.headers["Authorization"]
        yield Door(api, redis, possessions)


def test_every_route_is_tested_or_listed_as_free_of_account_data() -> None:
    assert set(TRIES) | set(NOTHING_OF_AN_ACCOUNT) == set(EVERY_ROUTE)
    assert not set(TRIES) & set(NOTHING_OF_AN_ACCOUNT)


async def test_another_account_sees_and_changes_nothing(door: Door, tokens: dict[str, str]) -> None:
    faults = []
    before = await door.keyspace()
    for route, tries in TRIES.items():
        for one in tries:
            answer = await door.send(route, one, tokens["stranger"])
            seen = door.possessions.seen_in(answer)
            after = await door.keyspace()
            changed = {key for key, _ in before.items() ^ after.items() if door.is_amber(key) or not one.makes}
            if answer.status_code != one.answer or seen or changed or "idempotency-replayed" in answer.headers:
                faults.append((route, one, answer.status_code, answer.text, seen, changed))
            before = after
    assert faults == []


@pytest.mark.faults
async def test_admin_token_is_a_strangers_where_nothing_is_for_operators(door: Door, tokens: dict[str, str]) -> None:
    faults = []
    for route, tries in TRIES.items():
        for one in tries if route not in OPEN_TO_OPERATORS else ():
            before = await door.keyspace()
            answer = await door.send(route, one, tokens["operator"])
            changed = [key for key, _ in before.items() ^ (await door.keyspace()).items() if door.is_amber(key)]
            if answer.status_code != one.answer or door.possessions.seen_in(answer) or changed:
                faults.append((route, one, answer.status_code, answer.text, changed))
    assert faults == []


async def test_head_requests_reveal_nothing_either(door: Door, tokens: dict[str, str]) -> None:
    for (method, path), tries in TRIES.items():
        for one in tries if method == "GET" else ():
            answer = await door.send(("HEAD", path), one, tokens["stranger"])
            assert (answer.status_code, door.possessions.seen_in(answer)) == (one.answer, []), (path, one)


async def test_owner_succeeds_with_each_of_these_requests(door: Door, tokens: dict[str, str]) -> None:
    """A stranger is therefore refused only what exists. Deletions come last, and operators after them."""
    faults = []

    def turn(route: Route) -> tuple[bool, bool]:
        return route[1].startswith("/admin"), route[0] == "DELETE"

    for route in sorted(TRIES, key=turn):
        who = "operator" if route[1].startswith("/admin") else "owner"
        for one in TRIES[route]:
            if one.right:
                answer = await door.api.get(door.possessions.fill(one.right))
            else:
                answer = await door.send(route, one, tokens[who])
            is_right = answer.status_code == one.owner if one.owner else answer.is_success
            if not is_right or (one.answer < 300 and not door.possessions.seen_in(answer)):
                faults.append((route, one, answer.status_code, answer.text))
    assert faults == []


@pytest.mark.parametrize("token", [None, "unknown"])
async def test_only_signed_addresses_work_without_a_valid_token(door: Door, token: str | None) -> None:
    before = await door.keyspace()
    for route, one in ASKED_FOR_A_TOKEN:
        answer = await door.send(route, one, token)
        assert answer.status_code == 401, (route, one, answer.text)
    assert await door.keyspace() == before


async def test_read_only_token_changes_nothing_of_its_account(door: Door, tokens: dict[str, str]) -> None:
    before = await door.keyspace()
    for route, one in ASKED_FOR_A_TOKEN:
        if route[0] not in READS or route[1] == "/webhooks/default/secret":
            answer = await door.send(route, one, tokens["only reads"])
            assert answer.status_code == 403, (route, one, answer.text)
    assert await door.keyspace() == before


async def test_viewer_changes_nothing_by_any_route(door: Door, tokens: dict[str, str]) -> None:
    before = await door.keyspace()
    for route, one in ASKED_FOR_A_TOKEN:
        answer = await door.send(route, one, tokens["as viewer"])
        if route[0] not in READS:
            assert answer.status_code == 403, (route, one, answer.text)
    assert await door.keyspace() == before


async def test_viewer_sees_what_an_admin_sees(door: Door, tokens: dict[str, str]) -> None:
    for route, one in ASKED_FOR_A_TOKEN:
        if route[0] in READS and route[1] not in ("/webhooks/default/secret", "/openapi.json"):
            seen = [(await door.send(route, one, tokens[f"as {role}"])) for role in ("viewer", "admin")]
            codes = [answer.status_code for answer in seen]
            assert codes[0] == codes[1], (route, one, codes)
            assert door.possessions.seen_in(seen[0]) == door.possessions.seen_in(seen[1]), (route, one)


async def test_only_an_admin_creates_by_deployments_of_others(door: Door, tokens: dict[str, str]) -> None:
    accounts = Accounts(door.redis)
    seeing = await accounts.create_token("ops", scopes=["run", "view"])
    desks = [one for one in CALLS if one.body["model"] == f"{OWNER}/$desk"]
    for route, one in [(("POST", "/openai/v1/chat/completions"), one) for one in desks]:
        codes = [
            (await door.send(route, one, token)).status_code
            for token in (seeing, tokens["as operator"], tokens["as admin"])
        ]
        assert codes == [404, 404, 400], one


def least_role(route: Route) -> Role:
    """Return the role that this route over all accounts needs: see, act, or change who may do what."""
    method, path = route
    if method in READS:
        return "viewer"
    acts = (
        "/admin/queues/",
        "/admin/predictions/",
        "/admin/dead/",
        "/admin/batches/",
        "/admin/commands",
        "/admin/owed/",
    )
    return "operator" if path.startswith(acts) else "admin"


@pytest.mark.parametrize("role", ROLES)
async def test_each_route_over_all_accounts_is_open_from_its_role_on(
    door: Door, tokens: dict[str, str], role: Role
) -> None:
    ranks = list(ROLES)
    for route in [one for one in TRIES if one[1].startswith("/admin")]:
        answer = await door.send(route, TRIES[route][0], tokens[f"as {role}"])
        is_open = ranks.index(role) >= ranks.index(least_role(route))
        assert (answer.status_code != 403) == is_open, (route, role, answer.text)


async def test_run_only_token_reads_nothing_of_its_account(door: Door, tokens: dict[str, str]) -> None:
    for route, one in ASKED_FOR_A_TOKEN:
        if route[0] in READS and route[1] != "/webhooks/default/secret":
            answer = await door.send(route, one, tokens["only runs"])
            assert answer.status_code == 403, (route, one, answer.text)


async def test_suspended_account_starts_nothing_but_reads_its_own(door: Door, tokens: dict[str, str]) -> None:
    suspend = ("POST", "/admin/accounts/{name}/suspend")
    await door.send(suspend, Try(answer=200, at=AMBER, body={"policy": "hold"}), tokens["operator"])
    before = await door.keyspace()
    for route in RUN_SOMETHING:
        for one in TRIES[route]:
            answer = await door.send(route, one, tokens["owner"])
            said = answer.json()
            code = said["error"]["code"] if route[1].startswith("/openai/") else said["code"]
            assert (answer.status_code, code) == (403, "account_suspended"), (route, one)
    for route, one in ASKED_FOR_A_TOKEN:
        if route[0] in READS and not route[1].startswith(("/admin", "/webhooks/default/secret")):
            answer = await door.send(route, one, tokens["owner"])
            assert answer.is_success, (route, one, answer.text)
    assert await door.keyspace() == before
