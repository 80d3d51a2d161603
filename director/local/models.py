"""Describe the models that run on this machine and the two processes of each: its model server, and the director beside
it. `up` and `serve` start their models with this, the examples too.
"""

import os
import re
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from director.core.ids import MODEL_NAME, version_id
from director.core.settings import PREFIX
from director.examples import EXAMPLES, Example
from director.local.home import Home
from director.local.launcher.folder import Folder, cog_command, model_environment
from director.local.launcher.launch import LOOPBACK, server_environment, with_port
from director.local.launcher.processes import UpError, free_port
from director.local.supervisor import Part

COGLET_DIR: Final = "/tmp/coglet/predictions"  # noqa: S108 - coglet's own, whatever TMPDIR says
DRAIN_S: Final = 10
HAND_BACK_S: Final = 13.0  # the user who pressed Ctrl-C watches: do not wait for a long run


class Model(Struct, frozen=True, kw_only=True):
    """A model to serve on this machine: a folder for Cog, a command that starts a server, or a server that runs already
    at `url`. The server of a command listens at `url` if it has a port, else at a free one. `version` is empty for own
    models: their director makes it from the schema.
    """

    name: str
    label: str  # the end of the names of its processes and logs
    folder: Folder | None = None
    command: str = ""
    url: str = ""
    runner: str = "cog"
    runner_config: str = ""
    slots: int = 1
    version: str = ""

    @property
    def is_example(self) -> bool:
        return self.name in EXAMPLES


class Served(Struct, frozen=True, kw_only=True):
    """The processes of one model. `server` is None for a server that runs already."""

    model: Model
    url: str
    ready_url: str
    server: Part | None
    director: Part


class Surroundings(Struct, frozen=True, kw_only=True):
    """The service that a director works for: `up` is the one that it started, or the one that runs already."""

    home: Home
    redis_url: str
    files_dir: str
    webhook_allow: str


def examples() -> list[Model]:
    return [_example(each) for each in EXAMPLES.values()]


def _example(example: Example) -> Model:
    return Model(
        name=example.name,
        label=example.name.rpartition("/")[2],
        folder=Folder(path=example.folder, predict=example.predict, python=Path(sys.executable)),
        version=version_id(example.name, example.schema_file.read_bytes(), example.predictor_file.read_bytes()),
    )


def check_name(name: str) -> str:
    if not re.fullmatch(MODEL_NAME, name):
        raise UpError(f"{name} is not the name of a model: give owner/name in lower case, such as acme/painter.")
    return name


def label(models: Sequence[Model]) -> list[Model]:
    """Give each model a label of its own: the part after the slash, with a number where that is taken."""
    taken: set[str] = set()
    named = []
    for model in models:
        short = model.name.rpartition("/")[2]
        label = next(each for each in (short, *(f"{short}-{n}" for n in range(2, 1000))) if each not in taken)
        taken.add(label)
        named.append(replace(model, label=label))
    return named


def plan_processes(model: Model, around: Surroundings) -> Served:
    """Return the processes of a model. Each call takes new ports."""
    health_port, upload_secret = free_port(), secrets.token_urlsafe(24)
    url, server = _server(
        model, upload_url=f"http://{LOOPBACK}:{health_port}/uploads/{upload_secret}/", home=around.home
    )
    own = {"model": model.name, "servers": url, "concurrent_predictions": str(model.slots)}
    if model.runner != "cog":
        own |= {"runner": model.runner, "runner_config": model.runner_config}
    # The user wants this model to be asked, also if its schema is an older one again
    own |= {"version": model.version} if model.version else {"latest": "true"}
    return Served(
        model=model,
        url=url,
        ready_url=f"http://{LOOPBACK}:{health_port}/readyz",
        server=server,
        director=ours(
            around,
            f"director-{model.label}",
            [*python_of_ours("director"), "run"],
            grace_s=DRAIN_S + HAND_BACK_S,
            drain_s=str(DRAIN_S),
            health_host=LOOPBACK,
            health_port=str(health_port),
            upload_secret=upload_secret,
            coglet_dir=COGLET_DIR,
            **own,
        ),
    )


def _server(model: Model, *, upload_url: str, home: Home) -> tuple[str, Part | None]:
    name = f"model-{model.label}"
    if model.folder is not None:
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"
        env = {
            "PORT": str(port),
            "COG_PREDICT_TYPE_STUB": model.folder.predict,
            "COG_MAX_CONCURRENCY": str(model.slots),
            "COG_UPLOAD_URL": upload_url,
        }
        # SIGTERM is for the director; the server ends after it, when asked by HTTP
        return url, Part(
            name=name,
            command=[*cog_command(model.folder), "--await-explicit-shutdown=true"],
            env=dict(model_environment(model.folder, home.path / "bin")) | env,
            cwd=model.folder.path,
            shutdown_url=f"{url}/shutdown",
        )
    if not model.command:
        return model.url, None
    parts = urlsplit(model.url)
    port = parts.port or free_port()
    url = f"{parts.scheme or 'http'}://{parts.hostname or LOOPBACK}:{port}"
    command = with_port(shlex.split(model.command), port)
    return url, Part(name=name, command=command, env=server_environment() | {"PORT": str(port)}, cwd=Path.cwd())


def python_of_ours(module: str) -> Sequence[str]:
    # -P: never import from the folder that the command is called in, which may contain an `api` of its own
    return [sys.executable, "-P", "-m", module]


def ours(around: Surroundings, name: str, command: Sequence[str], *, grace_s: float = 10.0, **settings: str) -> Part:
    settings |= {"redis_url": around.redis_url, "files_dir": around.files_dir, "webhook_allow": around.webhook_allow}
    env = {PREFIX + setting.upper(): value for setting, value in settings.items()}
    return Part(name=name, command=command, env=dict(os.environ) | env, cwd=around.home.path, grace_s=grace_s)
