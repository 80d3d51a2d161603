"""Spell every Redis key: one entry per key with its pattern, its type, its writer and its lifetime.

All keys of one partition carry its hash tag, so each script works in one Cluster slot. `lua/lib/keys.lua` spells the
same keys; a test compares the two. A key that never expires says why, and is then in PERMANENT. Each says who makes it
grow, and what bounds it: what callers grow is counted, or has a fixed number.
"""

from collections.abc import Callable
from typing import Final, Literal, TypeVar

from director.core.ids import FileId, Kind, Partition, PredictionId, QueueName, partition_of, partition_of_model

GROUP: Final = "directors"

# Suffix after the tag, or prefix of a key without one -> why it may live for ever
PERMANENT: Final[dict[str, str]] = {}


def tag(partition: Partition) -> str:
    return f"{{p{partition}}}"


def queue_partition(queue: QueueName) -> Partition:
    return partition_of_model(queue.rpartition(":")[0])


# By key: who makes it grow, and what bounds it. `counted`: in the bytes of the account, which `max_data_bytes` limits
GROWTH: Final[dict[Callable[..., str], str]] = {}
Spell = TypeVar("Spell", bound=Callable[..., str])


def _grows(how: str) -> Callable[[Spell], Spell]:
    def note(spell: Spell) -> Spell:
        GROWTH[spell] = how
        return spell

    return note


def _list(name: str, permanent: str) -> None:
    if permanent:
        PERMANENT[name] = permanent


def _single(name: str, *, grows: str, permanent: str = "") -> Callable[[], str]:
    _list(name, permanent)
    return _grows(grows)(lambda: name)


def _by_name(prefix: str, *, grows: str, permanent: str = "") -> Callable[[str], str]:
    _list(prefix, permanent)
    return _grows(grows)(lambda name: f"{prefix}:{name}")


def _of_account(suffix: str, *, grows: str, permanent: str = "") -> Callable[[str], str]:
    _list(suffix, permanent)
    return _grows(grows)(lambda account: f"{{a:{account}}}:{suffix}")


def _of_partition(suffix: str, *, grows: str, permanent: str = "") -> Callable[[Partition], str]:
    _list(suffix, permanent)
    return _grows(grows)(lambda partition: f"{{p{partition}}}:{suffix}")


def _of_prediction(infix: str, *, grows: str, permanent: str = "") -> Callable[[PredictionId], str]:
    _list(infix, permanent)
    return _grows(grows)(lambda prediction_id: f"{{p{partition_of(prediction_id)}}}:{infix}:{prediction_id}")


def _of_queue(suffix: str, *, grows: str, permanent: str = "") -> Callable[[QueueName], str]:
    _list(suffix, permanent)
    return _grows(grows)(lambda queue: f"{{p{queue_partition(queue)}}}:q:{queue}:{suffix}")


def _of_queue_and(prefix: str, *, grows: str) -> Callable[[QueueName, str], str]:
    return _grows(grows)(lambda queue, of: f"{{p{queue_partition(queue)}}}:q:{queue}:{prefix}:{of}")


# Keys of the service as a whole: registries, secrets, and the progress of log sinks.

contact = _single("contact", grows="keepers: one field of each")
"""hash · how long keepers have been in contact with this run of the server. By contact; expires shortly after them."""
changes = _single("changes", permanent="capped by each write", grows="operators: about the last 10,000")
"""stream · changes by operators, about the last 10,000. By note, before each."""
queues = _single(
    "queues",
    permanent="the registry that keepers sweep",
    grows="callers: counted, one of each version that a training makes; else directors",
)
"""set · every queue. Written before its first enqueue."""
partitions = _single(
    "partitions", permanent="at most one member per partition", grows="directors: one of each partition"
)
"""set · every partition that ever had a queue. Webhooks may be owed there after the queue is gone."""
secret = _by_name(
    "secret", permanent="without it earlier signatures would be invalid", grows="the service: one of each purpose"
)
"""string · purpose → the secret that signs such data. Made once, by the process that needs it first."""
sink = _by_name("sink", permanent="one field per partition", grows="operators: one of each receiver")
"""hash · partition → how far a receiver has read its log: entry and number. Written by `director audit`."""
site = _single("site", permanent="one key", grows="the service: one")
"""string · this server's name for others that send predictions to it, the first makes it."""
kick_channel = _by_name("kick", grows="the service: a channel keeps nothing")
"""channel · the id of a claim of this director whose caller asked to cancel."""
# the name begins with `kick:` because the ACL user of every release may publish there
ends_channel = _by_name("kick:ends", grows="the service: a channel keeps nothing")
"""channel · ends of predictions whose callers wait at this API process."""

