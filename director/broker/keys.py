"""How every Redis key is spelled: one function per key, with its type, who writes it and how long it lives.

All keys of one partition carry its hash tag, so that each script works in one Redis Cluster slot. `lua/lib/keys.lua`
spells the same keys for scripts that meet ids on their way; a test holds the two together.
Keys that never expire by themselves are named in PERMANENT: all else must carry a lifetime once its prediction ended.
"""

from typing import Final, Literal

from director.core.ids import FileId, Kind, Partition, PredictionId, QueueName, partition_of, partition_of_model

# How the keys of the service as a whole are spelled: registries, secrets, and who reads how far.


def contact() -> str:
    """hash · how long keepers have heard this run of the server. Written by contact; outlives them shortly."""
    return "contact"


def changes() -> str:
    """stream · what operators change, about the last 10,000 entries. Written by note, before each change. Permanent."""
    return "changes"


def queues() -> str:
    """set · every queue there is. Written when a version is registered, before its first enqueue. Permanent."""
    return "queues"


def partitions() -> str:
    """set · every partition that ever had a queue: what ended there may owe longer than it has one. Permanent."""
    return "partitions"


def secret(purpose: str) -> str:
    """string · what one kind of thing is signed with. Made once, by whoever needs it first. Permanent."""
    return f"secret:{purpose}"


def sink(name: str) -> str:
    """hash · partition → how far a sink has read its log: entry and number. Written by `director audit`. Permanent."""
    return f"sink:{name}"


def site() -> str:
    """string · what this server is called by those that send predictions to it. Made by the first. Permanent."""
    return "site"


def kick_channel(consumer: str) -> str:
    """channel · the id of a claim of this director that was asked to cancel."""
    return f"kick:{consumer}"


def ends_channel(waiter: str) -> str:
    """channel · ends of predictions whose callers this API process holds, see director.store.endings.

    It begins as the one above does, since that is where a user of ours at Redis may publish in any release.
    """
    return f"kick:ends:{waiter}"


# How the keys of one account are spelled. A script that takes several works in the slot of the account's own tag.


def token(digest: str) -> str:
    """hash · who a bearer token speaks for, by the SHA-256 of the token. Permanent. One that expires is gone then."""
    return f"token:{digest}"


def tokens(account: str) -> str:
    """zset · the digests of an account's tokens → when each was made, ms. Written before the token. Permanent."""
    return f"tokens:{account}"


def account(name: str) -> str:
    """hash · an account: its type; its webhook secrets; its limits where they are not those of all, and how often they
    changed; why it is suspended.

    Permanent.
    """
    return f"account:{name}"


def accounts() -> str:
    """set · every account that was given a token or a limit. Permanent."""
    return "accounts"


def deployment(account: str, name: str) -> str:
    """string · what a deployment of an account stands for, as JSON. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployment:{name}"


def deployments(account: str) -> str:
    """zset · the names of an account's deployments → created, ms. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployments"


def suspensions() -> str:
    """zset · account → twice the number of its last suspension or resumption, and 1 while suspended. Permanent."""
    return "suspensions"


def settling() -> str:
    """zset · accounts whose queues are brought into line with a suspension → since, ms. By its keeper. Permanent."""
    return "settling"


def listing(account: str, kind: Kind = "") -> str:
    """zset · an account's ids of one kind, which sort by time. Written before enqueue; trimmed as it grows."""
    return f"{{a:{account}}}:listing" + (f":{kind}" if kind else "")


def file(account: str, file_id: FileId) -> str:
    """string · what is known of a file that a caller gave, as JSON. Written once it is stored; until it expires."""
    return f"{{a:{account}}}:file:{file_id}"


def files(account: str) -> str:
    """zset · ids of an account's files, which sort by time. Written and trimmed with each; until the last expires."""
    return f"{{a:{account}}}:files"


def usage(account: str) -> str:
    """hash · what is left of an account's rates, its denied bursts. Written by reserve; a day after the last one."""
    return f"{{a:{account}}}:usage"


def taken(account: str) -> str:
    """zset · who took a token lately → when, ms, so that a repeated call takes once. Written by reserve; 30 seconds."""
    return f"{{a:{account}}}:taken"


def compute(account: str) -> str:
    """hash · the day's compute: spent, reserved, and by whom. Written by reserve and spend; 2 days."""
    return f"{{a:{account}}}:compute"


def credit(account: str) -> str:
    """hash · as `compute`, of all days together, while there is a limit of that. By reserve and spend. Permanent."""
    return f"{{a:{account}}}:credit"


def stored(account: str) -> str:
    """hash · id of a file, or of a prediction with files → its bytes, and `total`. By stow; until the last is over."""
    return f"{{a:{account}}}:stored"


def stored_until(account: str) -> str:
    """zset · of `stored`, each id → when it is over, ms. Written by stow; until the last one is over."""
    return f"{{a:{account}}}:stored_until"


# How the keys of the catalogue are spelled: models, their versions and what is shown of them.


