"""Where the caller finds us: the base of all URLs in answers, without /v1.

Believes a configured public URL first. Believes X-Forwarded-Proto and X-Forwarded-Host only of proxies that were named:
anybody can send them, and clients send their token to whatever host an answer names.
"""

import re
from functools import cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from starlette.requests import Request

from api.parts import parts_of
from api.refusals import invalid_host
from director.core.errors import SettingsError

__all__ = ("base_url", "proxy_networks")

HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
SCHEMES: Final = ("http", "https")


def base_url(request: Request) -> str:
    """The public URL, else the scheme and host that the request was sent to; 400 where that is no host at all."""
    if public := parts_of(request).settings.public_url:
        return public.rstrip("/")
    scheme, host = request.scope["scheme"], request.headers.get("host", "")
    if _is_from_proxy(request):
        scheme = _last(request, "x-forwarded-proto") or scheme
        host = _last(request, "x-forwarded-host") or host
    if scheme not in SCHEMES or not HOST.fullmatch(host):
        raise invalid_host()
    return f"{scheme}://{host}"


@cache
def proxy_networks(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of the proxies that are believed. Raises SettingsError for what is none."""
    try:
        return tuple(map(ip_network, trusted))
    except ValueError as exc:
        raise SettingsError(
            f"DIRECTOR_TRUSTED_PROXIES: {exc}: name addresses, or networks such as 10.0.0.0/8."
        ) from exc


def _is_from_proxy(request: Request) -> bool:
    networks = proxy_networks(parts_of(request).settings.trusted_proxies)
    if not networks or request.client is None:
        return False
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False  # a socket without an address
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address  # a socket for both kinds shows IPv4 so, and no network of IPv4 has it
    return any(address in network for network in networks)


def _last(request: Request, name: str) -> str:
    """What the proxy next to us said: whatever stands before it came from outside."""
    return request.headers.get(name, "").rpartition(",")[2].strip()
