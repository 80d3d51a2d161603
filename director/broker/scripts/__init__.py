"""Call every script with types: the one place that knows the order of KEYS and ARGV and the shape of replies.

Each file of lua/ has one method with its name; the script's header states what it promises. Each module serves one kind
of caller. Without `now_ms` scripts use the server's clock: tests pass it to move time.
"""

from director.broker.scripts.accounts import AccountScripts, Allowance, Deployed, Rotated, Stowed
from director.broker.scripts.caller import Accepted, CallerScripts, Canceled, Erased, Redelivered, Replayed
from director.broker.scripts.catalog import Amended, CatalogScripts, OperatorScripts, Withdrawn
from director.broker.scripts.holder import (
    MOST_CLAIMS,
    Advanced,
    Ceased,
    Claims,
    Hold,
    HolderScripts,
    Readiness,
    Requeued,
)
from director.broker.scripts.keeper import Delivered, KeeperScripts, LetterScripts, Repair
from director.broker.scripts.mover import Arrived, Departed, MoverScripts, Stayed, Vacated
from director.broker.scripts.queues import Admission, Demand, Migrated, QueueScripts, QueueStats, Unregistered

__all__ = (
    "MOST_CLAIMS",
    "Accepted",
    "Admission",
    "Advanced",
    "Allowance",
    "Amended",
    "Arrived",
    "Canceled",
    "Ceased",
    "Claims",
    "Delivered",
    "Demand",
    "Departed",
    "Deployed",
    "Erased",
    "Hold",
    "Migrated",
    "QueueStats",
    "Readiness",
    "Redelivered",
    "Repair",
    "Replayed",
    "Requeued",
    "Rotated",
    "Scripts",
    "Stayed",
    "Stowed",
    "Unregistered",
    "Vacated",
    "Withdrawn",
)


class Scripts(
    QueueScripts,
    LetterScripts,
    AccountScripts,
    CatalogScripts,
    CallerScripts,
    HolderScripts,
    KeeperScripts,
    MoverScripts,
    OperatorScripts,
):
    """Every change of shared state. All methods raise BackendUnavailable while Redis cannot answer."""
