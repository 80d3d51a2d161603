"""What stops `up` and `down`, said in one line with the next step."""

from director.core.errors import DirectorError

__all__ = ("UpError",)


class UpError(DirectorError):
    """This machine is not as `up` needs it: a port is taken, another `up` runs, a part did not come up. Read on."""
