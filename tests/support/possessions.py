"""Create an account that owns one of everything the API can make, to test that strangers see none of it."""

from string import Template
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import httpx
from msgspec import Raw, Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import FileId, Kind, PredictionId, QueueName
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.usage import Used
from director.files.local import LocalFiles
from director.files.store import FileName, Links
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.models import Collection, Collections
from tests.support.api import BASE, PlayedDirector
from tests.support.queue_driver import MODEL, VERSION

OWNER: Final = "amber"
STRANGER: Final = "basalt"
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MARK: Final = "for-amber-alone"  # a part of each text that amber may write
HIDDEN: Final = f"{OWNER}/hidden-model"
SHOWN: Final = f"{OWNER}/shown-model"
ALIAS: Final = "alias-of-amber"  # of the hidden model
HIDDEN_VERSION: Final = "d4" * 32
SHOWN_VERSION: Final = "e5" * 32
INPUT: Final[dict[str, Any]] = {"text": MARK}
PLAIN: Final[dict[str, Any]] = {"text": "hi"}  # a stranger may send it too
# path → body of what is sent with an idempotency key: the path itself
REPEATED: Final[dict[str, dict[str, Any]]] = {
    "/predictions": {"version": VERSION, "input": PLAIN},
    "/predictions/batch": {"predictions": [{"version": VERSION, "input": PLAIN}]},
    f"/models/{MODEL}/predictions": {"input": PLAIN},
    f"/models/{MODEL}/versions/{VERSION}/trainings": {"destination": SHOWN, "input": PLAIN},
    "/procedures": {"version": VERSION, "input": PLAIN},
}


class Possessions(Struct, frozen=True):
    """`things`: name → name on the wire. `secrets`: texts that no stranger may receive."""

    things: dict[str, str]
    secrets: tuple[str, ...]

    def fill(self, text: str) -> str:
        return Template(text).substitute(self.things)

    def seen_in(self, answer: httpx.Response) -> list[str]:
        told = answer.text + str(answer.headers)
        return [secret for secret in self.secrets if secret in told]


