"""What has to hold after a run, one function each: I1 to I18 of the reliability plan.

Pure: each takes the evidence and returns what breaks its sentence. None leans on another, so that a fault of the code
shows under the name of the promise that it breaks.
"""

from collections.abc import Callable
from typing import Final

from director.chaos.breach import Breach
from director.chaos.caller import canceled_stays_canceled, one_key_one_id, webhooks_tell_the_end
from director.chaos.evidence import Evidence
from director.chaos.fairness import equal_shares
from director.chaos.following import followed_once_in_order
from director.chaos.history import nothing_is_lost, one_end, only_current_runs_write
from director.chaos.occupancy import attempts_are_bounded, slots_are_kept
from director.chaos.order import first_come_first_claimed
from director.chaos.recovery import only_the_silent_lose, recovery_is_quick
from director.chaos.settling import ends_are_written
from director.chaos.waste import no_work_for_the_dead

__all__ = ("INVARIANTS", "Invariant", "all_is_at_rest", "what_is_served_is_registered")

Invariant = Callable[[Evidence], list[Breach]]

# What may be left of a queue, and why it may not.
RESTS: Final = {
    "entries": "entries in its streams",
    "pending": "pending entries",
    "lease": "leases",
    "delayed": "delayed retries",
    "deadline": "deadlines",
    "live": "predictions on the list of what lives",
}


def all_is_at_rest(evidence: Evidence) -> list[Breach]:
    """I7. Queue by queue, then what belongs to none."""
    left = evidence.leftovers
    if left is None:
        return [Breach("I7", "", "nobody looked at what was left in Redis")]
    breaches = [
        Breach("I7", rest.queue, f"{count} {what}")
        for rest in left.queues
        for name, what in RESTS.items()
        if (count := getattr(rest, name))
    ]
    if left.owed:
        breaches.append(Breach("I7", "", f"{left.owed} webhooks still owed"))
    return breaches + [Breach("I7", key, "a key that nothing will ever remove") for key in left.endless]


def what_is_served_is_registered(evidence: Evidence) -> list[Breach]:
    """I16. Queue by queue; that nobody looked is told by I7."""
    queues = evidence.leftovers.queues if evidence.leftovers else []
    return [
        Breach("I16", rest.queue, f"it is served, and missing in {', '.join(rest.lost_by)}")
        for rest in queues
        if rest.lost_by
    ]


INVARIANTS: Final[dict[str, tuple[str, Invariant]]] = {
    "I1": ("What was answered with a 2xx has ended.", nothing_is_lost),
    "I2": ("It ended once, as its record says, and nothing changed that.", one_end),
    "I3": ("Its caller was told so: signed, under one id, last of all.", webhooks_tell_the_end),
    "I4": ("Only the run that held the claim wrote, and nothing after the end.", only_current_runs_write),
    "I5": ("It ran no more often than its attempts, and never twice at once.", attempts_are_bounded),
    "I6": ("What was canceled stays canceled, and a cancel is quick.", canceled_stays_canceled),
    "I7": ("Once healed, nothing is left in Redis that should not be there.", all_is_at_rest),
    "I8": ("One idempotency key is one prediction; another body is refused.", one_key_one_id),
    "I9": ("No model server ever ran more than its slots.", slots_are_kept),
    "I10": ("Who followed it heard every event once, in order, through every break.", followed_once_in_order),
    "I11": ("Who came first was handed out first, by the server's own log.", first_come_first_claimed),
    "I12": ("After a death, what was running starts again in time.", recovery_is_quick),
    "I13": ("Nothing was handed out too late, or worked on for nobody.", no_work_for_the_dead),
    "I14": ("Equal tenants got equal shares, and small ones did not wait.", equal_shares),
    "I16": ("What a director serves is in every registry.", what_is_served_is_registered),
    "I17": ("What a model made is written soon, over narrow links too.", ends_are_written),
    "I18": ("No claim was taken back before its holder was silent for a lease.", only_the_silent_lose),
}
