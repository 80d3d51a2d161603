"""Judge the URL of a model server by its shape, before anyone asks there.

Never resolves or connects, and never repeats what may be secret in one: a user, a password, a query.
"""

from typing import Final
from urllib.parse import SplitResult, urlsplit

from director.core.errors import SettingsError
from director.core.webhook_url import HOST_NAME

__all__ = ("check_server_url",)

SCHEMES: Final = ("http", "https")


def check_server_url(url: str, *, said_as: str = "--server") -> None:
    """Raises SettingsError that says what is wrong with it, and by what it was `said_as`."""
    if why := _what_is_wrong(url):
        raise SettingsError(f"The {said_as} URL {_shown(url)} {why}. Give it like http://127.0.0.1:5000.")


def _what_is_wrong(url: str) -> str:
    # before parsing: urlsplit drops line breaks and tabs silently, and strips what surrounds them
    if any(character.isspace() or not character.isprintable() for character in url):
        return "has a space or a control character"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - read to be judged
    except ValueError:
        return "is malformed"
    return next((why for is_so, why in _faults(parts) if is_so), "")


def _faults(parts: SplitResult) -> tuple[tuple[bool, str], ...]:
    return (
        (parts.scheme not in SCHEMES, "has no http:// or https:// in front"),
        (not parts.hostname, "has no host"),
        (not _is_host(parts), "has a host that is neither a name in ASCII nor an address"),
        (parts.port == 0, "has no port that can be asked"),
        ("@" in parts.netloc, "has a user or a password, and none is sent"),
        # paths are put behind it
        (bool(parts.query or parts.fragment), "has a query or a fragment, and none is sent"),
    )


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    return ":" in host or HOST_NAME.fullmatch(host) is not None  # brackets were looked into when it was parsed


def _shown(url: str) -> str:
    # all before the last @, wherever it stands: a password that was not escaped must not come through
    return repr(url.rpartition("@")[2].partition("?")[0].partition("#")[0])
