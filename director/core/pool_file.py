"""Read a pool file: the settings of each model that one process serves, in one `[[model]]` table per model. A field is
a setting's variable without `DIRECTOR_`, in lower case; `name` and `slots` are short for two of them. A missing field
comes from the environment, except fields that identify the model. Errors name the table and the field.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

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


class _Wrong(Exception):
    """An error in a table. The message begins with the field."""


def read_pool(path: Path, base: DirectorSettings) -> tuple[DirectorSettings, ...]:
    """Return the settings of every model in the file; `base` has the environment's. Raises SettingsError."""
    defaults = DirectorSettings()
    for name in OWN:
        if getattr(base, name) != getattr(defaults, name):
            raise SettingsError(
                f"{PREFIX}{name.upper()} is of one model: with --config it stands in the model's table."
            )
    tables = _tables(path)
    models: list[DirectorSettings] = []
    for number, table in enumerate(tables, start=1):
        try:
            models.append(_settings(table, base, path.parent))
            _check_beside(models)
        except _Wrong as exc:
            named = f" ({table['name']!r})" if isinstance(table.get("name"), str) else ""
            raise SettingsError(f"{path}: [[model]] {number}{named}: {exc}") from exc
    return tuple(models)


def label_of(settings: DirectorSettings) -> str:
    version = settings.version.removeprefix("sha256:")[:12]
    kind = "" if settings.kind == "prediction" else f"~{settings.kind}"
    return settings.model + (f":{version}" if version else "") + kind


def _tables(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise SettingsError(f"{path} is longer than {MOST_BYTES} bytes.")
        document = tomllib.loads(text.decode())
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise SettingsError(f"{path} is not TOML: {exc}") from exc
    if strange := sorted(document.keys() - {"model"}):
        raise SettingsError(f"{path}: `{strange[0]}` is in no table: there are [[model]] tables and nothing else.")
    tables = document.get("model")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"{path} needs one [[model]] table for each model.")
    if len(tables) > MOST_MODELS:
        raise SettingsError(f"{path} has {len(tables)} models: at most {MOST_MODELS} are served by one process.")
    return tables


def _settings(table: Mapping[str, Any], base: DirectorSettings, folder: Path) -> DirectorSettings:
    for name in table:
        _check_known(name)
    for name in ("name", "servers"):
        if not table.get(name):
            raise _Wrong(f"`{name}` is missing")
    given = {LONG.get(name, name): value for name, value in table.items()}
    for name, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise _Wrong(f"`{SHORT.get(name, name)}`: expected a finite number")
    given |= _runner(given, folder)
    try:
        return msgspec.convert(msgspec.structs.asdict(base) | given, DirectorSettings)
    except msgspec.ValidationError as exc:
        name, reason = mistake(exc)
        raise _Wrong(f"`{SHORT.get(name, name)}`: {reason}") from exc


def _check_known(name: str) -> None:
    if name in FIELDS:
        return
    if name in SHARED:
        raise _Wrong(f"`{name}` applies to the whole process: set {PREFIX}{name.upper()}")
    if name in SHORT:
        raise _Wrong(f"`{name}` is called `{SHORT[name]}` here")
    raise _Wrong(f"`{name[:64]}` is not a field of a model")


def _runner(given: Mapping[str, Any], folder: Path) -> dict[str, str]:
    if not given.keys() & {"runner", "runner_config"}:
        return {}
    kind, config = given.get("runner", ""), given.get("runner_config", {})
    if not isinstance(kind, str):
        raise _Wrong("`runner`: expected text")
    if not isinstance(config, str | dict):
        raise _Wrong("`runner_config`: expected a table, or the path of a file")
    try:
        if isinstance(config, dict):
            text = msgspec.json.encode(config).decode()
            driven = decode_runner_config(text, kind=kind)
        else:
            text = str(folder / config)
            driven = runner_config(kind, text)
    except WrongRunnerConfig as exc:
        raise _Wrong(f"`runner_config`: {exc}") from exc
    except SettingsError as exc:
        raise _Wrong(f"`runner_config`: {exc.__cause__}") from exc
    return {"runner": str(driven.__struct_config__.tag), "runner_config": text}


def _check_beside(models: Sequence[DirectorSettings]) -> None:
    *others, last = models
    try:
        for url in last.servers:
            check_server_url(url, said_as="`servers`")
    except SettingsError as exc:
        raise _Wrong(str(exc)) from exc
    if len(_servers(last)) < len(last.servers):
        raise _Wrong("`servers`: one is given twice, and its slots would be counted twice")
    if label_of(last) in map(label_of, others):
        raise _Wrong(f"`name`: there is another table for {label_of(last)}")
    if sum(len(model.servers) for model in models) > MOST_SERVERS:
        raise _Wrong(f"`servers`: more than {MOST_SERVERS} in all")
    for other in others:
        # other servers may run several models and tell them apart by the request; a Cog server runs one
        if "cog" in (last.runner, other.runner) and _servers(last) & _servers(other):
            raise _Wrong(f"`servers`: one is also of {label_of(other)}, and a Cog server runs one model")


def _servers(model: DirectorSettings) -> frozenset[str]:
    return frozenset(url.rstrip("/") for url in model.servers)
