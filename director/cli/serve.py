"""Commands that start processes: `up` and `down` on one machine; `api`, `run`, `keeper` and `audit` as in production.

Every setting is a DIRECTOR_ variable. The few options here override them.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from director.cli.arguments import CommandParser, Commands, add_home, port_number, sentence
from director.cli.output import say
from director.core.errors import SettingsError
from director.runtime.startup import hold_sigterm, raise_descriptor_limit

OF_ONE_MODEL: Final = (
    *("model", "version", "kind", "also", "server", "runner", "runner_config", "concurrency"),
    *("batch_cost", "batch_size"),
)
UP: Final = """\
Start Valkey, the API, the keeper and two example models with their directors, and show how to use them.
All data stays in the home: the next `director up` continues where this one ended."""


def add(commands: Commands) -> None:
    _add_local(commands)
    api = _serving(commands, "api", "serve the HTTP API", "ApiSettings", "director api --port 8080")
    api.add_argument("--host", help="address to listen on")
    api.add_argument("--port", type=port_number, help="port to listen on")
    api.set_defaults(run=_api)

    run = _serving(
        commands,
        "run",
        "run predictions of one or more models on model servers",
        "DirectorSettings",
        "director run --model acme/painter --server http://127.0.0.1:5000",
        "director run --config pool.toml",
    )
    run.add_argument("--config", metavar="FILE", type=Path, help="many models: a TOML file with a [[model]] table each")
    run.add_argument("--model", metavar="OWNER/NAME", help="the model that the servers serve")
    run.add_argument("--version", metavar="ID", help="its version id, 64 hex digits")
    run.add_argument("--kind", choices=("prediction", "training", "procedure"), help="what to run (prediction)")
    run.add_argument(
        "--also", action="append", metavar="QUEUE", help="queue of an older version whose predictions they run too"
    )
    run.add_argument("--server", action="append", metavar="URL", help="a model server; give one for each GPU")
    run.add_argument("--runner", choices=("cog", "http", "polling", "openai"), help="kind of the model servers (cog)")
    run.add_argument(
        "--runner-config", metavar="FILE", help="how to drive the model servers: .json or .toml, or a JSON object"
    )
    run.add_argument("--concurrency", type=int, metavar="N", help="predictions that one server runs at once")
    run.add_argument("--batch-cost", type=float, metavar="N", help="highest total cost of what runs here at once")
    run.add_argument("--batch-size", type=int, metavar="M", help="most predictions that run here at once")
    run.epilog = (
        "Example: director run --model acme/painter --server http://127.0.0.1:5000 --also acme/painter:0123456789ab"
    )
    run.set_defaults(run=_run)

    keeper = _serving(
        commands,
        "keeper",
        "recover claims of lost directors, deliver webhooks, and keep all queues in order",
        "KeeperSettings",
        "director keeper --port 9090",
    )
    keeper.add_argument("--host", help="address of /livez and /readyz")
    keeper.add_argument("--port", type=port_number, help="port of /livez and /readyz")
    keeper.set_defaults(run=_keeper)

    audit = _serving(
        commands,
        "audit",
        "copy the steps of all predictions to a file or a receiver",
        "AuditSettings",
        "director audit --to /var/log/director/audit.jsonl",
    )
    audit.add_argument("--to", metavar="FILE|URL", help="append lines of JSON to a file, or send signed batches")
    audit.add_argument("--name", help="name of the receiver's cursors (made from its URL)")
    audit.add_argument("--once", action="store_true", default=None, help="copy what there is now, then end")
    audit.set_defaults(run=_audit)


def _add_local(commands: Commands) -> None:
    up = commands.add_parser(
        "up",
        help="start everything on this machine, until Ctrl-C",
        description=UP,
        examples=("director up", "director up --port 9000 --home /srv/director"),
    )
    up.add_argument("--host", default="127.0.0.1", help="address the API listens on (%(default)s)")
    up.add_argument("--port", type=port_number, default=8080, help="port the API listens on; 0: any free (%(default)s)")
    add_home(up)
    up.add_argument("--no-example", action="store_true", help="do not serve the example models")
    backend = up.add_mutually_exclusive_group()
    backend.add_argument("--redis", metavar="URL", default="", help="use this running server instead of starting one")
    backend.add_argument(
        "--redis-server", metavar="PROGRAM", default="", help="start this redis-server or valkey-server instead"
    )
    up.add_argument("--verbose", action="store_true", help="show the logs of all parts")
    up.set_defaults(run=_up)

    down = commands.add_parser(
        "down",
        help="stop a `director up`, and processes that one left behind",
        description="Stop a `director up`, and processes that one left behind.",
        examples=("director down",),
    )
    add_home(down)
    down.set_defaults(run=_down)


def _serving(commands: Commands, name: str, text: str, settings: str, *examples: str) -> CommandParser:
    parser = commands.add_parser(name, help=text, description=sentence(text), settings=settings, examples=examples)
    parser.add_argument("--redis", metavar="URL", help="address of Redis or Valkey")
    return parser


def _up(given: argparse.Namespace) -> int:
    from director.local.up import Options, up

    options = Options(
        host=given.host,
        port=given.port,
        home=Path(given.home),
        has_examples=not given.no_example,
        redis_url=given.redis,
        redis_server=given.redis_server,
        is_verbose=given.verbose,
    )
    return up(options, say)


def _down(given: argparse.Namespace) -> int:
    from director.local.home import Home
    from director.local.up import down

    print("stopped" if down(Home(Path(given.home))) else f"nothing runs in {given.home}")
    return 0


def _api(given: argparse.Namespace) -> int:
    hold_sigterm()
    raise_descriptor_limit()
    asked = {"HOST": given.host, "PORT": given.port, "REDIS_URL": given.redis}
    env = {f"DIRECTOR_{name}": str(value) for name, value in asked.items() if value is not None}
    # The command becomes the API's process instead of importing it: `director` must not import `api`. With -P, Python
    # imports nothing from the current folder, which may contain another `api`.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "api"], dict(os.environ) | env)  # noqa: S606


def _run(given: argparse.Namespace) -> int:
    hold_sigterm()
    from director.core.settings import DirectorSettings, load
    from director.execution.main import serve

    if given.config is not None:
        return _pool(given)
    settings = load(
        DirectorSettings,
        redis_url=given.redis,
        model=given.model,
        version=given.version,
        kind=given.kind,
        also=given.also,
        servers=given.server,
        runner=given.runner,
        runner_config=given.runner_config,
        concurrent_predictions=given.concurrency,
        batch_cost=given.batch_cost,
        batch_size=given.batch_size,
    )
    raise_descriptor_limit()
    serve(settings)
    return 0


def _pool(given: argparse.Namespace) -> int:
    from director.core.pool_file import read_pool
    from director.core.settings import DirectorSettings, load
    from director.execution.main import serve

    for name in OF_ONE_MODEL:
        if getattr(given, name) is not None:
            option = name.replace("_", "-")
            raise SettingsError(f"--{option} is of one model: with --config it stands in a table.")
    settings = load(DirectorSettings, redis_url=given.redis)
    models = read_pool(given.config, settings)
    raise_descriptor_limit()
    serve(settings, models)
    return 0


def _keeper(given: argparse.Namespace) -> int:
    hold_sigterm()
    from director.core.settings import KeeperSettings, load
    from director.keeper.keeper import serve

    settings = load(KeeperSettings, redis_url=given.redis, host=given.host, port=given.port)
    raise_descriptor_limit()
    serve(settings)
    return 0


def _audit(given: argparse.Namespace) -> int:
    from director.audit.feeder import serve
    from director.core.settings import AuditSettings, load

    settings = load(
        AuditSettings, redis_url=given.redis, audit_to=given.to, audit_name=given.name, audit_once=given.once
    )
    serve(settings)
    return 0
