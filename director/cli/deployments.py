"""Commands for releases of deployments, through the API: `director deploy`, `promote`, `rollback`, `deployments`."""

import argparse
import re
from collections.abc import Iterator
from typing import Final

from msgspec import Raw, Struct

from director.cli.arguments import JSON, SERVICE, arg, command, flag, owner_and_name, whole
from director.cli.client import Client, Missing, name_service, read, service
from director.cli.tables import Answer, tabulate
from director.core.errors import SettingsError
from director.core.ids import VERSION_DIGITS, VERSION_ID
from director.core.split import LEAST_RUNS, MARGIN, MOST_RUNS, MOST_SHARE
from director.core.words import span

NAME: Final = arg("of OWNER/NAME", "the deployment: its account and its name", type=owner_and_name)
START_OF_VERSION: Final = r"[0-9a-f]{8,64}"
NEW: Final = {"hardware": "cpu", "min_instances": 0, "max_instances": 1}  # of a deployment that this command makes


class Trial(Struct, frozen=True):
    version: str
    share: int
    since: str
    margin: int
    least: int
    stopped_why: str = ""


class Side(Struct, frozen=True):
    version: str
    share: int
    succeeded: int
    failed: int
    failure_rate: float | None
    p50_s: float | None


class Release(Struct, frozen=True):
    number: int
    model: str
    version: str


class Deployment(Struct, frozen=True):
    owner: str
    name: str
    current_release: Release
    split: Trial | None = None


class Rollout(Struct, frozen=True):
    deployment: str
    model: str
    current: Side
    tried: Side | None = None
    split: Trial | None = None
    former: str = ""


@command(
    "deploy",
    JSON,
    *SERVICE,
    NAME,
    arg("--version ID", "the version: its 64 hex digits, or the first 8 or more of them", required=True),
    arg("--share PERCENT", "only this share of the calls runs it; the others stay as they are", type=whole(MOST_SHARE)),
    arg(
        "--margin POINTS",
        f"stop it when its failure rate exceeds the old one's by more percentage points than this ({MARGIN})",
        type=whole(100, least=0),
    ),
    arg("--least RUNS", f"ended runs of it before it is judged ({LEAST_RUNS})", type=whole(MOST_RUNS)),
    flag("--force", "also if no server of the version is ready"),
    arg("--model OWNER/NAME", "make the deployment, of this model, if it is missing", type=owner_and_name),
    examples=(
        "acme/chat --model acme/llm --version 5c7d5dc6dd8b",
        "acme/chat --version 9a1f9a1f9a1f --share 10",
        "acme/chat --version 9a1f9a1f9a1f",
    ),
)
def _deploy(given: argparse.Namespace) -> int:
    """Give a deployment a version. With --share only that share of its calls runs it, and a keeper stops it when it
    fails more often than the version before. Without it all calls run the version, as after `director promote`.
    """
    if not given.share and (given.margin is not None or given.least or given.force):
        raise SettingsError("--margin, --least and --force go with --share.")
    with _changing(given) as client:
        try:
            model = _read_deployed(client.deployment(given.of)).current_release.model
        except Missing:
            if not given.model:
                raise
            return _print_deployed(_make(client, given), given)
        if given.model not in (None, model):
            raise SettingsError(f"{given.of} is a deployment of {model}: give its --model, or none.")
        version = _find_version(client, model, given.version)
        if not given.share:
            return _print_deployed(client.deployment(given.of, body={"version": version}, method="PATCH"), given)
        asked = {"share": given.share, "margin": given.margin, "least": given.least, "force": given.force}
        body = {
            "version": version,
            **{name: value for name, value in asked.items() if value is not None and value is not False},
        }
        return _print_rollout(client.deployment(given.of, "/split", body, method="POST"), given)


def _changing(given: argparse.Namespace) -> Client:
    chosen = service(given)
    name_service(chosen)
    return Client(chosen)


def _make(client: Client, given: argparse.Namespace) -> Raw:
    """Make the deployment. It belongs to the account of the token."""
    if given.share:
        raise SettingsError(f"there is no deployment {given.of} yet: make it first, without --share.")
    owner, name = given.of.split("/")
    account = client.account()
    if account != owner:
        raise SettingsError(f"this token makes deployments of {account}: call it {account}/{name}.")
    version = _find_version(client, given.model, given.version)
    return client.create_deployment({"name": name, "model": given.model, "version": version, **NEW})


def _find_version(client: Client, model: str, text: str) -> str:
    """Return the version that begins with these digits. Raises SettingsError unless it is one."""
    if re.fullmatch(VERSION_ID, text):
        return text
    if not re.fullmatch(START_OF_VERSION, text):
        raise SettingsError(f"{text!r} is not a version: give its 64 hex digits, or at least the first 8.")
    found = [one for one in client.versions(model) if one.startswith(text)]
    if len(found) != 1:
        number = f"{len(found)} versions begin" if found else "no version begins"
        raise SettingsError(f"{number} with {text} in {model}: GET /v1/models/{model}/versions lists them.")
    return found[0]


