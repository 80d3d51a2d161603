"""Read a pool file: the settings of each model that one process serves, in one `[[model]]` table per model. A field is
a setting's variable without `DIRECTOR_`, in lower case; `name` and `slots` are short for two of them. A missing field
comes from the environment, except fields that identify the model. A model with `command` or `folder` in place of
`servers` shares the devices of the `[[device]]` tables. Errors name the table and the field.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from director.core.devices import (
    HOSTED,
    MOST_DEVICES,
    Device,
    Found,
    Launch,
    Model,
    WrongField,
    check_fits,
    read_device,
    read_hosted,
    set_aside,
)
from director.core.errors import SettingsError
from director.core.model_config import check_server_url
from director.core.runner_config import WrongRunnerConfig, decode_runner_config, runner_config
from director.core.settings import PREFIX, CommonSettings, DirectorSettings, mistake

MOST_BYTES: Final = 256 * 1024
MOST_MODELS: Final = 64
MOST_SERVERS: Final = 512  # of all models together: each server is watched

LONG: Final = {"name": "model", "slots": "concurrent_predictions"}
SHORT: Final = {field: short for short, field in LONG.items()}
# Fields of one model, which the environment must not set for all. A header may hold the key of the model's servers
OWN: Final = ("model", "version", "kind", "latest", "also", "servers", "server_header", "runner", "runner_config")
# Fields of the whole process: its connections, its port, and the services that all its models use
SHARED: Final = frozenset(field.name for field in msgspec.structs.fields(CommonSettings)) | {
    "coglet_dir",
    "devices_dir",
    "health_host",
    "health_port",
    "moderation_on_failure",
    "moderation_secret",
    "moderation_timeout_s",
    "moderation_url",
    "setup_webhook",
    "setup_webhook_secret",
    "upload_secret",
    "webhook_allow",
    "webhook_schedule",
}
FIELDS: Final = frozenset(
    SHORT.get(field.name, field.name) for field in msgspec.structs.fields(DirectorSettings) if field.name not in SHARED
)


class Hosted(Struct, frozen=True):
    """A model that shares devices: what the planner knows of it, and how its server is started."""

    model: Model
    launch: Launch


class Table(Struct, frozen=True):
    """One `[[model]]`. A hosted model has no `servers` in its settings: its only server gets a port at the start."""

    settings: DirectorSettings
    hosted: Hosted | None = None


class PoolFile(Struct, frozen=True):
    devices: tuple[Device, ...]
    tables: tuple[Table, ...]


def read_pool(path: Path, base: DirectorSettings) -> PoolFile:
    """Return the devices and the models of the file; `base` has the environment's settings. Raises SettingsError."""
    defaults = DirectorSettings()
    for name in OWN:
        if getattr(base, name) != getattr(defaults, name):
            raise SettingsError(
                f"{PREFIX}{name.upper()} is of one model: with --config it stands in the model's table."
            )
    document = _document(path)
    devices: list[Device] = []
    for number, table in enumerate(_tables(path, document, "device", most=MOST_DEVICES), start=1):
        with _name_table(path, "device", number, table):
            devices.append(read_device(table, devices))
    settings: list[DirectorSettings] = []
    found: dict[str, Found] = {}
    for number, table in enumerate(_tables(path, document, "model", most=MOST_MODELS), start=1):
        with _name_table(path, "model", number, table):
            settings.append(_settings(table, base, path.parent))
            _check_beside(settings)
            if hosted := {name: value for name, value in table.items() if name in HOSTED}:
                label = label_of(settings[-1])
                found[label] = read_hosted(hosted, settings[-1], label, devices, path.parent)
    if not settings:
        raise SettingsError(f"{path} needs one [[model]] table for each model.")
    devices, models = set_aside(devices, found.values())
    try:
        check_fits(models, devices)
    except WrongField as exc:
        raise SettingsError(f"{path}: {exc}.") from exc
    hosted_by = {model.name: Hosted(model, found[model.name].launch) for model in models}
    tables = tuple(Table(each, hosted_by.get(label_of(each))) for each in settings)
    return PoolFile(tuple(devices), tables)


@contextmanager
def _name_table(path: Path, kind: str, number: int, table: Mapping[str, Any]) -> Iterator[None]:
    """Say of an error in which table it is."""
    try:
        yield
    except WrongField as exc:
        named = f" ({table['name']!r})" if isinstance(table.get("name"), str) else ""
        raise SettingsError(f"{path}: [[{kind}]] {number}{named}: {exc}") from exc


