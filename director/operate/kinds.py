"""The table of findings: each fault that needs a person has one row here, and no other place has its words.

Doctor, explain, the page, `top`, the live feed and the alerts name these rows. `findings.py` decides which apply.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

from msgspec import Struct

Level = Literal["bad", "warn"]
"""`bad`: work is lost, refused or stuck; `warn`: it will be, or an operator should know."""
Who = Literal["an operator", "who runs Redis", "who runs the servers", "the author of the model", "the receiver"]
"""The person or program that can mend the fault."""
Stage = Literal["waits", "runs", "owes"]
"""A prediction waits, or runs, or its webhook is owed."""

Code = Literal[
    "redis_away",
    "redis_disk",
    "redis_full",
    "redis_filling",
    "redis_slow",
    "keeper_silent",
    "files_away",
    "director_gone",
    "queue_not_served",
    "setup_loop",
    "setup_failed",
    "server_auth",
    "servers_unwell",
    "load_fails",
    "no_room",
    "server_stays",
    "swaps_thrash",
    "setup_slow",
    "no_schema",
    "version_changed",
    "breaker_open",
    "queue_paused",
    "run_hangs",
    "runs_time_out",
    "model_failing",
    "split_stopped",
    "objective_burning",
    "objective_missed",
    "tenant_flooding",
    "account_holds_most",
    "dead_letters",
    "webhooks_late",
    "receiver_dead",
    "token_expires",
    "clock_off",
    "former_release",
]
CODES: Final[tuple[Code, ...]] = get_args(Code)


class Kind(Struct, frozen=True):
    """One row of the table that doctor, explain, page, `top` and alerts share.

    `check`: the line of the doctor. `alert`: the rule in k8s/monitoring/alerts.yaml. `stages`: when the story of a
    prediction names it.
    """

    level: Level
    title: str
    detail: str
    ask: str
    check: str
    alert: str
    who: Who = "an operator"
    stages: tuple[Stage, ...] = ()


SHOW: Final = "director queues show {queue}"
SERVERS: Final = "who runs the servers"
HELD_UP: Final[tuple[Stage, ...]] = ("waits", "runs")
KINDS: Final[Mapping[Code, Kind]] = {
    "redis_away": Kind(
        "bad",
        "Redis does not answer",
        "{reason}. Nothing is accepted or claimed until it does; what runs goes on. Start it again: its log says why "
        "it ended. With `appendfsync always` it ends when its disk is full.",
        "director doctor",
        "reachable",
        "DirectorRedisUnavailable",
        "who runs Redis",
    ),
    "redis_disk": Kind(
        "bad",
        "Redis cannot write to its disk",
        "It refuses every write until it can: nothing is accepted, claimed or ended. Free some of its disk, or enlarge "
        "it; then it goes on by itself. Its log says more.",
        "director doctor",
        "fsync",
        "DirectorRedisUnavailable",
        "who runs Redis",
        HELD_UP,
    ),
    "redis_full": Kind(
        "bad",
        "Redis is full",
        "{used} of {limit} are used. Creates are refused until data expires; reads and cancels work. Raise "
        "`maxmemory`, or delete what has ended.",
        "director doctor",
        "memory",
        "DirectorRedisFull",
        "who runs Redis",
    ),
    "redis_filling": Kind(
        "warn",
        "Redis is nearly full",
        "{used} of {limit} are used{most}. A full server refuses creates. Raise `maxmemory`, or shorten "
        "DIRECTOR_DATA_TTL_S.",
        "director doctor",
        "memory",
        "DirectorRedisFull",
        "who runs Redis",
    ),
    "redis_slow": Kind(
        "warn",
        "Redis is slow",
        "It answers after {took_ms:.0f} ms, and {slow_ms:.0f} ms is slow: everything waits for it.",
        "director doctor",
        "latency",
        "DirectorRedisSlow",
        "who runs Redis",
        HELD_UP,
    ),
    "keeper_silent": Kind(
        "bad",
        "No keeper acts",
        "{late}, for more than {late_s} s. A keeper that just started waits for one lease.",
        "director keeper",
        "keeper",
        "DirectorKeeperAbsent",
        stages=HELD_UP,
    ),
    "files_away": Kind(
        "bad",
        "The store of files does not work",
        "{processes}. What needs no stored file goes on. An upload is refused, and a run whose output has a file "
        "ends with `output_not_stored`.",
        "director doctor",
        "files",
        "DirectorFilesAway",
    ),
    "queue_not_served": Kind(
        "bad",
        "No director serves this queue",
        "{waits}, and {why}. Start a director on the machine of its model server, or scale its pool up from zero.",
        "director run --model {model}",
        "directors",
        "DirectorQueueNotServed",
        stages=("waits",),
    ),
    "director_gone": Kind(
        "bad",
        "{directors} went silent",
        "Last heard: {names}, with {claims} in hand. {left}. It was killed, or its machine or network is away. "
        "See its log, and start it again.",
        "director directors",
        "directors",
        "DirectorLost",
        stages=HELD_UP,
    ),
    "setup_loop": Kind(
        "bad",
        "A model is in a setup loop",
        "{servers} {waits}. Correct the error that the setup shows, or serve the version before.",
        SHOW,
        "servers",
        "DirectorSetupFailing",
        "the author of the model",
        ("waits",),
    ),
    "setup_failed": Kind(
        "bad",
        "A model's setup failed",
        "{servers} {waits}. Correct the error that the setup shows, then restart the server. Or serve the version "
        "before.",
        SHOW,
        "servers",
        "DirectorSetupFailing",
        "the author of the model",
        ("waits",),
    ),
    "server_auth": Kind(
        "bad",
        "Servers refuse their director's key",
        "{servers} {waits}. Give both the same key.",
        SHOW,
        "servers",
        "DirectorServersUnwell",
        SERVERS,
        HELD_UP,
    ),
    "servers_unwell": Kind(
        "bad",
        "Servers are unwell",
        "{servers} {waits}. See the log of the server, and restart it.",
        SHOW,
        "servers",
        "DirectorServersUnwell",
        SERVERS,
        HELD_UP,
    ),
    "load_fails": Kind(
        "bad",
        "A model cannot be loaded",
        "Its last {loads} failed: {why}. {waits}. The wait before each new try is longer, and the other models go on.",
        "director devices",
        "servers",
        "DirectorSetupFailing",
        "the author of the model",
        ("waits",),
    ),
    "no_room": Kind(
        "bad",
        "A model has no room on its device",
        "{why} {waits}. Take back what is pinned or at rest (`director models load MODEL`), or give it another device.",
        "director devices",
        "servers",
        "DirectorFinding",
        stages=("waits",),
    ),
    "server_stays": Kind(
        "bad",
        "A server does not end",
        "It was killed, and {ago} later a process of it is still there. Its memory is not free, so nothing loads in "
        "its place. A driver that hangs does this: look at the log of the kernel, and restart the machine.",
        "director devices",
        "servers",
        "DirectorFinding",
    ),
    "swaps_thrash": Kind(
        "warn",
        "Models swap too often",
        "{loads} on {device} took {lost} of the last hour: {models}. Keep one of them loaded (`keep`), let models stay "
        "longer (`min_loaded_s`, `max_wait_s`), or add a device.",
        "director devices",
        "servers",
        "DirectorFinding",
    ),
    "setup_slow": Kind(
        "warn",
        "A setup takes long",
        "{servers} {waits}. The server loads large weights, or its worker did not start: the `python` of its PATH must "
        "have cog. Its log says more.",
        SHOW,
        "servers",
        "DirectorFinding",
        SERVERS,
        ("waits",),
    ),
    "no_schema": Kind(
        "warn",
        "A model shows no schema",
        "{servers} Inputs are not checked, and the page asks for JSON. For Cog make the file of the schema; for an "
        "http runner give `input_schema` in its configuration.",
        "director schema FOLDER",
        "servers",
        "DirectorFinding",
        "the author of the model",
    ),
    "version_changed": Kind(
        "warn",
        "A server shows another schema than its version",
        "{servers} A version never changes: give this build its own `--version`.",
        SHOW,
        "servers",
        "DirectorFinding",
        SERVERS,
        ("waits",),
    ),
    "breaker_open": Kind(
        "bad",
        "The breaker is open",
        "{waits}. Its servers failed in a row: nothing starts until one run has succeeded.",
        SHOW,
        "queues",
        "DirectorBreakerOpen",
        SERVERS,
        ("waits",),
    ),
    "queue_paused": Kind(
        "warn",
        "Paused, with work",
        "{waits}. {pause}. What runs goes on, and nothing else starts until it is resumed.",
        "director queues resume {queue}",
        "queues",
        "DirectorQueuePaused",
        stages=("waits",),
    ),
    "run_hangs": Kind(
        "warn",
        "A run takes far longer than usual",
        "{id} has run for {age} at {where}. {usual}. It is stopped after {limit}. {waits}. Cancel it. If the next one "
        "hangs too, restart the server.{bound}",
        "director explain {id}",
        "runs",
        "DirectorRunHangs",
        SERVERS,
        HELD_UP,
    ),
    "runs_time_out": Kind(
        "bad",
        "Run after run reaches its limit",
        "The last {runs} at {director} were stopped by the run limit, the newest, {id}, {after}. {usual}. {waits}. The "
        "server hangs, or DIRECTOR_RUN_LIMIT_S is too short for this model: look at its log, then restart it or raise "
        "the limit.",
        "director explain {id}",
        "runs",
        "DirectorRunsTimeOut",
        SERVERS,
        HELD_UP,
    ),
    "model_failing": Kind(
        "warn",
        "Most runs of this model fail",
        "{failed} of the last {runs} failed, the newest is {id}{error}. Correct the model, or serve the version "
        "before.",
        "director explain {id}",
        "runs",
        "DirectorModelFailing",
        "the author of the model",
        HELD_UP,
    ),
    "split_stopped": Kind(
        "warn",
        "{deployment} stopped trying a version",
        "For {ago}, all calls have run the version before: {why}. Correct {version} and try it again. "
        "`director promote {deployment}` releases it all the same.",
        "director rollback {deployment}",
        "runs",
        "DirectorFinding",
        "the author of the model",
    ),
    "objective_burning": Kind(
        "bad",
        "Starts come too late",
        "{missed} of {judged} of the lane {lane}, within 5 min, started too late or wait too long: "
        "{rate:.3g} times the allowed share. More directors help, or a limit for the account that fills the queue.",
        SHOW,
        "queues",
        "DirectorObjectiveBurning",
        stages=("waits",),
    ),
    "objective_missed": Kind(
        "warn",
        "An objective is missed",
        "{missed} of {judged} of the lane {lane}, within 1 h, started too late or wait too long: {rate:.3g} times the "
        "allowed share. More directors help, or another objective.",
        SHOW,
        "queues",
        "DirectorFinding",
    ),
    "tenant_flooding": Kind(
        "warn",
        "{account} floods this queue",
        "{account} has {its:,} of the {waiting:,} that wait. The {others} still start in turn. A limit bounds what it "
        "queues from then on, and removes nothing.",
        "director account set {account} --max-queued N",
        "accounts",
        "DirectorTenantFlooding",
        stages=("waits",),
    ),
    "account_holds_most": Kind(
        "warn",
        "{account} holds most of the data",
        "{account} has {its} of the {total} that {accounts} keep in Redis, and {part:.0%} of its memory is used. Give "
        "it a limit, or delete what it does not need.",
        "director account set {account} --max-data-bytes N",
        "accounts",
        "DirectorFinding",
    ),
    "dead_letters": Kind(
        "warn",
        "Dead letters",
        "{predictions} used up all attempts.{newest}",
        "director dead {show}",
        "dead letters",
        "DirectorDeadLettersGrowing",
    ),
    "webhooks_late": Kind(
        "warn",
        "Webhooks are late",
        "{webhooks} due for more than {late_s} s, and no keeper tried.",
        "director keeper",
        "webhooks",
        "DirectorWebhooksOwedLong",
        stages=("owes",),
    ),
    "receiver_dead": Kind(
        "warn",
        "{host} takes no webhooks",
        "{webhooks} owed there, the oldest for {oldest}, tried {attempts} times{last}: see {id}. Start or repair "
        "the receiver. They are sent again until it takes them, or their schedule ends.",
        "director explain {id}",
        "webhooks",
        "DirectorWebhooksOwedLong",
        "the receiver",
        ("owes",),
    ),
    "token_expires": Kind(
        "warn",
        "A token that is used expires soon",
        "{tokens} of {accounts} expire within {days} days, the first, {id}, in {left}. Then its requests are refused: "
        "make a new one and hand it over.",
        "director token list",
        "accounts",
        "DirectorFinding",
    ),
    "clock_off": Kind(
        "warn",
        "A clock is wrong",
        "{clocks}. Let NTP set the clocks of all machines. Leases and deadlines go by Redis's clock; ids, "
        "lists, signatures and the times that callers see go by the others.",
        "director doctor",
        "clock",
        "DirectorFinding",
    ),
    "former_release": Kind(
        "warn",
        "Processes of another release are there",
        "{others} of {all} processes are not of this release, {ours}: {names}. End the upgrade, or the rollback.",
        "director directors",
        "directors",
        "DirectorFinding",
    ),
}
