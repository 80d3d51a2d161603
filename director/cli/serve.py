"""Commands that start processes: `up`, `serve` and `down` on one machine; `api`, `run`, `keeper` and `audit` as in
production. Every setting is a DIRECTOR_ variable. Each process imports only its own parts, for less memory.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, get_args

from director.cli.arguments import (
    EITHER,
    HOME,
    REDIS_OR_SERVICE,
    arg,
    command,
    flag,
    owner_and_name,
    port_number,
    whole,
)
from director.cli.contexts import LOCAL, keep
from director.cli.output import say
from director.core.errors import SettingsError
from director.core.runner_config import PRESETS, RunnerKind
from director.core.settings import AuditSettings, DirectorSettings, KeeperSettings, load
from director.local.home import Home, Nowhere, State
from director.runtime.startup import hold_sigterm, raise_descriptor_limit

if TYPE_CHECKING:
    from director.cli.client import Service
    from director.local.models import Model

REDIS: Final = arg("--redis URL", "address of Redis or Valkey", dest="redis_url")
OF_ONE_MODEL: Final = (
    arg("--model OWNER/NAME", "the model that the servers serve", type=owner_and_name),
    arg("--version ID", "its version id, 64 hex digits"),
    arg("--kind", "what to run (prediction)", choices=("prediction", "training", "procedure")),
    arg("--also QUEUE", "queue of an older version whose predictions they run too", action="append"),
    arg("--server URL", "a model server; give one for each GPU", action="append", dest="servers"),
    arg("--runner", "kind of the model servers (cog)", choices=get_args(RunnerKind)),
    arg("--runner-config FILE", "how to drive the model servers: .json or .toml, or a JSON object"),
    arg(
        "--slots --concurrency N",
        "predictions that one server runs at once (1)",
        type=int,
        dest="concurrent_predictions",
    ),
    arg("--batch-cost N", "highest total cost of what runs here at once", type=float),
    arg("--batch-size M", "most predictions that run here at once", type=int),
)
OF_OWN: Final = (
    arg(
        "--python PROGRAM", "Python that has the model's packages (FOLDER/.venv/bin/python, else this one)", default=""
    ),
    flag("--watch", "start the model's server again when its files change"),
)


@command(
    "up",
    arg("--host", "address the API listens on (%(default)s)", default="127.0.0.1"),
    arg("--port", "port the API listens on; 0: any free (%(default)s)", type=port_number, default=8080),
    HOME,
    flag("--no-example", "do not serve the example models"),
    arg("--redis URL", "use this running server instead of starting one", section=EITHER, default=""),
    arg("--redis-server PROGRAM", "start this redis-server or valkey-server instead", section=EITHER, default=""),
    flag("--verbose", "show the logs of all parts"),
    arg("--model NAME=FOLDER", "serve the Cog model in this folder too; may be repeated", action="append", dest="own"),
    *OF_OWN,
    examples=("", "--port 9000 --home /srv/director", "--model acme/painter=./painter --no-example"),
)
def _up(given: argparse.Namespace) -> int:
    """Start Valkey, the API, the keeper and two example models with their directors, and show how to use them.
    All data stays in the home: the next `director up` continues where this one ended.
    """
    from director.local.serve import own_folder
    from director.local.up import Options, up

    own = []
    for each in given.own or ():
        name, equals, folder = each.partition("=")
        if not equals or not folder:
            raise SettingsError(f"--model {each}: give owner/name=FOLDER, such as acme/painter=./painter.")
        own.append(own_folder(name, Path(folder), python=given.python))
        _say_what_is_unused(own[-1])
    options = Options(
        host=given.host,
        port=given.port,
        home=Path(given.home),
        has_examples=not given.no_example,
        redis_url=given.redis,
        redis_server=given.redis_server,
        is_verbose=given.verbose,
        models=own,
        python=given.python,
        is_watched=given.watch,
        on_ready=partial(_name_service, Home(Path(given.home))),
    )
    return up(options, say)


def _name_service(home: Home, state: State) -> None:
    """Make the context `local`, so that commands find this service from any folder. A failure ends no `up`."""
    try:
        keep(LOCAL, state.url, home.write_token(state.token))
    except (OSError, SettingsError) as exc:
        say(f"no context {LOCAL}: {exc}")


@command(
    "serve",
    arg("folder FOLDER", "folder with the model's predict.py or cog.yaml", nargs="?", type=Path),
    arg("--model OWNER/NAME", "the name to serve it under", required=True, type=owner_and_name),
    HOME,
    arg("--port N", "port of the API, if it has to be started too (8080)", type=port_number),
    arg(
        "--slots --concurrency N",
        "predictions that the server runs at once (concurrency.max of cog.yaml, else 1)",
        type=whole(),
    ),
    *OF_OWN,
    arg("--openai URL", "instead of a folder: a server that speaks as OpenAI's API, such as vLLM", default=""),
    arg(
        "--http URL",
        "instead of a folder: the address that takes an input by POST, or its path beside --command",
        default="",
    ),
    arg(
        "--command COMMAND",
        "start the server with this; {port} and $PORT are the port of the URL, or a free one",
        default="",
    ),
    arg(
        "--preset NAME",
        f"what kind of server it is, so that no --runner-config is needed: {', '.join(PRESETS)}",
        choices=PRESETS,
        default="",
    ),
    arg("--runner-config FILE", "how to drive a server that is not Cog's: .json, .toml or a JSON object", default=""),
    flag("--verbose", "show the logs of all parts that this starts"),
    examples=(
        "./painter --model acme/painter --watch",
        "--model acme/llm --openai http://127.0.0.1:8000",
        "--model acme/llm --command 'vllm serve Qwen/Qwen3-0.6B --port {port}'",
        "--model acme/words --http http://127.0.0.1:8000/count",
        "--model acme/words --preset litserve --command 'python server.py --port {port}'",
    ),
)
def _serve(given: argparse.Namespace) -> int:
    """Serve a model of yours: start its server and a director beside it, restart what dies, and show how to call it.
    The service is the `up` of the home. If none runs there, `serve` starts everything, as `director up --model` does.
    """
    from director.local.serve import own_folder, own_server, serve
    from director.local.up import Options

    if bool(given.folder) == bool(given.openai or given.http or given.command) or (given.openai and given.http):
        raise SettingsError("give one of FOLDER, --openai URL, --http URL and --command COMMAND.")
    if given.folder and (given.preset or given.runner_config):
        raise SettingsError("--preset and --runner-config are for servers other than Cog: leave FOLDER out, or them.")
    if given.folder:
        own = own_folder(given.model, given.folder, python=given.python, slots=given.slots)
        _say_what_is_unused(own)
    else:
        own = own_server(
            given.model,
            openai=given.openai,
            http=given.http,
            command=given.command,
            preset=given.preset,
            config=given.runner_config,
            slots=given.slots or 1,
        )
    options = Options(
        home=Path(given.home),
        has_examples=False,
        is_verbose=given.verbose,
        models=[own],
        python=given.python,
        is_watched=given.watch,
    )
    return serve(options, say, port=given.port)


def _say_what_is_unused(own: "Model") -> None:
    for note in own.folder.said.notes if own.folder is not None else ():
        say(f"{own.name}: {note}")


@command(
    "schema",
    arg("folder FOLDER", "folder with the model's predict.py or cog.yaml", type=Path),
    OF_OWN[0],
    examples=("./painter", "./painter > openapi_schema.json"),
)
def _schema(given: argparse.Namespace) -> int:
    """Print the schema of a Cog model, as Cog's inspector finds it in the model's own Python. Nothing is written."""
    from director.local.launcher.folder import find_folder, make_schema

    sys.stdout.write(make_schema(find_folder(given.folder, given.python)).decode())
    return 0


@command("down", HOME, examples=("",))
def _down(given: argparse.Namespace) -> int:
    from director.local.home import Home
    from director.local.up import down

    print("stopped" if down(Home(Path(given.home))) else f"nothing runs in {given.home}")
    return 0


@command(
    "api",
    REDIS,
    arg("--host", "address to listen on"),
    arg("--port", "port to listen on", type=port_number),
    settings="ApiSettings",
    examples=("--port 8080",),
)
def _api(given: argparse.Namespace) -> int:
    hold_sigterm()
    raise_descriptor_limit()
    _become_api("", given)


def _become_api(module: str, given: argparse.Namespace) -> NoReturn:
    """Become a process of `api` instead of importing it: `director` must not import `api`."""
    asked = {"HOST": given.host, "PORT": given.port, "REDIS_URL": given.redis_url}
    env = {f"DIRECTOR_{name}": str(value) for name, value in asked.items() if value is not None}
    command = [sys.executable, "-P", "-m", "director.runtime.own_api", *filter(None, [module])]
    os.execve(sys.executable, command, dict(os.environ) | env)  # noqa: S606


@command(
    "run",
    REDIS,
    arg("--home DIR", "take Redis, files and webhook rules from the `up` of this folder", type=Path),
    arg("--config FILE", "many models: a TOML file with a [[model]] table each", type=Path),
    *OF_ONE_MODEL,
    settings="DirectorSettings",
    examples=(
        "--model acme/painter --server http://127.0.0.1:5000",
        "--model acme/painter --server http://127.0.0.1:5000 --also acme/painter:0123456789ab",
        "--config pool.toml",
    ),
)
def _run(given: argparse.Namespace) -> int:
    hold_sigterm()
    from director.core.pool_file import read_pool
    from director.execution.main import Sharing, serve

    said = {each.dest: getattr(given, each.dest) for each in OF_ONE_MODEL}
    beside: dict[str, object] = {} if given.home is None else _beside(given.home)
    beside |= {"redis_url": given.redis_url} if given.redis_url else {}
    if given.config is None:
        settings = load(DirectorSettings, None, **beside, **said)
        models: Sequence[DirectorSettings] = ()
        sharing = None
    else:
        for each in OF_ONE_MODEL:
            if said[each.dest] is not None:
                raise SettingsError(f"{each.names[0]} is of one model: with --config it stands in a table.")
        settings = load(DirectorSettings, None, **beside)
        pool = read_pool(given.config, settings)
        models = [table.settings for table in pool.tables]
        sharing = Sharing.of(given.config, pool, settings)
    raise_descriptor_limit()
    serve(settings, models, sharing)
    return 0


def _beside(folder: Path) -> dict[str, object]:
    """Return the settings that a director shares with the `up` of this folder. Raises Nowhere."""
    home = Home(folder)
    state = home.read()
    if not state.redis_url:
        raise Nowhere(f"{folder} is not the home of a `director up`: it has no up.json. Start one there first.")
    files = {"files_dir": state.files_dir or str(home.files)}
    return {"redis_url": state.redis_url, "webhook_allow": state.webhook_allow or "loopback", **files}


@command(
    "keeper",
    REDIS,
    arg("--host", "address of /livez and /readyz"),
    arg("--port", "port of /livez and /readyz", type=port_number),
    settings="KeeperSettings",
    examples=("--port 9090",),
)
def _keeper(given: argparse.Namespace) -> int:
    hold_sigterm()
    settings = load(KeeperSettings, redis_url=given.redis_url, host=given.host, port=given.port)
    raise_descriptor_limit()
    if settings.openai:  # batches create predictions, as the API does
        _become_api("keeper", given)
    from director.keeper.keeper import serve

    serve(settings)
    return 0


@command(
    "audit",
    *REDIS_OR_SERVICE,
    arg("--to FILE|URL", "append lines of JSON to a file, or send signed batches", dest="audit_to"),
    arg("--name NAME", "name of the receiver's cursors (made from its URL)", dest="audit_name"),
    flag("--once", "copy what there is now, then end", default=None, dest="audit_once"),
    settings="AuditSettings",
    examples=("--to /var/log/director/audit.jsonl",),
)
def _audit(given: argparse.Namespace) -> int:
    """Copy the steps of all predictions to a file or a receiver. A file is filled through the API. Redis keeps the
    cursors of a URL, so that needs --redis or DIRECTOR_REDIS_URL.
    """
    from director.operate.audit.feeder import is_url, serve

    asked = {name: getattr(given, name) for name in ("audit_to", "audit_name", "audit_once")}
    settings = load(AuditSettings, redis_url=given.redis or None, **asked)
    chosen, source = _find_service(given), None
    if chosen is not None and settings.audit_to:
        if not is_url(settings.audit_to):
            from director.cli.live import reading_steps

            source = reading_steps(chosen)
        elif given.url or given.token or given.context:
            raise SettingsError("Redis keeps the cursors of a URL: say with --redis where it is, or give a file.")
    serve(settings, source)
    return 0


def _find_service(given: argparse.Namespace) -> "Service | None":
    """Return the API to ask, or None if none is known: then the settings say where Redis is."""
    from director.cli.operators import choose_service

    try:
        return choose_service(given)
    except Nowhere:
        if given.url or given.token or given.context:
            raise
        return None
