"""Read the file of sites: which Redis servers the API serves together, and in which order they get new work. The first
is the home: the server and the files of the environment. Other addresses contain secrets, so the file names their
environment variables. Every error says where in the file it is.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from director.core.errors import SettingsError
from director.core.ids import MODEL_NAME
from director.core.pool_file import read_toml
from director.core.settings import ApiSettings, mistake

Placement = Literal["random", "least-wait"]
UNKNOWN_MS: Final = 1_000.0  # for a model without finished runs: then the shorter queue decides


class QueueReport(Struct, frozen=True, kw_only=True):
    """A queue's latest report. `service_ms`: time of one run, 0 while unknown. `starts`: the queue is not held back."""

    waiting: int
    running: int
    slots: int
    service_ms: float
    starts: bool


class Candidate(Struct, frozen=True, kw_only=True):
    """A site that could take the work. `since`: predictions placed there since the report."""

    name: str
    weight: float
    report: QueueReport
    since: int = 0

    @property
    def wait_ms(self) -> float:
        queue = self.report
        if not queue.starts or not queue.slots:
            return math.inf
        ahead = queue.waiting + queue.running + self.since - queue.slots + 1
        return max(0, ahead) * (queue.service_ms or UNKNOWN_MS) / queue.slots


def in_order(candidates: Sequence[Candidate], placement: Placement, draw: Callable[[], float]) -> list[str]:
    """Return the names of all candidates, best first. The caller leaves out sites that are away, take nothing new, or
    lack the model. A stuck site is tried last and never left out: a pool scaled to zero starts because work waits.
    Equal waits are ordered at random, by weight: `draw` returns a new random number in [0, 1) per call.
    """
    lots = {each.name: -math.log(1 - draw()) / each.weight for each in candidates}
    waits = {each.name: each.wait_ms for each in candidates}

    def rank(name: str) -> tuple[float, float]:
        is_stuck = math.isinf(waits[name])
        return (waits[name] if placement == "least-wait" else float(is_stuck)), lots[name]

    return sorted(lots, key=rank)


Value = TypeVar("Value", bound=Hashable)
SITE_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"
# Nothing that could be an address, so that an error never shows a value with its password
VARIABLE: Final = r"^([A-Za-z_][A-Za-z0-9_]*)?$"


class SiteRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[site]]`. `number` is part of the ids that are made there, for ever."""

    name: Annotated[str, Meta(pattern=SITE_NAME)]
    number: Annotated[int, Meta(ge=0, le=63)]
    redis_url_env: Annotated[str, Meta(pattern=VARIABLE)] = ""
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1
    takes_new: bool = True
    files_dir: str = ""
    files_url: Annotated[str, Meta(pattern=r"^$|^s3://\S+$")] = ""


class SiteTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file. `models`: the sites that may take new runs of a model; any site for models not in it."""

    site: Annotated[tuple[SiteRow, ...], Meta(min_length=1, max_length=64)]
    placement: Placement = "least-wait"
    models: Mapping[Annotated[str, Meta(pattern=MODEL_NAME)], tuple[str, ...]] = {}

    def settings(self, base: ApiSettings, environ: Mapping[str, str]) -> list[ApiSettings]:
        """Return the settings of each site, in order. Raises SettingsError if a variable is not set."""
        others = {row.redis_url_env: _settings_of(row, base, environ) for row in self.site[1:]}
        addresses = [each.redis_url for each in others.values()]
        if same := [name for name, each in others.items() if each.redis_url in _twice(addresses)]:
            raise SettingsError(f"{same[0]} and {same[1]} have the address of one server.")
        return [base, *others.values()]


def read_sites(path: Path) -> SiteTable:
    try:
        table = msgspec.convert(read_toml(path), SiteTable)
    except msgspec.ValidationError as exc:
        place, reason = mistake(exc)
        raise SettingsError(f"{path}: {place + ': ' if place else ''}{reason}") from exc
    if wrong := _wrong(table):
        raise SettingsError(f"{path}: {wrong}.")
    return table


def _wrong(table: SiteTable) -> str:
    home, *others = table.site
    names = {row.name for row in table.site}
    for field in ("name", "number"):
        if twice := _twice(getattr(row, field) for row in table.site):
            return f"two sites have the {field} {twice[0]}"
    if home.redis_url_env or home.files_dir or home.files_url:
        return f"{home.name} is the first, and so the home: the server and the files of the environment"
    if nameless := [row.name for row in others if not row.redis_url_env]:
        return f"{nameless[0]} needs redis_url_env: the variable that has the address of its server"
    if twice := _twice(row.redis_url_env for row in others):
        return f"two sites have the address of {twice[0]}"
    # a keeper deletes from a store what its own server does not know
    if twice := _twice((row.files_dir, row.files_url) for row in others if row.files_dir or row.files_url):
        return f"two sites have the files {' '.join(filter(None, twice[0]))}"
    for model, sites in table.models.items():
        if not sites or set(sites) - names:
            return f"models: {model} names a site that is not there, or none"
    return ""


def _twice(values: Iterable[Value]) -> list[Value]:
    return [value for value, times in Counter(values).items() if times > 1]


def _settings_of(row: SiteRow, base: ApiSettings, environ: Mapping[str, str]) -> ApiSettings:
    url = environ.get(row.redis_url_env, "")
    if not url or url == base.redis_url:
        raise SettingsError(f"{row.redis_url_env}: expected the address of the Redis server of the site {row.name}.")
    mine, homes = (row.files_dir, row.files_url), (base.files_dir, base.files_url)
    if any(mine) and mine == homes:
        raise SettingsError(f"The site {row.name} has the files of the home: each needs its own.")
    return replace(base, redis_url=url, files_dir=row.files_dir, files_url=row.files_url)
