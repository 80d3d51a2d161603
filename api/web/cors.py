"""Let scripts of web pages read answers: of any site at addresses that are the permission themselves (`Route.is_open`),
and of the sites in DIRECTOR_CORS_ORIGINS everywhere. Neither may send cookies.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from starlette.datastructures import Headers

from api.web.http import RawHeaders, raw
from api.web.route import Route
from director.core.errors import SettingsError
from director.core.settings import ApiSettings

ANY: Final = "*"
# As browsers send it: no path, and no port that is the scheme's own
ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
OWN_PORTS: Final = (("http://", ":80"), ("https://", ":443"))
NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,1000}")
# Browsers show scripts few headers by themselves
SHOWN: Final = (
    "Accept-Ranges, Allow, Content-Disposition, Content-Length, Content-Range, ETag, Idempotency-Replayed, Location, "
    "Preference-Applied, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Retry-After, X-Site, X-Sites-Away"
)
SENT: Final = ("Authorization", "Cache-Control", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Prefer")
ASKED_S: Final = "3600"
VARIES: Final = "Origin"


class Origins(Struct, frozen=True):
    """The origins of an operator's setting. `any`: all of them."""

    named: frozenset[str] = frozenset()
    any: bool = False

    @classmethod
    def of(cls, settings: ApiSettings) -> "Origins":
        """Raises SettingsError."""
        named = set[str]()
        for given in settings.cors_origins:
            origin = given.strip().lower().removesuffix("/")
            if given != ANY and not ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"DIRECTOR_CORS_ORIGINS: {given!r} is no origin. Give it as in https://app.example, or * for any."
                )
            for scheme, port in OWN_PORTS:
                origin = origin.removesuffix(port) if origin.startswith(scheme) else origin
            named.add(origin)
        return cls(frozenset(named - {ANY}), ANY in named)

    def headers(self, asked: Headers, route: Route | None = None) -> RawHeaders:
        """Return what any answer to this request carries, so that the page that asked may read it."""
        if self.any or (route is not None and route.is_open):
            return EVERYWHERE
        if not self.named:
            return ()
        origin = asked.get("origin", "")
        # also without it, or a cache would give the answer of one origin to another
        named = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": SHOWN}
        return raw({"Vary": VARIES, **(named if origin.lower() in self.named else {})})

    def preflight(self, asked: Headers, methods: Iterable[str]) -> Mapping[str, str]:
        """Return what the answer to an OPTIONS says of the request that a browser wants to send."""
        if "access-control-request-method" not in asked:
            return {}
        names = asked.get("access-control-request-headers", "")
        known = {name.lower(): name for name in SENT}
        if NAMES.fullmatch(names):
            known |= {name.strip().lower(): name.strip() for name in names.split(",") if name.strip()} | known
        return {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Allow-Headers": ", ".join(known.values()),
            "Access-Control-Max-Age": ASKED_S,
        }


def may_read(headers: RawHeaders) -> bool:
    return any(name == b"access-control-allow-origin" for name, _ in headers)


EVERYWHERE: Final = raw({"Access-Control-Allow-Origin": ANY, "Access-Control-Expose-Headers": SHOWN})
