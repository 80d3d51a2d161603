"""`director directors`: each director with its slots, claims and model servers."""

import json
from typing import Any

import msgspec
import pytest
from anyio import to_thread

from director.cli.main import main
from director.cli.status import director_lines
from director.diagnosis.views import director_view
from director.store.directors import About, Beat, DirectorFound, ServerFound
from tests.support.queue_driver import MODEL, QueueDriver
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

START_MS = 1_800_000_000_000
SERVER = ServerFound(
    url="http://gpu:5000", state="resting", since_ms=START_MS, slots=2, detail="\x1b[2Jits key is wrong"
)


async def types(server: RedisServer, *line: str) -> int:
    return await to_thread.run_sync(lambda: main(["directors", *line, "--redis", server.url]))


async def test_each_director_is_a_line_of_its_last_heartbeat(
    server: RedisServer, driver: QueueDriver, capsys: Any
) -> None:
    assert await types(server) == 0
    assert capsys.readouterr().out == "no directors: `director run` starts one\n"
    about = msgspec.json.encode(About(version="1.2.3", since_ms=START_MS, held=1, servers=(SERVER,), more=2))
    await driver.scripts.extend(driver.queue, consumer="d1", lease_s=60, claims=[], slots=4, about=about)
    assert await types(server, "--queue", MODEL) == 0
    out = capsys.readouterr().out
    names, row, *_ = out.splitlines()
    seen = dict(zip(names.replace("last sign", "sign").split(), row.split(), strict=False))
    assert [seen[name] for name in ("director", "state", "slots", "holds", "version")] == [
        "d1",
        "ready",
        "4",
        "1",
        "1.2.3",
    ]
    assert driver.queue in row
    assert "http://gpu:5000  resting for" in out
    assert "\x1b" not in out
    assert "d1  and 2 more" in out
    assert await types(server, "--json") == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["name"], found["alive"], found["slots"], found["held"]) == ("d1", True, 4, 1)
    assert found["servers"][0]["state"] == "resting"
    assert await types(server, "--queue", "acme/none") == 1
    assert "there is no queue acme/none" in capsys.readouterr().err


def test_silent_director_is_marked() -> None:
    beat = Beat(queue=MODEL, at_ms=START_MS, slots=4, state="ready", about=About())  # type: ignore[arg-type]
    found = director_view(DirectorFound(name="d1", beats=(beat,), silent_ms=60_000))
    _, row = director_lines([found], now_ms=START_MS + 60_000, width=None)
    assert row.split()[1] == "silent"
    assert "60 s" in row
