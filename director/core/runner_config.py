"""Define how each kind of model server is driven: one frozen struct per kind, told apart by `kind`, without addresses.
Reads nothing but the presets that are shipped beside it. Every error names its field, and every value has a bound.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from director.core.errors import SettingsError
from director.core.json_pointer import WHOLE, Pointer

# A template is JSON in which the input of a prediction fills some places. `{"$input": "/pointer"}` stands for the value
# at the pointer, or else for `"$default"`; without a default the member or item is left out. `{"$each": "/pointer"}`
# stands for the list of these values in inputs that are sent together. A caller's value stays one value, byte for byte.

INPUT: Final = "$input"
EACH: Final = "$each"
DEFAULT: Final = "$default"
MOST_PLACES: Final = 1000
MOST_DEPTH: Final = 16


class _Taken(Struct, frozen=True):
    pointer: Pointer
    default: Any = msgspec.UNSET
    is_each: bool = False

    def find(self, given: Raw) -> Any:
        found = self.pointer.find(given)
        return self.default if found is None else found


class Template:
    __slots__ = ("_each", "_parts", "source")

    def __init__(self, source: Any) -> None:
        """Raises ValueError that names the place of the error."""
        self.source = source
        reader = _Reader()
        self._parts = reader.read(source, "")
        self._each = tuple(reader.each)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and other.source == self.source

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self.source, order="sorted"))

    @property
    def has_each(self) -> bool:
        return bool(self._each)

    def fill(self, given: Raw, *others: Raw) -> bytes:
        """Return the JSON to send for this input, or for several whose `shared` is equal."""
        return _encode(_fill(self._parts, given, (given, *others)))

    def shared(self, given: Raw) -> bytes:
        """Return what is sent besides `$each`. Inputs that differ in it cannot be sent together."""
        return _encode(_fill(self._parts, given, ()))

    def has_list(self, given: Raw) -> bool:
        """Whether what this input has for the `$each` is a list by itself."""
        found = [part.find(given) for part in self._each]
        return any(isinstance(each, Raw) and bytes(each).lstrip()[:1] == b"[" for each in found)

    def fill_list(self, given: Raw) -> bytes:
        """Return the JSON to send for an input whose `$each` is a list by itself."""
        return _encode(_fill(self._parts, given, None))

    def missing(self, given: Raw) -> Pointer | None:
        return next((part.pointer for part in self._each if part.find(given) is msgspec.UNSET), None)


class _Reader:
    def __init__(self) -> None:
        self._left = MOST_PLACES
        self.each: list[_Taken] = []

    def read(self, value: Any, place: str) -> Any:
        self._left -= 1
        if self._left < 0 or place.count("/") > MOST_DEPTH:
            raise ValueError(f"a template has at most {MOST_PLACES} values, {MOST_DEPTH} deep")
        match value:
            case {"$input": pointer}:
                return _parse_placeholder(value, INPUT, pointer, place)
            case {"$each": pointer}:
                self.each.append(_parse_placeholder(value, EACH, pointer, place))
                return self.each[-1]
            case dict():
                escaped = {name: name.replace("~", "~0").replace("/", "~1") for name in value}
                return {name: self.read(part, f"{place}/{escaped[name]}") for name, part in value.items()}
            case list():
                return [self.read(part, f"{place}/{index}") for index, part in enumerate(value)]
            case None | bool() | int() | str():
                return value
            case float() if math.isfinite(value):
                return value
            case _:
                raise ValueError(f"at {place or 'its top'} is a value that JSON has no way to write")


def _parse_placeholder(value: dict[str, Any], what: str, pointer: Any, place: str) -> _Taken:
    where = place or "its top"
    if unknown := set(value) - {what, DEFAULT}:
        raise ValueError(f"at {where} beside {what} is {min(map(str, unknown))!r}, where only {DEFAULT} can be")
    if not isinstance(pointer, str):
        raise ValueError(f"at {where} {what} is not a text")
    try:
        return _Taken(Pointer(pointer), value.get(DEFAULT, msgspec.UNSET), what == EACH)
    except ValueError as exc:
        raise ValueError(f"at {where}: {exc}") from exc


def _fill(part: Any, given: Raw, together: Sequence[Raw] | None) -> Any:
    match part:
        case _Taken(is_each=True) if together is None:
            return part.find(given)
        case _Taken(is_each=True):
            return [part.find(one) for one in together or ()]
        case _Taken():
            return part.find(given)
        case dict():
            values = ((name, _fill(inner, given, together)) for name, inner in part.items())
            return {name: value for name, value in values if value is not msgspec.UNSET}
        case list():
            return [value for inner in part if (value := _fill(inner, given, together)) is not msgspec.UNSET]
        case _:
            return part


def _encode(filled: Any) -> bytes:
    return msgspec.json.encode(None if filled is msgspec.UNSET else filled)


WHOLE_INPUT: Final = Template({INPUT: WHOLE.text})

MOST_BYTES: Final = 64 * 1024

UrlPath = Annotated[str, Meta(pattern=r"^/[\x21-\x7e]*$", max_length=512)]
OptionalPath = Annotated[str, Meta(pattern=r"^$|^/[\x21-\x7e]*$", max_length=512)]
ModelName = Annotated[str, Meta(max_length=256)]
MetricName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Metrics = Annotated[dict[MetricName, Pointer], Meta(max_length=32)]
HeaderMetrics = Annotated[dict[MetricName, Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}$")]], Meta(max_length=32)]
Words = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=32)]
Statuses = Annotated[tuple[Annotated[int, Meta(ge=400, le=599)], ...], Meta(max_length=32)]
Schema = Annotated[dict[str, Any], Meta(max_length=256)] | None


class _Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"): ...


class CogConfig(_Config, frozen=True, kw_only=True, tag="cog"):
    """A Cog server. `fast`: ask for no progress unless the prediction is streamed, since progress costs time."""

    fast: bool = False


class MappedConfig(_Config, frozen=True, kw_only=True):
    """A server with its own protocol: what to send, and where its answers hold the results. `path`: where a run is
    sent; `{model}` in it is replaced by `model`. `output`, `error` and `metrics`: places in an answer. `health`: a path
    that a ready server answers with 200; empty if any answer will do. Without it the known paths are tried, and any
    answer will do if the server has none of them. `busy`: the statuses by which it says that it has no room; a server
    that answers 503 when a model fails has no 503 there. `input_schema` and `output_schema`: JSON schemas, for callers.
    `openapi`: the path of the server's own OpenAPI document, which has them if they are not given. Without a schema any
    input is accepted.
    """

    path: UrlPath
    model: ModelName = ""
    input: Template = WHOLE_INPUT
    output: Pointer = WHOLE
    error: Pointer | None = None
    metrics: Metrics = msgspec.field(default_factory=dict)
    health: OptionalPath | None = None
    busy: Statuses = (409, 429, 503)
    input_schema: Schema = None
    output_schema: Schema = None
    openapi: OptionalPath = ""

    @property
    def is_mapped(self) -> bool:
        """Whether anything but the whole answer is asked for."""
        return self.output != WHOLE or self.error is not None or bool(self.metrics)

    def __post_init__(self) -> None:
        if "{model}" in self.path and not self.model:
            raise ValueError("`path` has {model} in it, and `model` is missing")
        has_batch = isinstance(self, HttpConfig) and self.batch is not None
        if self.input.has_each and not has_batch:
            raise ValueError("`input` has $each in it, which is for an http server with `batch`")
        if has_batch and not self.input.has_each:
            raise ValueError("`batch` needs $each in `input`, where what is different in each prediction goes")


class BatchConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How several predictions go in one request, `most` at the most. `items`: the place of the list with one item per
    prediction, in order. `lists`: a prediction whose value at `$each` is a list is sent alone, as it is, and its output
    is the list of all items. With `index`, the place of the item's number from 0, the order is free. `usage` and
    `usage_headers`: totals for the request, in the answer and its headers, split by the number at `share` in each item,
    or without it by declared cost.
    """

    most: Annotated[int, Meta(ge=1, le=64)] = 32
    lists: bool = False
    items: Pointer = WHOLE
    index: Pointer | None = None
    usage: Metrics = msgspec.field(default_factory=dict)
    usage_headers: HeaderMetrics = msgspec.field(default_factory=dict)
    share: Pointer | None = None


