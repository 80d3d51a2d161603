import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, get_args

import httpx
import pytest

from api.dashboard import ASSETS
from director.operate.views import SHOWN, QueueState

BROWSER: Final = {"Accept": "text/html,application/xhtml+xml"}
# a namespace, and comments
NAMED: Final = {
    "http://www.w3.org/2000/svg",
    "https://github.com/leeoniya/uPlot",
    "https://github.com/markedjs/marked",
}
STATIC: Final = Path(__file__).parents[3] / "api" / "dashboard" / "static"


async def test_the_page_is_at_the_root(alone: httpx.AsyncClient) -> None:
    answer = await alone.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert '"dashboard/main.js"' in answer.text


@pytest.mark.parametrize(
    ("path", "view"),
    [
        ("/p/06gzz9v18kz007ty9xrzv3ac0t", "../#/predictions/06gzz9v18kz007ty9xrzv3ac0t"),
        ("/p/%0d%0aSet-Cookie:x", "../#/predictions/%0D%0ASet-Cookie%3Ax"),
        ("/acme/painter", "../#/models/acme/painter"),
    ],
)
async def test_addresses_that_answers_name_for_people_lead_to_the_page(
    alone: httpx.AsyncClient, path: str, view: str
) -> None:
    answer = await alone.get(path, headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (302, view)


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/acme/painter", "GET", {"Accept": "application/json"}),
        ("/acme/painter", "POST", BROWSER),
        ("/acme/painter/more", "GET", BROWSER),
        ("/v1/nothing", "GET", BROWSER),
        ("/dashboard/../page.py", "GET", BROWSER),
        ("/dashboard/..%2Fpage.py", "GET", BROWSER),
        ("/dashboard/none.js", "GET", BROWSER),
    ],
)
async def test_nothing_else_is_found(alone: httpx.AsyncClient, path: str, method: str, headers: dict[str, str]) -> None:
    assert (await alone.request(method, path, headers=headers)).status_code == 404


@pytest.mark.parametrize("path", ["/", *(f"/dashboard/{name}" for name in sorted(ASSETS))])
async def test_every_file_forbids_code_and_styles_from_elsewhere(alone: httpx.AsyncClient, path: str) -> None:
    answer = await alone.get(path, headers=BROWSER)
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["trusted-types"] == "'none'"
    assert policy["img-src"] == policy["media-src"] == "'self' data:"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_file_that_the_browser_has_is_not_sent_again(alone: httpx.AsyncClient) -> None:
    first = await alone.get("/dashboard/main.js")
    again = await alone.get("/dashboard/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_page_files_are_all_served_and_refer_to_existing_files() -> None:
    there = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert there == set(ASSETS)
    for name in sorted(there):
        text = (STATIC / name).read_text()
        for named in re.findall(r'(?:from|import\() ?"(\.[^"]+)"', text):
            assert str((STATIC / name).parent.joinpath(named).resolve().relative_to(STATIC)) in there, (name, named)
        for named in re.findall(r'"dashboard/([^"]+)"', text):
            assert named in there, (name, named)


def test_page_is_under_200_kb_packed_and_485_kb_unpacked() -> None:
    """Nearly every browser takes the files packed. What it unpacks and reads has a bound too; it reads no licence."""
    read = [asset for path, asset in ASSETS.items() if not path.endswith("LICENSE.txt")]
    assert sum(len(asset.packed) for asset in read) < 200_000
    assert sum(len(asset.body) for asset in read) < 485_000


@pytest.mark.parametrize(("accepts", "is_packed"), [("gzip, deflate, br", True), ("", False), ("gzip;q=0", False)])
async def test_files_are_packed_for_browsers_that_unpack_them(
    alone: httpx.AsyncClient, accepts: str, is_packed: bool
) -> None:
    answer = await alone.get("/dashboard/main.js", headers={"Accept-Encoding": accepts})
    assert answer.content == ASSETS["main.js"].body, "the client unpacks it"
    assert ("content-encoding" in answer.headers) is is_packed
    assert answer.headers["vary"] == "Accept-Encoding"
    assert ("gzip" in answer.headers["etag"]) is is_packed
    again = await alone.get(
        "/dashboard/main.js", headers={"Accept-Encoding": accepts, "If-None-Match": answer.headers["etag"]}
    )
    assert again.status_code == 304


def test_page_uses_no_address_from_the_root() -> None:
    """A proxy may have put it below a path of its own."""
    for name, asset in ASSETS.items():
        assert not re.search(r"""(?:href|src|action|url)\s*[=(:]\s*["']?/(?!/)""", asset.body.decode()), name


def test_every_state_of_a_queue_has_words_for_people() -> None:
    assert set(SHOWN) == set(get_args(QueueState))


@pytest.mark.parametrize("name", sorted(name for name in ASSETS if name.endswith(".js")))
def test_no_text_of_a_stranger_can_become_html_or_code(name: str) -> None:
    """The policy forbids it too; here it is not even tried."""
    text = (STATIC / name).read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)


@pytest.mark.parametrize("name", sorted(name for name in ASSETS if name.endswith(".js")))
def test_each_script_of_the_page_can_be_parsed(name: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node in PATH")
    script = tmp_path / "script.mjs"
    script.write_bytes(ASSETS[name].body)
    done = subprocess.run([node, "--check", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_taken_from_elsewhere() -> None:
    """Addresses of the reader's own machine stand in commands to copy, and the policy keeps the page from them."""
    for name, asset in ASSETS.items():
        if name.endswith(".txt"):
            continue  # a licence names its authors, and is read by people alone
        found = set(re.findall(r"https?://(?!127\.0\.0\.1:)[^\s\"'`)]+", asset.body.decode())) - NAMED
        assert {url for url in found if "…" not in url} <= {"https?://|"}, name
