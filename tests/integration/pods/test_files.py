"""Test one volume behind the API: a director without access to the volume stores files that callers can fetch."""

from pathlib import Path

import httpx
import pytest

from tests.integration.execution.test_files import SOURCE, schema
from tests.support.api import live_api
from tests.support.cog import cog_server, write_model
from tests.support.live_director import Caller, director_process
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]

FILES = {"type": "array", "items": {"type": "string", "format": "uri"}, "x-cog-array-type": "iterator"}


async def test_output_files_go_through_the_api(caller: Caller, server: RedisServer, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", SOURCE, schema(FILES))
    async with (
        live_api(server.url, env={"DIRECTOR_FILES_DIR": str(tmp_path / "volume")}) as api,
        cog_server(model) as cog,
        director_process(server.url, cog, files_url=api.url) as director,
    ):
        ended = await caller.ended(await caller.submit(n=2, size=3_000_000))
        assert ended["status"] == "succeeded"
        async with httpx.AsyncClient(base_url=api.url, trust_env=False) as http:
            for number, address in enumerate(ended["output"]):
                answer = await http.get(httpx.URL(address).raw_path.decode())
                assert (answer.status_code, answer.content) == (200, bytes([number]) * 3_000_000)
        assert not director.said("storing a file failed")
