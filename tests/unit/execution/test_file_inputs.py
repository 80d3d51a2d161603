import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.ids import FileId, new_file_id, new_prediction_id
from director.execution.run_files import fill_addresses, find_files, move_addresses
from director.files.store import FileName

ONE, TWO = new_file_id(1), new_file_id(2)
OUTPUT = FileName(new_prediction_id(model="acme/echo", now_ms=1), "a1" * 16, "png")
SIGNED = {ONE: 'http://x/"one"', TWO: "http://x/two?a=b&c=d"}


def of(file_id: str, base: str = "https://director.test/v1") -> str:
    return f"{base}/files/{file_id}"


def replaced(value: Any) -> Any:
    return msgspec.json.decode(fill_addresses(Raw(msgspec.json.encode(value)), SIGNED))


@pytest.mark.parametrize(
    "base",
    ["https://director.test/v1", "http://127.0.0.1:8080/v1", "https://x", "http://x/v1/v1", "https://x/below/v1"],
)
def test_an_address_of_a_file_is_replaced_wherever_it_stands(base: str) -> None:
    given_ = {"image": of(ONE, base), "more": [{"deep": [of(TWO, base), of(ONE, base)]}], "n": 1.50}
    assert replaced(given_) == {
        "image": SIGNED[ONE],
        "more": [{"deep": [SIGNED[TWO], SIGNED[ONE]]}],
        "n": 1.50,
    }


OTHERS = {
    "below": of(ONE) + "/download",
    "query": of(ONE) + "?x=1",
    "fragment": of(ONE) + "#x",
    "space": " " + of(ONE),
    "text": f"see {of(ONE)}",
    "upper": of(ONE.upper()),
    "prediction": of(new_prediction_id(model="acme/echo", now_ms=1)),
    "ftp": f"ftp://x/files/{ONE}",
    "path": f"/v1/files/{ONE}",
    "no host": f"https:/files/{ONE}",
    "quoted": f'say "{of(ONE)}"',
    "data": f"data:,https://x/files/{ONE}",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=list(OTHERS))
def test_what_is_no_address_of_a_file_stays(text: str) -> None:
    assert replaced({"x": text}) == {"x": text}


def test_member_names_and_unknown_files_stay() -> None:
    unknown = of(new_file_id(3))
    assert replaced({of(ONE): of(ONE), "x": unknown}) == {of(ONE): SIGNED[ONE], "x": unknown}


def test_escaped_slashes_are_slashes() -> None:
    escaped = json.dumps({"x": of(ONE)}).replace("/", "\\/").encode()
    assert msgspec.json.decode(fill_addresses(Raw(escaped), SIGNED)) == {"x": SIGNED[ONE]}


JSON = st.recursive(
    st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from([of(ONE), 'a"', "\\", '\\"']),
    lambda below: st.lists(below) | st.dictionaries(st.text() | st.just(of(ONE)), below),
    max_leaves=10,
)


def substituted(value: Any) -> Any:
    match value:
        case dict():
            return {name: substituted(each) for name, each in value.items()}
        case list():
            return [substituted(each) for each in value]
        case str() if value == of(ONE):
            return SIGNED[ONE]
    return value


@given(JSON, st.booleans())
def test_only_whole_strings_are_replaced_in_any_json(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=1 if escaped else None).encode("utf-8", errors="replace")
    assert json.loads(bytes(fill_addresses(Raw(text), SIGNED))) == substituted(json.loads(text))
    if ONE.encode() not in text:
        assert bytes(fill_addresses(Raw(text), SIGNED)) == text


def test_each_is_named_once_for_each_place() -> None:
    assert [found for _, found in find_files(Raw(json.dumps([of(ONE), of(ONE)]).encode()))] == [FileId(ONE)] * 2


def test_an_output_of_ours_is_fetched_where_model_servers_reach_the_api() -> None:
    ours, path = "https://director.test", f"/v1/outputs/{OUTPUT}?expires=1&signature=b"
    sent = {"image": ours + path, "more": [ours + path, f"see {ours}{path}", f"https://other{path}"], ours + path: 1.50}
    raw = Raw(msgspec.json.encode(sent))
    there = json.loads(bytes(move_addresses(raw, url=ours, base="http://api:8000")))
    inside = f"http://api:8000{path}"
    assert there == {**sent, "image": inside, "more": [inside, f"see {ours}{path}", f"https://other{path}"]}
    assert move_addresses(raw, url=ours, base="") is raw


@pytest.mark.parametrize(
    "path",
    ["../../metrics", "..%2f..%2fmetrics", f"../{OUTPUT}", f"{OUTPUT}/../../metrics", f"{OUTPUT}#", "a.png", "?"],
    ids=["up", "up in disguise", "one up", "up again", "no query", "another name", "no name"],
)
def test_nothing_but_an_output_is_fetched_there(path: str) -> None:
    raw = Raw(msgspec.json.encode({"image": f"https://director.test/v1/outputs/{path}"}))
    assert bytes(move_addresses(raw, url="https://director.test", base="http://api:8000")) == bytes(raw)
