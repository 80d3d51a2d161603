"""Take each step of the server's log through the specification: I32."""

import math
from typing import Final

from msgspec.structs import replace

from director.lab.chaos.evidence import Evidence, Findings
from director.lab.chaos.history import DIRECTOR_LOST
from director.lab.chaos.journal import Stepped
from director.lab.chaos.plan import SINGLE
from director.lab.spec.page import Call, State, explain

TAKES_BACK: Final = "reap"  # the script that alone gives this code to a claim


def steps_are_allowed(evidence: Evidence) -> Findings:
    """I32: an action of the specification leads from each state of a prediction to the next one. Where a failover lost
    the last changes, the logs of the servers have no single history. Logs of several servers can only be joined by
    time, so a step without a time of its own is left out there.
    """
    for prediction_id in sorted(evidence.steps.keys() - evidence.unmade.keys()) if evidence.rules.has_steps else ():
        state = State()
        for step in evidence.steps[prediction_id]:
            if evidence.rules.kind != SINGLE and not step.now:
                continue
            after = _follow(state, step)
            is_lost = step.code == DIRECTOR_LOST and state.token != "" and not after.token
            call = _call_of(state, after, step, lease_ms=evidence.rules.lease_s * 1000)
            if why := explain(state, after, call, TAKES_BACK if is_lost else ""):
                yield prediction_id, f"at {step.at}: {why}"
            state = after


def _follow(state: State, step: Stepped) -> State:
    after = replace(state, **dict(step.wrote))
    is_claimed = after.token not in ("", state.token)
    return replace(after, used=(*state.used, after.token)) if is_claimed else after


def _call_of(state: State, after: State, step: Stepped, *, lease_ms: float) -> Call:
    """Return the call as its step shows it. A claim has its token, and so has an end. A claim that was given back shows
    none. A lease of more than a lease from now was written before the server's clock went back.
    """
    wrote = dict(step.wrote)
    token = wrote.get("ended") or wrote.get("token") or state.token
    is_stepped = state.lease is not None and state.lease > step.now + lease_ms
    now = step.now if step.now and not is_stepped else math.inf
    return Call(token=str(token), now=now, until=after.lease or 0, wants=after.wants)
