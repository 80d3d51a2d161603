"""Read settings from environment variables: one frozen struct per process, read once at start. A field `lease_s` of any
struct is the variable `DIRECTOR_LEASE_S`. The text below a field is its documentation.
"""

import ast
import inspect
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Meta, Struct

from director.core.account_limits import AccountLimits, Bytes, Compute, Count, Rate, Retention, Tokens
from director.core.errors import SettingsError
from director.core.hours import parse_hours
from director.core.ids import MODEL_NAME, QUEUE_NAME
from director.core.policy import BreakerMode, OnLost, Policy, decode_objectives
from director.core.runner_config import RunnerKind

PREFIX = "DIRECTOR_"
DATA_FILE_BYTES: Final = 32 << 10
# Seconds for a restart, minutes for a deploy, then days: see director.webhooks.delivery
WEBHOOK_SCHEDULE = "2s,5s,15s,30s,1m,2m,5m,30m,2h,5h,10h,14h,20h,24h"

RunKind = Literal["prediction", "training", "procedure"]
OnSilence = Literal["hold", "release"]

HEADER: Final = r"\A([A-Za-z0-9-]{1,64}: [\x21-\x7e]([\x20-\x7e]{0,4096}[\x21-\x7e])?)?\Z"
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
SomeSeconds = Annotated[float, Meta(gt=0)]

AnySettings = TypeVar("AnySettings", bound="CommonSettings")


class CommonSettings(Struct, frozen=True, kw_only=True):
    """Settings of every process."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    """Redis or Valkey: redis://, rediss://, unix://, redis+sentinel://h1,h2/name or redis+cluster://h1,h2."""
    durability: Annotated[str, Meta(pattern="^(always|everysec|replicated|memory)$")] = "always"
    """Weakest accepted durability of the server: always, everysec, replicated or memory."""
    assume_durability: Annotated[str, Meta(pattern="^(|always|everysec|replicated|memory)$")] = ""
    """The server's durability, for a server that forbids CONFIG GET."""
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    """Lowest level that is logged."""
    trace_accounts: bool = False
    """Put account names into spans."""
    files_dir: str = ""
    """Folder for files, shared by all processes; empty: no files are stored."""
    files_url: Annotated[str, Meta(pattern=r"^$|^(s3|https?)://\S+$")] = ""
    """Bucket for files instead of a folder: s3://bucket/prefix?endpoint=…&region=…. Directors may also name the API
    that has the folder: http://api:8080.
    """
    data_in_files: bool = False
    """Keep inputs and outputs of 32 KiB or more in the file store."""

    @property
    def data_files_from(self) -> int | None:
        return DATA_FILE_BYTES if self.data_in_files else None


class ApiSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the API."""

    sites: str = ""
    """TOML file of several Redis servers to serve together; empty: only DIRECTOR_REDIS_URL."""
    host: str = "127.0.0.1"
    """Address the API listens on."""
    port: Port = 8080
    """Port the API listens on."""
    public_url: str = ""
    """Base of the URLs in answers, without /v1; empty: the request's own."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that a request may name, beside loopback and that of DIRECTOR_PUBLIC_URL; empty: any."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages whose scripts may use the API with a token, as https://app.example; *: any; empty: none."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-Proto and -Host are trusted; empty: none."""
    session_s: Annotated[float, Meta(ge=60, le=30 * 86400)] = 12 * 3600.0
    """Life of a log-in at the page, however much it is used."""
    proxy_user_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]*$")] = ""
    """Header in which a trusted proxy that logs people in names the person, as X-Forwarded-Email; empty: none does."""
    proxy_groups_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]*$")] = ""
    """Header with the groups of that person, separated by commas."""
    proxy_roles: tuple[str, ...] = ()
    """Roles of groups, as sre=operator,*=viewer; * is everyone. The highest counts: viewer, operator, admin."""
    proxy_account: str = "page"
    """Account of the people that the proxy names: what they run is its own. It must exist."""
    proxy_secret: Annotated[str, Meta(pattern=r"\A([\x21-\x7e]{16,})?\Z")] = ""
    """Secret of at least 16 characters that this proxy sends as X-Director-Proxy-Secret, so that no other program at
    its address can name a person; empty: the address is enough.
    """
    openai: bool = False
    """Serve OpenAI's API at /openai/v1 too. Turn it on once every process is at this release."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 1 << 20
    """Largest request body."""
    max_batch_bytes: Annotated[int, Meta(ge=1024)] = 16 << 20
    """Largest body of a batch of predictions."""
    max_connections: Natural = 0
    """Connections at once; further ones may only ask for health. 0: nine tenths of the descriptors."""
    max_peer_connections: Natural = 0
    """Connections at once of an address that is no trusted proxy; 0: three quarters of all."""
    max_waits: Positive = 10_000
    """Held responses (Prefer: wait) at once; further requests get 201."""
    cancel_wait_s: Annotated[float, Meta(ge=0, le=60)] = 2.0
    """Longest time that the answer to a cancel of a running prediction waits for its end."""
    max_streams: Positive = 10_000
    """Readers of event streams at once; further ones get 503."""
    metrics_token: Annotated[str, Meta(pattern=r"\A([\x21-\x7e]{16,})?\Z")] = ""
    """Token for GET /metrics, at least 16 characters; tokens with scope admin work too."""
    listing_ttl_s: Annotated[float, Meta(ge=1)] = 30 * 86400.0
    """Age at which a prediction leaves the lists; more than the longest wait plus a record's lifetime."""
    files_ttl_s: Annotated[float, Meta(ge=60)] = 86400.0
    """Lifetime of a file that a caller uploads."""
    batch_ttl_s: Annotated[float, Meta(ge=3 * 86400)] = 30 * 86400.0
    """Lifetime of a batch of OpenAI's API, of its input and of its output files."""
    cache_s: Seconds = 5.0
    """Age at which a cached token or model is read again."""
    account_rate: Rate | None = None
    """Creates per second and account; empty: no limit."""
    account_burst: Count | None = None
    """Creates at once; empty: one second's worth."""
    account_read_rate: Rate | None = None
    """Other requests per second and account; empty: no limit."""
    account_read_burst: Count | None = None
    """Other requests at once; empty: one second's worth."""
    account_max_queued: Count | None = None
    """Waiting predictions of an account in one queue; empty: no limit."""
    account_max_running: Count | None = None
    """Running predictions of an account in one queue; empty: no limit."""
    account_compute_s_per_day: Compute | None = None
    """Compute seconds of an account per UTC day; empty: no limit."""
    account_compute_s_total: Compute | None = None
    """Compute seconds of an account in total; empty: no limit."""
    account_compute_s_per_month: Compute | None = None
    """Compute seconds of an account per UTC month; empty: no limit."""
    account_tokens_per_minute: Tokens | None = None
    """Tokens of an account per minute, of input and output; empty: no limit."""
    account_tokens_per_day: Tokens | None = None
    """Tokens of an account per UTC day; empty: no limit."""
    account_tokens_per_month: Tokens | None = None
    """Tokens of an account per UTC month; empty: no limit."""
    account_data_ttl_s: Retention | None = None
    """Lifetime of an account's data after the end; empty: the model's."""
    account_max_files_bytes: Bytes | None = None
    """Bytes of stored files of an account, with outputs; empty: no limit."""
    account_max_data_bytes: Bytes | None = None
    """Bytes in Redis of an account's predictions, waiting and ended; empty: no limit."""

    @property
    def account_limits(self) -> AccountLimits:
        names = [name for name in AccountLimits.__struct_fields__ if name not in ("weight", "open_hours")]
        return AccountLimits(**{name: getattr(self, f"account_{name}") for name in names})


class DirectorSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of one director and its model servers."""

    files_base: Annotated[str, Meta(pattern=r"^$|^https?://\S+$")] = ""
    """Base, without /v1, at which model servers reach the API for files; empty: the callers' base."""

    model: Annotated[str, Meta(pattern=f"^$|{MODEL_NAME}")] = ""
    """owner/name of the model to serve."""
    version: Annotated[str, Meta(pattern=r"^$|^(sha256:)?[0-9a-f]{64}$")] = ""
    """Version id, 64 hex digits; empty: computed from the schema."""
    kind: RunKind = "prediction"
    """Kind of the model's requests to run: prediction, training or procedure."""
    latest: bool = False
    """Make this version the model's latest although it is not new: a rollback."""
    servers: tuple[str, ...] = ()
    """URLs of the model servers, one per GPU, separated by commas."""
    also: Annotated[tuple[Annotated[str, Meta(pattern=QUEUE_NAME)], ...], Meta(max_length=8)] = ()
    """Queues of other versions that the servers also run, separated by commas."""
    runner: RunnerKind = "cog"
    """Kind of the model servers: {values}."""
    runner_config: str = ""
    """Configuration of the runner: a JSON object, or the path of a .json or .toml file."""
    server_header: Annotated[str, Meta(pattern=HEADER)] = ""
    """Secret header that model servers require on every request, as `authorization: Bearer KEY`."""
    concurrent_predictions: Positive = 1
    """Predictions that one model server runs at once."""
    max_failures: Natural = 5
    """Lost or refused runs in a row after which a server rests; 0: never."""
    count_model_failures: bool = False
    """Whether errors that the model's own code raises count for DIRECTOR_MAX_FAILURES too."""
    setup_retry_s: Seconds = 0
    """Time after which a Cog server with a failed setup is restarted; 0: never."""
    batch_cost: Seconds = 0
    """Largest total cost of the runs at once, or of one request; a larger one goes alone. 0: any."""
    batch_size: Natural = 0
    """Most predictions at once, or in one request; 0: one per slot."""
    batch_wait_ms: Annotated[float, Meta(ge=0, le=100)] = 2.0
    """How long the first prediction of an empty queue waits for others to join its request."""
    lease_s: SomeSeconds = 15.0
    """Time without a heartbeat after which a claim may be recovered."""
    run_limit_s: SomeSeconds = 1800.0
    """Longest run of one attempt."""
    attempts: Annotated[int, Meta(ge=1, le=20)] = 3
    """Attempts before a prediction becomes a dead letter."""
    on_lost: OnLost = "retry"
    """For a run that began and lost its director or server, or was drained: retry, or fail if nothing may run twice."""
    backoff_s: Seconds = 1.0
    """Longest wait before the second attempt; doubles for each later one."""
    backoff_cap_s: Seconds = 60.0
    """Longest wait before another attempt."""
    lifetime_s: Seconds = 0
    """Age at which a waiting or running prediction is ended; 0: never."""
    breaker_after: Natural = 5
    """Server faults in a row after which the queue starts nothing; 0: never."""
    breaker_cool_s: SomeSeconds = 30.0
    """Time until one prediction may try again; doubles each time."""
    breaker_mode: BreakerMode = "hold"
    """New predictions while nothing starts: hold them, or fail: refuse them with 503."""
    open_hours: str = ""
    """When predictions start, as `22:00-06:00 Europe/Berlin`; empty: always."""
    spare_slots: Natural = 1
    """Slots that idle work leaves free in a queue that has more than these; 0: it may use all."""
    objectives: str = ""
    """Per lane, the share that starts within a time: `{"normal": {"share": 0.95, "within_s": 10}}`."""
    drain_s: Seconds = 30.0
    """Time to finish running work after SIGTERM."""
    end_servers: bool = False
    """Ask its Cog servers to end after a drain, for servers that ignore SIGTERM."""
    health_port: Port = 0
    """Port of the health endpoints and the inbox; 0: any free."""
    health_host: str = "127.0.0.1"
    """Address of that port."""
    streams: Annotated[int, Meta(ge=1, le=32)] = 16
    """Streams per lane of a new queue."""
    shard_size: Annotated[int, Meta(ge=1, le=32)] = 2
    """Streams of each lane that one account uses, of a new queue."""
    data_ttl_s: Annotated[float, Meta(ge=1)] = 3600.0
    """Lifetime of input, output and logs after the end."""
    record_ttl_s: Annotated[float, Meta(ge=1)] = 7 * 86400.0
    """Lifetime of the record after the end."""
    max_output_bytes: Annotated[int, Meta(ge=1024)] = 8 << 20
    """Largest output; a prediction with a larger one fails."""
    max_files_bytes: Annotated[int, Meta(ge=4096)] = 1 << 30
    """Largest total of an output's files; a prediction with more fails."""
    upload_secret: Annotated[str, Meta(pattern=r"^$|^[A-Za-z0-9_-]{16,128}$")] = ""
    """Secret for uploads of Cog servers with `--upload-url http://127.0.0.1:PORT/uploads/SECRET/`."""
    coglet_dir: Annotated[str, Meta(pattern=r"^$|^/[^/]+/(.*[^/])?$")] = ""
    """Where this process sees its servers' folder /tmp/coglet/predictions, to clean it; empty: nowhere."""
    devices_dir: Annotated[str, Meta(pattern=r"^/")] = "/tmp/director-devices"  # noqa: S108 - the host checks whose it is
    """Folder of locks, records and logs of the servers on shared devices, the same for all directors of a machine."""
    webhook_allow: str = ""
    """Private receivers that are allowed: hosts, networks, the word loopback."""
    webhook_schedule: str = WEBHOOK_SCHEDULE
    """Waits after each failed attempt to deliver a terminal webhook; then it is given up."""
    inline_text_bytes: Natural = 0
    """Largest text file that stays in an output as a data URI if files are stored; 0: each gets an address."""
    moderation_url: str = ""
    """URL to ask (POST id, model, output) before an output is released; empty: no check."""
    moderation_secret: str = ""
    """Secret that signs those requests, as for webhooks: whsec_ and base64."""
    moderation_on_failure: OnSilence = "hold"
    """Output without an answer: hold it and ask until the run limit, or release it."""
    moderation_timeout_s: SomeSeconds = 10.0
    """Time to answer a moderation request."""
    setup_webhook: str = ""
    """URL that gets the result of each model server's setup (POST) with its logs; empty: none."""
    setup_webhook_secret: str = ""
    """Secret that signs those requests, as for webhooks: whsec_ and base64."""

    @property
    def policy(self) -> Policy:
        try:
            promised = decode_objectives(self.objectives)
        except SettingsError as exc:
            raise SettingsError(f"DIRECTOR_OBJECTIVES: {exc}") from exc
        if self.open_hours:
            parse_hours(self.open_hours)
        other: dict[str, Any] = {"size": self.shard_size, "lifetime_s": self.lifetime_s or None, "objectives": promised}
        same = [name for name in Policy.__struct_fields__ if name not in other]
        return Policy(**other, **{name: getattr(self, name) for name in same})

    @property
    def server_headers(self) -> dict[str, str]:
        name, _, value = self.server_header.partition(": ")
        return {name.lower(): value} if name else {}


