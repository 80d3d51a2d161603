import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.bench.benches.first_token import P50, P99, Stream
from tests.bench.results import OURS, Measured
from tests.bench.targets import TARGETS
from tests.unit.bench.test_judgement import result

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'2a\r\ndata: {"delta":{"role":"assistant","content":""}}\n\n\r\n'
TOKEN = b'2a\r\ndata: {"delta":{"content":"1795.5 "}}\n\n\r\n'
END = b"0\r\n\r\n"


async def read(*pieces: bytes) -> float:
    stream = Stream()
    stream.connection_made(Mock(asyncio.Transport))
    reading = asyncio.create_task(stream.read(b"POST"))
    for piece in pieces:
        await asyncio.sleep(0)
        stream.data_received(piece)
    return await reading


@pytest.mark.parametrize("cut", [lambda data: [data], lambda data: [data[i : i + 1] for i in range(len(data))]])
async def test_answer_is_read_to_its_end_however_it_is_cut(cut: Callable[[bytes], list[bytes]]) -> None:
    assert 0 < await read(*cut(HEAD + ROLE + TOKEN + TOKEN + END)) < 60


@pytest.mark.parametrize("pieces", [[b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n"], [HEAD, ROLE, END]])
async def test_answer_without_a_token_is_no_figure(pieces: list[bytes]) -> None:
    with pytest.raises(ChildProcessError):
        await read(*pieces)


@pytest.mark.parametrize(
    ("figure", "ours", "verdict"),
    [(P50, 4.9, "reached"), (P50, 5.1, "**missed**"), (P99, 11.9, "reached"), (P99, 12.1, "**missed**")],
)
def test_targets_of_a_first_token_are_judged(figure: str, ours: float, verdict: str) -> None:
    [target] = [each for each in TARGETS if (each.bench, each.figure) == ("first_token", figure)]
    measured = Measured(name=figure, unit="ms", rounds={OURS: [ours]})
    assert target.judged(target.found({"first_token": result(measured, bench="first_token")})) == verdict
