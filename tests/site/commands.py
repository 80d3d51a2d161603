"""Take the blocks out of a page of the documentation and run them in order, as a reader would paste them.

A block is run unless a comment before it gives a reason: `<!-- not run: REASON -->`. The comment
`<!-- page not run: REASON -->` holds for all blocks that follow. More comments before a block say how it is run:

- `<!-- file: NAME -->` writes it to that file of the scratch folder.
- `<!-- background until: TEXT -->` starts it as in a terminal of its own, and waits until it prints TEXT.
- `<!-- terminal shows: TEXT -->` waits, after the block, until the last of those terminals shows TEXT.
- `<!-- exits: N -->` expects another exit code than 0.
- `<!-- run as: COMMAND (REASON) -->` runs the command in its place.

A `text` block is what the block before it prints, with `…` for anything.
"""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.support.eventually import wait_until

PATIENCE_S: Final = 90
COMMANDS: Final = {"": ["bash", "-euo", "pipefail", "-c"], "sh": ["bash", "-euo", "pipefail", "-c"]}
COMMANDS["python"] = [sys.executable, "-c"]
DATA: Final = {"json", "ini", "yaml", "toml"}  # to look at, where no `file` says otherwise
BLOCK: Final = re.compile(
    r"^<!-- (?P<how>[a-z ]+): (?P<what>.+?) -->$"
    r"|^```(?P<language>\w*)\n(?P<fenced>.*?)^```$"
    r"|(?:(?<=\n\n)|\A)(?P<indented>(?: {4}[^\n]*\n(?:\n(?= {4}))?)+)",
    re.MULTILINE | re.DOTALL,
)
RUN_AS: Final = re.compile(r"(.+) \((.+)\)")
HOWS: Final = {"not run", "page not run", "file", "background until", "terminal shows", "exits", "run as"}
TOKEN: Final = re.compile(r"dr_[0-9a-f]{40}")
SPACES: Final = re.compile(r" +")
SHOWN_TOKEN: Final = "dr_…"  # a page's place for the token that `director up` printed in a terminal
STATE: Final = ".environment"


class Block(Struct, frozen=True, kw_only=True):
    language: str
    text: str
    hows: Mapping[str, str]


class PageError(AssertionError):
    """A block cannot be run and no comment says why, or it does not do what the page says."""


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks of a page. Raises PageError for a comment or a language that is unknown."""
    hows: dict[str, str] = {}
    whole: dict[str, str] = {}
    for found in BLOCK.finditer(page):
        if how := found["how"]:
            if how in HOWS:
                (whole if how == "page not run" else hows)[how] = found["what"]
            elif how != "made":
                raise PageError(f"Unknown comment: {found[0]}")
            continue
        language = found["language"] or ""
        text = found["fenced"] if found["indented"] is None else re.sub(r"^ {4}", "", found["indented"], flags=re.M)
        if language not in COMMANDS.keys() | DATA | {"text"} and not hows.keys() & {"file", "not run"} and not whole:
            raise PageError(f"A block of `{language}` is neither run nor left out with a reason:\n{text}")
        yield Block(language=language, text=text, hows=hows | whole)
        hows = {}
    if hows:
        raise PageError(f"No block follows the comments {hows}")


class Terminals:
    """Run the blocks of a page in one folder. `instead` replaces words, such as ports and the token."""

    def __init__(self, folder: Path, environment: Mapping[str, str], instead: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**environment, "CURL_HOME": str(folder)}
        (folder / ".curlrc").write_text("fail-with-body\n")  # a refusal ends curl with 22
        self.instead = dict(instead)
        self._background: list[tuple[subprocess.Popen[bytes], Path, threading.Thread]] = []

    def run(self, page: str) -> int:
        """Run all blocks and return how many commands ran."""
        said = ""
        ran = 0
        for block in blocks_of(page):
            text = self._replaced(block.text)
            if {"not run", "page not run"} & block.hows.keys():
                said = ""
            elif block.language == "text":
                self._compare(text, said)
            elif name := block.hows.get("file"):
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            elif block.language in COMMANDS:
                said = self._run(block, text)
                ran += 1
        return ran

    def close(self) -> None:
        for process, _, _ in reversed(self._background):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for process, _, _ in self._background:
            try:
                process.wait(PATIENCE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):  # what it began with & ignores SIGINT
                    os.killpg(process.pid, signal.SIGKILL)
        self._background.clear()

    def _replaced(self, text: str) -> str:
        for shown, real in self.instead.items():
            text = text.replace(shown, real)
        return text

    def _run(self, block: Block, text: str) -> str:
        if instead := block.hows.get("run as"):
            found = RUN_AS.fullmatch(instead)
            if not found:
                raise PageError(f"A reason is missing: {instead}")
            text = self._replaced(found[1])
        line = self._line(block.language, text)
        if until := block.hows.get("background until"):
            return self._start(line, self._replaced(until))
        done = subprocess.run(
            line,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode != int(block.hows.get("exits", 0)):
            raise PageError(f"{text}\nended with {done.returncode}:\n{said}")
        if shown := block.hows.get("terminal shows"):
            self._wait_for(self._replaced(shown))
        return said

    def _line(self, language: str, text: str) -> list[str]:
        """Return the command of a block. What a shell block exports, later blocks have too."""
        *command, option = COMMANDS[language]
        if command[0] == "bash":
            return [*command, option, f"[ -f {STATE} ] && . ./{STATE}\n{text}\nexport -p > {STATE}"]
        return ["bash", "-c", f'[ -f {STATE} ] && . ./{STATE}; exec "$@"', "bash", *command, option, text]

    def _start(self, line: list[str], until: str) -> str:
        # a file of its own: an earlier page in this folder may have shown the same words
        number, name = tempfile.mkstemp(prefix=".terminal-", dir=self._folder)
        os.close(number)
        out = Path(name)
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            line,
            cwd=self._folder,
            env={**self._environment, "TERM": "dumb"},
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        copying = threading.Thread(target=_copy, args=(ours, out), daemon=True)
        copying.start()
        self._background.append((process, out, copying))
        self._wait_for(until)
        said = _shown(out)
        if found := TOKEN.search(said):
            self.instead.setdefault(SHOWN_TOKEN, found[0])
        return said

    def _wait_for(self, text: str) -> None:
        _, out, copying = self._background[-1]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not copying.is_alive() or text in _shown(out), text, limit_s=PATIENCE_S)
        if text not in (said := _shown(out)):
            raise PageError(f"{text!r} does not come:\n{said}")

    def _compare(self, expected: str, said: str) -> None:
        # a column is as wide as its widest word, and pages that ran before may have left a wider one
        pattern = re.escape(SPACES.sub(" ", expected.strip())).replace("…", ".*")
        if not re.search(pattern, SPACES.sub(" ", said)):
            raise PageError(f"The page says:\n{expected}\nIt printed:\n{said}")


def _shown(out: Path) -> str:
    return out.read_text(encoding="utf-8", errors="replace")  # its last character may be half there


def _copy(terminal: int, out: Path) -> None:
    """Write what a terminal shows to a file, until its last process has ended."""
    with out.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while shown := os.read(terminal, 1 << 16):
            file.write(shown.replace(b"\r\n", b"\n"))
    os.close(terminal)
