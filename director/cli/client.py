"""Ask the API like any other client would: over HTTP, with a token. Turns refusals into one line with the next step."""

from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Raw, Struct

from director.cli.where import Service
from director.core.errors import DirectorError
from director.core.states import TERMINAL, Status

T = TypeVar("T")

ANSWER_S: Final = 30.0
# What a service, or the proxy before it, answers while it cannot: it passes by itself
NOT_NOW: Final = frozenset({429, 502, 503, 504})

NEXT_STEPS: Final = {
    401: "Give a valid --token, or make one with `director token create`.",
    404: "Check the name or the id; `director queues` lists the models that can be asked.",
    503: "Try again in a moment.",
}


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
