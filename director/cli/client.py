"""Ask the API like any other client would: over HTTP, with a token. Turns refusals into one line with the next step."""

import argparse
import base64
import mimetypes
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Raw, Struct

from director.cli.backend import Nowhere
from director.core.errors import DirectorError
from director.core.states import TERMINAL, Status
from director.local.home import Home

T = TypeVar("T")

ANSWER_S: Final = 30.0
FETCHED: Final = ("http://", "https://")
FETCH_S: Final = 60.0
# What a service, or the proxy before it, answers while it cannot: it passes by itself
NOT_NOW: Final = frozenset({429, 502, 503, 504})

NEXT_STEPS: Final = {
    401: "Give a valid --token, or make one with `director token create`.",
    404: "Check the name or the id; `director queues` lists the models that can be asked.",
    503: "Try again in a moment.",
}


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


class Refused(DirectorError):
    """The API did not do what it was asked, or was not reached. The text says what to do."""


class Away(Refused):
    """The API was not reached, or cannot answer now. Asking again may help, where that is safe."""


class Seen(Struct, frozen=True, kw_only=True):
    """A prediction as the API shows it: what the command line uses of it."""

    id: str
    status: Status
    model: str = ""
    output: Any = None
    logs: str | None = ""
    error: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL


class Client:
    """One connection to the API, kept open while the block lasts."""

    def __init__(self, service: Service) -> None:
        self._url = service.url
        # no proxies from the environment: they would see the token of a service on this machine
        self._http = httpx.Client(
            base_url=service.url,
            headers={"authorization": f"Bearer {service.token}"},
            timeout=ANSWER_S,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def create(self, model: str, given: dict[str, Any]) -> Raw:
        """Submit a prediction of "owner/name" or "owner/name:version", without waiting for it."""
        if ":" in model:
            return self._ask("POST", "/v1/predictions", {"version": model, "input": given})
        return self._ask("POST", f"/v1/models/{model}/predictions", {"input": given})

    def get(self, prediction_id: str) -> Raw:
        """How it stands now."""
        return self._ask("GET", f"/v1/predictions/{quote(prediction_id, safe='')}")

    def explain(self, prediction_id: str) -> Raw:
        """Its story so far."""
        return self._ask("GET", f"/v1/predictions/{quote(prediction_id, safe='')}/explain")

    def cancel(self, prediction_id: str) -> Raw:
        """Ask that it ends."""
        return self._ask("POST", f"/v1/predictions/{quote(prediction_id, safe='')}/cancel")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Raw:
        try:
            answer = self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise Away(f"nobody answers at {self._url} ({exc}). Is it up? `director up` starts a service.") from exc
        if answer.is_success:
            return Raw(answer.content)
        kind = Away if answer.status_code in NOT_NOW else Refused
        raise kind(" ".join(filter(None, [_detail(answer), NEXT_STEPS.get(answer.status_code, "")])))


def seen(body: Raw) -> Seen:
    """Read a prediction, as `read` does."""
    return read(body, Seen)


def read(body: Raw, kind: type[T]) -> T:
    """Read an answer. Raises Refused where it is another thing: then something else answers at that address."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as exc:
        raise Refused(f"what answers there is not Director ({exc}). Check the --url.") from exc


def _detail(answer: httpx.Response) -> str:
    """What a problem document says, in one line."""
    try:
        problem = msgspec.json.decode(answer.content, type=dict[str, Any])
    except msgspec.MsgspecError:
        return f"the service answered {answer.status_code}."
    said = str(problem.get("detail") or problem.get("title") or f"the service answered {answer.status_code}")
    return "; ".join(line.removeprefix("- ") for line in said.splitlines() if line).rstrip(".") + "."


class FileFault(DirectorError):
    """A file named on the command line cannot be read or written. Correct its path."""


def parse_input(text: str) -> tuple[str, Any]:
    """One `-i`. Raises ValueError where it is not name=value, FileFault."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is no input: give name=value, or name=@file")
    if value.startswith("@"):
        return name, _data_uri(Path(value[1:]))
    try:
        return name, msgspec.json.decode(value.encode())
    except msgspec.DecodeError:
        return name, value


def save_output(output: Any, file: str) -> None:
    """Write the file that a model made. Raises FileFault where its output is none, or it cannot be had or written."""
    data = _fetched(output) if isinstance(output, str) and output.startswith(FETCHED) else _decoded(output)
    try:
        Path(file).write_bytes(data)
    except OSError as exc:
        raise FileFault(f"cannot write {file}: {exc.strerror}. Choose another --output.") from exc


def _fetched(url: str) -> bytes:
    try:
        # without the token: the address is enough, and not every one is ours
        answer = httpx.get(url, timeout=FETCH_S, trust_env=False)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise FileFault(f"cannot fetch the output: {exc}. Leave --output out to see its address.") from exc
    return answer.content


def _decoded(output: Any) -> bytes:
    head, comma, body = output.partition(",") if isinstance(output, str) else ("", "", "")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise FileFault("the output of this model is no file. Leave --output out to see it.")
    return base64.b64decode(body)


def _data_uri(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as exc:
        raise FileFault(f"cannot read {file}: {exc.strerror}. Check the path after the @.") from exc
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
