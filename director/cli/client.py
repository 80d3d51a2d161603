"""A client of the API over HTTP, with a token. A refusal becomes one line with the next step."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec
from msgspec import Raw, Struct

from director.cli import contexts
from director.cli.arguments import did_you_mean
from director.cli.contexts import check_url
from director.cli.inputs import Described
from director.core.errors import BackendUnavailable, DirectorError
from director.core.schema import Place
from director.core.states import TERMINAL, Status
from director.local import DEFAULT_HOME
from director.local.home import Home, Nowhere

T = TypeVar("T")

BEFORE_FAULT: Final = re.compile(r"^- (?:(\S+): (?=\1 ))?")  # the name of a field whose fault begins with it
ANSWER_S: Final = 30.0
COMMAND_S: Final = 120.0  # some end the predictions of an account for a minute
UPLOAD_S: Final = 600.0  # the answer comes once the service has stored the file
# Answers of a service, or of a proxy before it, that is away for a short time
NOT_NOW: Final = frozenset({429, 502, 503, 504})
NOT_FOUND: Final = "The requested resource could not be found."
NO_BATCHES: Final = "this service has no batches: an operator turns them on with DIRECTOR_OPENAI."
NEXT_STEPS: Final = {
    401: "Give a valid --token, or make one with `director token create`.",
    503: "An operator finds the cause with `director doctor`.",
}


class Service(Struct, frozen=True):
    """An API and a token for it. `source`: what named it, unless the command line has its address."""

    url: str
    token: str
    source: str = ""


def service(given: argparse.Namespace) -> Service:
    """Return the API of this command line: of its options, the environment, a context, or the `up`. Raises Nowhere."""
    environment = {} if given.context else os.environ  # an option comes before the environment
    url = given.url or environment.get("DIRECTOR_URL", "")
    token = given.token or environment.get("DIRECTOR_TOKEN", "")
    source = "" if given.url else "DIRECTOR_URL"
    # a context or a home names its service and the token for it: no other service gets that token
    if not url and (name := _context(given)):
        context = contexts.get(name)
        url, token, source = context.url, token or context.token(), f"context {name}"
    elif not url:
        state = Home(Path(given.home)).read()
        url, token, source = state.url, token or state.token, f"the `up` of {given.home}"
    if not url:
        raise Nowhere(
            f"no service is known: {given.home} has no up.json. Start one here with `director up`, "
            "or say where it is with --home, with --url and --token, or with `director context add`."
        )
    if not token:
        raise Nowhere("a token is missing: give --token or DIRECTOR_TOKEN. `director token create` makes one.")
    if not (token.isascii() and token.isprintable()):
        raise Nowhere("not a token: it contains characters that no token has. `director token create` makes one.")
    return Service(check_url(url), token, source)


def name_service(chosen: Service) -> None:
    """Say on stderr which service is changed, unless the command line has its address."""
    if chosen.source:
        print(f"» {chosen.url} ({chosen.source})", file=sys.stderr, flush=True)


def _context(given: argparse.Namespace) -> str:
    """Return the name of the context that is asked for. A home that is named comes before the context in use."""
    return contexts.choose(given.context) if given.context or given.home == DEFAULT_HOME else ""


class Refused(DirectorError):
    """The API refused the request, or did not answer. The text says what to do."""


class Away(Refused, BackendUnavailable):
    """The API did not answer, or cannot answer now. A request that is safe to repeat may be repeated."""


class Forbidden(Refused):
    """The token lacks the scope."""


class Missing(Refused):
    """No such thing exists for this account. Check its name."""


class PredictionAnswer(Struct, frozen=True, kw_only=True):
    id: str
    status: Status
    model: str = ""
    output: Any = None
    logs: str | None = ""
    error: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    queue: Place | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


class Listed(Struct, frozen=True):
    results: list[dict[str, Any]]


class Page(Struct, frozen=True):
    results: list[Raw]
    next: str | None = None


class Client:
    def __init__(self, service: Service) -> None:
        self._url = service.url
        self._away: set[str] = set()
        # proxies from the environment are not used: they would see the token of a service on this machine
        self._http = httpx.Client(
            base_url=service.url,
            headers={"authorization": f"Bearer {service.token}"},
            timeout=ANSWER_S,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def create(self, model: str, given: dict[str, Any], *, webhook: str = "", headers: Mapping[str, str] = {}) -> Raw:
        """Create a prediction of "owner/name" or "owner/name:version", without waiting for it."""
        body: dict[str, Any] = {"input": given, **({"webhook": webhook} if webhook else {})}
        try:
            if ":" in model:
                return self._ask("POST", "/v1/predictions", {"version": model, **body}, headers)
            return self._ask("POST", f"/v1/models/{model}/predictions", body, headers)
        except Missing as exc:
            raise self._without(model, exc) from exc

    def _without(self, model: str, exc: Missing) -> Missing:
        """Return the error of a model that is missing, with the closest name."""
        if NOT_FOUND not in str(exc):
            return exc
        try:
            listed = read(self._ask("GET", "/v1/models"), Listed)
        except Refused:
            listed = Listed([])
        names = [f"{one['owner']}/{one['name']}" for one in listed.results]
        hint = did_you_mean(model, names) or "`director models` lists all."
        return Missing(f"there is no model {model} for this token: {hint}")

    def describe(self, model: str) -> Described | None:
        """Return a model's inputs and its output, or None if they are unknown."""
        try:
            return self.find(model)
        except Refused:
            return None

    def find(self, model: str) -> Described | None:
        """Return a model's inputs and its output, or None if it shows none. Raises Refused, as Missing without it."""
        name, _, version = model.partition(":")
        path = f"/v1/models/{name}/versions/{version}" if version else f"/v1/models/{name}"
        try:
            found = read(self._ask("GET", path), dict[str, Any])
            return Described.of((found if version else found["latest_version"])["openapi_schema"])
        except Missing as exc:
            raise self._without(model, exc) from exc
        except (KeyError, TypeError, AttributeError):
            return None

    def model(self, name: str) -> Raw:
        try:
            return self._ask("GET", f"/v1/models/{name}")
        except Missing as exc:
            raise self._without(name, exc) from exc

    def version(self, model: str, version: str) -> Raw:
        try:
            return self._ask("GET", f"/v1/models/{model}/versions/{version}")
        except Missing as exc:
            raise self._without(f"{model}:{version}", exc) from exc

    def models(self) -> Iterator[dict[str, Any]]:
        """Yield the models that the token may see, the newest first, page by page."""
        for one in self._pages("/v1/models"):
            yield read(one, dict[str, Any])

    def usage(self, asked: Mapping[str, str], *, of_all: bool = False) -> Raw:
        return self._ask("GET", f"/v1{'/admin' if of_all else ''}/usage?{urlencode(asked)}")

    def list(self, filters: Mapping[str, str]) -> Iterator[Raw]:
        """Yield predictions, newest first, page by page."""
        return self._pages(f"/v1/predictions?{urlencode(filters)}")

    def _pages(self, path: str) -> Iterator[Raw]:
        while path:
            page = read(self._ask("GET", path), Page)
            yield from page.results
            after = urlsplit(page.next or "")
            path = f"{after.path}?{after.query}" if page.next else ""

    def get(self, prediction_id: str) -> Raw:
        return self._of(prediction_id)

    def explain(self, prediction_id: str) -> Raw:
        return self._of(prediction_id, "/explain")

    def cancel(self, prediction_id: str) -> Raw:
        return self._of(prediction_id, "/cancel", method="POST")

    def deployments(self) -> Iterator[Raw]:
        """Yield deployments of the account, newest first, page by page."""
        return self._pages("/v1/deployments")

    def versions(self, model: str) -> Iterator[str]:
        """Yield the ids of the versions of a model, newest first."""
        for one in self._pages(f"/v1/models/{model}/versions"):
            yield str(read(one, dict[str, Any])["id"])

    def account(self) -> str:
        """Return the name of the token's account."""
        return str(read(self._ask("GET", "/v1/account"), dict[str, Any])["username"])

    def create_deployment(self, asked: Mapping[str, Any]) -> Raw:
        return self._ask("POST", "/v1/deployments", asked)

    def deployment(
        self, name: str, what: str = "", body: Mapping[str, Any] | None = None, *, method: str = "GET"
    ) -> Raw:
        try:
            return self._ask(method, f"/v1/deployments/{name}{what}", body)
        except Missing as exc:
            raise Missing(f"there is no deployment {name} for this token: `director deployments` lists yours.") from exc

    def upload(self, file: BinaryIO, name: str) -> str:
        """Send the lines of a batch, and return the id of the file."""
        form = {"data": {"purpose": "batch"}, "files": {"file": (name, file, "application/jsonl")}}
        return str(read(self._of_batches("POST", "/files", NO_BATCHES, timeout=UPLOAD_S, **form), dict[str, Any])["id"])

    def create_batch(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Raw:
        return self._of_batches("POST", "/batches", "", json=body, headers=headers)

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield batches, newest first, page by page."""
        query: dict[str, Any] | None = {"limit": 100}
        while query is not None:
            page = read(self._of_batches("GET", f"/batches?{urlencode(query)}", NO_BATCHES), dict[str, Any])
            yield from page["data"]
            query = query | {"after": page["last_id"]} if page["has_more"] else None

    def batch(self, batch_id: str, what: str = "", *, method: str = "GET") -> Raw:
        missing = f"there is no batch {batch_id} for this token: `director batches list` lists yours."
        return self._of_batches(method, f"/batches/{quote(batch_id, safe='')}{what}", missing)

    def content(self, file_id: str) -> Iterator[bytes]:
        """Yield the bytes of a file of a batch."""
        path = f"/openai/v1/files/{quote(file_id, safe='')}/content"
        with reaching(self._url), self._http.stream("GET", path) as answer:
            if not answer.is_success:
                answer.read()
            check_answer(answer)
            yield from answer.iter_bytes()

    def _of_batches(self, method: str, path: str, missing: str, **sent: Any) -> Raw:
        try:
            return self._send(method, f"/openai/v1{path}", **sent)
        except Missing as exc:
            raise Missing(missing or str(exc)) from exc

    def run_command(self, asked: Mapping[str, Any]) -> Raw:
        """Run an operator's command at the API."""
        try:
            return self._send("POST", "/v1/admin/commands", json=asked, timeout=COMMAND_S)
        except Missing as exc:
            raise Missing("this API runs no commands, it is an older release: give --redis.") from exc

    def change_dead(self, verb: str, asked: Mapping[str, Any]) -> Raw:
        return self._ask("POST", f"/v1/admin/dead/{verb}", asked)

    def change_queue(self, queue: str, verb: str, asked: Mapping[str, Any]) -> Raw:
        path = "/".join(quote(part, safe="~") for part in queue.replace(":", "/").split("/"))
        return self._ask("POST", f"/v1/admin/queues/{path}/{verb}", asked)

    def change_account(self, name: str, asked: Mapping[str, Any], *, verb: str = "") -> Raw:
        """Change an account at every site: its limits, or with `verb` whether it is suspended."""
        path = f"/v1/admin/accounts/{quote(name, safe='')}"
        try:
            if verb:
                return self._send("POST", f"{path}/{verb}", json=asked, timeout=COMMAND_S)
            return self._send("PATCH", path, json=asked, timeout=COMMAND_S)
        except Missing as exc:
            raise Missing(f"there is no account {name}: `director account list` shows them.") from exc

    def login_link(self, asked: Mapping[str, Any]) -> Raw:
        return self._ask("POST", "/v1/account/login-link", asked)

    def invite(self, account: str, asked: Mapping[str, Any]) -> Raw:
        try:
            return self._ask("POST", f"/v1/admin/accounts/{quote(account, safe='')}/login-links", asked)
        except Missing as exc:
            raise Missing(f"there is no account {account}: `director account create` makes one.") from exc

    def all_predictions(self, asked: Mapping[str, str], *, after: str | None) -> Raw:
        """Return a page of predictions of all accounts. `after`: the `next` of the page before."""
        query = urlsplit(after).query if after else urlencode(asked)
        return self._ask("GET", f"/v1/admin/predictions?{query}")

    def change_predictions(self, verb: str, asked: Mapping[str, Any]) -> Raw:
        return self._ask("POST", f"/v1/admin/predictions/{verb}", asked)

    def _of(self, prediction_id: str, what: str = "", *, method: str = "GET") -> Raw:
        try:
            return self._ask(method, f"/v1/predictions/{quote(prediction_id, safe='')}{what}")
        except Missing as exc:
            raise Missing(
                f"there is no prediction {prediction_id} for this token: `director ps --all` lists yours."
            ) from exc

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Raw:
        return self._send(method, path, json=body, headers=headers)

    def _send(self, method: str, path: str, **sent: Any) -> Raw:
        with reaching(self._url):
            answer = self._http.request(method, path, **sent)
        check_answer(answer)
        self._note_away(answer.headers.get("x-sites-away", ""))
        return Raw(answer.content)

    def _note_away(self, sites: str) -> None:
        """Say on stderr, once, that an answer lacks what these sites have."""
        if sites and sites not in self._away:
            self._away.add(sites)
            print(f"» not all is shown: no answer from the site {sites}", file=sys.stderr, flush=True)


@contextmanager
def reaching(url: str) -> Generator[None]:
    """Raise Away if the API there cannot be reached."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise Away(f"no answer from {url} ({exc}). Is it up? `director up` starts a service.") from exc


KINDS: Final[Mapping[int, type[Refused]]] = {403: Forbidden, 404: Missing}


def check_answer(answer: httpx.Response) -> None:
    """Raise Refused, with the next step, for an answer that is a refusal."""
    if not answer.is_success:
        kind = Away if answer.status_code in NOT_NOW else KINDS.get(answer.status_code, Refused)
        raise kind(" ".join(filter(None, [_detail(answer), NEXT_STEPS.get(answer.status_code, "")])))


def ask_again(ask: Callable[[], T], tell: Callable[[str], None], *, away_s: float, pause_s: float) -> T:
    """Ask until the service answers, for at most `away_s`. Only for what is safe to repeat."""
    give_up = time.monotonic() + away_s
    is_told = False
    while True:
        try:
            return ask()
        except Away as exc:
            if time.monotonic() >= give_up:
                raise
            if not is_told:
                tell(f"asking again: {str(exc).partition('. ')[0]}")  # what follows is about a create
            is_told = True
            time.sleep(pause_s)


def read_prediction(body: Raw) -> PredictionAnswer:
    """Decode a prediction. Raises Refused, as `read` does."""
    return read(body, PredictionAnswer)


def read(body: Raw, kind: type[T]) -> T:
    """Decode a response. Raises Refused for another document: then another program answers at that address."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as exc:
        raise Refused(f"the server there is not Director ({exc}). Check the --url.") from exc


def _detail(answer: httpx.Response) -> str:
    try:
        problem = msgspec.json.decode(answer.content, type=dict[str, Any])
    except msgspec.MsgspecError:
        return f"the service answered {answer.status_code}."
    if isinstance(error := problem.get("error"), dict):  # of OpenAI's API
        problem = {"detail": error.get("message")}
    said = str(problem.get("detail") or problem.get("title") or f"the service answered {answer.status_code}")
    return "; ".join(BEFORE_FAULT.sub("", line) for line in said.splitlines() if line).rstrip(".") + "."
