"""Decide what a run on a model server comes to: a death, a failure or a refusal. One table for every kind of server.

A runner names what it saw. Where that alone does not tell, the server's health is asked afterwards and decides. Only
silence, a broken connection or a failed health check is a death: an answer that came whole is the server's answer,
however odd it is. Pure.
"""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from director.servers.runners.runner import Ended, Health, HealthStatus, Outcome


class Observation(StrEnum):
    """A runner saw this of the answer to a run. The texts are rows of docs/reference/outcomes.md."""

    OUTPUT = "a complete answer with the output"
    ERROR = "a complete answer that says that the model failed"
    UNREADABLE = "a complete answer that cannot be read"
    UNFRAMED = "an answer that cannot be read and does not say where it ends, or that is no HTTP"
    ENDLESS = "a stream that came whole, without the event that ends a run"
    TOO_LARGE = "more output than is kept"
    INVALID = "a status that refuses the input: 400, 413, 415, 422"
    LOCKED = "a status that refuses the director: 401, 407"
    FORBIDDEN = "a status that refuses the director or this input: 403"
    BUSY = "a status that says that there is no room: 409, 429, 503"
    GATEWAY = "a status of a proxy whose server broke off: 502"
    TIMED_OUT = "a status that says that it took too long: 408, 504"
    FAULT = "any other status, or an error in a stream"
    DEAD_WORDS = "such an error in the known words of a dead engine"
    FORGOTTEN = "a poll that is told that the run is unknown: 404, 410"
    BROKEN = "the connection broke, or the server was silent for too long"
    UNREACHED = "no connection was made"


class Rule(Struct, frozen=True):
    """`outcome`, or `if_unready` if the server is not ready when it is asked afterwards. Without that it isn't asked.
    `why` is for the page.
    """

    outcome: Outcome
    why: str
    if_unready: Outcome | None = None


TABLE: Final[dict[Observation, Rule]] = {
    Observation.OUTPUT: Rule(Outcome.SUCCEEDED, "It is what was asked for."),
    Observation.ERROR: Rule(Outcome.FAILED, "The model's own code failed, and the same input would fail again."),
    Observation.UNREADABLE: Rule(Outcome.FAILED, "The run took its time and ended. Another run would give the same."),
    Observation.UNFRAMED: Rule(
        Outcome.FAILED, "A server that died looks the same, so its health tells.", if_unready=Outcome.LOST
    ),
    Observation.ENDLESS: Rule(
        Outcome.FAILED, "A server that gave up in order looks the same as a dead engine.", if_unready=Outcome.LOST
    ),
    Observation.TOO_LARGE: Rule(Outcome.FAILED, "The same input would give as much again."),
    Observation.INVALID: Rule(Outcome.INVALID, "The caller can correct it."),
    Observation.LOCKED: Rule(
        Outcome.REFUSED, "The operator has to correct the key. The server gets no work meanwhile."
    ),
    Observation.FORBIDDEN: Rule(
        Outcome.INVALID,
        "It is about the input if the server let runs in before, at most three times in a row. Else it is locked.",
        if_unready=Outcome.REFUSED,
    ),
    Observation.BUSY: Rule(
        Outcome.REFUSED,
        "It never began. If a ready server with room for it says so three times, that counts as an attempt.",
        if_unready=Outcome.REFUSED,
    ),
    Observation.GATEWAY: Rule(Outcome.LOST, "The proxy saw a broken connection."),
    Observation.TIMED_OUT: Rule(
        Outcome.FAILED,
        "Servers with a time limit of their own say so of a slow input, which would be as slow again.",
        if_unready=Outcome.LOST,
    ),
    Observation.FAULT: Rule(
        Outcome.FAILED,
        "Most servers report so that the model's own code raised. An engine that died behind a living front does too.",
        if_unready=Outcome.LOST,
    ),
    Observation.DEAD_WORDS: Rule(
        Outcome.LOST, "The front lives, and what it stands for died: another run may succeed."
    ),
    Observation.FORGOTTEN: Rule(Outcome.LOST, "The server was restarted, or another one answers."),
    Observation.BROKEN: Rule(Outcome.LOST, "The server, its worker or the network died."),
    Observation.UNREACHED: Rule(Outcome.REFUSED, "It never began."),
}