def model(name: str) -> str:
    """hash · a model of the catalogue: what is said of it. By registration, amend and withdraw. Permanent."""
    return f"model:{name}"


def models(order: Literal["created", "latest"]) -> str:
    """zset · every model → when it, or its latest version, was made, ms. By whoever makes a model or a version.

    May name one that is gone. Permanent.
    """
    return f"models:{order}"


def collection(slug: str) -> str:
    """string · a collection of models as JSON. Written by operators. Permanent."""
    return f"collection:{slug}"


def collections() -> str:
    """set · every collection. May name one that is gone. Written by operators. Permanent."""
    return "collections"


def hardware() -> str:
    """hash · SKU → name of the hardware that there is. Written by operators. Permanent."""
    return "hardware"


def examples(model: str) -> str:
    """hash · id → a prediction of a model as JSON, to be shown with it. Written by operators. Permanent."""
    return f"examples:{model}"


def version(name: str, version_id: str) -> str:
    """hash · one version of a model with its OpenAPI document. Written at registration. Permanent."""
    return f"version:{name}:{version_id}"


def versions() -> str:
    """hash · version id → model, for callers that name the version alone. Permanent."""
    return "versions"


# How the hash tag of a partition is spelled, and the keys of what all its queues share.


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


# How the keys of one prediction are spelled. All carry the hash tag of its partition.


def record(prediction_id: PredictionId) -> str:
    """hash · the prediction's truth, all but its bulk. No lifetime until terminal, then 7 days."""
    return f"{tag(partition_of(prediction_id))}:rec:{prediction_id}"


def input_data(prediction_id: PredictionId) -> str:
    """string · the caller's input, byte for byte. Written by enqueue. No lifetime until terminal, then 1 hour."""
    return f"{tag(partition_of(prediction_id))}:in:{prediction_id}"


def output_data(prediction_id: PredictionId) -> str:
    """hash · output and logs of a terminal prediction. Written by whatever ends it; 1 hour."""
    return f"{tag(partition_of(prediction_id))}:out:{prediction_id}"


def events(prediction_id: PredictionId) -> str:
    """list · its events, numbered by their place from 1. No lifetime until terminal, then 1 hour.

    Not a stream: a stream takes 4.3 KB for its first entry (measured on Valkey 9.1 and Redis 7.0), a list 0.1 KB.
    """
    return f"{tag(partition_of(prediction_id))}:ev:{prediction_id}"


def came(prediction_id: PredictionId) -> str:
    """string · `<number of the move> here|refused`, so that it arrives once. Written by arrive; 30 days."""
    return f"{tag(partition_of(prediction_id))}:came:{prediction_id}"


def channel(prediction_id: PredictionId) -> str:
    """channel · `PUBLISH <seq>` whenever events were added, never a payload."""
    return f"{tag(partition_of(prediction_id))}:ch:{prediction_id}"


def idempotency(*, account: str, model: str, digest: str) -> str:
    """string · `<id> <fingerprint of the body>`. Written by enqueue; 24 hours."""
    return f"{tag(partition_of_model(model))}:idem:{account}:{model}:{digest}"


def weights(training: PredictionId) -> str:
    """string · the key of the version whose weights are this training's files. Removed by the keeper once it is gone.

    Permanent.
    """
    return f"{tag(partition_of(training))}:weights:{training}"


# How the keys of one queue are spelled. All carry the hash tag of its model's partition.


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


GROUP: Final = "directors"

# Suffix after the tag or prefix outside it -> why it may live for ever.
PERMANENT: Final = {
    "meta": "what a queue is",
    "s": "a work stream: emptied by XACK and XDEL, never dropped, or its group and last id would be lost",
    "last": "one field per director, removed with its consumer",
    "directors": "one member per director, removed with its consumer",
    "slots": "one field per director, removed with its consumer",
    "limits": "one field per account that has limits",
    "held": "accounts that an operator paused",
    "suspended": "accounts that are suspended",
    "suspensions": "one member per account that ever was",
    "settling": "accounts that were suspended or resumed lately",
    "tally": "a closed set of counters",
    "log": "capped by whoever writes",
    "changes": "capped by whoever writes",
    "sink": "one field per partition",
    "queues": "the registry that keepers sweep",
    "partitions": "as many members as there are partitions, at the most",
    "model": "catalogue",
    "models": "catalogue",
    "examples": "catalogue",
    "collection": "catalogue",
    "collections": "catalogue",
    "hardware": "catalogue",
    "version": "catalogue",
    "versions": "catalogue",
    "token": "accounts",
    "tokens": "one member per token of an account, removed with it",
    "account": "accounts",
    "accounts": "the registry that operators list",
    "deployment": "until its account deletes it",
    "deployments": "one member per deployment, removed with it",
    "credit": "what an account spent of all that it may: no day clears it",
    "weights": "as long as the version that was made of them",
    "listing": "trimmed by every submit",
    "dead": "dead letters wait for a person",
    "site": "one",
    "secret": "what it signed would be good no more",
}
