"""Test that the name of a file is read in each spelling that clients send, or is refused with the reason."""

import pytest

from api.files.multipart import _part
from api.web.errors import Problem


def named(disposition: str | bytes) -> str | None:
    value = disposition if isinstance(disposition, bytes) else disposition.encode()
    return _part({b"content-disposition": b'form-data; name="content"; ' + value}).filename


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('filename="a.png"', "a.png"),
        ("filename=a.png", "a.png"),
        ('FileName = "a.png"', "a.png"),
        ('filename="a;b.png"', "a;b.png"),
        (r'filename="a\"b.png"', 'a"b.png'),
        ('filename="a%22b.png"', 'a"b.png'),
        ('filename="50%25.png"', "50%25.png"),
        ('filename="naïve.png"', "naïve.png"),
        ('filename="naïve.png"'.encode("latin-1"), "naïve.png"),
        ("filename*=UTF-8''na%C3%AFve.png", "naïve.png"),
        ("filename*=utf-8'en'na%c3%afve.png", "naïve.png"),
        ("filename*=\"UTF-8''na%C3%AFve.png\"", "naïve.png"),
        ("filename*=ISO-8859-1''%A3.png", "£.png"),
        ("filename*=windows-1252''%80.png", "€.png"),
        ("filename*=gbk''%D6%D0.png", "中.png"),
        ("filename=\"EURO.png\"; filename*=UTF-8''%E2%82%AC.png", "€.png"),
        ("filename*=UTF-8''%E2%82%AC.png; filename=\"EURO.png\"", "€.png"),
        ("filename=\"EURO.png\"; filename*=UTF-8''%FF.png", "EURO.png"),
        ('filename*0="long "; filename*1="name.png"', "long name.png"),
        ("filename*1=\"me.png\"; filename*0*=UTF-8''na%20", "na me.png"),
        ('filename="=?UTF-8?B?bmHDr3ZlLnBuZw==?="', "naïve.png"),
        ('filename="=?utf-8?q?na=C3=AFve.png?="', "naïve.png"),
        ('filename=""', ""),
        ("x=y", None),
    ],
)
def test_name_of_a_file_is_decoded_in_each_spelling(disposition: str | bytes, name: str | None) -> None:
    assert named(disposition) == name


@pytest.mark.parametrize("value", ["UTF-8''%FF.png", "UTF-8''%ZZ.png", "rot13''a.png", "a.png"])
def test_name_that_cannot_be_decoded_is_refused_with_the_reason(value: str) -> None:
    with pytest.raises(Problem, match="cannot be decoded"):
        named(f"filename*={value}")


def test_name_of_a_part_may_be_extended_too() -> None:
    part = _part({b"content-disposition": b"form-data; name*=UTF-8''content; filename=\"a.png\""})
    assert (part.name, part.filename) == ("content", "a.png")
