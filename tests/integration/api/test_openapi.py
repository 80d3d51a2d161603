"""Test the served OpenAPI document: it is public, names the requested host, and is not sent again if unchanged."""

import pytest

from director.core.settings import ApiSettings
from tests.support.api import api_client


@pytest.mark.parametrize("base", ["", "/v1", "/v1/v1"])
async def test_contract_is_public(settings: ApiSettings, base: str) -> None:
    async with api_client(settings) as anybody:
        answer = await anybody.get(f"{base}/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["openapi"] == "3.1.0"
    assert answer.json()["servers"] == [{"url": "http://director.test/v1"}]


async def test_unchanged_contract_is_not_sent_again(settings: ApiSettings) -> None:
    async with api_client(settings) as anybody:
        first = await anybody.get("/openapi.json")
        tag = first.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await anybody.get("/openapi.json", headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        elsewhere = await anybody.get("/openapi.json", headers={"If-None-Match": tag, "Host": "other.test"})
    assert (elsewhere.status_code, elsewhere.json()["servers"]) == (200, [{"url": "http://other.test/v1"}])