class HttpConfig(MappedConfig, frozen=True, kw_only=True, tag="http"):
    """A server that answers a POST with the output. `body`: how the input is sent. A form has a field for each member
    of `input`, and a file for each that `files` names. With `batch` each POST carries a list of predictions, even a
    single one. `$each` in `input` says where they go; `output`, `error` and `metrics` are then places in each item.
    """

    body: Literal["json", "form"] = "json"
    files: Words = ()
    batch: BatchConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.files and self.body != "form":
            raise ValueError('`files` are sent in a form: `body` has to be "form"')
        if self.batch is not None and self.body == "form":
            raise ValueError("`batch` is for a body of JSON")


class PollingConfig(MappedConfig, frozen=True, kw_only=True, tag="polling"):
    """A server that answers a POST with an id and is then polled for the result. `id_field`: place of the id in the
    first answer. `poll_endpoint_template`, `result_endpoint_template`, `cancel_endpoint_template`: paths with `{id}`,
    which may be in pointers too. `status`: place of the status in a poll's answer; its known words are listed below, in
    any case. `without_status`: the word to assume where an answer has none. If a poll is answered by an event stream,
    the names of its events are the words, and the data of the last one is the answer. With a result path, `output` and
    `metrics` are places in its answer. `cancel_body`: JSON to send with a cancel, with `{id}` in its texts.
    `longest_s`: longest run. `away_s`: how long the server may fail to answer before the run is lost.
    """

    output: Pointer = Pointer("/output")
    error: Pointer | None = Pointer("/error")
    id_field: Pointer = Pointer("/id")
    submit_method: Literal["POST", "PUT"] = "POST"
    poll_endpoint_template: UrlPath
    result_endpoint_template: OptionalPath = ""
    cancel_endpoint_template: OptionalPath = ""
    cancel_method: Literal["POST", "PUT", "DELETE"] = "POST"
    cancel_body: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    status: Pointer = Pointer("/status")
    without_status: Annotated[str, Meta(max_length=64)] = ""
    interval_s: Annotated[float, Meta(ge=0.01, le=300)] = 2.0
    longest_s: Annotated[float, Meta(gt=0, le=7 * 86400)] = 600.0
    away_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    done: Words = ("done", "success", "succeeded", "successful", "complete", "completed", "finished", "ok")
    failed: Words = ("failed", "failure", "error", "errored", "crashed", "timeout", "timed_out", "expired")
    canceled: Words = ("canceled", "cancelled", "aborted", "killed", "revoked", "stopped")
    running: Words = (
        *("accepted", "created", "submitted", "queued", "in_queue", "waiting", "pending", "scheduled", "starting"),
        *("started", "running", "processing", "in_progress", "executing", "retrying"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("poll_endpoint_template", "result_endpoint_template", "cancel_endpoint_template"):
            path = getattr(self, name)
            if path and path.count("{id}") != 1 and not (name.startswith("cancel") and self.cancel_body is not None):
                raise ValueError(f"`{name}` needs {{id}} in it, once")
        words = [word.casefold() for group in (self.done, self.failed, self.canceled, self.running) for word in group]
        if twice := next((word for word in words if words.count(word) > 1), None):
            raise ValueError(f"{twice!r} is in two of `done`, `failed`, `canceled` and `running`")
        if self.without_status and self.without_status.casefold() not in words:
            raise ValueError("`without_status` is one of the words in `done`, `failed`, `canceled` and `running`")

    def of_run(self, run_id: str) -> "PollingConfig":
        """Return the configuration with this id of a run in its pointers. Raises ValueError if it cannot be there."""
        escaped = run_id.replace("~", "~0").replace("/", "~1")

        def place_id(pointer: Pointer) -> Pointer:
            return Pointer(pointer.text.replace("{id}", escaped)) if "{id}" in pointer.text else pointer

        return replace(
            self,
            status=place_id(self.status),
            output=place_id(self.output),
            error=None if self.error is None else place_id(self.error),
            metrics={name: place_id(pointer) for name, pointer in self.metrics.items()},
        )


Endpoint = Literal["chat", "completions", "embeddings"]
MOST_MEMBERS: Final = 1_000  # of the body of a call: its runner walks over them


class OpenAiConfig(_Config, frozen=True, kw_only=True, tag="openai"):
    """A server with OpenAI's API, such as vLLM, TGI or llama.cpp. `endpoint`: of inputs in the form of Replicate's API:
    chat, completions of a prompt, or embeddings. Calls of OpenAI's API may name any that the server has. `model`: the
    server's name for it; empty for its first model. `include_usage`: ask for token counts, which old servers refuse.
    `pass`: more inputs that go to the server as they are, such as vLLM's top_k.
    """

    endpoint: Endpoint = "chat"
    path: UrlPath = "/v1"
    model: ModelName = ""
    include_usage: bool = True
    health: UrlPath = "/health"
    passed: Words = msgspec.field(default=(), name="pass")

    def __post_init__(self) -> None:
        if wrong := next((name for name in self.passed if name in ("model", "stream", "stream_options")), None):
            raise ValueError(f"`pass` has {wrong!r} in it, which the runner sets itself")


RunnerConfig = CogConfig | HttpConfig | PollingConfig | OpenAiConfig
if TYPE_CHECKING:
    RunnerKind = str
else:
    RunnerKind = Literal[tuple(config.__struct_config__.tag for config in get_args(RunnerConfig))]

# A preset is a configuration for one kind of server, one file each. Beside the fields it has `about`, for people, and
# perhaps `preset`, for what it shares with another one. `{path}` in a field stands for the `path` that is given
FOLDER: Final = Path(__file__).parent / "presets"
PRESETS: Final = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
PRESET: Final = "preset"
TEMPLATE: Final = "template"  # its name up to release 0.3, which stored configurations may have
PATH: Final = "{path}"
CUSTOM: Final[dict[type, type]] = {Pointer: str, Template: object}


class WrongRunnerConfig(ValueError):
    """The configuration cannot drive a server. The message names the field and its valid values."""


def runner_config(kind: str, given: str) -> RunnerConfig:
    """Read the setting: a JSON object, the path of a .json or .toml file, or ''. Raises SettingsError."""
    try:
        text, is_toml = _text(given)
        return decode_runner_config(text, kind=kind, is_toml=is_toml)
    except (OSError, WrongRunnerConfig) as exc:
        raise SettingsError(f"DIRECTOR_RUNNER_CONFIG: {exc}") from exc


def runner_fields(given: str) -> dict[str, Any]:
    """Return what the setting says as it is written: `runner_config` checks it. Raises SettingsError."""
    try:
        return _fields(*_text(given))
    except (OSError, WrongRunnerConfig) as exc:
        raise SettingsError(f"DIRECTOR_RUNNER_CONFIG: {exc}") from exc


def _text(given: str) -> tuple[bytes | str, bool]:
    if not given or given.lstrip().startswith("{"):
        return given or "{}", False
    path = Path(given)
    if path.suffix not in (".json", ".toml"):
        raise WrongRunnerConfig("it is neither a JSON object nor the path of a .json or .toml file")
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1), path.suffix == ".toml"


def decode_runner_config(text: bytes | str, *, kind: str = "", is_toml: bool = False) -> RunnerConfig:
    """Decode JSON or TOML. `kind` is the default kind. A `preset` gives missing fields. Raises WrongRunnerConfig."""
    return _convert(_fields(text, is_toml), kind)


def _fields(text: bytes | str, is_toml: bool) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise WrongRunnerConfig(f"it is longer than {MOST_BYTES} bytes")
    try:
        if is_toml:
            return tomllib.loads(text.decode() if isinstance(text, bytes) else text)
        return msgspec.json.decode(text, type=dict[str, Any])
    except RecursionError as exc:
        raise WrongRunnerConfig("it is nested too deeply") from exc
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise WrongRunnerConfig(f"it cannot be read: {exc}") from exc


def _convert(fields: dict[str, Any], kind: str) -> RunnerConfig:
    given = with_preset(fields)
    if kind and given.setdefault("kind", kind) != kind:
        raise WrongRunnerConfig(f"`kind` is {given['kind']!r}, and the runner is {kind!r}")
    if given.get("kind") not in get_args(RunnerKind):
        raise WrongRunnerConfig(f"`kind` is one of {', '.join(get_args(RunnerKind))}")
    try:
        config: RunnerConfig = msgspec.convert(given, RunnerConfig, dec_hook=_custom)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise WrongRunnerConfig(str(exc)) from exc
    return config


def with_preset(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those of their preset beside them, which they override. Raises WrongRunnerConfig."""
    given = dict(fields)
    named = next((each for each in (PRESET, TEMPLATE) if given.get(each) is not None), None)
    name = given.get(named) if named else None
    for each in (PRESET, TEMPLATE):
        given.pop(each, None)
    if named is None:
        return given
    if not isinstance(name, str) or name not in PRESETS:
        raise WrongRunnerConfig(f"`{named}` is one of {', '.join(PRESETS)}")
    preset = {key: value for key, value in preset_of(name).items() if key != "about"}
    if not any(PATH in value for value in preset.values() if isinstance(value, str)):
        return preset | given
    path = given.get("path")
    if not isinstance(path, str) or not path:
        raise WrongRunnerConfig(f"`path` is missing: {name!r} needs the path that takes an input")
    placed = {
        key: value.replace(PATH, path.rstrip("/")) if isinstance(value, str) else value for key, value in preset.items()
    }
    return placed | {key: value for key, value in given.items() if key != "path"}


@cache
def preset_of(name: str) -> dict[str, Any]:
    """Return the content of a preset's file, on top of the preset that it names. `about` says what it is for."""
    found = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=dict[str, Any])
    base = preset_of(found.pop(PRESET)) if PRESET in found else {}
    return base | found


def _custom(kind: type, value: Any) -> Any:
    if not isinstance(value, CUSTOM[kind]):
        raise ValueError("expected text")
    return kind(value)
