"""Hooks of MkDocs. They fill the made parts of the reference into their pages, bring the READMEs and the other pages of
the repository into the site, turn links to other files of it into plain text or addresses of `repo_url`, and fail a
site that would load anything from elsewhere or has a link, in made HTML too, that leads nowhere.
"""

import os
import re
import subprocess
import tomllib
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tests.site.draw import inline
from tests.site.reference import filled, state_diagram
from tests.site.tables import marked

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = "source"  # the folder of the site that has pages from outside docs/
# Weights of pages in the search, where titles alone rank the wrong page first
WEIGHTS: Final = {"how-to/own-model.md": 4, "reference/http/types.md": 0.2}
WEIGHT_OF_SOURCE: Final = 0.2
SEARCH: Final = tomllib.loads((ROOT / "tests/site/search.toml").read_text(encoding="utf-8"))
MERMAID: Final = re.compile(r"```mermaid\nstateDiagram-v2\n.*?```", re.DOTALL)
LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\(([^)\s]+)\)")
FENCE: Final = re.compile(
    r"(^```.*?^```$|(?<=\n\n) {4}(?!- )[^\n]*\n(?: {4}[^\n]*\n)*|`[^`\n]+`)", re.DOTALL | re.MULTILINE
)
CODE_OR_LINK: Final = re.compile(f"{LINK.pattern}|{FENCE.pattern}", re.DOTALL | re.MULTILINE)
CODE: Final = re.compile(
    r'(?<=<div class="language-sh highlight">)(?P<commands><pre.*?</pre>)|<pre.*?</pre>|<code>(?P<inline>[^<]*)</code>',
    re.DOTALL,
)
# An option or a header. A longer word may have to break in a table.
HYPHENATED: Final = re.compile(r"(?<![\w./-])(?:--?[A-Za-z]|[A-Za-z]{1,12}-)[A-Za-z-]{0,15}(?![\w-])")
WORD_END: Final = re.compile(r"(?<=[_,])(?=\w)")  # where code breaks in a table, on a phone
TEXT: Final = re.compile(r'<div class="((?:language-text )?highlight)">(<pre>.*?</pre>)', re.DOTALL)
DRAWN: Final = re.compile(r"[─│▶]|(?:\S {2,}\S.*\n.*){2}")  # a drawing or a table: its lines stay as they are
LONGEST: Final = 900  # characters of a text whose lines wrap: those of a file keep their order as they are
LONG: Final = 40  # characters of code that break the line in the first column of a table
ANCHOR: Final = re.compile(r"""\sid=["']?([^"'\s>]+)""")
HREF: Final = re.compile(r"""<a\s[^>]*\bhref=["']?(?![a-z+]+:|//)([^"'\s>]+)""")
ALERT: Final = re.compile(r"^> \[!([A-Z]+)\]\n((?:>.*\n)+)", re.MULTILINE)  # a box, as code hosts write it
BOXES: Final = {"WARNING": "A trap", "NOTE": "Note"}
FROM_ELSEWHERE: Final = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)[^>]*\ssrc=["']?(?:https?:)?//"""
    r"""|<link(?![^>]*rel=["']?canonical)[^>]*\shref=["']?(?:https?:)?//|url\(["']?(?:https?:)?//""",
    re.IGNORECASE,
)


