"""The table of acts: what the service itself can do about each finding, or why it can do nothing.

The page shows an act as a button, and `director doctor` prints its command. Both do the same.
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from director.operate.kinds import Code

Scope = Literal["operate", "admin"]


class Act(Struct, frozen=True, kw_only=True):
    """One POST to the API below /v1, with this body. `command` does the same. A token needs the scope, or `admin`.

    `asks`: the question before an act with a cost. `done`: what to say after it. In the table the texts have names
    in braces, which the finding gives.
    """

    label: str
    path: str
    body: Mapping[str, Any] = {}
    command: str
    scope: Scope = "operate"
    asks: str = ""
    done: str


RESUME: Final = Act(
    label="Resume",
    path="/admin/queues/{model}/{version}/resume",
    command="director queues resume {queue}",
    done="Resumed. What waits is handed out again.",
)
PAUSE: Final = Act(
    label="Pause queue",
    path="/admin/queues/{model}/{version}/pause",
    command="director queues pause {queue}",
    asks="Pause {queue}? Nothing of it starts until it is resumed.",
    done="Paused. What waits is kept, and what runs goes on.",
)
CANCEL: Final = Act(
    label="Cancel the run",
    path="/admin/predictions/{prediction}/cancel",
    command="director predictions cancel {prediction}",
    asks="Cancel {prediction}? Its caller gets no output.",
    done="It is asked to stop.",
)
REVIVE: Final = Act(
    label="Revive all",
    path="/admin/dead/revive",
    body={"all": True, "queue": "{queue}"},
    command="director dead revive --all --queue {queue}",
    asks="Revive all dead letters of {queue}? Without a repair they die again.",
    done="They are queued again.",
)
DROP: Final = Act(
    label="Drop all",
    path="/admin/dead/drop",
    body={"all": True, "queue": "{queue}"},
    command="director dead drop --all --queue {queue}",
    asks="Drop all dead letters of {queue} for good?",
    done="They are dropped.",
)
SEND_AGAIN: Final = Act(
    label="Send again",
    path="/admin/owed/redeliver",
    body={"host": "{host}"},
    command="director webhooks redeliver {host}",
    done="They are sent again now.",
)

NEEDS_REDIS: Final = "Redis itself has to be repaired"
NEEDS_PROCESS: Final = "a process has to be started or repaired on its machine"
NEEDS_SERVER: Final = "the model server has to be repaired, and no director restarts a server that it did not start"
NEEDS_MODEL: Final = "the model has to be corrected"
NEEDS_CHOICE: Final = "a person has to choose: how much, or which"
ACTS: Final[Mapping[Code, tuple[Act, ...] | str]] = {
    "redis_away": NEEDS_REDIS,
    "redis_disk": NEEDS_REDIS,
    "redis_full": NEEDS_REDIS,
    "redis_filling": NEEDS_REDIS,
    "redis_slow": NEEDS_REDIS,
    "keeper_silent": NEEDS_PROCESS,
    "files_away": NEEDS_PROCESS,
    "director_gone": NEEDS_PROCESS,
    "queue_not_served": NEEDS_PROCESS,
    "setup_loop": NEEDS_MODEL,
    "setup_failed": NEEDS_MODEL,
    "server_auth": NEEDS_SERVER,
    "servers_unwell": NEEDS_SERVER,
    "load_fails": NEEDS_MODEL,
    "no_room": NEEDS_CHOICE,
    "server_stays": NEEDS_PROCESS,
    "swaps_thrash": NEEDS_CHOICE,
    "setup_slow": NEEDS_SERVER,
    "no_schema": NEEDS_MODEL,
    "version_changed": NEEDS_SERVER,
    "breaker_open": "one run that succeeds closes it, and no command does",
    "queue_paused": (RESUME,),
    "run_hangs": (CANCEL,),
    "runs_time_out": (PAUSE,),
    "model_failing": (PAUSE,),
    "split_stopped": NEEDS_CHOICE,
    "objective_burning": NEEDS_CHOICE,
    "objective_missed": NEEDS_CHOICE,
    "tenant_flooding": NEEDS_CHOICE,
    "account_holds_most": NEEDS_CHOICE,
    "dead_letters": (REVIVE, DROP),
    "webhooks_late": NEEDS_PROCESS,
    "receiver_dead": (SEND_AGAIN,),
    "token_expires": "a new token has to be handed to its user",
    "clock_off": NEEDS_PROCESS,
    "former_release": NEEDS_PROCESS,
}


def acts_of(code: Code, queue: str, about: Mapping[str, str]) -> tuple[Act, ...]:
    """Return the acts of a finding, filled in with its queue and what else it is about."""
    acts = ACTS[code]
    if isinstance(acts, str):
        return ()
    model, _, version = queue.rpartition(":")
    names = {"queue": queue, "model": model, "version": version, **about}
    quoted = {name: shlex.quote(text) for name, text in names.items()}  # a caller chose the host
    return tuple(
        replace(
            act,
            path=act.path.format(**names),
            body={key: _fill(value, names) for key, value in act.body.items()},
            command=act.command.format(**quoted),
            asks=act.asks.format(**names),
        )
        for act in acts
    )


def _fill(value: object, names: Mapping[str, str]) -> object:
    return value.format(**names) if isinstance(value, str) else value
