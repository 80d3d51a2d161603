"""Commands that start processes: `up` and `down` on one machine; `api`, `run`, `keeper` and `audit` as in production.
Every setting is a DIRECTOR_ variable. Each process imports its own parts only when it starts, for less memory.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

from director.cli.arguments import EITHER, HOME, arg, command, flag, port_number
from director.cli.output import say
from director.core.errors import SettingsError
from director.core.runner_config import RunnerKind
from director.core.settings import AuditSettings, DirectorSettings, KeeperSettings, load
from director.runtime.startup import hold_sigterm, raise_descriptor_limit

REDIS: Final = arg("--redis URL", "address of Redis or Valkey", dest="redis_url")
OF_ONE_MODEL: Final = (
    arg("--model OWNER/NAME", "the model that the servers serve"),
    arg("--version ID", "its version id, 64 hex digits"),
    arg("--kind", "what to run (prediction)", choices=("prediction", "training", "procedure")),
    arg("--also QUEUE", "queue of an older version whose predictions they run too", action="append"),
    arg("--server URL", "a model server; give one for each GPU", action="append", dest="servers"),
    arg("--runner", "kind of the model servers (cog)", choices=get_args(RunnerKind)),
    arg("--runner-config FILE", "how to drive the model servers: .json or .toml, or a JSON object"),
    arg("--concurrency N", "predictions that one server runs at once", type=int, dest="concurrent_predictions"),
    arg("--batch-cost N", "highest total cost of what runs here at once", type=float),
    arg("--batch-size M", "most predictions that run here at once", type=int),
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
    examples=("", "--port 9000 --home /srv/director"),
)
def _up(given: argparse.Namespace) -> int:
    """Start Valkey, the API, the keeper and two example models with their directors, and show how to use them.
    All data stays in the home: the next `director up` continues where this one ended.
    """
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
    asked = {"HOST": given.host, "PORT": given.port, "REDIS_URL": given.redis_url}
    env = {f"DIRECTOR_{name}": str(value) for name, value in asked.items() if value is not None}
    # The command becomes the API's process instead of importing it: `director` must not import `api`.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "director.runtime.own_api"], dict(os.environ) | env)  # noqa: S606


@command(
    "run",
    REDIS,
    arg("--config FILE", "many models: a TOML file with a [[model]] table each", type=Path),
    *OF_ONE_MODEL,
    settings="DirectorSettings",
    examples=("--model acme/painter --server http://127.0.0.1:5000", "--config pool.toml"),
    epilog="Example: director run --model acme/painter --server http://127.0.0.1:5000 --also acme/painter:0123456789ab",
)
def _run(given: argparse.Namespace) -> int:
    hold_sigterm()
    from director.core.pool_file import read_pool
    from director.execution.main import serve

    said = {each.dest: getattr(given, each.dest) for each in OF_ONE_MODEL}
    if given.config is None:
        settings = load(DirectorSettings, redis_url=given.redis_url, **said)
        models: Sequence[DirectorSettings] = ()
    else:
        for each in OF_ONE_MODEL:
            if said[each.dest] is not None:
                raise SettingsError(f"{each.names[0]} is of one model: with --config it stands in a table.")
        settings = load(DirectorSettings, redis_url=given.redis_url)
        models = read_pool(given.config, settings)
    raise_descriptor_limit()
    serve(settings, models)
    return 0


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
    from director.keeper.keeper import serve

    settings = load(KeeperSettings, redis_url=given.redis_url, host=given.host, port=given.port)
    raise_descriptor_limit()
    serve(settings)
    return 0


@command(
    "audit",
    REDIS,
    arg("--to FILE|URL", "append lines of JSON to a file, or send signed batches", dest="audit_to"),
    arg("--name NAME", "name of the receiver's cursors (made from its URL)", dest="audit_name"),
    flag("--once", "copy what there is now, then end", default=None, dest="audit_once"),
    settings="AuditSettings",
    examples=("--to /var/log/director/audit.jsonl",),
)
def _audit(given: argparse.Namespace) -> int:
    from director.audit.feeder import serve

    asked = {name: getattr(given, name) for name in ("redis_url", "audit_to", "audit_name", "audit_once")}
    serve(load(AuditSettings, **asked))
    return 0
