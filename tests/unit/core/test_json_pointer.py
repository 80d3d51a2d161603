import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.core.json_pointer import Pointer

RFC = Raw(
    b'{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, " ": 7, "m~n": 8, "n": null, "big": 1e400}'
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", bytes(RFC)),
        ("/foo", b'["bar", "baz"]'),
        ("/foo/0", b'"bar"'),
        ("/foo/1", b'"baz"'),
        ("/", b"0"),
        ("/a~1b", b"1"),
        ("/c%d", b"2"),
        ("/e^f", b"3"),
        ("/g|h", b"4"),
        ("/ ", b"7"),
        ("/m~0n", b"8"),
        ("/n", b"null"),
        ("/big", b"1e400"),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/00", None),
        ("/foo/01", None),
        ("/foo/x", None),
        ("/foo/0/x", None),
        ("/nothing", None),
        ("/n/x", None),
        ("//", None),
    ],
)
def test_it_finds_what_the_rfc_says(text: str, found: bytes | None) -> None:
    assert Pointer(text).find(RFC) == (None if found is None else Raw(found))


@pytest.mark.parametrize("text", ["foo", "/~", "/~2", "/a~", "#/foo", "/" + "x" * 300, "/" * 17, '/"', "/\\", "/\n"])
def test_what_is_no_pointer_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="JSON pointer"):
        Pointer(text)


NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\\'), max_size=8)


@given(st.lists(NAMES, min_size=1, max_size=8), st.integers())
def test_any_name_can_be_pointed_to(names: list[str], value: int) -> None:
    document: object = value
    for name in reversed(names):
        document = {"other": [1], name: document}
    pointer = Pointer("".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names))
    assert pointer.find(Raw(msgspec.json.encode(document))) == Raw(str(value).encode())
