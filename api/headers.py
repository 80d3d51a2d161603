"""The headers of a request, read once: a handler asks for a dozen of them, and most are not there.

Of one that was sent more than once, the first counts, as in Starlette; `getlist` has each.
"""

from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

__all__ = ("Asked",)


class Asked(Request):
    """A request as handlers get it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._indexed = _Indexed(raw=scope["headers"])

    @property
    def headers(self) -> Headers:
        return self._indexed


class _Indexed(Headers):
    def __init__(self, *, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._first = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)

    def getlist(self, key: str) -> list[str]:
        return super().getlist(key) if key in self else []

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def __contains__(self, key: object) -> bool:
        return str(key).lower() in self._first
