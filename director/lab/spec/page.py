"""Specify one prediction: when it may be claimed, written, taken back and ended, and when its webhook is owed.

A variable is a key in Redis (KEYS), an action is one step of a script (ACTIONS). Nothing else is assumed of processes
and messages: any action may be asked for at any time, any number of times, with any token that was ever handed out.
That covers directors that are dead, slow or frozen, calls that come late or twice, and replies that are lost.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

OPEN, ENDED = "open", "ended"


class State(Struct, frozen=True):
    status: str = ""  # '': it is not there
    token: str = ""  # of the claim that may write; '': it waits
    lease: int | None = None  # when the claim may be taken away
    wrote: str = ""  # token of the claim that wrote the last event
    ended: str = ""  # token of the claim that wrote the end; '': no claim did
    wants: bool = False  # its caller wants a webhook of the end
    owed: bool = False  # that webhook is owed
    told: bool = False  # it was delivered, or given up after all attempts
    used: tuple[str, ...] = ()  # the tokens of all claims, in order. Not in Redis: each is random, and so it is new


KEYS: Final = {  # a key of director/broker/keys.py, and the field of a hash
    "status": ("record", "status"),
    "token": ("record", "token"),
    "lease": ("lease", ""),
    "wrote": ("events", ""),
    "ended": ("record", "ended"),
    "wants": ("record", "webhook"),
    "owed": ("owed", ""),
    "told": ("record", "told"),
}


class Call(Struct, frozen=True):
    """The facts of one call: the token that its caller sends, the server's time, the end of a lease that begins now."""

    token: str = ""
    now: float = 0
    until: int | None = None
    wants: bool = False


CHECKS: Final[dict[str, Callable[[State, Call], bool]]] = {
    "it is not there": lambda s, c: not s.status,
    "it has not ended": lambda s, c: s.status == OPEN,
    "it has ended": lambda s, c: s.status == ENDED,
    "no claim has it": lambda s, c: not s.token,
    "the token is new": lambda s, c: c.token not in s.used,
    "the token is that of its claim": lambda s, c: s.token != "" and c.token == s.token,
    "its lease is over, or lost": lambda s, c: s.token != "" and (s.lease is None or s.lease <= c.now),
    "its claim has no lease": lambda s, c: s.token != "" and s.lease is None,
    "its webhook is owed": lambda s, c: s.owed,
    "a webhook is wanted": lambda s, c: s.wants,
}
WAITS: Final = ("it has not ended", "no claim has it")
FENCE: Final = ("the token is that of its claim",)
OVERDUE: Final = ("its lease is over, or lost",)


class Action(Struct, frozen=True):
    """A step of each of these scripts. It asks first; then it writes all of this at once, or nothing."""

    scripts: tuple[str, ...]
    asks: tuple[str, ...]
    writes: Mapping[str, Any]  # variable → its value, or a function of state and call

    def write(self, state: State, call: Call) -> State:
        return replace(state, **{name: to(state, call) if callable(to) else to for name, to in self.writes.items()})


FREE: Final[Mapping[str, Any]] = {"token": "", "lease": None}
END: Final[Mapping[str, Any]] = {"status": ENDED, "owed": lambda s, c: s.wants}
NEW: Final[Mapping[str, Any]] = {
    "token": lambda s, c: c.token,
    "used": lambda s, c: (*s.used, c.token),
    "lease": lambda s, c: c.until,
}

