"""Everything on one machine, for a newcomer: what `director up` starts, watches and ends.

Starts the parts as processes of their own, exactly as they would run in production: nothing here serves a request.
"""

from typing import Final

__all__ = ("DEFAULT_HOME",)

# here, where it costs no import: every command's help names it
DEFAULT_HOME: Final = ".director"
