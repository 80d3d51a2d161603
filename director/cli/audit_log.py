"""`director audit`: carry what happens to every prediction to a file or a receiver, and go on from there next time."""

import argparse

from director.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Add the command of this file."""
    text = "carry what happens to every prediction into a file or to a receiver"
    audit = commands.add_parser("audit", help=text, description=f"{text[0].upper()}{text[1:]}.")
    audit.settings = "AuditSettings"
    audit.add_argument("--to", metavar="FILE|URL", help="lines of JSON are appended, or batches are sent, signed")
    audit.add_argument("--name", help="under which a receiver's cursors are kept, else one made of its URL")
    audit.add_argument("--once", action="store_true", default=None, help="what there is now, then end")
    audit.add_argument("--redis", metavar="URL", help="address of Redis or Valkey")
    audit.set_defaults(run=_audit)


def _audit(given: argparse.Namespace) -> int:
    from director.audit.feeder import serve
    from director.core.settings import AuditSettings, load

    settings = load(
        AuditSettings, redis_url=given.redis, audit_to=given.to, audit_name=given.name, audit_once=given.once
    )
    serve(settings)
    return 0
