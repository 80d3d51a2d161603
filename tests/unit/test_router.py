"""Paths: what fits them, and in which order."""

from hypothesis import given
from hypothesis import strategies as st

from api.router import Router

ROUTES: Router[str] = Router(
    {
        path: path
        for path in (
            "/",
            "/a",
            "/a/{id}",
            "/a/all",
            "/a/{id}/b",
            "/{owner}/{name}/c",
            "/v1/a/{id}",
            "/files/{path:path}",
        )
    }
)


def test_each_part_of_a_path_leads_on_and_what_is_written_out_goes_first() -> None:
    table = {
        "/": [("/", {})],
        "/a": [("/a", {})],
        "/a/all": [("/a/all", {}), ("/a/{id}", {"id": "all"})],
        "/a/x/b": [("/a/{id}/b", {"id": "x"})],
        "/a/all/b": [("/a/{id}/b", {"id": "all"})],
        "/a/x/c": [("/{owner}/{name}/c", {"owner": "a", "name": "x"})],
        "/v1/a/x": [("/v1/a/{id}", {"id": "x"})],
        "/files/x/y.js": [("/files/{path:path}", {"path": "x/y.js"})],
        "/files/": [("/files/{path:path}", {"path": ""})],
        "/a/": [],
        "//x/c": [],
        "/a/x/b/": [],
        "/A": [],
        "": [],
        "a": [],
        "/b": [],
    }
    assert {path: ROUTES.found(path) for path in table} == table


@given(st.text(alphabet="a/bcx{}", max_size=40))
def test_no_name_stands_for_nothing_or_for_two_parts(path: str) -> None:
    for route, values in ROUTES.found(path):
        if "path" not in values:
            assert all(value and "/" not in value for value in values.values())
        assert route.replace(":path", "").format(**values) == path


def test_a_path_of_thousands_of_parts_is_only_split() -> None:
    assert ROUTES.found("/a" * 30_000) == []