# Keys of one account. A script that takes several works in the slot of the account's own tag.

token = _by_name("token", permanent="accounts", grows="operators: at most 1,000 of an account")
"""hash · SHA-256 of a bearer token → its account. A token with an expiry is gone then."""
tokens = _by_name(
    "tokens",
    permanent="one member per token of an account, removed with it",
    grows="operators: at most 1,000 of an account",
)
"""zset · digests of an account's tokens → creation time, ms. Written before the token."""
account = _by_name("account", permanent="accounts", grows="operators: one of each account")
"""hash · type, webhook secrets, reason of suspension, limits that differ from the defaults, how often they changed."""
accounts = _single("accounts", permanent="the registry that operators list", grows="operators: one of each account")
"""set · every account that ever got a token or a limit."""
sessions = _of_account("sessions", grows="callers: at most 100 sessions and 100 links of an account")
"""hash · sessions of the page and links that make one, by digest → token and scopes. By grant; until the last ends."""
deployments = _of_account(
    "deployments",
    permanent="one member per deployment, removed with it",
    grows="callers: counted, and at most 1,000 of an account",
)
"""zset · names of an account's deployments → creation time, ms. Written by deploy."""
suspensions = _single(
    "suspensions", permanent="one member per account that was ever suspended", grows="operators: one of each account"
)
"""zset · account → twice the number of its last suspension or resumption, plus 1 while suspended."""
settling = _single(
    "settling", permanent="accounts that were recently suspended or resumed", grows="operators: one of each account"
)
"""zset · accounts whose suspension a keeper still has to apply to their queues → since, ms."""
files = _of_account("files", grows="callers: counted, with the file")
"""zset · ids of an account's files, in order of time. Written and trimmed with each; until the last expires."""
usage = _of_account("usage", grows="callers: one of each account, with a few fields")
"""hash · an account's token buckets and denied bursts. Written by reserve; a day after the last request."""
taken = _of_account("taken", grows="callers: at most what their rate allows in 30 s")
"""zset · request id → when it took a token, ms: a repeated call takes one once. Written by reserve; 30 s."""
compute = _of_account("compute", grows="callers: counted, one field of each prediction")
"""hash · the day's compute: spent, reserved, by which predictions. Written by reserve and spend; 2 days."""
credit = _of_account(
    "credit",
    permanent="an account's total spending: no day resets it",
    grows="callers: counted, one field of each prediction",
)
"""hash · as `compute`, over all days, while the account has a total limit. By reserve and spend."""
budget = _of_account("budget", grows="callers: counted, one field of each prediction")
"""hash · tokens and compute of the minute, the day and the month: spent, reserved, by which predictions. Written by
budget and settle; 40 days.
"""
stored = _of_account("stored", grows="callers: counted, with the file")
"""hash · id of a file, or of a prediction with files → bytes; `total`. By stow; until the last expires."""
stored_until = _of_account("stored_until", grows="callers: counted, with the file")
"""zset · id in `stored` → when it expires, ms. Written by stow; until the last one expires."""
data = _of_account("data", grows="callers: at most about thirty buckets")
"""hash · bytes of an account's data by the time at which it expires. By enlist and weigh; until the last expires."""
# spelled like a key of an account because the ACL user of every release may read and write those
data_share = _single("{a:}:data_share", grows="keepers: one")
"""string · bytes that an account may have while memory is short. Written by keepers; expires shortly after them."""
data_first = _single("{a:}:data_first", grows="keepers: one")
"""string · the account with the most bytes, as JSON, for operators. Written by keepers; expires shortly after them."""
expiring = _single("{a:}:expiring", grows="operators: one of each token")
"""zset · account and id of a token that was used → when it expires, ms: those of the next days. By the API; a week."""