def pages_of_repository() -> list[str]:
    """Return the Markdown files outside docs/, but for the README at the top: the site has a first page of its own."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if not name.startswith("docs/") and name != "README.md"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    icon = ROOT / "api/dashboard/static/icon.svg"
    files.append(File.generated(config, "assets/icon.svg", abs_src_path=str(icon)))
    for name in pages_of_repository():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{SOURCE}/{name}", content=text))
    if unknown := [name for name in (*WEIGHTS, *SEARCH["words"]) if files.get_file_from_path(name) is None]:
        raise PluginError(f"The search has weights or words of pages that are missing: {', '.join(unknown)}")
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    is_source = here.startswith(f"{SOURCE}/")
    in_repository = here.removeprefix(f"{SOURCE}/") if is_source else f"docs/{here}"
    page.meta["search"] = {"boost": WEIGHT_OF_SOURCE if is_source else WEIGHTS.get(here, 1)}
    if words := SEARCH["words"].get(here):
        page.meta["tags"] = words  # the search reads them, and nothing else does
    text = ALERT.sub(box, MERMAID.sub(lambda _: state_diagram(), inline(markdown)))
    return filled(
        CODE_OR_LINK.sub(lambda found: found[0] if found[3] else link(found, in_repository, here, config, files), text)
    )


def on_page_content(html: str, **_: Any) -> str:
    """Mark code that wraps for site.css: options and headers stay whole, and long alternatives break after a bar.
    Mark short texts, which wrap on a phone, and tables by how they fit there.
    """
    return marked(TEXT.sub(wrapping_text, CODE.sub(wrapping, html)))


def wrapping_text(found: re.Match[str]) -> str:
    kind, text = found.groups()
    return found[0] if len(text) > LONGEST or DRAWN.search(text) else f'<div class="wraps {kind}">{text}'


def wrapping(found: re.Match[str]) -> str:
    commands, inline_code = found["commands"], found["inline"]
    if commands is None and inline_code is None:
        return found[0]
    shown = HYPHENATED.sub(lambda word: f'<span class="whole">{word[0]}</span>', commands or inline_code)
    if commands:
        return shown
    shown = WORD_END.sub('<wbr class="word">', shown)
    if len(inline_code) <= LONG:
        return f"<code>{shown}</code>"
    return f'<code class="long">{shown.replace("|", "|<wbr>")}</code>'


def box(found: re.Match[str]) -> str:
    """Return an alert of a code host as the box that the site has for it."""
    body = re.sub(r"^> ?", "    ", found[2], flags=re.MULTILINE)
    return f'!!! {found[1].lower()} "{BOXES[found[1]]}"\n\n{body}'


def link(found: re.Match[str], name: str, here: str, config: MkDocsConfig, files: Files) -> str:
    """Return a link as the site has it. `name`: the file of the repository that has the link. `here`: its page."""
    words, target = found[1], found[2]
    path, hash_, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return found[0]
    wanted = os.path.normpath(PurePosixPath(name).parent / path)
    uri = wanted.removeprefix("docs/") if wanted.startswith("docs/") else f"{SOURCE}/{wanted}"
    if wanted == "README.md":
        uri = "index.md"
        hash_ = anchor = ""
    elif (ROOT / wanted).is_dir() and files.get_file_from_path(f"{uri}/README.md"):
        uri = f"{uri}/README.md"
    if files.get_file_from_path(uri) is not None:
        return f"[{words}]({os.path.relpath(uri, PurePosixPath(here).parent)}{hash_}{anchor})"
    if not (ROOT / wanted).exists():
        return found[0]  # MkDocs says what is wrong
    if not config.repo_url:
        return words if words.startswith("`") else f"`{wanted}`" if words == wanted else f"{words} (`{wanted}`)"
    return f"[{words}]({config.repo_url.rstrip('/')}/blob/main/{wanted}{hash_}{anchor})"


def on_post_build(config: MkDocsConfig) -> None:
    """Raise PluginError if a page or a style would ask another site for anything, or if a link leads nowhere: MkDocs
    does not look at links that come as HTML.
    """
    dead = dead_links(Path(config.site_dir).resolve())
    if dead:
        raise PluginError("These links lead nowhere:\n" + "\n".join(dead))
    found = [
        f"{path.relative_to(config.site_dir)}: {match[0][:120]}"
        for pattern in ("*.html", "*.css")
        for path in sorted(Path(config.site_dir).rglob(pattern))
        for match in FROM_ELSEWHERE.finditer(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("The site would load something from elsewhere:\n" + "\n".join(found))


def dead_links(site: Path) -> list[str]:
    """Return each relative link of a page that leads to no file or no anchor, with its page."""
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    places = {path: set(ANCHOR.findall(text)) for path, text in texts.items()}
    found = []
    for path, text in texts.items():
        for target in {unescape(each) for each in HREF.findall(text)}:
            file, _, anchor = target.partition("#")
            there = (path.parent / unquote(file)).resolve() if file else path
            known = places.get(there / "index.html" if there.is_dir() else there, set())
            if not there.exists() or (anchor and unquote(anchor) not in known and anchor != "__toc"):
                found.append(f"{path.relative_to(site)}: {target}")
    return sorted(found)
