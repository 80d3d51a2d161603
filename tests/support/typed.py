"""Run a command line in the tests' own process: a new process would take a second to start."""

from typing import NamedTuple

import pytest

from director.cli.main import main


class Typed(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def typed(capsys: pytest.CaptureFixture[str], *line: str) -> Typed:
    try:
        code = main(line)
    except SystemExit as exc:
        code = int(str(exc.code))
    said = capsys.readouterr()
    return Typed(code, said.out, said.err)
