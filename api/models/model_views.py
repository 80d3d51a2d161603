"""Show models and versions as official clients know them, with every field that those require.

A model is shown with its latest version's schema and an example, so their sizes are read before a list of them is.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, Literal

from msgspec import Raw, Struct

from api.request import Request
from api.response import PAGE_SIZE, Cursor, base_url, slice_of
from api.services import Services
from director.core.schema import SetupRun
from director.core.view import iso
from director.store.catalog import Version
from director.store.models import Model

HEAVY_BYTES: Final = 4 << 20  # of one response


class VersionView(Struct, frozen=True):
    """A version on the wire. Official clients need all four, none of them null."""

    id: str
    created_at: str
    cog_version: str
    openapi_schema: Raw


class SetupRunView(Struct, frozen=True, kw_only=True):
    """How the last setup of a version went, without the server's address, which is private."""

    status: Literal["succeeded", "failed"]
    started_at: str | None
    completed_at: str | None
    logs: str


class WholeVersionView(VersionView, frozen=True):
    """A version by itself. `setup_run` is null until a server told of one."""

    setup_run: SetupRunView | None


class ModelView(Struct, frozen=True, kw_only=True):
    """A model on the wire. Official clients take null where it may be null here, and nowhere else."""

    url: str
    owner: str
    name: str
    created_at: str
    description: str | None
    visibility: str
    is_official: bool
    github_url: str | None
    paper_url: str | None
    license_url: str | None
    run_count: int
    cover_image_url: str | None
    default_example: Raw | None
    latest_version: VersionView | None


def shown_version(version: Version) -> VersionView:
    return VersionView(version.id, iso(version.created_ms), version.server, version.schema)


def whole_version(version: Version, setup: SetupRun | None) -> WholeVersionView:
    shown = None if setup is None else _shown_setup(setup)
    return WholeVersionView(version.id, iso(version.created_ms), version.server, version.schema, shown)


def _shown_setup(setup: SetupRun) -> SetupRunView:
    return SetupRunView(
        status=setup.status, started_at=setup.started_at, completed_at=setup.completed_at, logs=setup.logs
    )


async def fitting(request: Request, models: Sequence[Model]) -> Sequence[Model]:
    """Return the first models, as many as one response may hold, at least one."""
    catalog = request.services.catalog
    schemas = await catalog.schema_bytes([(model.name, model.latest) for model in models])
    examples = await catalog.models.example_bytes(models)
    return models[: _how_many_fit(map(sum, zip(schemas, examples, strict=True)))]


async def fitting_slice(
    marks: Sequence[str], cursor: Cursor | None, weigh: Callable[[Sequence[str]], Awaitable[Sequence[int]]]
) -> tuple[Sequence[str], Cursor | None, Cursor | None]:
    """Do as `slice_of` does, with no more than one response may hold. The one next to the cursor is always included."""
    page, *_ = slice_of(marks, cursor)
    weights = await weigh(page)
    is_backwards = cursor is not None and cursor.backwards
    return slice_of(marks, cursor, most=_how_many_fit(reversed(weights) if is_backwards else weights))


def _how_many_fit(weights: Iterable[int]) -> int:
    """Return how many of the first things with these weights one response may hold, at least one."""
    heavier = (place for place, so_far in enumerate(accumulate(weights)) if so_far > HEAVY_BYTES)
    return max(next(heavier, PAGE_SIZE), 1)


async def shown_models(request: Request, models: Sequence[Model]) -> list[ModelView]:
    """Return the views of these models, with what is read of them now."""
    services, base = request.services, base_url(request)
    versions = await services.catalog.each_version([(model.name, model.latest) for model in models])
    examples = await services.catalog.models.default_examples(models)
    runs = await _runs(services, models)
    return [_shown(*each, base=base) for each in zip(models, versions, examples, runs, strict=True)]


def _shown(model: Model, latest: Version | None, example: Raw | None, runs: int, *, base: str) -> ModelView:
    owner, _, name = model.name.partition("/")
    return ModelView(
        url=f"{base}/{model.name}",
        owner=owner,
        name=name,
        created_at=iso(model.created_ms),
        description=model.description or None,
        visibility=model.visibility,
        is_official=model.is_official,
        github_url=model.github_url or None,
        paper_url=model.paper_url or None,
        license_url=model.license_url or None,
        run_count=runs,
        cover_image_url=model.cover_image_url or None,
        default_example=example,
        latest_version=None if latest is None else shown_version(latest),
    )


async def _runs(services: Services, models: Sequence[Model]) -> list[int]:
    """Return how many predictions of each model were ever accepted."""
    queues = [await services.lookups.queues_of(model.name) for model in models]
    counts = iter(await services.catalog.runs([queue for of_model in queues for queue in of_model]))
    return [
        model.former_runs + sum(next(counts) for _ in of_model) for model, of_model in zip(models, queues, strict=True)
    ]
