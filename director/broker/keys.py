"""Spell every Redis key: one function per key, which states its type, its writer and its lifetime.

All keys of one partition carry its hash tag, so each script works in one Redis Cluster slot. `lua/lib/keys.lua` spells
the same keys for scripts; a test compares the two. Keys that never expire are listed in PERMANENT. All others must have
a lifetime once their prediction has ended.
"""

from typing import Final, Literal

from director.core.ids import FileId, Kind, Partition, PredictionId, QueueName, partition_of, partition_of_model

# Keys of the service as a whole: registries, secrets, and the progress of log sinks.


def contact() -> str:
    """hash · how long keepers have been in contact with this run of the server. Written by contact; expires shortly
    after them.
    """
    return "contact"


def changes() -> str:
    """stream · changes by operators, about the last 10,000. Written by note, before each change. Permanent."""
    return "changes"


def queues() -> str:
    """set · every queue. Written when a version is registered, before its first enqueue. Permanent."""
    return "queues"


def partitions() -> str:
    """set · every partition that ever had a queue. Webhooks may be owed there after the queue is gone. Permanent."""
    return "partitions"


def secret(purpose: str) -> str:
    """string · the secret that signs one kind of data. Made once, by the process that needs it first. Permanent."""
    return f"secret:{purpose}"


def sink(name: str) -> str:
    """hash · partition → how far a sink has read its log: entry and number. Written by `director audit`. Permanent."""
    return f"sink:{name}"


def site() -> str:
    """string · the name of this server for others that send predictions to it. Made by the first of them. Permanent."""
    return "site"


def kick_channel(consumer: str) -> str:
    """channel · the id of a claim of this director whose caller asked to cancel."""
    return f"kick:{consumer}"


def ends_channel(waiter: str) -> str:
    """channel · ends of predictions whose callers wait at this API process, see director.store.predictions.

    The name begins with `kick:` because the ACL user of every release may publish there.
    """
    return f"kick:ends:{waiter}"


# Keys of one account. A script that takes several works in the slot of the account's own tag.


def token(digest: str) -> str:
    """hash · the account of a bearer token, by the token's SHA-256. Permanent. A token with an expiry is gone then."""
    return f"token:{digest}"


def tokens(account: str) -> str:
    """zset · digests of an account's tokens → creation time, ms. Written before the token. Permanent."""
    return f"tokens:{account}"


def account(name: str) -> str:
    """hash · an account's type, webhook secrets and reason of suspension, limits that differ from the defaults, and how
    often the limits changed.

    Permanent.
    """
    return f"account:{name}"


def accounts() -> str:
    """set · every account that ever got a token or a limit. Permanent."""
    return "accounts"


def deployment(account: str, name: str) -> str:
    """string · a deployment of an account, as JSON. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployment:{name}"


def deployments(account: str) -> str:
    """zset · names of an account's deployments → creation time, ms. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployments"


def suspensions() -> str:
    """zset · account → twice the number of its last suspension or resumption, plus 1 while suspended. Permanent."""
    return "suspensions"


def settling() -> str:
    """zset · accounts whose suspension a keeper still has to apply to their queues → since, ms. Permanent."""
    return "settling"


def listing(account: str, kind: Kind = "") -> str:
    """zset · an account's ids of one kind, in order of time. Written before enqueue, which also trims it."""
    return f"{{a:{account}}}:listing" + (f":{kind}" if kind else "")


def file(account: str, file_id: FileId) -> str:
    """string · metadata of a caller's file, as JSON. Written once the file is stored; until it expires."""
    return f"{{a:{account}}}:file:{file_id}"


def files(account: str) -> str:
    """zset · ids of an account's files, in order of time. Written and trimmed with each; until the last expires."""
    return f"{{a:{account}}}:files"


def usage(account: str) -> str:
    """hash · an account's token buckets and denied bursts. Written by reserve; a day after the last request."""
    return f"{{a:{account}}}:usage"


def taken(account: str) -> str:
    """zset · request id → when it took a token, ms, so that a repeated call takes one once. Written by reserve; 30
    seconds.
    """
    return f"{{a:{account}}}:taken"


def compute(account: str) -> str:
    """hash · the day's compute: spent, reserved, and by which predictions. Written by reserve and spend; 2 days."""
    return f"{{a:{account}}}:compute"


def credit(account: str) -> str:
    """hash · as `compute`, over all days, while the account has a total limit. By reserve and spend. Permanent."""
    return f"{{a:{account}}}:credit"


def stored(account: str) -> str:
    """hash · id of a file, or of a prediction with files → its bytes, and `total`. By stow; until the last expires."""
    return f"{{a:{account}}}:stored"


def stored_until(account: str) -> str:
    """zset · id in `stored` → when it expires, ms. Written by stow; until the last one expires."""
    return f"{{a:{account}}}:stored_until"


# Keys of the catalogue: models, their versions and what is shown with them.


