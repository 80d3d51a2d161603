"""Who types a command that changes something, and a line of JSON on stderr for each change, beside the log of changes.

Only names: a command never asks anybody who they are.
"""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("audited", "typist")

CHANGES = "director.store.changes"


@contextmanager
def audited() -> Iterator[str]:
    """The name of who types, and the changes that are made meanwhile in the log."""
    import logging
    import sys

    from director.runtime.logs import JsonLines

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process="cli"))
    changes = logging.getLogger(CHANGES)
    level = changes.level
    changes.addHandler(handler)
    changes.setLevel(logging.INFO)
    try:
        yield typist()
    finally:
        changes.setLevel(level)
        changes.removeHandler(handler)


def typist() -> str:
    """Who types, as the log of changes has it."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may run as a number that has no name
        return "cli:unknown"
