"""A command line that is typed in the tests' own process: one of its own for each would take a second to start."""

from typing import NamedTuple

import pytest

from director.cli.main import main

__all__ = ("Typed", "typed")


class Typed(NamedTuple):
    """What came of it."""

    returncode: int
    stdout: str
    stderr: str


def typed(capsys: pytest.CaptureFixture[str], *line: str) -> Typed:
    """In a thread, where a loop runs already."""
    try:
        code = main(line)
    except SystemExit as exc:
        code = int(str(exc.code))
    said = capsys.readouterr()
    return Typed(code, said.out, said.err)
