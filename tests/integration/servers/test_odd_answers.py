"""Test that each odd answer ends its run as the table says."""

import json
import math
from collections import Counter
from typing import Final

import msgspec
import pytest
from msgspec import UNSET, Raw

from director.core.runner_config import decode_runner_config
from director.servers.runners import RunnerOptions, make_runner
from director.servers.runners.runner import RunRequest
from tests.support.odd_answers import KINDS, ROWS, Row
from tests.support.odd_server import odd_server
from tests.support.runner_conformance import follow, opened, the_end

pytestmark = [pytest.mark.faults]

MOST_BYTES: Final = 2 << 20
LEAST_ROWS: Final = 120


def test_table_is_long_and_names_each_row_once() -> None:
    assert len(ROWS) >= LEAST_ROWS
    assert [name for name, times in Counter((row.kind, row.name) for row in ROWS).items() if times > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.name}")
async def test_odd_answer_ends_its_run_as_the_table_says(row: Row) -> None:
    config = decode_runner_config(json.dumps(KINDS[row.kind]))
    async with odd_server(row.kind, row) as (server, url):
        async with opened(make_runner(config, RunnerOptions(url=url, max_body=MOST_BYTES))) as runner:
            await runner.health()
            server.health = row.health
            request = RunRequest(id="a" * 26, input=Raw(b'{"prompt": "0"}'), is_first=True)
            end = the_end(await follow(runner, request))
        assert end.outcome == row.end, end.error
        assert (server.runs["0"], server.shutdowns, end.in_doubt) == (1, 0, False)
    if row.output is not UNSET:
        found = json.loads(bytes(end.output or b"null"))
        # two pieces of text may come together
        assert ("".join(found) if row.kind == "http" and isinstance(row.output, str) else found) == row.output
    assert row.words in (end.error or "")
    assert "secret" not in (end.error or "")
    for stored in (end.output or b"null", *end.metrics.values()):
        # the strictest reader can read it
        msgspec.json.decode(stored, type=Raw)
        json.loads(bytes(stored).decode(), parse_int=finite, parse_float=finite, parse_constant=pytest.fail)


def finite(text: str) -> float:
    assert math.isfinite(float(text))
    return float(text)