def label_of(settings: DirectorSettings) -> str:
    version = settings.version.removeprefix("sha256:")[:12]
    kind = "" if settings.kind == "prediction" else f"~{settings.kind}"
    return settings.model + (f":{version}" if version else "") + kind


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a file of at most MOST_BYTES. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise SettingsError(f"{path} is longer than {MOST_BYTES} bytes.")
        return tomllib.loads(text.decode())
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise SettingsError(f"{path} is not TOML: {exc}") from exc


def _document(path: Path) -> Mapping[str, Any]:
    document = read_toml(path)
    if strange := sorted(document.keys() - {"model", "device"}):
        raise SettingsError(f"{path}: `{strange[0]}` is in no table: there are [[model]] and [[device]] tables.")
    return document


def _tables(path: Path, document: Mapping[str, Any], kind: str, *, most: int) -> Sequence[Mapping[str, Any]]:
    tables = document.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"{path} needs one [[{kind}]] table for each {kind}.")
    if len(tables) > most:
        raise SettingsError(f"{path} has {len(tables)} {kind}s: at most {most} are served by one process.")
    return tables


def _settings(table: Mapping[str, Any], base: DirectorSettings, folder: Path) -> DirectorSettings:
    for name in table:
        _check_known(name)
    is_hosted = bool(HOSTED & table.keys())
    if is_hosted and "servers" in table:
        raise WrongField("`servers`: a model has these, or a server that this process starts, not both")
    for name in ("name",) if is_hosted else ("name", "servers"):
        if not table.get(name):
            raise WrongField(f"`{name}` is missing")
    given = {LONG.get(name, name): value for name, value in table.items() if name not in HOSTED}
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise WrongField(f"`{SHORT.get(name, name)}`: expected a finite number")
    given |= _runner(given, folder)
    try:
        return msgspec.convert(msgspec.structs.asdict(base) | given, DirectorSettings)
    except msgspec.ValidationError as exc:
        name, reason = mistake(exc)
        raise WrongField(f"`{SHORT.get(name, name)}`: {reason}") from exc


def _check_known(name: str) -> None:
    if name in FIELDS | HOSTED:
        return
    if name in SHARED:
        raise WrongField(f"`{name}` applies to the whole process: set {PREFIX}{name.upper()}")
    if name in SHORT:
        raise WrongField(f"`{name}` is called `{SHORT[name]}` here")
    raise WrongField(f"`{name[:64]}` is not a field of a model")


def _runner(given: Mapping[str, Any], folder: Path) -> dict[str, str]:
    if not given.keys() & {"runner", "runner_config"}:
        return {}
    kind, config = given.get("runner", ""), given.get("runner_config", {})
    if not isinstance(kind, str):
        raise WrongField("`runner`: expected text")
    if not isinstance(config, str | dict):
        raise WrongField("`runner_config`: expected a table, or the path of a file")
    try:
        if isinstance(config, dict):
            text = msgspec.json.encode(config).decode()
            driven = decode_runner_config(text, kind=kind)
        else:
            text = str(folder / config)
            driven = runner_config(kind, text)
    except WrongRunnerConfig as exc:
        raise WrongField(f"`runner_config`: {exc}") from exc
    except SettingsError as exc:
        raise WrongField(f"`runner_config`: {exc.__cause__}") from exc
    return {"runner": str(driven.__struct_config__.tag), "runner_config": text}


def _check_beside(models: Sequence[DirectorSettings]) -> None:
    *others, last = models
    try:
        for url in last.servers:
            check_server_url(url, said_as="`servers`")
    except SettingsError as exc:
        raise WrongField(str(exc)) from exc
    if len(_servers(last)) < len(last.servers):
        raise WrongField("`servers`: one is given twice, and its slots would be counted twice")
    if label_of(last) in map(label_of, others):
        raise WrongField(f"`name`: there is another table for {label_of(last)}")
    if sum(len(model.servers) for model in models) > MOST_SERVERS:
        raise WrongField(f"`servers`: more than {MOST_SERVERS} in all")
    for other in others:
        # other servers may run several models and tell them apart by the request; a Cog server runs one
        if "cog" in (last.runner, other.runner) and _servers(last) & _servers(other):
            raise WrongField(f"`servers`: one is also of {label_of(other)}, and a Cog server runs one model")


def _servers(model: DirectorSettings) -> frozenset[str]:
    return frozenset(url.rstrip("/") for url in model.servers)
