"""Record the film of the start page: `python -m tests.site.record` starts a service and one stream, and kills its parts
with `kill -9` meanwhile.

What the two terminals printed, and when, goes to recordings/kill.jsonl beside this file. From that the film is drawn,
docs/assets/kill.svg: an SVG that plays by itself, in a README too. `python -m tests.site.record --draw` only draws it.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from msgspec import Struct

from director.local.launcher.processes import free_port

RECORDING: Final = Path(__file__).parent / "recordings/kill.jsonl"
FILM: Final = Path(__file__).parents[2] / "docs/assets/kill.svg"
COLUMNS: Final = 50
HEIGHTS: Final = (14, 6)  # lines of the caller's terminal, and of the operator's
COMMAND: Final = ["director", "predict", "example/hello", "-i", "text=hello", "-i", "n=30", "-i", "delay=0.5"]
SHOWN: Final = "$ director predict example/hello \\\r\n    -i text=hello -i n=30 -i delay=0.5\r\n"
PLAN: Final = "$ # while it runs: kill -9, four times\r\n"
# what the caller has seen when a part is killed, the part as up.json names it, and as people do
KILLS: Final = (
    ("hello 4", "model-hello", "the model server"),
    ("hello 8", "valkey", "Valkey"),
    ("hello 12", "api", "the API"),
    ("hello 22", "director-hello", "the director"),
)
PATIENCE_S: Final = 120
REST_S: Final = 6.0  # the end stands still before the film begins again
CHAR: Final = 8.43
FONT: Final = 14
LINE: Final = 19
EDGE: Final = 14
ESCAPE: Final = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
END: Final = re.compile(r"succeeded after [\d.]+ s")
TITLES: Final = ("a caller: one prediction, a stream of 30 lines", "an operator: ends four processes meanwhile")


class Print(Struct, frozen=True, array_like=True):
    """Text that a terminal (0: the caller's, 1: the operator's) printed, `at` seconds after the first."""

    at: float
    terminal: int
    text: str


class Screen:
    """As much of a terminal as these programs use: lines that wrap and scroll, and a line that is written again."""

    def __init__(self, height: int) -> None:
        self.height = height
        self.lines = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            if found := ESCAPE.match(text, at):
                self._obey(found[1], found[2])
                at = found.end()
                continue
            self._put(text[at])
            at += 1
        del self.lines[: max(0, len(self.lines) - self.height)]

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._down()
        else:
            if self._column == COLUMNS:
                self._down()
                self._column = 0
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")
        if len(self.lines) > self.height:
            del self.lines[0]
            self._row -= 1

    def _obey(self, what: str, letter: str) -> None:
        if letter == "K":
            self.lines[self._row] = "" if what == "2" else self.lines[self._row][: self._column]
        elif letter == "A":
            self._row = max(0, self._row - int(what or 1))


class Shown(Struct, frozen=True):
    """A line of the film: its terminal, its row, its text, and from when until when it is there."""

    terminal: int
    row: int
    text: str
    since: float
    until: float


def lines_of(prints: Sequence[Print]) -> Iterator[Shown]:
    end = prints[-1].at + REST_S
    screens = [Screen(height) for height in HEIGHTS]
    there: dict[tuple[int, int], tuple[str, float]] = {}
    for each in prints:
        screens[each.terminal].write(each.text)
        lines = [line.rstrip() for line in screens[each.terminal].lines]
        for row in range(HEIGHTS[each.terminal]):
            line = lines[row] if row < len(lines) else ""
            before, since = there.get((each.terminal, row), ("", 0.0))
            if line != before:
                if before and each.at > since:
                    yield Shown(each.terminal, row, before, since, each.at)
                there[each.terminal, row] = (line, each.at)
    for (terminal, row), (text, since) in there.items():
        if text:
            yield Shown(terminal, row, text, since, end)


def kind_of(text: str) -> str:
    if text.startswith(("$", "    -i")):
        return "typed"
    return "" if text.startswith("hello") else "good" if "succeeded" in text else "soft"


def draw(prints: Sequence[Print]) -> str:
    """Return the film as SVG. It opens with its last picture, and without animation it is that picture."""
    end_at = prints[-1].at
    length = end_at + REST_S
    width = round(COLUMNS * CHAR + 2 * EDGE)
    tops = (34, 34 + HEIGHTS[0] * LINE + 62)
    height = tops[1] + HEIGHTS[1] * LINE + 10
    frames: list[str] = []
    texts: list[str] = []
    for shown in lines_of(prints):
        x, y = EDGE, tops[shown.terminal] + 15 + shown.row * LINE
        text = escape(shown.text, quote=False).replace(" ", "\u00a0")
        since, until = (100 * each / length for each in (shown.since, shown.until))
        name, stays = f"f{len(frames)}", shown.until == length
        gone = "" if stays else f"{until:.3f}%{{visibility:hidden}}"
        frames.append(f"@keyframes {name}{{0%{{visibility:hidden}}{since:.3f}%{{visibility:visible}}{gone}}}")
        kind = " ".join(filter(None, (kind_of(shown.text), "stays" if stays else "")))
        texts.append(f'<text x="{x}" y="{y}" class="{kind}" style="animation-name:{name}">{text}</text>')
    style = (
        f"svg{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}}"
        "rect{fill:#171b26;stroke:#3b4356}text{fill:#dde3f0}.title{fill:#8e99b0;font-size:12px}.soft{fill:#8e99b0}"
        ".typed{fill:#8fb4ff}.good{fill:#6fd39a}"
        f"text[style]{{visibility:hidden;animation:{length:.2f}s step-end -{end_at:.2f}s infinite}}"
        "text.stays{visibility:visible}"
        "@media (prefers-reduced-motion:reduce){text[style]{animation:none}}"
    )
    panes = "".join(
        f'<rect x="1" y="{top - 30}" width="{width - 2}" height="{lines * LINE + 38}" rx="8"/>'
        f'<text x="{EDGE}" y="{top - 11}" class="title">{title}</text>'
        for top, lines, title in zip(tops, HEIGHTS, TITLES, strict=True)
    )
    end = END.findall("".join(each.text for each in prints))[-1]
    about = (
        "A recording. A caller streams thirty lines. Meanwhile an operator kills the model server, Valkey, the API and "
        f"the director with kill -9. The stream goes on each time and has {end}."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escape(about)}">\n<style>{style}{"".join(frames)}</style>\n{panes}\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def read(recording: str) -> list[Print]:
    return [Print(*json.loads(line)) for line in recording.splitlines()]


def record(home: Path) -> Iterator[Print]:
    """Play the scene with a service in this folder, and yield what the terminals printed."""
    with (home.parent / "up.log").open("wb") as log:
        up = subprocess.Popen([*program("up"), "--home", str(home), "--port", str(free_port())], stdout=log, stderr=log)
    try:
        wait_for_line(home.parent / "up.log", b"Ask example/hello")
        yield from scene(home)
    finally:
        up.terminate()
        up.wait()


def program(*words: str) -> list[str]:
    return [str(Path(sys.executable).parent / "director"), *words]


def wait_for_line(log: Path, line: bytes) -> None:
    until = time.monotonic() + PATIENCE_S
    while line not in log.read_bytes():
        if time.monotonic() > until:
            raise TimeoutError(f"director up did not print {line.decode()}")
        time.sleep(0.1)


def scene(home: Path) -> Iterator[Print]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHTS[0], COLUMNS, 0, 0))
    yield Print(0.0, 0, SHOWN)
    yield Print(0.0, 1, PLAN)  # the first picture says what is to come
    caller = subprocess.Popen(
        [*program(*COMMAND[1:]), "--home", str(home)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(COLUMNS)},
    )
    os.close(theirs)
    began, seen, kills = time.monotonic(), "", list(KILLS)
    while time.monotonic() < began + PATIENCE_S:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                text = os.read(ours, 65536).decode()
            except OSError:  # the caller has ended
                break
            seen += text
            yield Print(round(time.monotonic() - began, 2), 0, text)
        if kills and f"{kills[0][0]}\r" in seen:
            _, part, words = kills.pop(0)
            pid = json.loads((home / "up.json").read_bytes())["pids"][part]
            os.kill(pid, 9)
            yield Print(round(time.monotonic() - began, 2), 1, f"$ kill -9 {pid:<8} # {words}\r\n")
    if caller.wait() != 0 or kills or "succeeded" not in seen:
        raise RuntimeError(f"the scene did not end well:\n{seen}")


def main() -> None:
    if "--draw" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            prints = list(record(Path(folder) / "home"))
        RECORDING.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in map(list_of, prints)))
    FILM.write_text(draw(read(RECORDING.read_text(encoding="utf-8"))), encoding="utf-8")


def list_of(each: Print) -> list[object]:
    return [each.at, each.terminal, each.text]


if __name__ == "__main__":
    main()
