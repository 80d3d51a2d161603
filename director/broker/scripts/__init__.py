"""Every script as a typed call: the one place that knows the order of KEYS and ARGV and the shape of replies.

One method per file of lua/, named after it; what a script promises stands in its header. One module per caller.
Without `now_ms` scripts ask the server's clock: tests walk time with it.
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
    """Every change of shared state. All raise BackendUnavailable while Redis cannot answer."""
