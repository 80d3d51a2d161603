import pytest
from hypothesis import given
from hypothesis import strategies as st

from director.core.schema import NO_TRACE
from director.runtime.tracing import MOST_CHARS, trace_headers

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("sent", "handed_on"),
    [
        (PARENT, PARENT),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-03"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f" \t{PARENT}\t ", PARENT),
        (f"01-{TRACE}-{SPAN}-01", PARENT),
        (f"cc-{TRACE}-{SPAN}-01", PARENT),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", PARENT),
    ],
    ids=["good", "unsampled", "random id", "flags unknown", "blanks around", "version 1", "later", "longer later"],
)
def test_a_good_traceparent_is_handed_on_in_the_version_that_is_known(sent: str, handed_on: str) -> None:
    assert trace_headers([sent], []) == {"traceparent": handed_on}


@pytest.mark.parametrize(
    "sent",
    [
        "",
        PARENT[:-1],
        f"{PARENT}-01",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}.-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0１",
        f"{PARENT}\n",
        "0" * 100_000,
    ],
    ids=str,
)
def test_invalid_traceparent_is_ignored(sent: str) -> None:
    assert trace_headers([sent], ["rojo=1"]) == NO_TRACE


def test_two_parents_or_a_lone_state_are_ignored() -> None:
    assert trace_headers([PARENT, PARENT], []) == NO_TRACE
    assert trace_headers([], ["rojo=1"]) == NO_TRACE


@pytest.mark.parametrize(
    ("sent", "handed_on"),
    [
        (["foo=1"], "foo=1"),
        (["foo=1,bar=2"], "foo=1,bar=2"),
        (["foo=1", "bar=2"], "foo=1,bar=2"),
        (["foo=1 \t , \t bar=2, \t baz=3"], "foo=1,bar=2,baz=3"),
        (["foo=1,", "", "bar=2"], "foo=1,bar=2"),
        (["fw529a3039@dt=FfTXoAQC"], "fw529a3039@dt=FfTXoAQC"),
        (["0tenant@system=1"], "0tenant@system=1"),
        (["a_-*/0=1"], "a_-*/0=1"),
        (["foo=a b;!~"], "foo=a b;!~"),
        ([f"{'z' * 256}=1"], f"{'z' * 256}=1"),
        ([",".join(f"k{n}=1" for n in range(32))], ",".join(f"k{n}=1" for n in range(32))),
    ],
    ids=["one", "two", "in two headers", "blanks", "empty ones", "tenant", "digit", "signs", "value", "long", "most"],
)
def test_a_good_tracestate_goes_with_it(sent: list[str], handed_on: str) -> None:
    assert trace_headers([PARENT], sent) == {"traceparent": PARENT, "tracestate": handed_on}


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "foo=",
        "FOO=1",
        "0foo=1",
        "@foo=1",
        "foo@bar@baz=1",
        f"{'z' * 257}=1",
        f"{'t' * 242}@v=1",
        f"t@{'v' * 15}=1",
        "foo=1\x00",
        "foo=1,foo=2",
        "foo=é",
        f"foo={'v' * 257}",
        ",".join(f"k{n}=1" for n in range(33)),
        "," * 100_000 + "!",
    ],
    ids=lambda sent: sent[:40],
)
def test_a_tracestate_that_breaks_a_rule_is_left_out(sent: str) -> None:
    assert trace_headers([PARENT], [sent]) == {"traceparent": PARENT}


def test_long_tracestate_loses_long_members_first_and_then_the_last() -> None:
    short = [f"k{n}={'v' * 60}" for n in range(10)]
    long = f"long={'v' * 200}"
    state = trace_headers([PARENT], [",".join([short[0], long, *short[1:]])])["tracestate"]
    assert state == ",".join(short[: state.count("=")])
    assert MOST_CHARS - 70 < len(state) <= MOST_CHARS


@given(st.lists(st.text(max_size=80), max_size=2), st.lists(st.text(max_size=80), max_size=3))
def test_whatever_is_sent_is_taken_whole_or_not_at_all(parents: list[str], states: list[str]) -> None:
    found = trace_headers(parents, states)
    assert set(found) <= {"traceparent", "tracestate"}
    assert all(0 < len(text) <= MOST_CHARS and text.isascii() and text.isprintable() for text in found.values())
