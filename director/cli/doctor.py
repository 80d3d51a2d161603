"""`director doctor`: is the server good enough, and is anything left lying? One line each, with its mend."""

import argparse
from typing import TYPE_CHECKING

from director.cli.arguments import Commands, add_json, add_redis
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.core.settings import CommonSettings
    from director.diagnosis.doctor import Finding


def add(commands: Commands) -> None:
    """Add the commands of this file."""
    doctor = commands.add_parser(
        "doctor",
        help="check the server and the service, with the mend of what is wrong",
        description="Check the server and the service round it. Exit code 1 where anything fails.",
    )
    doctor.settings = "CommonSettings"
    add_json(doctor)
    add_redis(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    import anyio

    from director.cli.output import folded, line_width
    from director.cli.where import redis_url
    from director.core.settings import CommonSettings, load
    from director.diagnosis.doctor import has_failed

    settings = load(CommonSettings, redis_url=redis_url(given))
    findings = anyio.run(_examine, settings)
    if given.json:
        print_json({"ok": not has_failed(findings), "checks": findings})
    else:
        width = max(len(finding.check) for finding in findings)
        lines = []
        for finding in findings:
            lines.append(f"{finding.verdict:4}  {finding.check:{width}}  {finding.found}")
            if finding.fix:
                lines.append(f"{'':{width + 8}}→ {finding.fix}")
        print(folded(lines, hang=width + 8, width=line_width()))
    return int(has_failed(findings))


async def _examine(settings: "CommonSettings") -> "list[Finding]":
    from director.broker.redis_client import client, describe
    from director.core.clock import SystemClock
    from director.core.errors import BackendUnavailable
    from director.diagnosis.doctor import Finding, examine
    from director.diagnosis.doctor_look import look

    redis = client(settings.redis_url, name="director-doctor")
    try:
        return examine(await look(redis, settings, SystemClock()))
    except BackendUnavailable as exc:
        found = f"nothing can be asked at {describe(settings.redis_url)}: {exc}"
        fix = "start the server, or correct --redis or DIRECTOR_REDIS_URL, its user and its password"
        return [Finding(check="reachable", verdict="fail", found=found, fix=fix)]
    finally:
        await redis.aclose()
