"""Know the person at the page: by the cookie of a session, or by the headers of a proxy that logs people in.

A browser sends both by itself, also when another site makes it ask. So they count only for requests of the page's own
scripts: those have a header that a form cannot send, and a browser says that they come from the same site.
"""

import hmac
import re
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.responses import Response

from api.web import errors
from api.web.http import HOST, LOOPBACK, Request, is_from_proxy, read_host, services_of
from director.store.accounts import ROLES, Account
from director.store.sessions import Granted

PAGE: Final = "x-director-page"
SENT_BY_PROXY: Final = "x-director-proxy-secret"
COOKIE: Final = "director-session"
SECURE: Final = "__Host-"  # a browser then wants Secure, the path / and no domain
SAME_SITE: Final = "same-origin"
USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


def is_of_page(request: Request) -> bool:
    """Whether a script of the page itself sent this. No other site can make a browser send such a request."""
    headers = request.headers
    if headers.get(PAGE) is None:
        return False
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site == SAME_SITE
    return origin is None or origin.lower() in _own_origins(request)


def _own_origins(request: Request) -> set[str]:
    """Return the page's origins as a browser writes them. What a client sends is compared and not parsed."""
    scheme, host = read_host(request)
    public = urlsplit(services_of(request).settings.public_url)
    return {f"{scheme}://{host}".lower(), f"{public.scheme}://{public.netloc}".lower()} - {"://"}


async def find_person(request: Request) -> Account | None:
    """Return the account of the person at the page, with the scopes that the person has now. None without one."""
    if not is_of_page(request):
        return None
    # the proxy's word is of now, and a cookie may be an earlier person's of this browser
    if (person := await _of_proxy(request)) is not None:
        return person
    cookies = session_cookies(request)
    # another port of this host can add a cookie without TLS, which a browser may send first
    return await services_of(request).log_ins.of_session(cookies[0]) if len(cookies) == 1 else None


def session_cookies(request: Request) -> list[str]:
    """Return the values of the session's cookie. With TLS only a cookie counts that no plain page can have set."""
    wanted = f"{cookie_name(request)}="
    pairs = (pair.strip() for header in request.headers.getlist("cookie") for pair in header.split(";"))
    return [pair.removeprefix(wanted) for pair in pairs if pair.startswith(wanted)]


def cookie_name(request: Request) -> str:
    """Return the name of the cookie. Browsers do not keep the cookies of two ports apart, so the name does."""
    scheme, host = read_host(request)
    if _has_tls(request, scheme, host):
        return f"{SECURE}{COOKIE}"
    found = HOST.fullmatch(host)
    return f"{COOKIE}-{found[2][1:] if found and found[2] else 80}"


def _has_tls(request: Request, scheme: str, host: str) -> bool:
    """Whether the browser speaks TLS. A proxy may not pass the scheme or the host on, and then the public URL says so;
    only on the API's own machine a browser comes past that proxy.
    """
    is_public = urlsplit(services_of(request).settings.public_url).scheme == "https"
    found = HOST.fullmatch(host)
    return scheme == "https" or (is_public and (found is None or found[1].lower() not in LOOPBACK))


def set_cookie(request: Request, response: Response, session: Granted | None) -> None:
    """Hand out a session, or take the cookie back. Scripts cannot read it, and no other site's request has it."""
    name = cookie_name(request)
    for_s = 0 if session is None else (session.expires_ms - services_of(request).clock.now_ms()) // 1000
    response.set_cookie(
        name,
        "" if session is None else session.secret,
        max_age=for_s,
        path="/",
        secure=name.startswith(SECURE),
        httponly=True,
        samesite="strict",
    )


def _has_secret(request: Request, secret: str) -> bool:
    """Whether the proxy itself sent this, and no other program at its address."""
    given = request.headers.getlist(SENT_BY_PROXY)
    return len(given) == 1 and hmac.compare_digest(given[0].encode(), secret.encode())


async def _of_proxy(request: Request) -> Account | None:
    log_ins = services_of(request).log_ins
    proxy = log_ins.proxy
    if proxy is None or not is_from_proxy(request):
        return None
    names = request.headers.getlist(proxy.user)
    groups = request.headers.getlist(proxy.groups) if proxy.groups else []
    if len(names) != 1 or not names[0] or len(groups) > 1:  # a second one may be the caller's own
        return None
    if proxy.secret and not _has_secret(request, proxy.secret):
        return None
    if not USER.fullmatch(names[0]):
        raise errors.forbidden("Your name at the proxy has other characters than letters, digits and . _ @ + -.")
    role = proxy.role(groups[0] if groups else "")
    if role is None:
        raise errors.forbidden("None of your groups has a role here: see DIRECTOR_PROXY_ROLES.")
    account = await log_ins.of_page(proxy.account)
    if account is None:
        raise errors.forbidden(f"`director account create {proxy.account}` makes the account of people at the page.")
    return replace(account, scopes=ROLES[role], token_id=names[0])