@_grows("callers: counted, and at most 1,000 of an account")
def deployment(account: str, name: str) -> str:
    """string · a deployment of an account, as JSON. Written by deploy. Permanent."""
    return f"{{a:{account}}}:deployment:{name}"


@_grows("callers: counted")
def file(account: str, file_id: FileId) -> str:
    """string · metadata of a caller's file, as JSON. Written once the file is stored; until it expires."""
    return f"{{a:{account}}}:file:{file_id}"


@_grows("callers: counted, with the prediction")
def listing(account: str, kind: Kind = "") -> str:
    """zset · an account's ids of one kind, in order of time. Written before enqueue, which also trims it. Permanent."""
    return f"{{a:{account}}}:listing" + (f":{kind}" if kind else "")


# All keys of batches share one tag, so that one script changes a batch and the lists that it is on


@_grows("callers: at most 2,000 of an account, and 100 that have not ended")
def batch(batch_id: FileId) -> str:
    """hash · a batch of OpenAI's API: what was asked, and how far it is. Written by open_batch; 30 days."""
    return f"{{a:}}:batch:{batch_id}"


@_grows("callers: at most 100 of an account, with the lines under way")
def batch_lines(batch_id: FileId) -> str:
    """hash · number of a line that is filed and not written → its prediction. By keepers; as `batch`, at most."""
    return f"{{a:}}:batch:{batch_id}:lines"


@_grows("callers: at most 2,000 of an account")
def batches() -> str:
    """zset · `<account> <id>` of batches with something left to do → their turn. By open_batch; as the last of them."""
    return "{a:}:batches"


@_grows("callers: at most 2,000 of an account")
def batches_of(account: str) -> str:
    """zset · ids of an account's batches → when they were made, ms. Written by open_batch; as the last of them."""
    return f"{{a:}}:batches:{account}"


@_grows("callers: at most 2,000 of an account")
def all_batches() -> str:
    """zset · `<id> <account>` of each batch → when it was made, ms. Written by open_batch; as the last of them."""
    return "{a:}:all_batches"


@_grows("callers: at most 100 of an account")
def batches_live(account: str) -> str:
    """zset · ids of an account's batches that have not ended, as `batches_of`. By open_batch; as the last of them."""
    return f"{{a:}}:batches:{account}:live"


@_grows("callers: at most 2,000 of an account, as its batches")
def batch_key(account: str, digest: str) -> str:
    """string · `<batch id> <fingerprint>` of an idempotency key. Written by open_batch; 24 h."""
    return f"{{a:}}:batches:{account}:key:{digest}"


PERMANENT["deployment"] = "until its account deletes it"
PERMANENT["listing"] = "trimmed by every submit"

# Keys of the catalogue: models, their versions and what is shown with them.

model = _by_name(
    "model", permanent="catalogue", grows="callers: counted, and at most 1,000 of an account; else directors"
)
"""hash · a model's description. Written by registration, amend and withdraw."""
collection = _by_name("collection", permanent="catalogue", grows="operators: one of each collection, at most 30 KB")
"""string · a collection of models as JSON. Written by operators."""
collections = _single("collections", permanent="catalogue", grows="operators: one of each collection")
"""set · every collection, and some that are gone. Written by operators."""
hardware = _single("hardware", permanent="catalogue", grows="operators: one field of each")
"""hash · SKU → name of available hardware. Written by operators."""
examples = _by_name("examples", permanent="catalogue", grows="operators: at most 100 of a model, of 256 KiB")
"""hash · id → an example prediction of a model, as JSON. Written by operators."""
versions = _single(
    "versions",
    permanent="catalogue",
    grows="callers: counted, one of each version that a training makes; else directors",
)
"""hash · version id → model, for callers that name only the version."""


@_grows("operators: at most 1,000 fields")
def aliases() -> str:
    """hash · another name of a model in OpenAI's API → the model. Written by operators. Permanent."""
    return "models:aliases"  # below a name that the users of former releases may use


@_grows("callers: at most 1,000 of an account; else directors")
def models(order: Literal["created", "latest"]) -> str:
    """zset · every model, and some that are gone → when it, or its latest version, was made, ms. Permanent."""
    return f"models:{order}"