class Maker:
    def __init__(
        self, api: httpx.AsyncClient, redis: Redis, scripts: Scripts, catalog: Catalog, store: LocalFiles
    ) -> None:
        self._api = api
        self._redis = redis
        self._scripts = scripts
        self._catalog = catalog
        self._store = store
        self._things: dict[str, str] = {}

    async def make(self) -> Possessions:
        queues = await self._models()
        await self._ran(PlayedDirector(self._scripts, queues["echo"]))
        await self._dead(PlayedDirector(self._scripts, queues["hidden"]))
        for name, path in zip(("waiting", "of_batch", "of_model", "training", "procedure"), REPEATED, strict=True):
            self._things[name] = await self._created(path, REPEATED[path], {"idempotency-key": path})
        await self._deployment()
        await self._files()
        await self._tokens()
        things = self._things
        secret = (await Accounts(self._redis).webhook_secrets(OWNER))[0]
        names = (f'"username":"{OWNER}"', f'{{"name":"{OWNER}",')
        told = (MARK, "hidden-model", HIDDEN_VERSION, "desk-of-amber", ALIAS, *names, secret)
        ids = [value for name, value in things.items() if "/" not in value and "=" not in value]
        return Possessions(things, tuple(dict.fromkeys([*told, *ids])))

    async def _models(self) -> dict[str, QueueName]:
        queues: dict[str, QueueName] = {}
        schema = Raw(
            b'{"openapi":"3.0.2","components":{"schemas":'
            b'{"Input":{"type":"object"},"TrainingInput":{"type":"object"}}}}'
        )
        for kind in KINDS:
            queues[kind or "echo"] = await self._catalog.register_kind(
                MODEL, VERSION, kind, schema=schema, server="echo", policy=Policy()
            )
        for model, version, visibility in ((HIDDEN, HIDDEN_VERSION, "private"), (SHOWN, SHOWN_VERSION, "public")):
            name = model.partition("/")[2]
            text = f"{MARK} unlisted" if visibility == "private" else "listed"
            body = {"owner": OWNER, "name": name, "visibility": visibility, "hardware": "cpu", "description": text}
            await self._sent("POST", "/models", json=body)
            queues[name.partition("-")[0]] = await self._catalog.register(
                model, version, schema=OPEN_SCHEMA, server="openai", policy=Policy(attempts=1)
            )
        for kind in KINDS[1:]:
            await self._catalog.register_kind(
                HIDDEN, HIDDEN_VERSION, kind, schema=schema, server="openai", policy=Policy()
            )
        await self._sent("PATCH", f"/models/{HIDDEN}", json={"readme": f"{MARK} unlisted"})
        await Collections(self._redis).put("best", Collection(name="Best", models=(HIDDEN, SHOWN)))
        await self._redis.hset(keys.aliases(), ALIAS, HIDDEN)
        self._things |= {"hidden": HIDDEN, "hidden_version": HIDDEN_VERSION, "shown": SHOWN}
        return queues

    async def _ran(self, director: PlayedDirector) -> None:
        asked = {"version": VERSION, "input": INPUT, "webhook": f"https://receiver.example/{MARK}"}
        ended = await self._sent("POST", "/predictions", json={**asked, "webhook_events_filter": ["completed"]})
        claim = await director.claim()
        seq = await director.begin(claim, f'"{MARK}"'.encode())
        await director.finish(claim, output=f'"{MARK}"'.encode(), seq=seq)
        await self._scripts.deliver(claim.id, outcome="refused", status=500, delay_s=60, host="receiver.example")
        right_stream = str(ended.json()["urls"]["stream"])
        self._things |= {"ended": claim.id, "right_stream": right_stream}
        self._things["running"] = await self._created("/predictions", {"version": VERSION, "input": INPUT})
        running: Claim = await director.claim()
        # one address has the id of one and the ticket of another
        self._things["wrong_stream"] = claim.id + running.record.ticket
        await director.begin(running, f'"{MARK}"'.encode())

    async def _dead(self, director: PlayedDirector) -> None:
        for name in ("dead", "dead_too", "dead_as_well"):
            self._things[name] = await self._created("/predictions", {"version": HIDDEN, "input": INPUT})
            claim = await director.claim()
            became = await self._scripts.release(
                claim.id, token=claim.token, spent=True, error=MARK, code="broken", used=Used(runs=1, ms=1000)
            )
            assert became == "dead"

    async def _deployment(self) -> None:
        body = {"name": "desk-of-amber", "model": HIDDEN, "version": HIDDEN_VERSION, "hardware": "cpu"}
        await self._sent("POST", "/deployments", json={**body, "min_instances": 0, "max_instances": 1})
        self._things["desk"] = "desk-of-amber"
        path = f"/deployments/{OWNER}/desk-of-amber/predictions"
        self._things["of_deployment"] = await self._created(path, {"input": INPUT})

    async def _files(self) -> None:
        given = {"content": (f"{MARK}.txt", MARK.encode(), "text/plain")}
        file = FileId((await self._sent("POST", "/files", files=given)).json()["id"])
        made = FileName(PredictionId(self._things["ended"]), "0" * 32, "txt")
        await self._store.put(made, MARK.encode(), content_type="text/plain")
        links, expires_s = Links(self._redis, SystemClock()), 4_000_000_000
        right = await links.download(OWNER, file, name="x", base=BASE, expires_s=expires_s)
        wrong = await links.download(STRANGER, file, name="x", base=BASE, expires_s=expires_s)
        shown = await links.sign(str(made), base=BASE, expires_s=expires_s)
        other = await links.sign(str(made).replace("0" * 32, "1" * 32), base=BASE, expires_s=expires_s)
        self._things |= {"file": file, "made": str(made), "right_download": right, "right_output": shown}
        self._things |= {"wrong_download": urlsplit(wrong).query, "wrong_output": urlsplit(other).query}
        batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        batched = await self._api.post("/openai/v1/batches", json={**batch, "metadata": {"mark": MARK}})
        self._things["batch"] = batched.json()["id"]
        self._things["input"] = (await self._sent("POST", "/files", files=given)).json()["id"]

    async def _tokens(self) -> None:
        accounts = Accounts(self._redis)
        await accounts.create_token(OWNER, label=MARK)
        self._things["token_id"] = (await accounts.tokens.of(OWNER))[-1].id

    async def _created(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> str:
        made = (await self._sent("POST", path, json=body, headers=headers)).json()
        if "results" in made:
            made = made["results"][0]["prediction"]
        return str(made["id"])

    async def _sent(self, method: str, path: str, **asked: Any) -> httpx.Response:
        answer = await self._api.request(method, f"/v1{path}", **asked)
        assert answer.is_success, (method, path, answer.text)
        return answer
