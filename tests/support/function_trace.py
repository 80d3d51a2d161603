"""Record the functions that a process calls between two signals; Python imports a copy as `sitecustomize`."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

VARIABLE = "FUNCTION_TRACE_FOLDER"
STARTED, CALLED = "{pid}.started", "{pid}.called"

Function = tuple[str, str]  # path of its file, qualified name


def traced_environment(folder: Path, root: Path) -> dict[str, str]:
    """Return the variables that make a Python process traceable. `root`: the checkout that it imports from."""
    (folder / "sitecustomize.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{root}", VARIABLE: str(folder)}


def start(pid: int) -> None:
    os.kill(pid, signal.SIGUSR1)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGUSR2)


def has_started(folder: Path, pid: int) -> bool:
    return (folder / STARTED.format(pid=pid)).exists()


def recording(folder: Path, pid: int) -> set[Function] | None:
    """Take the recording away, or return None as long as it is not written."""
    path = folder / CALLED.format(pid=pid)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    path.unlink()
    return {(file, name) for file, name in json.loads(text)}


# ---- in the traced process ----


class _Recorder:
    """Record through `sys.setprofile`, thread by thread, on Python 3.11."""

    def __init__(self) -> None:
        self._called: set[CodeType] = set()
        self._is_on = False
        threading.setprofile(self._note)  # of threads that start later; the main thread is set on and off

    def on(self) -> None:
        self._called.clear()
        self._is_on = True
        sys.setprofile(self._note)

    def off(self) -> set[CodeType]:
        sys.setprofile(None)
        self._is_on = False
        return set(self._called)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._is_on:
            self._called.add(frame.f_code)


class _Monitor:
    """Record through `sys.monitoring`, which sees all threads, from Python 3.12 on."""

    def __init__(self) -> None:
        self._called: set[CodeType] = set()
        self._api: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        self._tool = self._api.PROFILER_ID
        self._api.use_tool_id(self._tool, "function_trace")
        events = self._api.events
        for event in (events.PY_START, events.PY_RESUME):
            self._api.register_callback(self._tool, event, self._note)
        self._events = events.PY_START | events.PY_RESUME

    def on(self) -> None:
        self._called.clear()
        self._api.set_events(self._tool, self._events)
        self._api.restart_events()

    def off(self) -> set[CodeType]:
        self._api.set_events(self._tool, 0)
        return set(self._called)

    def _note(self, code: CodeType, _: int) -> Any:
        self._called.add(code)
        return self._api.DISABLE  # once is enough


def _install(variables: Mapping[str, str]) -> None:
    folder, pid = Path(variables[VARIABLE]), os.getpid()
    started, called = folder / STARTED.format(pid=pid), folder / CALLED.format(pid=pid)
    recorder = _Monitor() if hasattr(sys, "monitoring") else _Recorder()

    def on(*_: object) -> None:
        started.touch()
        recorder.on()

    def off(*_: object) -> None:
        seen = sorted({(code.co_filename, code.co_qualname) for code in recorder.off()})
        half = called.with_suffix(".half")
        half.write_text(json.dumps(seen), encoding="utf-8")
        with contextlib.suppress(FileNotFoundError):
            started.unlink()
        half.replace(called)

    signal.signal(signal.SIGUSR1, on)
    signal.signal(signal.SIGUSR2, off)


if __name__ == "sitecustomize":
    _install(os.environ)
