"""Die at one named point between two effects, where the environment asks for it: what tests and `director chaos` need.

`DIRECTOR_CRASH_AT` names the point, `DIRECTOR_CRASH_HOW` says kill (the default: no goodbye, status 137) or stop
(frozen until SIGCONT, once). Without them every call is a comparison of two strings. Read when imported, for the whole
process.
"""

import os
import signal
from typing import Final, Literal, get_args

from director.core.errors import SettingsError

Point = Literal[
    "after_claim",  # predictions are claimed, none is started
    "before_put",  # the model server has not heard of it
    "after_put",  # the run has begun
    "before_advance",  # there is progress, Redis has not heard of it
    "after_advance",  # Redis has progress, its caller has not heard of it
    "before_finish",  # the run has ended, Redis has not heard of it
    "after_finish",  # terminal, nobody was told
    "before_webhook",  # the terminal webhook is made and not sent
    "after_webhook",  # it arrived, and is owed still
    "before_release",  # the claim is to be given back
    "after_release",  # it was given back
    "after_enqueue",  # accepted, and whoever asked has no answer
    "after_depart",  # they left their queue for another server, and are nowhere else
    "after_arrive",  # one is there, and here too
    "after_cancel_there",  # its caller's cancel was told there, here it still leaves
    "after_vacate",  # it has moved, others have not
]
API_POINTS: Final[tuple[Point, ...]] = ("after_enqueue",)
MOVER_POINTS: Final[tuple[Point, ...]] = ("after_depart", "after_arrive", "after_cancel_there", "after_vacate")
DIRECTOR_POINTS: Final[tuple[Point, ...]] = tuple(
    point for point in get_args(Point) if point not in (*API_POINTS, *MOVER_POINTS)
)

KILLED: Final = 137  # as a shell tells of SIGKILL


class _Armed:
    """The point that is left to die at; '' for none."""

    def __init__(self, point: str, how: str) -> None:
        if point not in ("", *get_args(Point)) or how not in ("kill", "stop"):
            raise SettingsError(f"DIRECTOR_CRASH_AT={point!r}, DIRECTOR_CRASH_HOW={how!r}: no such point or way")
        self.point = point
        self.how = how

    def die(self) -> None:
        if self.how == "kill":
            os._exit(KILLED)
        self.point = ""
        os.kill(os.getpid(), signal.SIGSTOP)


_armed: Final = _Armed(os.environ.get("DIRECTOR_CRASH_AT", ""), os.environ.get("DIRECTOR_CRASH_HOW", "kill"))


def at(point: Point) -> None:
    """Nothing, unless this process is to die here."""
    if point == _armed.point:
        _armed.die()
