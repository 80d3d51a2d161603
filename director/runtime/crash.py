"""Stop this process at a named point between two effects, for tests and `director chaos`.

`DIRECTOR_CRASH_AT` names the point. `DIRECTOR_CRASH_HOW` says `kill` (the default: no cleanup, status 137) or `stop`
(frozen once, until SIGCONT). Both are read on import. Without them `at` only compares two strings.
"""

import os
import signal
from typing import Final, Literal, get_args

from director.core.errors import SettingsError

Point = Literal[
    "after_claim",  # predictions are claimed, no run has started
    "before_put",  # the model server does not know of the run
    "after_put",  # the run has started
    "before_advance",  # there is progress that Redis does not know of
    "after_advance",  # Redis has the progress, the caller does not
    "before_finish",  # the run has ended, Redis does not know of it
    "after_finish",  # the record is terminal, the caller is not notified
    "before_webhook",  # the terminal webhook is ready and not sent
    "after_webhook",  # the webhook has arrived and is still owed
    "before_release",  # the claim is about to be released
    "after_release",  # the claim was released
    "after_data_put",  # the file store has an input, Redis knows nothing of its prediction
    "after_enqueue",  # the prediction is accepted, the caller has no answer
    "after_depart",  # predictions have left their queue for another server, and are in no other place
    "after_arrive",  # a prediction is on the other server, and still on this one
    "after_cancel_there",  # the caller's cancel has reached the other server, here the prediction still leaves
    "after_vacate",  # one prediction has moved, others have not
    "before_part",  # lines of a batch have ended, none of them is stored
    "after_part",  # a part is stored, Redis does not know of it
    "after_commit",  # a part is committed
    "after_join",  # a whole file is stored, Redis does not know of it
    "after_batch_end",  # the batch has ended, its files are not listed
]
API_POINTS: Final[tuple[Point, ...]] = ("after_enqueue",)
DATA_POINTS: Final[tuple[Point, ...]] = ("after_data_put",)
MOVER_POINTS: Final[tuple[Point, ...]] = ("after_depart", "after_arrive", "after_cancel_there", "after_vacate")
BATCH_POINTS: Final[tuple[Point, ...]] = ("before_part", "after_part", "after_commit", "after_join", "after_batch_end")
DIRECTOR_POINTS: Final[tuple[Point, ...]] = tuple(
    point for point in get_args(Point) if point not in (*API_POINTS, *DATA_POINTS, *MOVER_POINTS, *BATCH_POINTS)
)

KILLED: Final = 137  # the status that a shell reports for SIGKILL


_point = os.environ.get("DIRECTOR_CRASH_AT", "")
_how: Final = os.environ.get("DIRECTOR_CRASH_HOW", "kill")
if _point not in ("", *get_args(Point)) or _how not in ("kill", "stop"):
    raise SettingsError(f"DIRECTOR_CRASH_AT={_point!r}, DIRECTOR_CRASH_HOW={_how!r}: no such point or way")


def at(point: Point) -> None:
    global _point
    if point != _point:
        return
    if _how == "kill":
        os._exit(KILLED)
    _point = ""
    os.kill(os.getpid(), signal.SIGSTOP)
