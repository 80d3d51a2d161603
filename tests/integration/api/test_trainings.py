"""Test trainings and procedures over HTTP: what is accepted, in which queue it waits, and that kinds stay separate."""

import json
from typing import Any

import pytest
from httpx import AsyncClient
from msgspec import Raw

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import BASE, PlayedDirector
from tests.support.queue_driver import MODEL, VERSION

DESTINATION = "acme/tuned"
LATER_VERSION = "c3" * 32
TRAININGS = f"/v1/models/{MODEL}/versions/{VERSION}/trainings"
SCHEMA = {
    "openapi": "3.0.2",
    "components": {
        "schemas": {
            "Input": {"type": "object", "properties": {"text": {"type": "integer"}}},
            "TrainingInput": {
                "type": "object",
                "required": ["data"],
                "properties": {"data": {"type": "string"}, "steps": {"type": "integer", "maximum": 10}},
            },
        }
    },
}
WANTED: dict[str, Any] = {"destination": DESTINATION, "input": {"data": "https://example.com/data.zip"}}


@pytest.fixture
async def trainings(catalog: Catalog, queue: QueueName) -> QueueName:
    schema = Raw(json.dumps(SCHEMA).encode())
    await catalog.register(MODEL, VERSION, schema=schema, server="echo", policy=Policy())
    await catalog.register(DESTINATION, "d4" * 32, schema=OPEN_SCHEMA, server="", policy=Policy())
    return await catalog.register_kind(MODEL, VERSION, "training", schema=schema, server="echo", policy=Policy())


@pytest.fixture
def trainer(scripts: Scripts, trainings: QueueName) -> PlayedDirector:
    return PlayedDirector(scripts, trainings)


async def test_training_is_accepted_and_shown(api: AsyncClient, trainer: PlayedDirector) -> None:
    made = await api.post(TRAININGS, json={**WANTED, "webhook_events_filter": ["completed"]})
    training = made.json()
    assert (made.status_code, training["status"], training["destination"]) == (201, "starting", DESTINATION)
    assert (training["model"], training["version"], training["input"]) == (MODEL, VERSION, WANTED["input"])
    at = f"{BASE}/v1/trainings/{training['id']}"
    assert (training["urls"]["get"], training["urls"]["cancel"]) == (at, f"{at}/cancel")
    assert made.headers["location"] == at
    claim = await trainer.claim()
    assert (claim.id, claim.record.kind, claim.record.destination) == (training["id"], "training", DESTINATION)
    await trainer.finish(claim, output=b'{"version":"acme/tuned:x","weights":null}')
    ended = (await api.get(at)).json()
    assert (ended["status"], ended["output"]["version"]) == ("succeeded", "acme/tuned:x")
    assert {"predict_time", "total_time"} <= set(ended["metrics"])


async def test_trainings_and_predictions_are_separate_resources(api: AsyncClient, trainings: QueueName) -> None:
    training = (await api.post(TRAININGS, json=WANTED)).json()["id"]
    prediction = (await api.post("/v1/predictions", json={"version": VERSION, "input": {}})).json()["id"]
    for kind, others in (("predictions", training), ("trainings", prediction), ("procedures", training)):
        assert (await api.get(f"/v1/{kind}/{others}")).status_code == 404
        assert (await api.post(f"/v1/{kind}/{others}/cancel")).status_code == 404
    assert (await api.delete(f"/v1/predictions/{training}")).status_code == 404
    assert (await api.get(f"/v1/trainings/{training}")).json()["status"] == "starting"
    assert (await api.get(f"/v1/predictions/{prediction}")).json()["status"] == "starting"
    for kind, its in (("predictions", [prediction]), ("trainings", [training]), ("procedures", [])):
        page = (await api.get(f"/v1/{kind}")).json()
        assert [one["id"] for one in page["results"]] == its


async def test_waiting_training_is_canceled_at_once(api: AsyncClient, trainings: QueueName) -> None:
    training = (await api.post(TRAININGS, json=WANTED)).json()
    canceled = await api.post(training["urls"]["cancel"], headers={"content-type": "application/json"})
    assert (canceled.status_code, canceled.json()["status"]) == (200, "canceled")
    assert canceled.json()["destination"] == DESTINATION


