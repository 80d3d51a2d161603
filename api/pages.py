"""Cursors and links of paged answers: opaque to callers, absolute on the public host, and with every filter kept."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request

from api.problems import InvalidField
from api.refusals import invalid_input
from api.urls import base_url

__all__ = ("PAGE_SIZE", "Cursor", "cursor_of", "link", "slice_of")

PAGE_SIZE: Final = 100
PLACE: Final = re.compile(r"([np])([0-9A-Za-z._/:~-]{1,300})")


class Cursor(Struct, frozen=True):
    """Where a page begins: after the id `at`, in the list's order, or before it and `backwards`."""

    at: str
    backwards: bool = False


def cursor_of(request: Request, *, is_place: Callable[[str], bool] = lambda _: True) -> Cursor | None:
    """The cursor of a request; 422 for one that we never gave out. `is_place`: may a page of this list begin there?"""
    text = request.query_params.get("cursor")
    if not text:
        return None
    try:
        match = PLACE.fullmatch(base64.urlsafe_b64decode(text).decode())
    except (binascii.Error, ValueError):
        match = None
    if match is None or not is_place(match[2]):
        raise invalid_input([InvalidField("format", "cursor", "Is not a cursor of this list")])
    return Cursor(at=match[2], backwards=match[1] == "p")


def link(request: Request, path: str, cursor: Cursor | None, kept: Mapping[str, str] | None = None) -> str:
    """The absolute address of a page. Clients send their token to it, so it is never relative to anything."""
    query = dict(kept or {})
    if cursor is not None:
        place = ("p" if cursor.backwards else "n") + cursor.at
        query["cursor"] = base64.urlsafe_b64encode(place.encode()).decode()
    return f"{base_url(request)}/v1{path}" + (f"?{urlencode(query)}" if query else "")


def slice_of(
    marks: Sequence[str], cursor: Cursor | None, *, most: int = PAGE_SIZE
) -> tuple[Sequence[str], Cursor | None, Cursor | None]:
    """One page of a list that is known whole, and the cursors of the page after it and before it, where there are any.

    `marks`: one for each thing, in the list's order, which is their own, backwards. What a cursor names may be gone.
    """
    if cursor is not None and cursor.backwards:
        page = [mark for mark in marks if mark > cursor.at][-most:]
    else:
        page = [mark for mark in marks if cursor is None or mark < cursor.at][:most]
    if not page:
        return page, None, None
    older = Cursor(page[-1]) if page[-1] != marks[-1] else None
    newer = Cursor(page[0], backwards=True) if page[0] != marks[0] else None
    return page, older, newer