@_grows("callers: counted, the schema that a training copies; else directors")
def version(name: str, version_id: str) -> str:
    """hash · one version of a model with its OpenAPI document. Written at registration. Permanent."""
    return f"version:{name}:{version_id}"


PERMANENT["aliases"] = PERMANENT["models"] = PERMANENT["version"] = "catalogue"


# With the tag of a partition, because the ACL user of every release may write there
@_grows("directors: one of each model")
def wait_reason(name: str) -> str:
    """string · what a director of a model waits for before its queue exists, as JSON. Written by it; 20 s."""
    return f"{tag(partition_of_model(name))}:awaited:{name}"


# Keys of the whole service, with the tag of a partition for the same reason.


@_grows("directors: one of each model without a queue")
def newcomers() -> str:
    """zset · directors of models without a queue, `<model> <director>` → last sign, ms. By each; 20 s."""
    return f"{tag(Partition(0))}:newcomers"


@_grows("directors: one of each model without a queue")
def newcomer(queue: str, director: str) -> str:
    """string · the report of one of `newcomers`, as JSON. Written by it; 20 s."""
    return f"{tag(Partition(0))}:newcomer:{queue}:{director}"


@_grows("the service: one of each process")
def processes() -> str:
    """zset · keepers and API processes, each as JSON → last sign, ms. Written by each; an hour after the last one."""
    return f"{tag(Partition(0))}:processes"


# In one partition, so that a change and the list are one step, and its log is one that every receiver reads


@_grows("callers: at most 100 of an account, and counted, with the deployment")
def splits() -> str:
    """zset · deployments that try a version, by name. Written by split. Permanent."""
    return f"{tag(Partition(0))}:splits"


@_grows("callers: counted, with the deployment")
def split(name: str) -> str:
    """string · how the calls of a deployment are split between two versions, as JSON. Written by split. Permanent."""
    return f"{tag(Partition(0))}:split:{name}"


@_grows("callers: counted, with the deployment, and about a hundred fields")
def split_runs(name: str) -> str:
    """hash · how runs of both versions of a split ended, and how long they took. Written by count_split; as `split`."""
    return f"{tag(Partition(0))}:split:{name}:runs"


PERMANENT["splits"] = PERMANENT["split"] = "until the release of the deployment changes"


@_grows("callers: at most `max_streams` and `max_waits` of each API process")
def calls(process: str) -> str:
    """set · `<id> <account>` of the calls that an API process cancels when their callers hang up. Written by it; an
    hour. A keeper empties that of a dead process.
    """
    return f"{tag(Partition(0))}:calls:{process}"


@_grows("keepers: one of each queue")
def trends() -> str:
    """zset · queues that have a history → when their last line begins, s. By keepers; as long as the longest step."""
    return f"{tag(Partition(0))}:trends"


@_grows("keepers: one of each step")
def trends_turn(of: str) -> str:
    """string · set by the keeper that writes the step which ends then; as long as its line."""
    return f"{tag(Partition(0))}:trends:turn:{of}"


@_grows("keepers: as many lines as its step covers")
def trend_of_all(of: str) -> str:
    """list · the history of all queues together, as `trend`. Written by keepers; as long as its step covers."""
    return f"{tag(Partition(0))}:trends:{of}"


@_grows("keepers: as many lines as its step covers")
def level_of_all(of: str) -> str:
    """list · how full all queues together were, as `level`. Written by keepers; as long as its step covers."""
    return f"{tag(Partition(0))}:levels:{of}"


# Keys that all queues of a partition share.

owed = _of_partition("owed", grows="callers: counted, with the prediction")
"""zset · ids whose terminal webhook is not delivered → next attempt, ms. Emptied by deliver."""
unspent = _of_partition("unspent", grows="callers: counted, with the prediction")
"""zset · `<id> <account>` of ended predictions with reserved compute → ms they ran. Emptied by the keeper."""
unsettled = _of_partition("unsettled", grows="callers: counted, with the prediction")
"""hash · `<id> <account>` of ended predictions with a reserved budget → `<ms> <tokens>` that they used. Emptied by the
keeper.
"""
log = _of_partition("log", permanent="capped by each write", grows="callers: at most about the last 10,000")
"""stream · steps of predictions, about the last 10,000. By every script with a step."""


