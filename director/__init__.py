"""Director: a self-hosted, Replicate-compatible prediction queue on Redis Streams."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ("__version__",)

try:
    __version__ = version("director")
except PackageNotFoundError:  # a bare checkout on the path, never installed
    __version__ = "0+unknown"