# The status of an answer other than 2xx → what it says. Any other status is a FAULT
STATUSES: Final[dict[int, Observation]] = {
    **dict.fromkeys((400, 413, 415, 422), Observation.INVALID),
    **dict.fromkeys((401, 407), Observation.LOCKED),
    403: Observation.FORBIDDEN,
    **dict.fromkeys((409, 429, 503), Observation.BUSY),
    **dict.fromkeys((408, 504), Observation.TIMED_OUT),
    502: Observation.GATEWAY,
}
MAY_BE_LOCKED: Final = frozenset({Observation.LOCKED, Observation.FORBIDDEN})
MOST_FORBIDDEN: Final = 3  # in a row: a key that was changed costs no more predictions
SERVER_AUTH: Final = "server_auth"  # also the state of a director whose servers are all locked
WRONG_KEY: Final = "the operator of the model has to give its director the right key"
BUSY: Final = tuple(sorted(status for status, seen in STATUSES.items() if seen is Observation.BUSY))
FULL: Final = frozenset({409, 429})  # mostly say so of other runs, which may be of other callers
REFUSALS_OF_AN_ATTEMPT: Final = 3  # by servers that had room
MOST_ASKED: Final = 3  # times for its health, each as long as an answer may take, until it is no silence

# An engine that died behind a front that still answers its health checks
DEAD_ENGINE: Final = re.compile(
    r"EngineDeadError|\bEngineCore (?:encountered an issue|died)|\bEngine loop is not running"  # vLLM
    r"|\bBackground loop (?:has errored|is not running)"
    r"|\b(?:Ray)?Actor(?:Died|Unavailable)?Error\b|\bThe actor (?:died|is dead)"  # Ray Serve
    r"|\bWorkerCrashedError|\bThe worker died unexpectedly"
    r"|\bWorker died\.|\bhas no worker to serve inference request"  # TorchServe
    r"|\bStub process '[^']*' is not healthy"  # Triton
    r"|\bllama runner process (?:has terminated|no longer running)"  # Ollama
    r"|\bprocess in the process pool was terminated abruptly"  # any server in Python
    r"|\w(?:Exception|Error)(?: -|:) Connection error\."  # LiteLLM, whose model server is away
)
BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
GONE: Final = frozenset({HealthStatus.UNREACHABLE, HealthStatus.DEFUNCT})


def read_status(status: int, said: str, *, busy: tuple[int, ...] = BUSY) -> Observation:
    """Return what an answer other than 2xx says. `busy`: the statuses that say that there is no room."""
    seen = Observation.BUSY if status in busy else STATUSES.get(status, Observation.FAULT)
    if seen is Observation.BUSY and status not in busy:
        seen = Observation.FAULT
    # Some say 400 of any ValueError, also of a dead engine's. The other statuses of INVALID mostly repeat the input
    return _or_dead(seen, said) if seen is Observation.FAULT or status == BAD_REQUEST else seen


def read_stream_error(code: int, said: str) -> Observation:
    """Return what an error in a stream says. `code`: its own status, or 0. The run had begun, so it is no refusal."""
    seen = STATUSES.get(code, Observation.FAULT)
    return _or_dead(
        Observation.GATEWAY if seen is Observation.BUSY else Observation.FAULT if seen in MAY_BE_LOCKED else seen, said
    )


def read_error(said: str) -> Observation:
    """Return what the error in an answer with a 2xx says."""
    return _or_dead(Observation.ERROR, said)


def _or_dead(seen: Observation, said: str) -> Observation:
    return Observation.DEAD_WORDS if DEAD_ENGINE.search(said) else seen


def end(seen: Observation, error: str, *, retry_after_s: float | None = None, says_when: bool = False) -> Ended:
    """Return the end for what was seen. It is in doubt where the health decides: see `settle`. A server that says when
    to come again, in a form that is known or not, has no room.
    """
    rule = TABLE[seen]
    in_doubt = rule.if_unready is not None and (seen is not Observation.BUSY or not says_when)
    by_words = seen is Observation.DEAD_WORDS
    return Ended(outcome=rule.outcome, error=error, retry_after_s=retry_after_s, in_doubt=in_doubt, by_words=by_words)


def lock_out(status: int) -> Ended:
    error = f"The model server answered {status}: {WRONG_KEY}"
    return Ended(outcome=Outcome.REFUSED, error=error, is_locked=True, code=SERVER_AUTH)


def settle(ended: Ended, health: Health, *, restarts: bool, lets_in: bool) -> Ended:
    """Return the end that was in doubt, by the health of the server as it was asked for afterwards. A server that is
    ready is never to blame for an answer, and one that is silent is no verdict: it may be busy with another run.
    `restarts`: it can be asked to end, which helps only one that is gone. `lets_in`: it took the key of this director.
    """
    if ended.outcome is Outcome.REFUSED:
        # a server that is busy says so itself
        return replace(ended, in_doubt=False, may_be_input=health.status is HealthStatus.READY)
    if ended.outcome is Outcome.INVALID and not (lets_in and health.can_run):
        return lock_out(FORBIDDEN)
    if health.can_run or health.is_silent:
        return replace(ended, in_doubt=False)
    return replace(
        ended,
        outcome=Outcome.LOST,
        error=f"{ended.error or 'It failed'}. Then the model server was not ready: {health.detail or health.status}",
        in_doubt=False,
        server_is_dead=health.status in GONE or not restarts,
    )
