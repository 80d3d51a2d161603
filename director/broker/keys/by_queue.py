"""How the keys of one queue are spelled. All carry the hash tag of its model's partition."""

from director.broker.keys.by_partition import tag
from director.core.ids import Partition, QueueName, partition_of_model

__all__ = (
    "about",
    "backlog",
    "bell",
    "dead",
    "deadline",
    "debt",
    "delayed",
    "directors",
    "held",
    "last",
    "lease",
    "leaving",
    "limits",
    "live",
    "meta",
    "queue_partition",
    "queued",
    "running",
    "samples",
    "slots",
    "stream",
    "suspended",
    "tally",
    "vtime",
)


def queue_partition(queue: QueueName) -> Partition:
    """The partition of a queue is that of its model: all before the last colon."""
    return partition_of_model(queue.rpartition(":")[0])


def _of_queue(queue: QueueName, what: str) -> str:
    return f"{tag(queue_partition(queue))}:q:{queue}:{what}"


def meta(queue: QueueName) -> str:
    """hash · streams, shard size, rotation, per lane a bit mask of streams that may hold work, lifetimes. Permanent."""
    return _of_queue(queue, "meta")


def stream(queue: QueueName, lane: str, number: int) -> str:
    """stream · entries {id, cost} that wait or are claimed; group `directors`. Permanent."""
    return _of_queue(queue, f"{lane}:s{number}")


def bell(queue: QueueName) -> str:
    """list · at most one token; wakes one waiting consumer. Consumed by it, else 60 s."""
    return _of_queue(queue, "bell")


def live(queue: QueueName) -> str:
    """zset · every accepted and not yet terminal id → created, ms. Emptied as predictions end."""
    return _of_queue(queue, "live")


def leaving(queue: QueueName) -> str:
    """zset · id → when it left for another Redis server, ms. Emptied by vacate and stay."""
    return _of_queue(queue, "leaving")


def lease(queue: QueueName) -> str:
    """zset · claimed id → end of its lease by the server's clock, ms. Emptied as claims end."""
    return _of_queue(queue, "lease")


def last(queue: QueueName) -> str:
    """hash · consumer → its last claim's nonce and ids, so that a lost reply is answered again. Permanent."""
    return _of_queue(queue, "last")


def backlog(queue: QueueName, lane: str, tenant: str) -> str:
    """zset · what a tenant has waiting behind the ready tier → number of its arrival. Emptied by claims and ends."""
    return _of_queue(queue, f"backlog:{lane}:{tenant}")


def vtime(queue: QueueName, lane: str) -> str:
    """zset · tenants that claims let in from → virtual time: served cost ÷ weight. Gone when no backlog may enter."""
    return _of_queue(queue, f"vtime:{lane}")


def debt(queue: QueueName, lane: str) -> str:
    """zset · other tenants whose virtual time is ahead of the lane's. Gone with `vtime`."""
    return _of_queue(queue, f"debt:{lane}")


def queued(queue: QueueName) -> str:
    """hash · tenant → what it has waiting and delayed. Fields go at zero."""
    return _of_queue(queue, "queued")


def running(queue: QueueName) -> str:
    """hash · tenant → its claims. Fields go at zero."""
    return _of_queue(queue, "running")


def limits(queue: QueueName) -> str:
    """hash · tenant → `<weight> <most running> <revision>`, where it has any. By enqueue and limit. Permanent."""
    return _of_queue(queue, "limits")


def held(queue: QueueName) -> str:
    """set · tenants that an operator paused. Permanent."""
    return _of_queue(queue, "held")


def suspended(queue: QueueName) -> str:
    """hash · tenants whose account is suspended → by which of its changes. Written by pause. Permanent."""
    return _of_queue(queue, "suspended")


def slots(queue: QueueName) -> str:
    """hash · director → `<slots> <state of its servers>`. Written by extend; removed with its consumer."""
    return _of_queue(queue, "slots")


def about(queue: QueueName, director: str) -> str:
    """string · what a director said of itself with its last beat, as JSON. Written by extend; an hour."""
    return _of_queue(queue, f"about:{director}")


def tally(queue: QueueName) -> str:
    """hash · counters since ever: what was accepted, started and ended, and what started within its lane's objective or
    not; how good estimates were, warm hits, how batches ended.

    Permanent.
    """
    return _of_queue(queue, "tally")


def samples(queue: QueueName) -> str:
    """list · how it stood, newest first, and what happened in between. Written by sample; an hour after the last."""
    return _of_queue(queue, "samples")


def delayed(queue: QueueName) -> str:
    """zset · retries that are not due yet → due time, ms. Emptied by promote."""
    return _of_queue(queue, "delayed")


def deadline(queue: QueueName) -> str:
    """zset · id → deadline, ms, of what is not terminal. Emptied by expire and by the end."""
    return _of_queue(queue, "deadline")


def dead(queue: QueueName) -> str:
    """zset · dead letters → when they died, ms. Emptied by an operator, or when the record is gone."""
    return _of_queue(queue, "dead")


def directors(queue: QueueName) -> str:
    """zset · consumer → last sign of life, ms. Written by extend."""
    return _of_queue(queue, "directors")
