"""The OpenAPI document of a model whose server has none, from the schemas in a configuration. Pure."""

from typing import Any, Final

import msgspec
from msgspec import Raw

__all__ = ("openapi",)

ANYTHING: Final[dict[str, Any]] = {"title": "Output"}


def openapi(given: dict[str, Any] | None, output: dict[str, Any] | None, *, title: str) -> Raw | None:
    """A document as Cog servers have them; None where nothing is known of the input."""
    if given is None:
        return None
    document = {
        "openapi": "3.0.2",
        "info": {"title": title, "version": "0.1.0"},
        "paths": {},
        "components": {"schemas": {"Input": given, "Output": output or ANYTHING}},
    }
    return Raw(msgspec.json.encode(document))
