import copy
import json
import re
import shlex
from typing import Any, Final

import httpx
import msgspec

from api.app import ROUTES
from api.web.errors import Code
from api.web.openapi import REFUSALS, encode_document
from api.web.reference import CHAPTERS, _number, curl, operations, page

DOCUMENT: Final[dict[str, Any]] = msgspec.json.decode(encode_document("", ROUTES))
PAGE: Final = page(DOCUMENT)
HOSTILE: Final = """<script>alert("x")</script>'"""


async def test_reference_needs_neither_token_nor_redis(alone: httpx.AsyncClient) -> None:
    answer = await alone.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == PAGE


async def test_reference_loads_only_our_styles_and_no_script(alone: httpx.AsyncClient) -> None:
    policy = (await alone.get("/docs")).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self';")
    assert "script-src" not in policy
    assert not re.search(r"<script|\son\w+=|style=|javascript:", PAGE)
    assert set(re.findall(r'<(?:link|img)[^>]* (?:href|src)="([^"]*)"', PAGE)) == {
        "dashboard/icon.svg",
        "dashboard/style.css",
        "dashboard/docs.css",
    }


async def test_reference_is_sent_once_to_each_browser(alone: httpx.AsyncClient) -> None:
    etag = (await alone.get("/docs")).headers["etag"]
    again = await alone.get("/docs", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_each_operation_is_in_one_chapter() -> None:
    shown = [each.name for tags in CHAPTERS.values() for each in operations(DOCUMENT, tags)]
    assert sorted(shown) == sorted(route.name for route in ROUTES if route.name)
    assert re.findall(r'<section class="card" id="([^"]*)"', PAGE)[: len(shown)] == shown


def test_each_link_on_the_page_leads_somewhere() -> None:
    places = re.findall(r'\bid="([^"]*)"', PAGE)
    assert len(set(places)) == len(places)
    assert set(re.findall(r'href="#([^"]*)"', PAGE)) <= set(places)


def test_bounds_are_shown_in_full() -> None:
    shown = {
        name: _number(bound) for name, bound in {"small": 1e-6, "large": 2**63 - 1, "half": 0.5, "whole": 300.0}.items()
    }
    assert shown == {"small": "0.000001", "large": "9,223,372,036,854,775,807", "half": "0.5", "whole": "300"}


def test_refusals_and_codes_are_on_the_page() -> None:
    assert [f'id="refusal-{status}"' for status in REFUSALS if f'id="refusal-{status}"' not in PAGE] == []
    assert [code for code in Code if f"<code>{code}</code>" not in PAGE] == []


def test_texts_of_the_document_are_escaped() -> None:
    document = copy.deepcopy(DOCUMENT)
    written = document["paths"]["/predictions"]["post"]
    written["summary"] = written["description"] = HOSTILE
    written["parameters"][0] |= {"name": HOSTILE, "description": HOSTILE, "in": HOSTILE}
    written["responses"]["201"] |= {"description": HOSTILE}
    written["responses"]["201"]["content"]["application/json"]["example"] = {HOSTILE: HOSTILE}
    document["components"]["schemas"]["Prediction"] |= {"description": HOSTILE, "properties": {HOSTILE: {}}}
    document["components"]["schemas"]["Prediction"]["properties"]["status"] = {"enum": [HOSTILE]}
    document["components"]["responses"]["NotFound"]["description"] = document["info"]["version"] = HOSTILE
    shown = page(document)
    assert HOSTILE not in shown
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") >= 10


def test_command_line_has_path_token_and_body() -> None:
    by_name = {each.name: each for tags in CHAPTERS.values() for each in operations(DOCUMENT, tags)}
    line = curl(by_name["models.predictions.create"])
    assert line.startswith('curl -X POST "$DIRECTOR_URL/v1/models/acme/painter/predictions" \\\n')
    assert '-H "Authorization: Bearer $DIRECTOR_TOKEN"' in line
    words = shlex.split(line)
    assert json.loads(words[words.index("-d") + 1])["input"] == {"prompt": "a lighthouse at dusk"}
    assert "Authorization" not in curl(by_name["outputs.get"])
    assert "{" not in curl(by_name["admin.queues.get"])