def model(name: str) -> str:
    """hash · a model's description in the catalogue. Written by registration, amend and withdraw. Permanent."""
    return f"model:{name}"


def models(order: Literal["created", "latest"]) -> str:
    """zset · every model → when it, or its latest version, was made, ms. Written with each new model or version.

    May name a model that is gone. Permanent.
    """
    return f"models:{order}"


def collection(slug: str) -> str:
    """string · a collection of models as JSON. Written by operators. Permanent."""
    return f"collection:{slug}"


def collections() -> str:
    """set · every collection. May name one that is gone. Written by operators. Permanent."""
    return "collections"


def hardware() -> str:
    """hash · SKU → name of available hardware. Written by operators. Permanent."""
    return "hardware"


def examples(model: str) -> str:
    """hash · id → an example prediction of a model, as JSON. Written by operators. Permanent."""
    return f"examples:{model}"


def version(name: str, version_id: str) -> str:
    """hash · one version of a model with its OpenAPI document. Written at registration. Permanent."""
    return f"version:{name}:{version_id}"


def versions() -> str:
    """hash · version id → model, for callers that name only the version. Permanent."""
    return "versions"


# The hash tag of a partition, and the keys that all its queues share.


def tag(partition: Partition) -> str:
    """Return the hash tag of a partition."""
    return f"{{p{partition}}}"


def owed(partition: Partition) -> str:
    """zset · ids whose terminal webhook is not delivered yet → next attempt, ms. Emptied by deliver."""
    return f"{tag(partition)}:owed"


def unspent(partition: Partition) -> str:
    """zset · `<id> <account>` of ended predictions with reserved compute → ms that they ran. Emptied by the keeper."""
    return f"{tag(partition)}:unspent"


def log(partition: Partition) -> str:
    """stream · steps of predictions, about the last 10,000. Written by every script that makes a step. Permanent."""
    return f"{tag(partition)}:log"


def owed_to(partition: Partition, host: str) -> str:
    """zset · owed webhooks that wait for their next attempt at one host → when. Written by deliver; 4 days."""
    return f"{tag(partition)}:owed:{host}"


# Keys of one prediction. All carry the hash tag of its partition.


def record(prediction_id: PredictionId) -> str:
    """hash · the prediction's record, without its large data. No lifetime until terminal, then 7 days."""
    return f"{tag(partition_of(prediction_id))}:rec:{prediction_id}"


def input_data(prediction_id: PredictionId) -> str:
    """string · the caller's input, byte for byte. Written by enqueue. No lifetime until terminal, then 1 hour."""
    return f"{tag(partition_of(prediction_id))}:in:{prediction_id}"


def output_data(prediction_id: PredictionId) -> str:
    """hash · output and logs of a terminal prediction. Written by the script that ends it; 1 hour."""
    return f"{tag(partition_of(prediction_id))}:out:{prediction_id}"


def events(prediction_id: PredictionId) -> str:
    """list · its events; an event's number is its place, from 1. No lifetime until terminal, then 1 hour.

    Not a stream: a stream takes 4.3 KB for its first entry (measured on Valkey 9.1 and Redis 7.0), a list 0.1 KB.
    """
    return f"{tag(partition_of(prediction_id))}:ev:{prediction_id}"


def came(prediction_id: PredictionId) -> str:
    """string · `<number of the move> here|refused`, so that a move arrives once. Written by arrive; 30 days."""
    return f"{tag(partition_of(prediction_id))}:came:{prediction_id}"


def channel(prediction_id: PredictionId) -> str:
    """channel · `PUBLISH <seq>` after events were added, never a payload."""
    return f"{tag(partition_of(prediction_id))}:ch:{prediction_id}"


def idempotency(*, account: str, model: str, digest: str) -> str:
    """string · `<id> <fingerprint of the body>`. Written by enqueue; 24 hours."""
    return f"{tag(partition_of_model(model))}:idem:{account}:{model}:{digest}"


def weights(training: PredictionId) -> str:
    """string · the version whose weights are this training's files. Removed by the keeper once the version is gone.

    Permanent.
    """
    return f"{tag(partition_of(training))}:weights:{training}"


# Keys of one queue. All carry the hash tag of its model's partition.


def queue_partition(queue: QueueName) -> Partition:
    """Return the partition of the queue's model, which is all before the last colon."""
    return partition_of_model(queue.rpartition(":")[0])


def _of_queue(queue: QueueName, what: str) -> str:
    return f"{tag(queue_partition(queue))}:q:{queue}:{what}"


def meta(queue: QueueName) -> str:
    """hash · streams, shard size, rotation, lifetimes, and per lane a bit mask of streams that may hold work.
    Permanent.
    """
    return _of_queue(queue, "meta")


def stream(queue: QueueName, lane: str, number: int) -> str:
    """stream · entries {id, cost} that wait or are claimed; group `directors`. Permanent."""
    return _of_queue(queue, f"{lane}:s{number}")


