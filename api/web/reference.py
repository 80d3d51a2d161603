"""Render the OpenAPI document as HTML: the page `/docs`, and the pieces that the documentation site shows. There is no
script, and every text of the document is escaped.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from html import escape
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from api.web.http import PAGE_HEADERS, Request, answer_unless_known, etag_of
from api.web.openapi import encode_document
from api.web.route import Route

# Nothing but our own styles is loaded.
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Chapters, and the tags of the document that each one has
CHAPTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Predictions": ("predictions", "streams", "procedures", "trainings"),
    "Models": ("models", "deployments", "collections", "search", "hardware"),
    "Files": ("files", "outputs"),
    "Accounts and webhooks": ("account", "usage", "webhooks", "openapi"),
    "OpenAI": ("openai",),
    "Operators": ("admin",),
}
LONG: Final = 80  # characters of a body that an example has on one line
CODE: Final = re.compile(r"`([^`]*)`")
INTRODUCTION: Final = (
    "Every address begins with the address of the service. Send your token as `Authorization: Bearer TOKEN`, where an "
    "operation needs one. The examples take both from the variables `DIRECTOR_URL` and `DIRECTOR_TOKEN`. The same "
    "routes answer under `/v1/v1` and without `/v1`, because official clients differ in the base that they want. "
    "OpenAI's API answers under `/openai/v1` only, where the operator turned it on."
)
REFUSED: Final = (
    "A refusal is a JSON object with `status` and `detail`, as `application/problem+json`. Programs branch on its "
    "`code`. Where waiting helps, `retry_after` says for how many seconds. Those of OpenAI's API have OpenAI's shape, "
    "with 400 in place of 422 and 429 in place of 402."
)


class Operation(Struct, frozen=True, kw_only=True):
    """One operation of the document. `name` is its operationId."""

    method: str
    path: str
    written: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.written["operationId"])

    @property
    def address(self) -> str:
        """Return its path behind the address of the service. An operation with a server has its base in its path."""
        return self.path if "servers" in self.written else f"/v1{self.path}"

    @property
    def summary(self) -> str:
        return str(self.written["summary"])


def operations(document: Mapping[str, Any], tags: Iterable[str]) -> Iterator[Operation]:
    found = [
        Operation(method=method.removeprefix("x-").upper(), path=path, written=written)
        for path, methods in document["paths"].items()
        for method, written in methods.items()
    ]
    for tag in tags:
        yield from (each for each in found if each.written["tags"] == [tag])


def prose(text: str) -> str:
    """Escape a text of the document. Backticks become code."""
    return CODE.sub(r"<code>\1</code>", escape(text))


def operation_html(each: Operation, *, types: str = "", refusals: str = "") -> str:
    """Return all about an operation but its heading. `types`, `refusals`: the addresses of the pages that have them."""
    written = each.written
    scopes = [scope for one in written["security"] for scope in one["token"]]
    needs = f"Needs a token with the scope {' or '.join(f'`{scope}`' for scope in scopes)}." if scopes else "No token."
    parts = [
        f'<p class="route"><code><b>{each.method}</b> {escape(each.address)}</code></p>',
        f"<p>{prose(written['description'])}</p>",
        f'<p class="hint">{prose(needs)} Operation <code>{escape(each.name)}</code>.</p>',
    ]
    if written["parameters"]:
        rows = (_parameter(one, types) for one in written["parameters"])
        parts.append(_table(("parameter", "in", "type", "meaning"), rows))
    contents = written.get("requestBody", {}).get("content", {}).values()
    parts += [f"<p>Body: {_type(content['schema'], types)}</p>" for content in contents]
    parts.append(f"<pre><code>{escape(curl(each))}</code></pre>")
    refused = []
    for status, answer in written["responses"].items():
        if "$ref" in answer:
            phrase = HTTPStatus(int(status)).phrase
            refused.append(f'<a href="{escape(refusals)}#refusal-{status}" title="{escape(phrase)}">{status}</a>')
            continue
        parts.append(_answer(status, answer, types))
    if refused:
        parts.append(f'<p class="hint">Refusals: {" ".join(refused)}</p>')
    return "\n".join(parts)


def _parameter(one: Mapping[str, Any], types: str) -> tuple[str, ...]:
    return (
        f"<code>{escape(one['name'])}</code>",
        escape(one["in"]),
        _type(one["schema"], types),
        prose(one["description"]),
    )


def _answer(status: str, answer: Mapping[str, Any], types: str) -> str:
    said = f"<b>{escape(status)}</b> {prose(answer['description'])}"
    for media_type, content in answer.get("content", {}).items():
        shown = _type(content["schema"], types)
        if "example" not in content:
            return f"<p>{said} {shown} <code>{escape(media_type)}</code></p>"
        example = content["example"]
        text = example if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False)
        return f"<details><summary>{said} {shown}</summary>\n<pre><code>{escape(text)}</code></pre>\n</details>"
    return f"<p>{said}</p>"


def curl(each: Operation) -> str:
    """Return a command line for the operation, with the examples of its path and body."""
    path = each.address
    for parameter in each.written["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
    line = ["curl"] if each.method == "GET" else ["curl", "-X", each.method]
    line.append(f'"$DIRECTOR_URL{path}"')
    lines = [" ".join(line)]
    if each.written["security"]:
        lines.append('-H "Authorization: Bearer $DIRECTOR_TOKEN"')
    for media_type, content in each.written.get("requestBody", {}).get("content", {}).items():
        example = content["example"]
        if media_type == "multipart/form-data":
            lines += [f"-F '{name}={value}'" for name, value in example.items()]
            continue
        lines.append(f"-H 'Content-Type: {media_type}'")
        lines.append(f"-d '{example if isinstance(example, str) else _body(example)}'")
    return " \\\n  ".join(lines)


def _body(example: Any) -> str:
    """Return JSON on one line, or below each other where the line would be too long to read."""
    line = json.dumps(example, ensure_ascii=False)
    return line if len(line) <= LONG else json.dumps(example, indent=2, ensure_ascii=False)


def type_html(schema: Mapping[str, Any]) -> str:
    about = f"<p>{prose(schema.get('description', ''))}</p>"
    if "properties" not in schema:
        return f"{about}\n<p>{_type({key: schema[key] for key in schema if key != 'title'})}</p>"
    must = set(schema.get("required", ()))
    rows = [
        (
            f"<code>{escape(field)}</code>",
            _type(its),
            "always" if field in must else "",
            prose(its.get("description", "")),
        )
        for field, its in schema["properties"].items()
    ]
    shown = _table(("field", "type", "is there", "meaning"), rows)
    return f"{about}\n{shown}"


def refusals_html(document: Mapping[str, Any]) -> str:
    found = document["components"]["responses"]
    by_phrase = {status.phrase.replace(" ", ""): status.value for status in HTTPStatus}
    rows = (
        (f'<b id="refusal-{by_phrase[name]}">{by_phrase[name]}</b>', prose(one["description"]))
        for name, one in found.items()
        if name in by_phrase  # those of OpenAI's API have the same meaning
    )
    return _table(("status", "meaning"), rows)


def _type(schema: Mapping[str, Any], types: str = "") -> str:
    """Return a type in a few words, with links to the types of the document."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        words = f"page of {name[5:-1]}" if name.startswith("Page_") else name
        return f'<a href="{escape(types)}#type-{escape(name)}">{escape(words)}</a>'
    if "enum" in schema:
        return " ".join(f"<code>{escape(str(word))}</code>" for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(each, types) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), types)}"
    word = schema.get("format") or schema.get("type") or "any JSON"
    bounds = [
        f"{sign} {_number(schema[key])}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", "&gt;"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "&lt;"),
        )
        if key in schema
    ]
    return " ".join([escape(str(word)), *bounds])