async def test_list_of_trainings_has_its_own_page_addresses(api: AsyncClient, trainings: QueueName) -> None:
    made = [(await api.post(TRAININGS, json=WANTED)).json()["id"] for _ in range(101)]
    first = (await api.get("/v1/trainings")).json()
    assert first["next"].startswith(f"{BASE}/v1/trainings?cursor=")
    last = (await api.get(first["next"])).json()
    assert [one["id"] for one in first["results"] + last["results"]] == sorted(made, reverse=True)


async def test_input_is_checked_against_the_training_schema(api: AsyncClient, trainings: QueueName) -> None:
    refused = await api.post(TRAININGS, json={"destination": DESTINATION, "input": {"steps": 11, "text": "x"}})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "- input: data is required\n- input.steps: Must be less than or equal to 10\n"


@pytest.mark.parametrize("destination", ["acme/unknown", "no model", "stranger/model", "", "ACME/tuned"])
async def test_destination_of_another_account_does_not_exist(
    api: AsyncClient, trainings: QueueName, catalog: Catalog, destination: str
) -> None:
    await catalog.register("stranger/model", "e5" * 32, schema=OPEN_SCHEMA, server="", policy=Policy())
    refused = await api.post(TRAININGS, json={**WANTED, "destination": destination})
    assert refused.status_code == 404
    assert refused.json() == {"detail": "The specified training destination does not exist", "status": 404}


async def test_missing_and_additional_fields_are_named(api: AsyncClient, trainings: QueueName) -> None:
    refused = await api.post(TRAININGS, json={"version": VERSION})
    assert [field["description"] for field in refused.json()["invalid_fields"]] == [
        "destination is required",
        "input is required",
        "Additional property version is not allowed",
    ]


async def test_version_without_a_training_queue_is_refused(
    api: AsyncClient, catalog: Catalog, queue: QueueName
) -> None:
    await catalog.register(DESTINATION, "d4" * 32, schema=OPEN_SCHEMA, server="", policy=Policy())
    refused = await api.post(TRAININGS, json=WANTED)
    assert (refused.status_code, refused.json()["code"]) == (422, "kind_not_served")
    for unknown in (f"/v1/models/{MODEL}/versions/{'f' * 64}/trainings", f"/v1/models/{MODEL}/versions/x/trainings"):
        assert (await api.post(unknown, json=WANTED)).status_code == 404
    assert (await api.get("/v1/trainings")).json()["results"] == []


async def test_key_stands_for_one_training_of_one_version(
    api: AsyncClient, trainings: QueueName, catalog: Catalog
) -> None:
    headers = {"Idempotency-Key": "k"}
    made = await api.post(TRAININGS, json=WANTED, headers=headers)
    again = await api.post(TRAININGS, json=WANTED, headers=headers)
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (made.json()["id"], "true")
    await catalog.register_kind(MODEL, LATER_VERSION, "training", schema=OPEN_SCHEMA, server="", policy=Policy())
    other = await api.post(f"/v1/models/{MODEL}/versions/{LATER_VERSION}/trainings", json=WANTED, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert len((await api.get("/v1/trainings")).json()["results"]) == 1


async def test_procedures_are_separate_from_predictions(
    api: AsyncClient, catalog: Catalog, queue: QueueName, scripts: Scripts
) -> None:
    asked = {"version": f"{MODEL}:{VERSION}", "input": {"text": "hi"}}
    refused = await api.post("/v1/procedures", json=asked)
    assert (refused.status_code, refused.json()["code"]) == (422, "kind_not_served")
    procedures = await catalog.register_kind(
        MODEL, VERSION, "procedure", schema=OPEN_SCHEMA, server="", policy=Policy()
    )
    made = await api.post("/v1/procedures", json=asked)
    at = f"{BASE}/v1/procedures/{made.json()['id']}"
    assert (made.status_code, made.json()["urls"]["get"]) == (201, at)
    director = PlayedDirector(scripts, procedures)
    await director.finish(await director.claim(), output=b'"hello"')
    assert (await api.get(at)).json()["output"] == "hello"
    waits = (await api.post("/v1/procedures", json=asked)).json()
    assert (await api.post(waits["urls"]["cancel"])).json()["status"] == "canceled"
    assert [one["id"] for one in (await api.get("/v1/procedures")).json()["results"]] == [
        waits["id"],
        made.json()["id"],
    ]
    assert (await api.get("/v1/predictions")).json()["results"] == []