def bell(queue: QueueName) -> str:
    """list · at most one wakeup, for one waiting consumer. Consumed by it, else 60 s."""
    return _of_queue(queue, "bell")


def live(queue: QueueName) -> str:
    """zset · every accepted id that is not terminal → creation time, ms. Emptied as predictions end."""
    return _of_queue(queue, "live")


def leaving(queue: QueueName) -> str:
    """zset · id → when it left for another Redis server, ms. Emptied by vacate and stay."""
    return _of_queue(queue, "leaving")


def lease(queue: QueueName) -> str:
    """zset · claimed id → end of its lease by the server's clock, ms. Emptied as claims end."""
    return _of_queue(queue, "lease")


def last(queue: QueueName) -> str:
    """hash · consumer → nonce and ids of its last claim, so that a repeated call gets the same answer. Permanent."""
    return _of_queue(queue, "last")


def backlog(queue: QueueName, lane: str, tenant: str) -> str:
    """zset · a tenant's predictions that wait behind the ready tier → number of arrival. Emptied by claims and ends."""
    return _of_queue(queue, f"backlog:{lane}:{tenant}")


def vtime(queue: QueueName, lane: str) -> str:
    """zset · tenants that claims admit from → virtual time: served cost ÷ weight. Gone when no backlog may enter."""
    return _of_queue(queue, f"vtime:{lane}")


def debt(queue: QueueName, lane: str) -> str:
    """zset · other tenants whose virtual time is ahead of the lane's. Gone with `vtime`."""
    return _of_queue(queue, f"debt:{lane}")


def queued(queue: QueueName) -> str:
    """hash · tenant → number of its waiting and delayed predictions. Fields go at zero."""
    return _of_queue(queue, "queued")


def running(queue: QueueName) -> str:
    """hash · tenant → number of its claims. Fields go at zero."""
    return _of_queue(queue, "running")


def limits(queue: QueueName) -> str:
    """hash · tenant → `<weight> <most running> <revision>`, if it has limits. By enqueue and limit. Permanent."""
    return _of_queue(queue, "limits")


def held(queue: QueueName) -> str:
    """set · tenants that an operator paused. Permanent."""
    return _of_queue(queue, "held")


def suspended(queue: QueueName) -> str:
    """hash · tenants whose account is suspended → revision of the suspension. Written by pause. Permanent."""
    return _of_queue(queue, "suspended")


def slots(queue: QueueName) -> str:
    """hash · director → `<slots> <state of its servers>`. Written by extend; removed with its consumer."""
    return _of_queue(queue, "slots")


def about(queue: QueueName, director: str) -> str:
    """string · what a director reported with its last heartbeat, as JSON. Written by extend; an hour."""
    return _of_queue(queue, f"about:{director}")


def tally(queue: QueueName) -> str:
    """hash · total counters: accepted, started and ended predictions, starts within their lane's objective or not, how
    good estimates were, warm hits, how batches ended.

    Permanent.
    """
    return _of_queue(queue, "tally")


def samples(queue: QueueName) -> str:
    """list · samples of the queue's state and counters, newest first. Written by sample; an hour after the last."""
    return _of_queue(queue, "samples")


def delayed(queue: QueueName) -> str:
    """zset · retries that are not due yet → due time, ms. Emptied by promote."""
    return _of_queue(queue, "delayed")


def deadline(queue: QueueName) -> str:
    """zset · id → deadline, ms, while it is not terminal. Emptied by expire and by the end."""
    return _of_queue(queue, "deadline")


def dead(queue: QueueName) -> str:
    """zset · dead letters → when they died, ms. Emptied by an operator, or when the record is gone."""
    return _of_queue(queue, "dead")


def directors(queue: QueueName) -> str:
    """zset · consumer → last heartbeat, ms. Written by extend."""
    return _of_queue(queue, "directors")


GROUP: Final = "directors"

# Suffix after the tag, or prefix of a key without one -> why it may live for ever
PERMANENT: Final = {
    "meta": "what a queue is",
    "s": "a work stream: emptied by XACK and XDEL, never dropped, or its group and last id would be lost",
    "last": "one field per director, removed with its consumer",
    "directors": "one member per director, removed with its consumer",
    "slots": "one field per director, removed with its consumer",
    "limits": "one field per account that has limits",
    "held": "accounts that an operator paused",
    "suspended": "accounts that are suspended",
    "suspensions": "one member per account that was ever suspended",
    "settling": "accounts that were recently suspended or resumed",
    "tally": "a closed set of counters",
    "log": "capped by each write",
    "changes": "capped by each write",
    "sink": "one field per partition",
    "queues": "the registry that keepers sweep",
    "partitions": "at most one member per partition",
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
    "credit": "an account's total spending: no day resets it",
    "weights": "as long as the version made from them",
    "listing": "trimmed by every submit",
    "dead": "dead letters wait for a person",
    "site": "one key",
    "secret": "without it earlier signatures would be invalid",
}