@command("promote", JSON, *SERVICE, NAME, examples=("acme/chat",))
def _promote(given: argparse.Namespace) -> int:
    """Give all calls of a deployment to the version that it tries. `director rollback` brings the one before back."""
    with _changing(given) as client:
        return _print_deployed(client.deployment(given.of, "/promote", method="POST"), given)


@command("rollback", JSON, *SERVICE, NAME, examples=("acme/chat",))
def _rollback(given: argparse.Namespace) -> int:
    """Withdraw the version that a deployment tries. If it tries none, the version before the last change is released
    again. What waits already keeps its version.
    """
    with _changing(given) as client:
        return _print_deployed(client.deployment(given.of, "/rollback", method="POST"), given)


@command("deployments list", JSON, *SERVICE, examples=("",))
@command("deployments", JSON, *SERVICE, examples=("",))
def _list(given: argparse.Namespace) -> int:
    """List the deployments of this token's account, newest first."""
    with Client(service(given)) as client:
        found = list(client.deployments())

    def text() -> str:
        rows = []
        for one in map(_read_deployed, found):
            release, split = one.current_release, one.split
            tried = "" if split is None else f"{split.version[:VERSION_DIGITS]}, {_share(split)}"
            rows.append(
                [f"{one.owner}/{one.name}", release.model, release.version[:VERSION_DIGITS], str(release.number), tried]
            )
        names = ("deployment", "model", "version", "release", "tries")
        empty = "no deployments: `director deploy OWNER/NAME --model MODEL --version ID` makes one"
        return tabulate(names, rows, words=("deployment", "model", "version", "tries"), empty=empty)

    return Answer(found, text).show(is_json=given.json)


@command("deployments show", JSON, *SERVICE, NAME, examples=("acme/chat",))
def _show(given: argparse.Namespace) -> int:
    """Show the versions of a deployment, their shares of its calls, and how their runs ended since the split began."""
    with Client(service(given)) as client:
        return _print_rollout(client.deployment(given.of, "/split"), given)


def _share(split: Trial) -> str:
    return "stopped" if split.stopped_why else f"{split.share} %"


def _read_deployed(body: Raw) -> Deployment:
    return read(body, Deployment)


def _print_deployed(body: Raw, given: argparse.Namespace) -> int:
    def text() -> str:
        one = _read_deployed(body)
        now, split = one.current_release, one.split
        share = "all" if split is None else f"{100 - split.share} % of the"
        version = f"{now.model}:{now.version[:VERSION_DIGITS]}"
        line = f"{one.owner}/{one.name}: {share} calls run {version} (release {now.number})"
        return line if split is None else f"{line}, and {split.share} % try {split.version[:VERSION_DIGITS]}"

    return Answer(body, text).show(is_json=given.json)


def _print_rollout(body: Raw, given: argparse.Namespace) -> int:
    return Answer(body, lambda: "\n".join(_rollout_lines(read(body, Rollout)))).show(is_json=given.json)


def _rollout_lines(one: Rollout) -> Iterator[str]:
    split, tried = one.split, one.tried
    if split is None or tried is None:
        yield f"{one.deployment}: all calls run {one.model}:{one.current.version[:VERSION_DIGITS]}"
        if one.former:
            yield f"`director rollback {one.deployment}` brings {one.former[:VERSION_DIGITS]} back"
        return
    rows = [_row(one.current, "now"), _row(tried, "stopped" if split.stopped_why else "tried")]
    columns = ("version", "", "share", "ended", "failed", "rate", "p50")
    yield f"{one.deployment} of {one.model}, since {split.since}:"
    yield tabulate(columns, rows, words=("version", ""), empty="")
    if split.stopped_why:
        yield f"stopped: {split.stopped_why}"
        yield f"`director rollback {one.deployment}` ends it, `director promote {one.deployment}` releases it anyway"
    else:
        yield (
            f"A keeper stops it above {split.margin} percentage points more failures, from {split.least:,} ended runs "
            f"on. `director promote {one.deployment}` or `director rollback {one.deployment}`"
        )


def _row(side: Side, what: str) -> list[str]:
    rate = "-" if side.failure_rate is None else f"{side.failure_rate * 100:.1f} %"
    p50 = "-" if side.p50_s is None else span(side.p50_s)
    ended = side.succeeded + side.failed
    return [side.version[:VERSION_DIGITS], what, f"{side.share} %", f"{ended:,}", f"{side.failed:,}", rate, p50]
