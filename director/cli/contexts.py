"""Services by name: `director context`. A context is an address and the path of a file with the token. The token itself
is never copied.
"""

import argparse
import os
import secrets
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from director.cli.arguments import JSON, arg, command, did_you_mean, group
from director.cli.tables import Answer, tabulate
from director.core.errors import SettingsError

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
LOCAL: Final = "local"  # the service of the last `director up`
NAME: Final = arg("name NAME", "name of the context")


class Context(Struct, frozen=True):
    url: str
    token_file: str

    def token(self) -> str:
        return token_in(Path(self.token_file))


class Contexts(Struct, frozen=True):
    in_use: str = ""
    named: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        if name not in self.named:
            hint = did_you_mean(name, self.named) or "`director context list` shows them."
            raise SettingsError(f"there is no context {name}: {hint}")
        return self.named[name]


def choose(name: str) -> str:
    """Return this name, or that of the context in use if it is empty, or nothing. Raises SettingsError."""
    return name or os.environ.get("DIRECTOR_CONTEXT", "") or _read().in_use


def get(name: str) -> Context:
    """Raises SettingsError for an unknown name."""
    return _read().get(name)


def token_in(file: Path) -> str:
    """Return the token in a file that only this user can read. Raises SettingsError."""
    try:
        with file.open() as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & OTHERS:
                raise SettingsError(f"others may read {file} (mode {mode:04o}): `chmod 600 {file}` first.")
            token = opened.read().strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise SettingsError(f"the token file {file} cannot be read: {why}.") from exc
    if not token:
        raise SettingsError(f"the token file {file} is empty: `director token create` makes a token.")
    return token


def check_url(text: str) -> str:
    """Return the address of an API without its end. Raises SettingsError."""
    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).hostname:
        raise SettingsError(f"{text!r} is not an address of an API: it begins with http:// or https://.")
    return text.rstrip("/").removesuffix("/v1")


def keep(name: str, url: str, token_file: Path) -> None:
    """Write a context, and leave the one in use. Raises SettingsError."""
    contexts = _read()
    _write(replace(contexts, named={**contexts.named, name: Context(check_url(url), str(token_file))}))


def _file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "") or Path.home() / ".config"
    return Path(base) / "director" / "contexts.json"


def _read() -> Contexts:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, RuntimeError, msgspec.MsgspecError) as exc:
        raise SettingsError(f"{_file()} cannot be read ({exc}). Delete it, and add the contexts again.") from exc


def _write(contexts: Contexts) -> None:
    file = _file()
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
        new.replace(file)
    except OSError as exc:
        raise SettingsError(f"{file} cannot be written: {exc.strerror}.") from exc


group("context", "list", about="Name services, and choose one. It is used where neither --url nor --home is given.")


@command(
    "context add",
    JSON,
    NAME,
    arg("--url URL", "address of the API", required=True),
    arg("--token-file FILE", "file with the token, which only you may read", required=True, type=Path),
    examples=("prod --url https://director.example --token-file ~/.director-token",),
)
def _add(given: argparse.Namespace) -> int:
    """Add a context, or replace the one of this name. The first one is in use from then on."""
    file = given.token_file.expanduser().absolute()
    token_in(file)
    contexts = _read()
    context = Context(check_url(given.url), str(file))
    _write(Contexts(contexts.in_use or given.name, {**contexts.named, given.name: context}))
    return _answer().show(is_json=given.json)


@command("context use", JSON, NAME, examples=("prod",))
def _use(given: argparse.Namespace) -> int:
    """Use a context from now on."""
    contexts = _read()
    contexts.get(given.name)
    _write(replace(contexts, in_use=given.name))
    return _answer().show(is_json=given.json)


@command("context remove", JSON, NAME, examples=("prod",))
def _remove(given: argparse.Namespace) -> int:
    """Remove a context. Its token file stays."""
    contexts = _read()
    contexts.get(given.name)
    named = {name: one for name, one in contexts.named.items() if name != given.name}
    _write(Contexts("" if contexts.in_use == given.name else contexts.in_use, named))
    return _answer().show(is_json=given.json)


@command("context list", JSON, examples=("",))
def _list(given: argparse.Namespace) -> int:
    """List the contexts. The one in use has a star."""
    return _answer().show(is_json=given.json)


def _answer() -> Answer:
    contexts = _read()
    body = [
        {"name": name, "url": one.url, "token_file": one.token_file, "in_use": name == contexts.in_use}
        for name, one in sorted(contexts.named.items())
    ]
    rows = [["*" if one["in_use"] else "", *(str(one[key]) for key in ("name", "url", "token_file"))] for one in body]
    names = ("", "context", "url", "token file")
    return Answer(
        body, lambda: tabulate(names, rows, words=names, empty="no contexts: `director context add` makes one")
    )