@_grows("operators: one of each account and month, for 13 months by default")
def ledger(partition: Partition, month: str, account: str) -> str:
    """hash · `<day> <model> <API token>` → what the runs of an account used, see lua/lib/ledger.lua. By the script that
    ends a run; 13 months by default, and by month beyond 90 days.
    """
    return f"{tag(partition)}:ledger:{month}:{account}"


@_grows("operators: one member of each account and month")
def ledger_accounts(partition: Partition, month: str) -> str:
    """set · accounts that the ledger has rows of in this month. By the script that writes the first; as the rows."""
    return f"{tag(partition)}:ledger:{month}"


@_grows("callers: counted, with the prediction")
def away(partition: Partition, account: str, host: str) -> str:
    """zset · owed webhooks of an account that a host missed → their next attempt. Written by deliver; 4 days."""
    return f"{tag(partition)}:away:{account}:{host}"


# Keys of one prediction. All carry the hash tag of its partition.

record = _of_prediction("rec", grows="callers: counted")
"""hash · the record, without its large data. No lifetime until terminal, then 7 days."""
input_data = _of_prediction("in", grows="callers: counted")
"""string · the caller's input, byte for byte, or a reference to its file, see core/schema.py. By enqueue. No
lifetime until terminal, then 1 hour.
"""
output_data = _of_prediction("out", grows="callers: counted")
"""hash · output (or a reference to its file) and logs of a terminal prediction. By the script that ends it; 1 hour."""
# Not a stream: a stream takes 4.3 KB for its first entry (measured on Valkey 9.1 and Redis 7.0), a list 0.1 KB
events = _of_prediction("ev", grows="callers: counted")
"""list · its events; an event's number is its place, from 1. No lifetime until terminal, then 1 hour; 1 minute for a
call of OpenAI's API with an answer.
"""
came = _of_prediction("came", grows="operators: one of each move")
"""string · `<number of the move> here|refused`, so that a move arrives once. Written by arrive; 30 days."""
channel = _of_prediction("ch", grows="the service: a channel keeps nothing")
"""channel · `PUBLISH <seq>` after events were added, and small ones with it: see `advance`."""
weights = _of_prediction(
    "weights",
    permanent="as long as the version made from them",
    grows="callers: counted, with the version that a training makes",
)
"""string · the version whose weights are this training's files. Removed by the keeper once the version is gone."""


@_grows("callers: counted, with the prediction")
def idempotency(*, account: str, model: str, digest: str) -> str:
    """string · `<id> <fingerprint of the body>`. Written by enqueue; 24 hours."""
    return f"{tag(partition_of_model(model))}:idem:{account}:{model}:{digest}"


# Keys of one queue. All carry the hash tag of its model's partition.

