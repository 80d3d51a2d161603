"""Run everything on one machine: what `director up` starts, watches and ends. The parts are separate processes,
started exactly as in production.
"""

from typing import Final

__all__ = ("DEFAULT_HOME",)

# here, where it costs no import: the help of every command names it
DEFAULT_HOME: Final = ".director"
