"""Where the commands find the service: told on the line, else in the environment, else by the `up` of a home."""

import argparse
import os
from pathlib import Path

from msgspec import Struct

from director.core.errors import DirectorError
from director.local.home import Home


class Nowhere(DirectorError):
    """No service is known. Start one, or say where it is."""


class Service(Struct, frozen=True):
    """An API and the token to ask it with."""

    url: str
    token: str


def service(given: argparse.Namespace) -> Service:
    """The API to ask. Raises Nowhere."""
    state = Home(Path(given.home)).read()
    url = given.url or os.environ.get("DIRECTOR_URL", "")
    # the token in a home is for the service of that home: nobody else is to see it
    token = given.token or os.environ.get("DIRECTOR_TOKEN", "") or ("" if url else state.token)
    url = url or state.url
    if not url:
        raise Nowhere(
            f"no service is known: {given.home} has no up.json. Start one here with `director up`, "
            "or say where it is with --home, or with --url and --token."
        )
    if not token:
        raise Nowhere("a token is missing: give --token or DIRECTOR_TOKEN. `director token create` makes one.")
    if not (token.isascii() and token.isprintable()):
        raise Nowhere("that is no token: it has characters that none has. `director token create` makes one.")
    return Service(url.rstrip("/").removesuffix("/v1"), token)


def redis_url(given: argparse.Namespace) -> str:
    """The Redis to look at. Raises Nowhere."""
    url = given.redis or os.environ.get("DIRECTOR_REDIS_URL", "") or Home(Path(given.home)).read().redis_url
    if not url:
        raise Nowhere(
            f"no Redis is known: {given.home} has no up.json. Start a service here with `director up`, "
            "or say where Redis is with --redis or DIRECTOR_REDIS_URL."
        )
    return str(url)
