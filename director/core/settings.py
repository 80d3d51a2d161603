"""Read settings from environment variables: one frozen struct per process, read once at start.

A field `lease_s` of any struct is the variable `DIRECTOR_LEASE_S`. The descriptions are the documentation.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from director.core.account_limits import AccountLimits, Bytes, Compute, Count, Rate, Retention
from director.core.errors import SettingsError
from director.core.ids import MODEL_NAME, QUEUE_NAME
from director.core.policy import BreakerMode, Objectives, OnLost, Policy, decode_objectives
from director.core.runner_config import RunnerKind

PREFIX = "DIRECTOR_"
# Seconds for a restart, minutes for a deploy, then days: see director.webhooks.delivery
WEBHOOK_SCHEDULE = "2s,5s,15s,30s,1m,2m,5m,30m,2h,5h,10h,14h,20h,24h"

RunKind = Literal["prediction", "training", "procedure"]
OnSilence = Literal["hold", "release"]

AnySettings = TypeVar("AnySettings", bound="CommonSettings")


class CommonSettings(Struct, frozen=True, kw_only=True):
    """Settings of every process."""

    redis_url: Annotated[
        str,
        Meta(
            description="Redis or Valkey: redis://, rediss://, unix://, "
            "redis+sentinel://h1,h2/name or redis+cluster://h1,h2."
        ),
    ] = "redis://127.0.0.1:6379/0"
    durability: Annotated[
        str,
        Meta(
            pattern="^(always|everysec|replicated|memory)$",
            description="Weakest accepted durability of the server: always, everysec, replicated or memory.",
        ),
    ] = "always"
    assume_durability: Annotated[
        str,
        Meta(
            pattern="^(|always|everysec|replicated|memory)$",
            description="The server's durability, for a server that forbids CONFIG GET.",
        ),
    ] = ""
    log_level: Annotated[
        str, Meta(pattern="^(debug|info|warning|error)$", description="Lowest level that is logged.")
    ] = "info"
    trace_accounts: Annotated[bool, Meta(description="Put account names into spans.")] = False
    files_dir: Annotated[
        str, Meta(description="Folder for files, shared by all processes; empty: no files are stored.")
    ] = ""
    files_url: Annotated[
        str,
        Meta(
            pattern=r"^$|^(s3|https?)://\S+$",
            description="Bucket for files instead of a folder: s3://bucket/prefix?endpoint=…&region=…. "
            "Directors may also name the API that has the folder: http://api:8080.",
        ),
    ] = ""


class ApiSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the API."""

    sites: Annotated[
        str,
        Meta(description="TOML file of several Redis servers to serve together; empty: only DIRECTOR_REDIS_URL."),
    ] = ""
    host: Annotated[str, Meta(description="Address the API listens on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port the API listens on.")] = 8080
    public_url: Annotated[
        str, Meta(description="Base of the URLs in answers, without /v1; empty: the request's own.")
    ] = ""
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses or networks of proxies whose X-Forwarded-Proto and -Host are trusted; empty: none."
        ),
    ] = ()
    max_body_bytes: Annotated[int, Meta(ge=1024, description="Largest request body.")] = 1 << 20
    max_batch_bytes: Annotated[int, Meta(ge=1024, description="Largest body of a batch of predictions.")] = 16 << 20
    max_waits: Annotated[
        int, Meta(ge=1, description="Held responses (Prefer: wait) at once; further requests get 201.")
    ] = 10_000
    max_streams: Annotated[int, Meta(ge=1, description="Readers of event streams at once; further ones get 503.")] = (
        10_000
    )
    metrics_token: Annotated[
        str,
        Meta(
            pattern=r"\A([\x21-\x7e]{16,})?\Z",
            description="Token for GET /metrics, at least 16 characters; tokens with scope admin work too.",
        ),
    ] = ""
    listing_ttl_s: Annotated[
        float,
        Meta(
            ge=1,
            description="Age at which a prediction leaves the lists; more than the longest wait plus a "
            "record's lifetime.",
        ),
    ] = 30 * 86400.0
    files_ttl_s: Annotated[float, Meta(ge=60, description="Lifetime of a file that a caller uploads.")] = 86400.0
    cache_s: Annotated[float, Meta(ge=0, description="Age at which a cached token or model is read again.")] = 5.0
    account_rate: Annotated[Rate | None, Meta(description="Creates per second and account; empty: no limit.")] = None
    account_burst: Annotated[Count | None, Meta(description="Creates at once; empty: one second's worth.")] = None
    account_read_rate: Annotated[
        Rate | None, Meta(description="Other requests per second and account; empty: no limit.")
    ] = None
    account_read_burst: Annotated[
        Count | None, Meta(description="Other requests at once; empty: one second's worth.")
    ] = None
    account_max_queued: Annotated[
        Count | None, Meta(description="Waiting predictions of an account in one queue; empty: no limit.")
    ] = None
    account_max_running: Annotated[
        Count | None, Meta(description="Running predictions of an account in one queue; empty: no limit.")
    ] = None
    account_compute_s_per_day: Annotated[
        Compute | None, Meta(description="Compute seconds of an account per UTC day; empty: no limit.")
    ] = None
    account_compute_s_total: Annotated[
        Compute | None, Meta(description="Compute seconds of an account in total; empty: no limit.")
    ] = None
    account_data_ttl_s: Annotated[
        Retention | None, Meta(description="Lifetime of an account's data after the end; empty: the model's.")
    ] = None
    account_max_files_bytes: Annotated[
        Bytes | None, Meta(description="Bytes of stored files of an account, with outputs; empty: no limit.")
    ] = None

    @property
    def account_limits(self) -> AccountLimits:
        """The limits of accounts without limits of their own."""
        return AccountLimits(
            rate=self.account_rate,
            burst=self.account_burst,
            read_rate=self.account_read_rate,
            read_burst=self.account_read_burst,
            max_queued=self.account_max_queued,
            max_running=self.account_max_running,
            compute_s_per_day=self.account_compute_s_per_day,
            compute_s_total=self.account_compute_s_total,
            data_ttl_s=self.account_data_ttl_s,
            max_files_bytes=self.account_max_files_bytes,
        )


class DirectorSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of one director and its model servers."""

    files_base: Annotated[
        str,
        Meta(
            pattern=r"^$|^https?://\S+$",
            description="Base, without /v1, at which model servers reach the API for files; empty: the callers' base.",
        ),
    ] = ""

    model: Annotated[str, Meta(pattern=f"^$|{MODEL_NAME}", description="owner/name of the model to serve.")] = ""
    version: Annotated[
        str,
        Meta(
            pattern=r"^$|^(sha256:)?[0-9a-f]{64}$",
            description="Version id, 64 hex digits; empty: computed from the schema.",
        ),
    ] = ""
    kind: Annotated[
        RunKind, Meta(description="Kind of the model's requests to run: prediction, training or procedure.")
    ] = "prediction"
    latest: Annotated[
        bool, Meta(description="Make this version the model's latest although it is not new: a rollback.")
    ] = False
    servers: Annotated[
        tuple[str, ...], Meta(description="URLs of the model servers, one per GPU, separated by commas.")
    ] = ()
    also: Annotated[
        tuple[Annotated[str, Meta(pattern=QUEUE_NAME)], ...],
        Meta(max_length=8, description="Queues of other versions that the servers also run, separated by commas."),
    ] = ()
    runner: Annotated[
        RunnerKind, Meta(description=f"Kind of the model servers: {', '.join(get_args(RunnerKind))}.")
    ] = "cog"
    runner_config: Annotated[
        str, Meta(description="Configuration of the runner: a JSON object, or the path of a .json or .toml file.")
    ] = ""
    server_header: Annotated[
        str,
        Meta(
            pattern=r"\A([A-Za-z0-9-]{1,64}: [\x21-\x7e]([\x20-\x7e]{0,4096}[\x21-\x7e])?)?\Z",
            description="Secret header that model servers require on every request, as `authorization: Bearer KEY`.",
        ),
    ] = ""
    concurrent_predictions: Annotated[
        int, Meta(ge=1, description="Predictions that one model server runs at once.")
    ] = 1
    max_failures: Annotated[
        int, Meta(ge=0, description="Failed runs in a row after which a server rests and restarts; 0: never.")
    ] = 5
    setup_retry_s: Annotated[
        float, Meta(ge=0, description="Time after which a Cog server with a failed setup is restarted; 0: never.")
    ] = 0
    batch_cost: Annotated[
        float,
        Meta(
            ge=0,
            description="Largest total cost of the runs at once, or of one request; a larger one goes alone. 0: any.",
        ),
    ] = 0
    batch_size: Annotated[
        int, Meta(ge=0, description="Most predictions at once, or in one request; 0: one per slot.")
    ] = 0
    batch_wait_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="How long the first prediction of an empty queue waits for others to join its request.",
        ),
    ] = 2.0
    lease_s: Annotated[
        float, Meta(gt=0, description="Time without a heartbeat after which a claim may be recovered.")
    ] = 15.0
    run_limit_s: Annotated[float, Meta(gt=0, description="Longest run of one attempt.")] = 1800.0
    attempts: Annotated[int, Meta(ge=1, le=20, description="Attempts before a prediction becomes a dead letter.")] = 3
    on_lost: Annotated[
        OnLost,
        Meta(
            description="For a run that began and lost its director or server, or was drained: retry, or "
            "fail if nothing may run twice."
        ),
    ] = "retry"
    backoff_s: Annotated[
        float, Meta(ge=0, description="Longest wait before the second attempt; doubles for each later one.")
    ] = 1.0
    backoff_cap_s: Annotated[float, Meta(ge=0, description="Longest wait before another attempt.")] = 60.0
    lifetime_s: Annotated[
        float, Meta(ge=0, description="Age at which a waiting or running prediction is ended; 0: never.")
    ] = 0
    breaker_after: Annotated[
        int, Meta(ge=0, description="Server faults in a row after which the queue starts nothing; 0: never.")
    ] = 5
    breaker_cool_s: Annotated[
        float, Meta(gt=0, description="Time until one prediction may try again; doubles each time.")
    ] = 30.0
    breaker_mode: Annotated[
        BreakerMode, Meta(description="New predictions while nothing starts: hold them, or fail: refuse them with 503.")
    ] = "hold"
    objectives: Annotated[
        str,
        Meta(
            description='Per lane, the share that starts within a time: `{"normal": {"share": 0.95, "within_s": 10}}`.'
        ),
    ] = ""
    drain_s: Annotated[float, Meta(ge=0, description="Time to finish running work after SIGTERM.")] = 30.0
    end_servers: Annotated[
        bool, Meta(description="Ask its Cog servers to end after a drain, for servers that ignore SIGTERM.")
    ] = False
    health_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of the health endpoints and the inbox; 0: any free.")
    ] = 0
    health_host: Annotated[str, Meta(description="Address of that port.")] = "127.0.0.1"
    streams: Annotated[int, Meta(ge=1, le=32, description="Streams per lane of a new queue.")] = 16
    shard_size: Annotated[int, Meta(ge=1, le=32, description="Streams per tenant of a new queue.")] = 2
    data_ttl_s: Annotated[float, Meta(ge=1, description="Lifetime of input, output and logs after the end.")] = 3600.0
    record_ttl_s: Annotated[float, Meta(ge=1, description="Lifetime of the record after the end.")] = 7 * 86400.0
    max_output_bytes: Annotated[
        int, Meta(ge=1024, description="Largest output; a prediction with a larger one fails.")
    ] = 8 << 20
    max_files_bytes: Annotated[
        int, Meta(ge=4096, description="Largest total of an output's files; a prediction with more fails.")
    ] = 1 << 30
    upload_secret: Annotated[
        str,
        Meta(
            pattern=r"^$|^[A-Za-z0-9_-]{16,128}$",
            description="Secret for uploads of Cog servers with `--upload-url http://127.0.0.1:PORT/uploads/SECRET/`.",
        ),
    ] = ""
    coglet_dir: Annotated[
        str,
        Meta(
            pattern=r"^$|^/[^/]+/(.*[^/])?$",
            description="Where this process sees its servers' folder /tmp/coglet/predictions, to clean "
            "it; empty: nowhere.",
        ),
    ] = ""
    max_log_bytes: Annotated[int, Meta(ge=1024, description="Bytes of log text kept per prediction, from its end.")] = (
        2 << 20
    )
    webhook_allow: Annotated[
        str, Meta(description="Private receivers that are allowed: hosts, networks, the word loopback.")
    ] = ""
    webhook_schedule: Annotated[
        str, Meta(description="Waits after each failed attempt to deliver a terminal webhook; then it is given up.")
    ] = WEBHOOK_SCHEDULE
    inline_text_bytes: Annotated[
        int, Meta(ge=0, description="Largest text in a data URI that stays in an output if files are stored.")
    ] = 4096
    moderation_url: Annotated[
        str,
        Meta(description="URL to ask (POST id, model, output) before an output is released; empty: no check."),
    ] = ""
    moderation_secret: Annotated[
        str, Meta(description="Secret that signs those requests, as for webhooks: whsec_ and base64.")
    ] = ""
    moderation_on_failure: Annotated[
        OnSilence, Meta(description="Output without an answer: hold it and ask until the run limit, or release it.")
    ] = "hold"
    moderation_timeout_s: Annotated[float, Meta(gt=0, description="Time to answer such a request.")] = 10.0
    setup_webhook: Annotated[
        str,
        Meta(description="URL that gets the result of each model server's setup (POST) with its logs; empty: none."),
    ] = ""
    setup_webhook_secret: Annotated[
        str, Meta(description="Secret that signs those requests, as for webhooks: whsec_ and base64.")
    ] = ""
    webhook_interval_s: Annotated[float, Meta(ge=0, description="Shortest time between output or logs webhooks.")] = 0.5

    @property
    def policy(self) -> Policy:
        """The policy for its queue. Raises SettingsError for malformed objectives."""
        turned = {"size": self.shard_size, "lifetime_s": self.lifetime_s or None, "objectives": self._objectives}
        same: dict[str, Any] = {name: getattr(self, name) for name in Policy.__struct_fields__ if name not in turned}
        return Policy(**same | turned)

    @property
    def _objectives(self) -> Objectives:
        try:
            return decode_objectives(self.objectives)
        except SettingsError as exc:
            raise SettingsError(f"DIRECTOR_OBJECTIVES: {exc}") from exc

    @property
    def server_headers(self) -> dict[str, str]:
        """Headers for every request to a model server."""
        name, _, value = self.server_header.partition(": ")
        return {name.lower(): value} if name else {}


# Settings of a director that an operator may change while it runs: fields of `ModelConfig`
LIVE_SETTINGS: Final = (
    *("run_limit_s", "attempts", "on_lost", "backoff_s", "backoff_cap_s", "lifetime_s"),
    *("breaker_after", "breaker_cool_s", "breaker_mode"),
)


class KeeperSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the keeper, which repairs queues and delivers owed webhooks."""

    host: Annotated[str, Meta(description="Address of /livez, /readyz and /metrics.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port of /livez, /readyz and /metrics; 0: any free.")] = 0
    metrics_queues: Annotated[
        int, Meta(ge=0, le=10_000, description="Queues named in metrics; all others are shown as one.")
    ] = 500
    metrics_tenants: Annotated[
        bool, Meta(description="Name in metrics the five accounts with the most waiting predictions in a queue.")
    ] = False
    scale_token: Annotated[
        str, Meta(description="Bearer token for /scale/{queue}, for an autoscaler; empty: every request is refused.")
    ] = ""
    lease_s: Annotated[float, Meta(gt=0, description="Lease of the directors; sets the reaper's pace.")] = 15.0
    webhook_allow: Annotated[
        str, Meta(description="Private receivers that are allowed: hosts, networks, the word loopback.")
    ] = ""
    webhook_schedule: Annotated[
        str, Meta(description="Waits after each failed attempt to deliver a terminal webhook; then it is given up.")
    ] = WEBHOOK_SCHEDULE


class AuditSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the process that carries the log to a sink."""

    audit_to: Annotated[str, Meta(description="Target of the log: a file, or a URL.")] = ""
    audit_name: Annotated[
        str,
        Meta(
            pattern=r"^$|^[A-Za-z0-9._-]{1,128}$",
            description="Name of a receiver's cursors; empty: derived from its URL.",
        ),
    ] = ""
    audit_secret: Annotated[
        str, Meta(description="Secret that signs batches to a URL, as for webhooks: whsec_ and base64.")
    ] = ""
    audit_once: Annotated[bool, Meta(description="Carry all present entries, then end.")] = False
    webhook_allow: Annotated[
        str, Meta(description="Private receivers that are allowed: hosts, networks, the word loopback.")
    ] = ""


def load(cls: type[AnySettings], environ: Mapping[str, str] | None = None, **given: object) -> AnySettings:
    """Read settings from the environment; `given` (from the command line) wins unless None.

    Raises SettingsError that names the variable and its valid values.
    """
    environ = os.environ if environ is None else environ
    names = {field.name: field for field in msgspec.structs.fields(cls)}
    values: dict[str, object] = {
        name: _split(text, field.type) for name, field in names.items() if (text := environ.get(PREFIX + name.upper()))
    }
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as exc:
        name, reason = mistake(exc)
        raise SettingsError(f"{PREFIX}{name.upper()}: {reason}") from exc


def mistake(exc: msgspec.ValidationError) -> tuple[str, str]:
    """Return the field that is wrong, and its valid values."""
    reason, _, place = str(exc).partition(" - at `$.")
    return place.rstrip("`").partition("[")[0], reason


def described(cls: type[CommonSettings]) -> list[tuple[str, str, str]]:
    """Return (variable, default, description) of each setting, for the README and `--help`."""
    hints = get_type_hints(cls, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(cls):
        meta = next(part for part in get_args(hints[field.name]) if isinstance(part, Meta))
        rows.append((PREFIX + field.name.upper(), _shown(field.default), meta.description or ""))
    return rows


def _split(text: str, kind: Any) -> object:
    return [part.strip() for part in text.split(",") if part.strip()] if "tuple" in str(kind) else text


def _shown(default: object) -> str:
    return "" if default in ("", (), None) else str(default)