meta = _of_queue(
    "meta",
    permanent="what a queue is",
    grows="callers: counted, with the version that a training makes; else directors",
)
"""hash · streams, shard size, rotation, lifetimes, and per lane a bit mask of streams that may hold work."""
bell = _of_queue("bell", grows="the service: one of each queue")
"""list · at most one wakeup, for one waiting consumer. Consumed by it, else 60 s."""
live = _of_queue("live", grows="callers: counted, with the prediction")
"""zset · every accepted id that is not terminal → creation time, ms. Emptied as predictions end."""
leaving = _of_queue("leaving", grows="callers: counted, with the prediction")
"""zset · id → when it left for another Redis server, ms. Emptied by vacate and stay."""
lease = _of_queue("lease", grows="callers: counted, with the prediction")
"""zset · claimed id → end of its lease by the server's clock, ms. Emptied as claims end."""
last = _of_queue(
    "last", permanent="one field per director, removed with its consumer", grows="directors: one field of each"
)
"""hash · consumer → nonce and ids of its last claim, so that a repeated call gets the same answer."""
vtime = _of_queue_and("vtime", grows="callers: one of each account")
"""zset · accounts that claims admit from → virtual time: served cost ÷ weight. Gone when no backlog may enter."""
debt = _of_queue_and("debt", grows="callers: one of each account")
"""zset · other accounts whose virtual time is ahead of the lane's. Gone with `vtime`."""
charged = _of_queue_and("charged", grows="callers: one of each account")
"""hash · account → what its virtual time has of runs that have not ended. Fields go with the last of these; a week."""
queued = _of_queue("queued", grows="callers: one of each account")
"""hash · account → number of its waiting and delayed predictions. Fields go at zero."""
running = _of_queue("running", grows="callers: one of each account")
"""hash · account → number of its claims. Fields go at zero."""
limits = _of_queue("limits", permanent="one field per account that has limits", grows="callers: one of each account")
"""hash · account → `<weight> <most running> <revision>`. By enqueue and limit."""
hours = _of_queue("hours", permanent="one field per account that has open hours", grows="callers: one of each account")
"""hash · account, or '' for the queue → `<revision> <hours>|<from>-<to> …`: its closures, ms. By hours."""
reopened = _of_queue_and("reopened", grows="operators: one of each account whose hours were taken back")
"""string · revision of open hours that were taken back, so that no process brings older ones. By hours; ten minutes."""
opens = _of_queue("opens", permanent="one member per account that has open hours", grows="callers: one of each account")
"""zset · account, or '' for the queue → when its hours begin next, ms. By hours; moved on by claim and promote."""
held = _of_queue("held", permanent="accounts that an operator paused", grows="operators: one of each account")
"""set · accounts that an operator paused."""
suspended = _of_queue("suspended", permanent="accounts that are suspended", grows="operators: one of each account")
"""hash · suspended accounts → revision of the suspension. Written by pause."""
slots = _of_queue(
    "slots", permanent="one field per director, removed with its consumer", grows="directors: one field of each"
)
"""hash · director → `<slots> <state of its servers>`. Written by extend."""
about = _of_queue_and("about", grows="directors: one of each")
"""string · what a director reported with its last heartbeat, as JSON. By extend; an hour."""
tally = _of_queue("tally", permanent="a closed set of counters", grows="the service: a closed set of fields")
"""hash · total counters: accepted, started and ended predictions, starts within their lane's objective or not, how
good estimates were, warm hits, how batches ended.
"""
samples = _of_queue("samples", grows="keepers: those of an hour")
"""list · samples of the queue's state and counters, newest first. By sample; an hour after the last."""
trend = _of_queue_and("trend", grows="keepers: as many lines as its step covers")
"""list · how predictions ended, how long they waited and ran, by one step of time. By keepers; as long as it covers."""
level = _of_queue_and("level", grows="keepers: as many lines as its step covers")
"""list · how many waited, the slots and their use, by one step of time. By keepers; as long as it covers."""
delayed = _of_queue("delayed", grows="callers: counted, with the prediction")
"""zset · what may not start yet, retries and what its caller planned → due time, ms. Emptied by promote."""
deadline = _of_queue("deadline", grows="callers: counted, with the prediction")
"""zset · id → deadline, ms, while it is not terminal. Emptied by expire and by the end."""
dead = _of_queue("dead", permanent="dead letters wait for a person", grows="callers: counted, with the prediction")
"""zset · dead letters → when they died, ms. Emptied by an operator, or when the record is gone."""
directors = _of_queue(
    "directors", permanent="one member per director, removed with its consumer", grows="directors: one of each"
)
"""zset · consumer → last heartbeat, ms. Written by extend."""


@_grows("callers: counted, with the prediction")
def stream(queue: QueueName, lane: str, number: int) -> str:
    """stream · entries {id, cost} that wait or are claimed; group `directors`. Permanent."""
    return f"{tag(queue_partition(queue))}:q:{queue}:{lane}:s{number}"


@_grows("callers: counted, with the prediction")
def backlog(queue: QueueName, lane: str, account: str) -> str:
    """zset · an account's predictions behind the ready tier → number of arrival. Emptied by claims and ends."""
    return f"{tag(queue_partition(queue))}:q:{queue}:backlog:{lane}:{account}"


PERMANENT["s"] = "a work stream: emptied by XACK and XDEL, never dropped, or its group and last id would be lost"
