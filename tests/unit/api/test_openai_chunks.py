"""Test that only what one run said is sent, wherever the reader's pages end."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from api.openai.chunks import Chunks, Cut
from director.core.schema import Event

Kind = tuple[str, bytes]
ROLE, SAID, LOST = "role", "output", "retried"


async def silent() -> tuple[bytes, float]:
    return b"", 1.0


def send(runs: Sequence[Sequence[Kind]], cuts: Sequence[int], *, restarts: bool) -> tuple[list[str], bool]:
    """Send runs, each lost but the last, in pages that end at these places. Returns what came, and whether all did."""
    log: list[Kind] = []
    for run in runs:
        log += [*([(LOST, b"server_lost d 1")] if log else []), ("started", b""), *run]
    events = [Event(seq, kind, 0, data) for seq, (kind, data) in enumerate(log, start=1)]
    chunks, sent = Chunks(restarts=restarts, write_comment=silent), b""
    places = sorted({0, len(events), *(cut % (len(events) + 1) for cut in cuts)})
    is_whole = True
    for start, end in pairwise(places):
        try:
            sent += chunks.events(events[start:end])
        except Cut as cut:
            sent, is_whole = sent + cut.rest, False
            break
    return [block.removeprefix("data: ") for block in sent.decode().split("\n\n")[:-1]], is_whole


CHUNKS = st.sampled_from([ROLE, SAID])
RUNS = st.lists(st.lists(CHUNKS, max_size=3), min_size=1, max_size=4)


def numbered(runs: Sequence[Sequence[str]]) -> list[list[Kind]]:
    return [
        [(kind, b'{"%b":"%d/%d"}' % (kind.encode(), n, number)) for number, kind in enumerate(run)]
        for n, run in enumerate(runs)
    ]


@given(RUNS, st.lists(st.integers(0, 40), max_size=4), st.booleans())
def test_text_of_one_run_is_sent_and_each_role_once(shapes: list[list[str]], cuts: list[int], restarts: bool) -> None:
    runs = numbered(shapes)
    came, is_whole = send(runs, cuts, restarts=restarts)
    last = came[len(came) - came[::-1].index(": retried") :] if ": retried" in came else came
    texts = [one for one in last if SAID in one]
    writers = {one.split(":")[1].split("/")[0] for one in texts}
    assert len(writers) <= 1, "one run"
    if is_whole:
        assert texts == [data.decode() for kind, data in runs[-1] if kind == SAID], "all of the last one"
        roles = [one for one in last if ROLE in one]
        least = sum(kind == ROLE for kind, _ in runs[-1])
        assert least <= len(roles) <= max(sum(kind == ROLE for kind, _ in run) for run in runs)
    else:
        assert not restarts
        assert texts


def test_role_of_a_repeated_run_is_left_out() -> None:
    runs = numbered([[ROLE], [ROLE], [ROLE, SAID]])
    assert send(runs, [2, 5], restarts=False) == (['{"role":"0/0"}', '{"output":"2/1"}'], True)


def test_each_choice_gets_its_role_whatever_the_order_of_a_repeated_run() -> None:
    first, second = (b'{"choices":[{"index":%d,"delta":{"role":"assistant"}}]}' % index for index in (0, 1))
    runs = [[(ROLE, first)], [(ROLE, second), (ROLE, first), (SAID, b"{}")]]
    assert send(runs, [2], restarts=False) == ([first.decode(), second.decode(), "{}"], True)
