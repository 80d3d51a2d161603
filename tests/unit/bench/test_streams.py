import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.bench.sides.streams import Heard, Reader

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'2a\r\ndata: {"delta":{"role":"assistant","content":""}}\n\n\r\n'
TOKEN = b'2a\r\ndata: {"delta":{"content":"1795.5 "}}\n\n\r\n'
SPACED = TOKEN.replace(b'":"', b'": "')
END = b"0\r\n\r\n"


async def heard(*pieces: bytes, limit_s: float = 60) -> Heard:
    reader = Reader()
    reader.connection_made(Mock(asyncio.Transport))
    reading = asyncio.create_task(reader.read(b"POST", limit_s))
    for piece in pieces:
        await asyncio.sleep(0)
        reader.data_received(piece)
    return await reading


@pytest.mark.parametrize("cut", [lambda data: [data], lambda data: [data[i : i + 1] for i in range(len(data))]])
async def test_each_token_is_counted_however_the_answer_is_cut(cut: Callable[[bytes], list[bytes]]) -> None:
    found = await heard(*cut(HEAD + ROLE + TOKEN + SPACED + TOKEN + END))
    assert (found.fault, len(found.gaps_ms)) == ("", 2)
    assert found.first_ms > 0


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        ([b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n"], "refused"),
        ([HEAD, ROLE, END], "no token"),
        ([HEAD, ROLE, TOKEN], "did not end"),
    ],
)
async def test_answer_that_is_not_whole_is_a_fault(pieces: list[bytes], fault: str) -> None:
    assert fault in (await heard(*pieces, limit_s=0.1)).fault
