"""Run `director serve`: one model of the user's, beside the `up` of a home. If none runs there, everything is started,
as `up --model` does.
"""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import TaskGroup

from director.core.model_config import check_server_url
from director.core.runner_config import PRESET, runner_config, runner_fields, with_preset
from director.local.attendance import Attendant
from director.local.home import Home, State
from director.local.launcher.folder import find_folder, keep_schema, make_schema
from director.local.launcher.launch import LOOPBACK, PORT
from director.local.launcher.processes import UpError, claimable
from director.local.models import (
    Model,
    Surroundings,
    check_name,
    label,
    plan_processes,
)
from director.local.supervisor import Supervisor, until_signal
from director.local.up import LOCAL, STOPPED, Options, connect, follow, program_name, up
from director.runtime.startup import raise_descriptor_limit

LOOK_S: Final = 1.0
OPENAI: Final = "openai"
V1: Final = "/v1"
SCHEMA_PATH: Final = "/openapi.json"  # where FastAPI and most servers have their schema, unless another is named


def own_folder(name: str, folder: Path, *, python: str = "", slots: int | None = None) -> Model:
    """Check the folder and its Python, make its schema, and return the model. `slots`: None for that of cog.yaml.
    Raises UpError with the next step.
    """
    check_name(name)
    found = find_folder(folder, python)
    keep_schema(found, make_schema(found))
    return Model(name=name, label="", folder=found, slots=slots or found.said.concurrency or 1)


def own_server(
    name: str,
    *,
    openai: str = "",
    http: str = "",
    command: str = "",
    preset: str = "",
    config: str = "",
    slots: int = 1,
) -> Model:
    """Return a model of a server that is no Cog server. `preset` and `config` say how it is driven. With `command`
    alone it speaks as OpenAI's API, such as vLLM's. The port of a URL beside it is the one that its server listens on.
    Raises UpError and SettingsError.
    """
    check_name(name)
    url, path = _base_and_path(openai or http, has_command=bool(command)) if openai or http else ("", "")
    fields = runner_fields(config) if config else {}
    if preset and fields.setdefault(PRESET, preset) != preset:
        raise UpError(f"--preset {preset}: the --runner-config names the preset {fields[PRESET]!r}.")
    if path and not (openai and path == V1):
        fields.setdefault("path", path)
    given = with_preset(fields)
    kind = OPENAI if openai else str(given.get("kind") or ("http" if http else OPENAI))
    if http and not given.get("path") and kind != OPENAI:
        raise UpError(f"Give the path that takes the input as well: --http {url or http}/predict, or a --preset.")
    if http and not preset and not config:
        fields |= {"kind": "http", "openapi": SCHEMA_PATH}
    text = msgspec.json.encode(fields).decode() if fields else ""
    runner_config(kind, text)
    if command:
        _check_command(command)
        _check_free(url)
    elif url:
        check_server_url(url)
    return Model(name=name, label="", url=url, command=command, runner=kind, runner_config=text, slots=slots)


def _check_free(url: str) -> None:
    parts = urlsplit(url)
    if not parts.port:
        return
    try:
        claimable(parts.hostname or LOOPBACK, parts.port)
    except UpError as exc:
        raise UpError(
            f"--command cannot start its server at {url}: something listens there already, or it is no address of this "
            "machine. Leave --command out to use the server that runs there, or choose another port."
        ) from exc


def _check_command(command: str) -> None:
    try:
        program = (shlex.split(command) or [""])[0]
    except ValueError as exc:
        raise UpError(f"--command {command}: {exc}.") from exc
    if shutil.which(program) is None:
        raise UpError(f"--command {command}: there is no program {program!r}. Install it, or give its path.")


def _base_and_path(url: str, *, has_command: bool) -> tuple[str, str]:
    """Return the address of the server and a path. A command may leave the address or its port to us."""
    if has_command and url.startswith("/"):
        return "", url.rstrip("/")
    parts = urlsplit(url.replace(f":{PORT}", ""))
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UpError(f"{url} is not a URL: it begins with http://, as in http://127.0.0.1:8000.")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def serve(options: Options, say: Callable[[str], None], *, port: int | None) -> int:
    """Serve the one model of these options until a signal; return the exit code."""
    home = Home(options.home)
    state = home.read()
    if not state.is_up:
        say(f"nothing runs in {home.shown}: starting Valkey, the API and the keeper too, as `director up` does")
        return up(msgspec.structs.replace(options, port=options.port if port is None else port), say)
    if port is not None:
        raise UpError(f"The service in {home.shown} runs already, at {state.url}: leave --port out.")
    raise_descriptor_limit()
    say(f"serving beside the service in {home.shown}, at {state.url}")
    anyio.run(_Beside(options, home, state, say).run)
    return STOPPED


class _Beside:
    """A model beside an `up` that runs already."""

    def __init__(self, options: Options, home: Home, state: State, say: Callable[[str], None]) -> None:
        self._options = options
        self._home = home
        self._state = state
        self._say = say

    async def run(self) -> None:
        await until_signal(self._start, home=self._home, say=self._say, changed=lambda: None)

    async def _start(self, supervisor: Supervisor, tasks: TaskGroup) -> None:
        state = self._state
        if self._options.is_verbose:
            tasks.start_soon(follow, self._home, self._say)
        around = Surroundings(
            home=self._home,
            redis_url=state.redis_url,
            files_dir=state.files_dir or str(self._home.files),
            webhook_allow=state.webhook_allow or LOCAL,
        )
        async with connect(state.redis_url) as redis:
            for model in label(self._options.models):
                one = plan_processes(model, around)
                if one.server is not None:
                    supervisor.start([one.server])
                supervisor.start([one.director])
                attendant = Attendant(
                    served=one,
                    home=self._home,
                    state=state,
                    redis=redis,
                    supervisor=supervisor,
                    say=self._say,
                    program=program_name(),
                    python=self._options.python,
                )
                attendant.start(tasks, is_watching=self._options.is_watched)
            await self._follow_service()

    async def _follow_service(self) -> None:
        """Say when the service ends, and when it is there again: the model is served again then, without a restart."""
        was_up = True
        while True:
            await anyio.sleep(LOOK_S)
            is_up = self._home.read().is_up
            if is_up != was_up:
                again = "there again" if is_up else "gone: waiting for `director up` in this home"
                self._say(f"the service in {self._home.shown} is {again}")
            was_up = is_up
