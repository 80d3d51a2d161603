"""`director chaos`: break everything on this machine, and show that nothing accepted was lost."""

import argparse
from pathlib import Path

from director.cli.arguments import Commands

DESCRIPTION = """\
Start a whole service on this machine, let callers use it, and kill, freeze, cut and fill its parts meanwhile. Then mend
all, and let a checker say which promises were not kept: it sees only what callers, model servers and webhook receivers
wrote down, and Redis. Exit code 1 if any was broken. The same seed has the same faults."""
SUMMARY = "break everything, and check that nothing is lost"


def add(commands: Commands) -> None:
    """Add the command of this file."""
    chaos = commands.add_parser("chaos", help=SUMMARY, description=DESCRIPTION)
    chaos.add_argument("--seed", type=int, default=1, metavar="N", help="of load and faults (%(default)s)")
    chaos.add_argument("--seconds", type=float, default=60.0, metavar="S", help="length of the load (%(default)g)")
    chaos.add_argument("--lease", type=float, default=15.0, metavar="S", help="of a claim (%(default)g)")
    chaos.add_argument("--tenants", type=int, default=40, metavar="N", help="who ask (%(default)s)")
    chaos.add_argument(
        "--faketime", default="", metavar="FILE", help="libfaketime.so.1, which steps the server's clock (looked for)"
    )
    chaos.add_argument("--json", default="", metavar="FILE", help="write the report there")
    chaos.add_argument("--home", default="", metavar="DIR", help="a new folder for data, journals and logs")
    chaos.add_argument("--keep", action="store_true", help="keep that folder after a run that kept every promise too")
    chaos.set_defaults(run=_chaos)


def _chaos(given: argparse.Namespace) -> int:
    import msgspec

    from director.chaos.checker import text
    from director.chaos.run import Options, chaos

    options = Options(
        seed=given.seed,
        seconds=given.seconds,
        lease_s=given.lease,
        tenants=given.tenants,
        home=Path(given.home) if given.home else None,
        is_kept=given.keep,
        faketime=given.faketime,
    )
    report = chaos(options, lambda line: print(line, flush=True))
    print(text(report))
    if given.json:
        Path(given.json).write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0 if report.ok else 1
