"""`director api`, `director run` and `director keeper`: one process each, as they run in production.

Every setting is a DIRECTOR_ variable; the options here are the few that one types by hand, and win over them.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from director.cli.arguments import CommandParser, Commands, port_number
from director.core.errors import SettingsError
from director.runtime.startup import hold_sigterm, raise_descriptor_limit

OF_ONE_MODEL: Final = (
    *("model", "version", "kind", "also", "server", "runner", "runner_config", "concurrency"),
    *("batch_cost", "batch_size"),
)


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    api = _serving(commands, "api", "serve the HTTP API", "ApiSettings")
    api.add_argument("--host", help="address to listen on")
    api.add_argument("--port", type=port_number, help="port to listen on")
    api.set_defaults(run=_api)

    run = _serving(commands, "run", "run predictions of one model, or several, on model servers", "DirectorSettings")
    run.add_argument("--config", metavar="FILE", type=Path, help="many models: a [[model]] table in TOML for each")
    run.add_argument("--model", metavar="OWNER/NAME", help="the model that the servers serve")
    run.add_argument("--version", metavar="ID", help="its version id, 64 hex digits")
    run.add_argument("--kind", choices=("prediction", "training", "procedure"), help="what it runs (prediction)")
    run.add_argument(
        "--also", action="append", metavar="QUEUE", help="an older version's queue, whose work they run too"
    )
    run.add_argument("--server", action="append", metavar="URL", help="a model server; once for each GPU")
    run.add_argument("--runner", choices=("cog", "http", "polling", "openai"), help="what the servers are (cog)")
    run.add_argument("--runner-config", metavar="FILE", help="how they are driven: .json or .toml, or a JSON object")
    run.add_argument("--concurrency", type=int, metavar="N", help="predictions one server runs at once")
    run.add_argument("--batch-cost", type=float, metavar="N", help="most that all running here may cost together")
    run.add_argument("--batch-size", type=int, metavar="M", help="most that run here at once")
    run.epilog = (
        "Example: director run --model acme/painter --server http://127.0.0.1:5000 --also acme/painter:0123456789ab"
    )
    run.set_defaults(run=_run)

    keeper = _serving(commands, "keeper", "look after queues that nobody holds", "KeeperSettings")
    keeper.add_argument("--host", help="address of /livez and /readyz")
    keeper.add_argument("--port", type=port_number, help="port of /livez and /readyz")
    keeper.set_defaults(run=_keeper)


def _serving(commands: Commands, name: str, text: str, settings: str) -> CommandParser:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.settings = settings
    parser.add_argument("--redis", metavar="URL", help="address of Redis or Valkey")
    return parser


def _api(given: argparse.Namespace) -> int:
    hold_sigterm()
    raise_descriptor_limit()
    asked = {"HOST": given.host, "PORT": given.port, "REDIS_URL": given.redis}
    env = {f"DIRECTOR_{name}": str(value) for name, value in asked.items() if value is not None}
    # becomes that process rather than importing it: the engine room and the front door share nothing but the core.
    # -P: the folder that this is called in is not a place to import from; it may well hold an `api` of its own
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