# Settings of a director that an operator may change while it runs: fields of `ModelConfig`
LIVE_SETTINGS: Final = (
    *("run_limit_s", "attempts", "on_lost", "backoff_s", "backoff_cap_s", "lifetime_s"),
    *("breaker_after", "breaker_cool_s", "breaker_mode", "open_hours"),
)


class KeeperSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the keeper, which repairs queues and delivers owed webhooks."""

    host: str = "127.0.0.1"
    """Address of /livez, /readyz and /metrics."""
    port: Port = 0
    """Port of /livez, /readyz and /metrics; 0: any free."""
    metrics_queues: Annotated[int, Meta(ge=0, le=10_000)] = 500
    """Queues named in metrics; all others are shown as one."""
    metrics_tenants: bool = False
    """Name in metrics the five accounts with the most waiting predictions in a queue."""
    scale_token: str = ""
    """Bearer token for /scale/{queue}, for an autoscaler; empty: every request is refused."""
    lease_s: SomeSeconds = 15.0
    """Lease of the directors; sets the reaper's pace."""
    openai: bool = False
    """Run batches of OpenAI's API. The keeper then needs the API's settings too: limits, files, sites."""
    batches_redis_url: str = ""
    """Redis as the API's user, for batches, if DIRECTOR_REDIS_URL has a user for keepers only."""
    usage_months: Annotated[int, Meta(ge=4, le=120)] = 13
    """Months for which usage is kept after the end of its month, by day for the first 90 days."""
    webhook_allow: str = ""
    """Private receivers that are allowed: hosts, networks, the word loopback."""
    webhook_schedule: str = WEBHOOK_SCHEDULE
    """Waits after each failed attempt to deliver a terminal webhook; then it is given up."""


class AuditSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the process that carries the log to a receiver."""

    audit_to: str = ""
    """Target of the log: a file, or a URL."""
    audit_name: Annotated[str, Meta(pattern=r"^$|^[A-Za-z0-9._-]{1,128}$")] = ""
    """Name of a receiver's cursors; empty: derived from its URL."""
    audit_secret: str = ""
    """Secret that signs batches to a URL, as for webhooks: whsec_ and base64."""
    audit_once: bool = False
    """Carry all present entries, then end."""
    webhook_allow: str = ""
    """Private receivers that are allowed: hosts, networks, the word loopback."""


# Settings of release 0.3.0 that are constants now. One that is set has no effect, and the log says so at the start
GONE: Final = {
    "data_in_files_bytes": "DIRECTOR_DATA_IN_FILES keeps what has 32 KiB or more in the file store",
    "max_log_bytes": "the last 2 MiB of each prediction's logs are kept",
    "webhook_interval_s": "webhooks of output and logs are at least half a second apart",
}
# Words for people, where the library would name a pattern
IN_WORDS: Final = {"model": "expected owner/name in lower case, such as acme/painter"}
TYPES: Final = {"`float`": "a number", "`int`": "a whole number", "`bool`": "true or false", "`str`": "text"}


def describe_former(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable of a former setting that is set: it has no effect."""
    return [
        f"{PREFIX}{name.upper()} is no setting any more: {instead}. Remove the variable."
        for name, instead in GONE.items()
        if environ.get(PREFIX + name.upper())
    ]


def load(cls: type[AnySettings], environ: Mapping[str, str] | None = None, **given: object) -> AnySettings:
    """Read settings from the environment; `given` (from the command line) wins unless None. Raises SettingsError that
    names the variable and its valid values.
    """
    environ = os.environ if environ is None else environ
    names = {field.name: field for field in msgspec.structs.fields(cls)}
    values: dict[str, object] = {
        name: [part.strip() for part in text.split(",") if part.strip()] if "tuple" in str(field.type) else text
        for name, field in names.items()
        if (text := environ.get(PREFIX + name.upper()))
    }
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as exc:
        name, reason = mistake(exc)
        raise SettingsError(f"{PREFIX}{name.upper()}: {reason}") from exc


def mistake(exc: msgspec.ValidationError) -> tuple[str, str]:
    reason, _, place = str(exc).partition(" - at `$.")
    name = place.rstrip("`").partition("[")[0]
    for type_, words in TYPES.items():
        reason = reason.replace(type_, words)
    return name, IN_WORDS.get(name, reason)


def describe(cls: type[CommonSettings]) -> list[tuple[str, str, str]]:
    """Return (variable, default, description) of each setting, for the reference and `--help`."""
    declaring = [each for each in cls.mro() if issubclass(each, CommonSettings)]
    texts = {name: text for each in reversed(declaring) for name, text in _texts(each)}
    rows = []
    for field in msgspec.structs.fields(cls):
        text = texts.get(field.name, "").replace("{values}", ", ".join(map(str, get_args(field.type))))
        rows.append((PREFIX + field.name.upper(), _show(field.default), text))
    return rows


def _texts(cls: type[CommonSettings]) -> Iterator[tuple[str, str]]:
    try:
        [declared] = ast.parse(inspect.getsource(cls)).body
    except OSError:  # installed without sources: the help has no descriptions
        return
    for field, text in pairwise(cast(ast.ClassDef, declared).body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                yield name, " ".join(words.split())


def _show(default: object) -> str:
    """Return a default as a variable has it."""
    if default in ("", (), None):
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
