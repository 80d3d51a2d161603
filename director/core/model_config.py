"""Define an operator's configuration of a model, which running directors pick up. Each field has a bound. Pure. A given
field wins over the director's setting. It holds for predictions only, not for trainings.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from director.core.errors import SettingsError
from director.core.hours import parse_hours
from director.core.policy import Lane, Objective, encode
from director.core.runner_config import WrongRunnerConfig, decode_runner_config
from director.core.settings import LIVE_SETTINGS, DirectorSettings
from director.core.webhooks import HOST_NAME

FOUR_NUMBERS: Final = re.compile(r"[0-9]+(\.[0-9]+){3}")

# A model server's URL is judged by its form; nothing is resolved. Messages never repeat a user, a password or a query.


def check_server_url(url: str, *, said_as: str = "--server") -> None:
    """Raises SettingsError that says what is wrong with the URL. `said_as`: the option or field that gave it."""
    if why := _what_is_wrong(url):
        raise SettingsError(f"The {said_as} URL {_hide_password(url)!r} {why}. Give it like http://127.0.0.1:5000.")


def _hide_password(url: str) -> str:
    # cut all before the last @: a password that was not escaped must not come through
    return url.rpartition("@")[2].partition("?")[0].partition("#")[0]


def _what_is_wrong(url: str) -> str:
    # before parsing: urlsplit silently drops line breaks and tabs, and strips surrounding space
    if any(character.isspace() or not character.isprintable() for character in url):
        return "has a space or a control character"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - read to be judged
    except ValueError:
        return "is malformed"
    host = parts.hostname or ""
    is_host = ":" in host or (HOST_NAME.fullmatch(host) is not None and not _is_broken_address(host))
    faults = (
        (parts.scheme not in ("http", "https"), "has no http:// or https:// in front"),
        (not host, "has no host"),
        (not is_host, "has a host that is neither a name in ASCII nor an address"),
        (parts.port == 0, "has no port that can be asked"),
        ("@" in parts.netloc, "has a user or a password, and none is sent"),
        # paths are appended to it
        (bool(parts.query or parts.fragment), "has a query or a fragment, and none is sent"),
    )
    return next((why for is_so, why in faults if is_so), "")


def _is_broken_address(host: str) -> bool:
    """Return whether it is four numbers that are no address. httpx refuses them."""
    if not FOUR_NUMBERS.fullmatch(host):
        return False
    try:
        IPv4Address(host)
    except ValueError:
        return True
    return False


LONGEST_S: Final = 30 * 86400.0

MOST: Final[dict[type, float]] = {float: LONGEST_S, int: 1_000_000}  # of a setting without a bound of its own
SETTINGS: Final = get_type_hints(DirectorSettings, include_extras=True)

Url = Annotated[str, Meta(max_length=512)]


class _ModelConfig(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A field that is null or missing keeps the director's setting.

    `runner`: the servers' `kind` and configuration, as in DIRECTOR_RUNNER_CONFIG. `servers`: for a director that was
    started without any; others keep their own. `slots`: runs that each server does at once. `objectives`: by lane, the
    share of predictions that should start within a time. The other fields are settings of a director: LIVE_SETTINGS.
    """

    runner: dict[str, Any] | None = None
    servers: Annotated[tuple[Url, ...], Meta(min_length=1, max_length=64)] | None = None
    slots: Annotated[int, Meta(ge=1, le=1024)] | None = None


def _add_bounds(setting: Any) -> Any:
    bounds = getattr(setting, "__metadata__", ())
    most = MOST.get(setting.__origin__) if bounds and all(meta.le is None for meta in bounds) else None
    return setting if most is None else Annotated[setting, Meta(le=most)]


if TYPE_CHECKING:

    class ModelConfig(_ModelConfig, frozen=True):
        objectives: dict[Lane, Objective] | None
        open_hours: str | None

        def __init__(self, **fields: Any) -> None: ...

else:
    ModelConfig = msgspec.defstruct(
        "ModelConfig",
        # the order in which answers show them
        [
            *((name, _add_bounds(SETTINGS[name]) | None, None) for name in LIVE_SETTINGS),
            ("objectives", dict[Lane, Objective] | None, None),
        ],
        bases=(_ModelConfig,),
        kw_only=True,
        module=__name__,
    )
    ModelConfig.__doc__ = _ModelConfig.__doc__


class StoredConfig(Struct, frozen=True, kw_only=True):
    """The stored configuration of a model. `revision`: number of changes; 0 and no author if it never changed."""

    revision: int = 0
    config: ModelConfig = ModelConfig()
    changed_ms: int | None = None
    changed_by: str = ""


def judge(config: ModelConfig) -> None:
    """Raises SettingsError, with the field's name, for a configuration that no director could use."""
    if config.runner is not None:
        try:
            decode_runner_config(msgspec.json.encode(config.runner))
        except WrongRunnerConfig as exc:
            raise SettingsError(f"runner: {exc}") from exc
    if config.open_hours:
        parse_hours(config.open_hours)
    for url in config.servers or ():
        check_server_url(url, said_as="`servers`")
    if len({url.rstrip("/") for url in config.servers or ()}) < len(config.servers or ()):
        raise SettingsError("servers: a URL is given twice, and its slots would be counted twice.")


def usable(config: ModelConfig) -> tuple[ModelConfig, Sequence[str]]:
    """Return the configuration without the servers that nothing can be sent to, and what is wrong with each. Releases
    up to 0.3.0 stored such URLs.
    """
    wrong = {url: why for url in config.servers or () if (why := _what_is_wrong(url))}
    if not wrong:
        return config, ()
    servers = tuple(url for url in config.servers or () if url not in wrong)
    return replace(config, servers=servers or None), [f"{_hide_password(url)!r} {why}" for url, why in wrong.items()]


def over(config: ModelConfig, settings: DirectorSettings) -> DirectorSettings:
    """Return the settings with the configuration on top. Raises SettingsError as `judge` does."""
    judge(config)
    given: dict[str, Any] = {name: value for name in LIVE_SETTINGS if (value := getattr(config, name)) is not None}
    if config.slots is not None:
        given["concurrent_predictions"] = config.slots
    if config.objectives is not None:
        given["objectives"] = encode(config.objectives)
    if config.runner is not None:
        text = msgspec.json.encode(config.runner).decode()
        given |= {"runner": str(decode_runner_config(text).__struct_config__.tag), "runner_config": text}
    if config.servers is not None and not settings.servers:
        given["servers"] = config.servers
    return replace(settings, **given)