ACTIONS: Final[dict[str, Action]] = {
    "enqueue": Action(("enqueue", "arrive"), ("it is not there",), {"status": OPEN, "wants": lambda s, c: c.wants}),
    "claim": Action(("claim",), (*WAITS, "the token is new"), NEW),
    "extend": Action(("extend",), FENCE, {"lease": lambda s, c: c.until}),
    "write": Action(("advance",), FENCE, {"wrote": lambda s, c: c.token}),
    "finish": Action(("finish",), FENCE, {**FREE, **END, "ended": lambda s, c: c.token}),
    "give back": Action(("release",), FENCE, FREE),
    "give up": Action(("release",), FENCE, {**FREE, **END}),
    "take back": Action(("reap", "recover"), OVERDUE, FREE),
    "bury": Action(("reap", "recover"), OVERDUE, {**FREE, **END}),
    "lend": Action(("reconcile",), ("its claim has no lease",), {"lease": lambda s, c: c.until}),
    "end": Action(("cancel", "expire", "claim", "arrive", "stay"), WAITS, END),
    "deliver": Action(("deliver",), ("its webhook is owed",), {"owed": False, "told": True}),
    "owe again": Action(("redeliver",), ("it has ended", "a webhook is wanted"), {"owed": True}),
    "revive": Action(
        ("revive",), ("it has ended",), {"status": OPEN, "ended": "", "wrote": "", "owed": False, "told": False}
    ),
    "erase": Action(
        ("erase",),
        ("it has ended",),
        {"status": "", "ended": "", "wrote": "", "wants": False, "owed": False, "told": False},
    ),
}
BESIDE: Final = {  # scripts that write to the same keys, and change none of these variables
    "depart": "it waits to leave for another server: there is no claim",
    "vacate": "it waits at the other server, and a tombstone says so",
    "migrate": "it waits in another queue",
    "promote": "it waits, in line now",
    "due": "a courier has the turn to deliver: the webhook stays owed",
    "forward": "a webhook that stays owed is due sooner",
}

# Each state must keep these. The name says what is wrong where it does not
INVARIANTS: Final[dict[str, Callable[[State], bool]]] = {
    "it is claimed, and has ended or is not there": lambda s: not (s.token and s.status != OPEN),
    "it has a lease, and no claim": lambda s: s.lease is None or s.token != "",
    "it waits or runs, and has the token of an end": lambda s: not (s.ended and s.status != ENDED),
    "it has ended, and its webhook is neither owed nor delivered": lambda s: (
        not (s.status == ENDED and s.wants) or s.owed or s.told
    ),
    "a webhook is owed or was delivered, and it has not ended or wants none": lambda s: (
        not (s.owed or s.told) or (s.status == ENDED and s.wants)
    ),
    "something of it is left, and it is not there": lambda s: s.status != "" or replace(s, used=()) == State(),
}


def is_by_claim(name: str) -> bool:
    """Return True for what only the holder of a claim may do."""
    return name in ACTIONS and ACTIONS[name].asks == FENCE


def check_step(name: str, before: State, after: State, call: Call, *, is_current: bool) -> str:
    """Return what is wrong with a step, or ''. `is_current`: its caller holds the claim."""
    is_over, is_early = before.status == ENDED, before.lease is not None and before.lease > call.now
    if is_by_claim(name) and not is_current and after != before:
        return "a claim that was lost wrote"
    if is_over and name in ACTIONS and ACTIONS[name].writes.get("status") == ENDED:
        return "it ended twice"
    if is_over and after.status and name != "revive" and _end_of(after) != _end_of(before):
        return "its end changed"
    if before.token and (after.token, after.used) != (before.token, before.used) and is_early and not is_current:
        return "its claim was taken away before its lease was over"
    if before.status == OPEN and not after.status:
        return "it was lost"
    if after.status and not before.status and name != "enqueue":
        return "it is there, and was never asked for"
    if name == "enqueue" and after.wants != call.wants:
        return "the webhook that was asked for is forgotten"
    return ""


def _end_of(state: State) -> tuple[str, str, bool]:
    return state.status, state.ended, state.wants


def explain(before: State, after: State, call: Call, script: str = "") -> str:
    """Return why no action leads from one state to the other, or ''. `script`: only its actions count."""
    if after == before:
        return ""
    near: dict[str, list[str]] = {}
    for name, action in ACTIONS.items():
        if (not script or script in action.scripts) and action.write(before, call) == after:
            near[name] = [check for check in action.asks if not CHECKS[check](before, call)]
    if near:
        name = min(near, key=lambda each: len(near[each]))
        return f"{name}, and it does not hold that {' and '.join(near[name])}" if near[name] else ""
    changed = [name for name in State.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    return f"no action changes {', '.join(changed)} in this way"
