"""Director: a self-hosted, Replicate-compatible prediction queue on Redis Streams."""

from typing import Final

DISTRIBUTION: Final = "director-queue"
"""The name under which it is installed. A `director` on the public index is another program."""


def __getattr__(name: str) -> str:
    """Return `__version__`, which takes 35 ms to look up: most commands never ask."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # a bare checkout on the path, never installed
        return "0+unknown"