def _number(value: float) -> str:
    """Return a bound in full: neither in powers of ten nor rounded."""
    return f"{Decimal(str(value)).normalize():,f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without the columns that no row fills."""
    every = list(rows)
    filled = [at for at in range(len(head)) if any(row[at] for row in every)]

    def line(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    body = "\n".join(line([row[at] for at in filled], "td") for row in every)
    heads = line([head[at] for at in filled], "th")
    return f'<div class="wide"><table>\n<thead>{heads}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _card(anchor: str, title: str, html: str) -> str:
    return f'<section class="card" id="{escape(anchor)}"><h3>{escape(title)}</h3>\n{html}</section>'


def _chapter(document: Mapping[str, Any], title: str, tags: Iterable[str]) -> tuple[str, str]:
    """Return a chapter's line of the contents, and the chapter."""
    anchor, found = title.split()[0].lower(), list(operations(document, tags))
    lines = "".join(f'<li><a href="#{each.name}">{escape(each.summary)}</a></li>' for each in found)
    cards = "\n".join(_card(each.name, each.summary, operation_html(each)) for each in found)
    return (
        f'<li><a href="#{anchor}">{escape(title)}</a><ul>{lines}</ul></li>',
        f'<h2 id="{anchor}">{escape(title)}</h2>\n{cards}',
    )


def page(document: Mapping[str, Any]) -> str:
    """Return the page `/docs`. Its links are relative, so a proxy may serve it below a path of its own."""
    shown = (_chapter(document, *each) for each in CHAPTERS.items() if any(operations(document, each[1])))
    contents, chapters = zip(*shown, strict=True)
    schemas = sorted(document["components"]["schemas"].items())
    types = "\n".join(_card(f"type-{name}", name, type_html(schema)) for name, schema in schemas)
    version = escape(document["info"]["version"])
    return f"""<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API reference · Director</title>
<link rel="icon" href="dashboard/icon.svg">
<link rel="stylesheet" href="dashboard/style.css">
<link rel="stylesheet" href="dashboard/docs.css">
</head>
<body>
<a class="skip" href="#content">Skip to content</a>
<header class="bar"><a class="brand" href="./">Director</a><span>API reference, release {version}</span></header>
<div class="reference">
<nav aria-label="Operations"><details open><summary>Contents</summary><ul>
{"".join(contents)}
<li><a href="#refusals">Refusals</a></li><li><a href="#types">Types</a></li>
</ul></details></nav>
<main id="content" tabindex="-1">
<h1>API reference</h1>
<p>{prose(INTRODUCTION)}</p>
<p>Programs read the same as <a href="openapi.json">an OpenAPI document</a>.</p>
{"".join(chapters)}
<h2 id="refusals">Refusals</h2>
<p>{prose(REFUSED)}</p>
{refusals_html(document)}
<h2 id="types">Types</h2>
{types}
</main>
</div>
</body>
</html>
"""


@cache
def _render(routes: tuple[Route, ...]) -> tuple[bytes, str]:
    body = page(msgspec.json.decode(encode_document("", routes))).encode()
    return body, etag_of(body)


@Route("GET", "/docs")
async def get_reference(request: Request) -> Response:
    """Serve the page to everyone, like the document. Each process renders it once, in 40 ms."""
    body, etag = _render(request.app.routes)
    headers = {**PAGE_HEADERS, "Content-Security-Policy": POLICY}
    return answer_unless_known(request, body, etag=etag, headers=headers, media_type="text/html; charset=utf-8")
