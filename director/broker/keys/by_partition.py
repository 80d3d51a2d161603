"""How the hash tag of a partition is spelled, and the keys of what all its queues share."""

from director.core.ids import Partition

__all__ = (
    "log",
    "owed",
    "owed_to",
    "tag",
    "unspent",
)


def tag(partition: Partition) -> str:
    """The hash tag of a partition."""
    return f"{{p{partition}}}"


def owed(partition: Partition) -> str:
    """zset · ids whose terminal webhook is not delivered → next attempt, ms. Emptied by deliver."""
    return f"{tag(partition)}:owed"


def unspent(partition: Partition) -> str:
    """zset · `<id> <account>` of what ended and had compute reserved → ms that it ran. Emptied by the keeper."""
    return f"{tag(partition)}:unspent"


def log(partition: Partition) -> str:
    """stream · steps of predictions, about the last 10,000. Written by every script that takes one. Permanent."""
    return f"{tag(partition)}:log"


def owed_to(partition: Partition, host: str) -> str:
    """zset · of what is owed, that which waits for its next attempt at one host → when. Written by deliver; 4 days."""
    return f"{tag(partition)}:owed:{host}"
