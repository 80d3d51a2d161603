"""Read what a Cog server reports of itself: its health, its kind, and what its model can do.

Pure: it reads bodies, never asks for them, and never raises for what a server wrote.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from director.servers.runners.runner import Health, HealthStatus, Setup
from director.servers.runners.untrusted import NO_ENTRY, WRONG_KEY, Unreadable, excerpt, one_line, read_json

STATUSES: Final = {
    "STARTING": HealthStatus.STARTING,
    "READY": HealthStatus.READY,
    "BUSY": HealthStatus.BUSY,
    "SETUP_FAILED": HealthStatus.SETUP_FAILED,
    "UNHEALTHY": HealthStatus.UNHEALTHY,
    "DEFUNCT": HealthStatus.DEFUNCT,
}
# coglet never reports DEFUNCT: a dead worker shows in these words
WORKER_IS_DEAD: Final = ("protocol error", "channel closed")
MAY_BE_A_FILE: Final = (b'"uri"', b'"$ref"')
FIRST_STREAMING: Final = (0, 21)


class Kind(Struct, frozen=True, kw_only=True):
    """The behaviour of one generation of Cog servers.

    `hears_meanwhile`: while a PUT is held open, it answers other requests, such as a cancel or a health check.
    `cancels_again`: if a cancel got lost in the first ms of a run, it acts on the next one. `tells_all_at_end`: the
    answer to that PUT has the logs and the partial output of a failure.
    """

    hears_meanwhile: bool = True
    cancels_again: bool = True
    tells_all_at_end: bool = True


COGLET: Final = Kind(tells_all_at_end=False)
# The Python servers from the newest on: the first version and its kind. Those before 0.12 do not report a version
PYTHON: Final = (
    ((0, 13), Kind(cancels_again=False)),
    ((0, 0), Kind(cancels_again=False, hears_meanwhile=False)),
)


class Sighting(Struct, frozen=True, kw_only=True):
    """One look at a server. `coglet` is its version, None on Python servers. `since` differs for each start."""

    health: Health
    coglet: str | None = None
    since: str = ""

    @property
    def can_stream(self) -> bool:
        """True for coglet from 0.21 on; the model has to stream too."""
        version = re.match(r"(\d{1,6})\.(\d{1,6})", self.coglet or "")
        return version is not None and tuple(map(int, version.groups())) >= FIRST_STREAMING


class Model(Struct, frozen=True, kw_only=True):
    """The schema of the model. `is_array`: the output comes item by item. `may_have_files`: the output may have files,
    which come as paths on the server's disk unless the server is asked for one whole answer.
    """

    streams: bool = False
    is_array: bool = False
    may_have_files: bool = True


class _Setup(Struct):
    started_at: str | None = None
    completed_at: Any = None
    logs: str | None = None


class _Version(Struct):
    coglet: str | None = None


class _Report(Struct):
    status: str
    setup: _Setup | None = None
    version: _Version | None = None
    user_healthcheck_error: str | None = None
    detail: str | None = None


class _Operation(Struct):
    streaming: Any = msgspec.field(name="x-cog-streaming", default=False)


class _Path(Struct):
    post: _Operation = msgspec.field(default_factory=_Operation)


class _Paths(Struct):
    predictions: _Path = msgspec.field(name="/predictions", default_factory=_Path)


class _Output(Struct):
    type: Any = None


class _Schemas(Struct):
    output: Raw = msgspec.field(name="Output", default=Raw(b"{}"))


class _Components(Struct):
    schemas: _Schemas = msgspec.field(default_factory=_Schemas)


class _OpenApi(Struct):
    paths: _Paths = msgspec.field(default_factory=_Paths)
    components: _Components = msgspec.field(default_factory=_Components)


def read_health(status: int, body: bytes) -> Sighting:
    """Read the answer to GET /health-check. An answer that makes no sense is UNHEALTHY, since a server is there."""
    if status != 200:
        why = WRONG_KEY if status in NO_ENTRY else excerpt(body)
        health = _unhealthy(f"The model server answered {status} to a health check: {why}").health
        return Sighting(health=replace(health, is_locked=status in NO_ENTRY))
    try:
        report = read_json(body, _Report)
    except Unreadable as exc:
        return _unhealthy(f"The model server's health is {exc}")
    if (said := STATUSES.get(report.status)) is None:
        return _unhealthy(f"The model server says that it is {one_line(report.status)!r}")
    setup = report.setup or _Setup()
    trouble = report.user_healthcheck_error or report.detail or ""
    if said is HealthStatus.UNHEALTHY and any(sign in trouble for sign in WORKER_IS_DEAD):
        said = HealthStatus.DEFUNCT
    coglet = report.version.coglet if report.version else None
    health = Health(
        status=said,
        detail=_detail(said, trouble=trouble, logs=setup.logs or ""),
        setup=_setup(setup),
        server=f"coglet {one_line(coglet)}" if coglet else "",
        since=setup.started_at or "",
    )
    return Sighting(health=health, coglet=coglet, since=setup.started_at or "")


def read_model(openapi: bytes) -> Model:
    """Read the OpenAPI document of a model. A document that makes no sense gives the defaults."""
    try:
        document = read_json(openapi, _OpenApi)
        output = bytes(document.components.schemas.output)
        is_array = read_json(output, _Output).type == "array"
    except Unreadable:
        return Model()
    return Model(
        streams=document.paths.predictions.post.streaming is True,
        is_array=is_array,
        may_have_files=b'"type"' not in output or any(sign in output for sign in MAY_BE_A_FILE),
    )


def _unhealthy(detail: str) -> Sighting:
    return Sighting(health=Health(status=HealthStatus.UNHEALTHY, detail=detail))


def _setup(setup: _Setup) -> Setup:
    completed = setup.completed_at if isinstance(setup.completed_at, str) else ""
    return Setup(started_at=setup.started_at or "", completed_at=completed, logs=setup.logs or "")


def _detail(status: HealthStatus, *, trouble: str, logs: str) -> str:
    match status:
        case HealthStatus.READY:
            return ""
        case HealthStatus.BUSY:
            return "Every slot is taken"
        case HealthStatus.STARTING:
            return "Setup is running"
        case HealthStatus.SETUP_FAILED:
            last = logs.rstrip().rpartition("\n")[2]  # of a traceback, the line that names the error
            return one_line(last) or "Setup failed without saying why"
        case _:
            return one_line(trouble) or "The model server does not say what is wrong"


def python_kind(version: str) -> Kind:
    """Return the kind of a Python server of this version; '' if it reports none."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    said = (int(found[1]), int(found[2])) if found else (0, 0)
    return next(kind for first, kind in PYTHON if said >= first)
