"""List, create, show, change and delete models, and list, show and delete their versions. Another account's private
model answers 404, and one that the caller may see and not change answers 403.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta, Raw, Struct, convert
from msgspec.structs import asdict
from starlette.responses import Response

from api.accounts.limits import retain, uncount
from api.predictions.bodies import parse_model
from api.services.lookups import VersionRef
from api.services.services import Services
from api.sites.sites import no_version
from api.web.errors import InvalidField, forbidden, in_use, invalid_input, model_exists, not_found
from api.web.http import (
    PAGE_SIZE,
    Cursor,
    Members,
    Request,
    answer_page,
    base_url,
    cursor_of,
    json_response,
    page_response,
    read_body,
    slice_of,
)
from api.web.route import CURSOR, NO_BODY, TEXT, Answer, Body, Parameter, deletes, one_of, reads, stores
from director.core.data_bytes import ENTRY_BYTES
from director.core.data_uri import MOST_PICTURE, is_picture
from director.core.ids import MODEL_NAME, VERSION_ID
from director.core.schema import Page
from director.core.view import iso
from director.store.accounts import Account
from director.store.catalog import Version
from director.store.models import Model, Order, Visibility, count_bytes

# A model is shown with its latest version's schema and an example: their sizes are read before a list of them is.
HEAVY_BYTES: Final = 4 << 20  # of one response

COG_VERSION: Final = re.compile(r"cog(?:let)? (\d\S*)")


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
    """A version by itself. `setup_run` is null until a server reports a setup."""

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


def show_version(version: Version) -> VersionView:
    return VersionView(version.id, iso(version.created_ms), cog_version(version.server), version.schema)


def cog_version(server: str) -> str:
    """Return the number alone, as Replicate shows it: older official clients compare it. Else the kind of server."""
    found = COG_VERSION.match(server)
    return found[1] if found else server


async def fitting(request: Request, models: Sequence[Model]) -> Sequence[Model]:
    catalog = request.services.catalog
    schemas = await catalog.schema_bytes([(model.name, model.latest) for model in models])
    examples = await catalog.models.example_bytes(models)
    pictures = [len(model.cover_image_url) for model in models]
    return models[: _how_many_fit(map(sum, zip(schemas, examples, pictures, strict=True)))]


async def fitting_slice(
    marks: Sequence[str], cursor: Cursor | None, weigh: Callable[[Sequence[str]], Awaitable[Sequence[int]]]
) -> tuple[Sequence[str], Cursor | None, Cursor | None]:
    """Do as `slice_of`, with no more than one response may hold. The one next to the cursor is always included."""
    page, *_ = slice_of(marks, cursor)
    weights = await weigh(page)
    is_backwards = cursor is not None and cursor.backwards
    return slice_of(marks, cursor, most=_how_many_fit(reversed(weights) if is_backwards else weights))


def _how_many_fit(weights: Iterable[int]) -> int:
    heavier = (place for place, so_far in enumerate(accumulate(weights)) if so_far > HEAVY_BYTES)
    return max(next(heavier, PAGE_SIZE), 1)


async def show_models(request: Request, models: Sequence[Model]) -> list[ModelView]:
    services, base = request.services, base_url(request)
    versions = await services.catalog.each_version([(model.name, model.latest) for model in models])
    examples = await services.catalog.models.default_examples(models)
    runs = await run_counts(services, models)
    return [_show_model(*each, base=base) for each in zip(models, versions, examples, runs, strict=True)]


def _show_model(model: Model, latest: Version | None, example: Raw | None, runs: int, *, base: str) -> ModelView:
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
        latest_version=None if latest is None else show_version(latest),
    )


async def run_counts(services: Services, models: Sequence[Model], *, held: bool = False) -> list[int]:
    """Return the runs of all versions of each of these models, those that are gone too. `held`: as they were read in
    the last half minute.
    """
    queues = [await services.lookups.queues_of(model.name) for model in models]
    every = [queue for of_model in queues for queue in of_model]
    counts = await services.runs.of(every) if held else await services.catalog.runs(every)
    return [
        model.former_runs + sum(counts[queue] for queue in of_model)
        for model, of_model in zip(models, queues, strict=True)
    ]


URL: Final = re.compile(r"https?://[^\s/]\S*")
SKU: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE: Final = "a-z, 0-9, '.', '_' and '-', at most 64 characters, and must begin with a letter or a digit"
VISIBILITIES: Final = ", ".join(f'"{word}"' for word in get_args(Visibility))
# member → most characters
TEXTS: Final = {"description": 5_000, "readme": 100_000}
URLS: Final = ("github_url", "paper_url", "weights_url", "license_url", "cover_image_url")
MOST_URL: Final = 2_000
Name = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]
Hardware = Annotated[str, Meta(pattern=f"^{SKU.pattern}$")]
Url = Annotated[str, Meta(max_length=MOST_URL, description="http or https.")] | None
Picture = (
    Annotated[str, Meta(max_length=MOST_PICTURE, description="http or https, or a small picture as a data URI.")] | None
)
Description = Annotated[str, Meta(max_length=TEXTS["description"])] | None


# The next types are for the OpenAPI document. Nothing is decoded into them.


class NewModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """A model without a version: a director brings it one. `owner`: the caller's own account."""

    owner: Name
    name: Name
    visibility: Visibility
    hardware: Hardware
    description: Description = None
    github_url: Url = None
    paper_url: Url = None
    license_url: Url = None
    cover_image_url: Picture = None


class ModelChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """New fields of a model; '' removes one."""

    description: Description = None
    readme: Annotated[str, Meta(max_length=TEXTS["readme"])] | None = None
    github_url: Url = None
    paper_url: Url = None
    weights_url: Url = None
    license_url: Url = None
    cover_image_url: Picture = None


OPTIONAL: Final = frozenset(NewModel.__struct_fields__) - {"owner", "name", "visibility", "hardware"}
CHANGEABLE: Final = frozenset(ModelChange.__struct_fields__)


def parse_make(body: bytes) -> tuple[str, dict[str, str]]:
    """Return the name "owner/name" of a new model, and its other members. Raises a 422."""
    members = Members(body)
    owner, name = members.text("owner", required=True), members.text("name", required=True)
    for field, given in (("owner", owner), ("name", name)):
        if given is not None and not re.fullmatch(MODEL_NAME, f"{given}/x"):
            members.fault("pattern", field, f"May hold {NAME_RULE}")
    visibility, hardware = members.text("visibility", required=True), members.text("hardware", required=True)
    if visibility is not None and visibility not in get_args(Visibility):
        members.fault("enum", "visibility", f"visibility must be one of the following: {VISIBILITIES}")
    # any well-formed name is accepted: directors run a model wherever they were started
    if hardware is not None and not SKU.fullmatch(hardware):
        members.fault("pattern", "hardware", "Must be the name of a hardware, such as cpu or gpu-t4")
    texts = {"visibility": visibility or "", "hardware": hardware or ""} | _texts(members, OPTIONAL)
    members.refuse_unknown(frozenset(NewModel.__struct_fields__))
    if members.faults:
        raise invalid_input(members.faults)
    return f"{owner}/{name}", {field: text for field, text in texts.items() if text}


def parse_change(body: bytes) -> Mapping[str, str]:
    members = Members(body)
    texts = _texts(members, CHANGEABLE)
    members.refuse_unknown(CHANGEABLE)
    if members.faults:
        raise invalid_input(members.faults)
    return texts


def _texts(members: Members, fields: frozenset[str]) -> dict[str, str]:
    given = {field: text for field in sorted(fields) if (text := members.text(field)) is not None}
    for field, text in given.items():
        if field == "cover_image_url" and is_picture(text):
            continue
        is_data = field == "cover_image_url" and text.startswith("data:")
        most = MOST_PICTURE if is_data else TEXTS.get(field, MOST_URL)
        if len(text) > most:
            members.fault("string_lte", field, f"String length must be less than or equal to {most}")
        elif field in URLS and text and not URL.fullmatch(text):
            members.fault("format", field, "Must be an http or https URL")
    return given


ORDERS: Final[Mapping[str, Order]] = {"latest_version_created_at": "latest", "model_created_at": "created"}
DIRECTIONS: Final = ("desc", "asc")
MOST_BODY: Final = 1 << 20
MOST_READ: Final = 2_000  # for one page: other accounts' private models are skipped
MOST_OWNED: Final = 1_000


@reads(
    "/models",
    name="models.list",
    summary="List the public models and the account's own",
    about=(
        "The list has all public models and the private ones of the account, in pages of 100. Models of other "
        "accounts that are private are left out."
    ),
    parameters=(
        CURSOR,
        Parameter("sort_by", "In which order.", one_of(*ORDERS)),
        Parameter("sort_direction", "From which end.", one_of(*DIRECTIONS)),
    ),
    answers={200: Answer("A page.", Page[ModelView])},
)
async def list_models(request: Request) -> Response:
    cursor, asked = cursor_of(request), _sorting(request)
    backwards = cursor is not None and cursor.backwards
    is_falling = (asked["sort_direction"] == "desc") != backwards
    listed = await request.services.catalog.models.list_all(ORDERS[asked["sort_by"]])
    places = sorted((f"{at_ms:013d}/{name}" for at_ms, name in listed), reverse=is_falling)
    if cursor is not None:
        places = [place for place in places if (place < cursor.at if is_falling else place > cursor.at)]
    found, walked = await _walk(request.services, request.account, places)
    fits = await fitting(request, list(found.values()))
    if len(fits) < len(found):
        walked = list(found)[: len(fits)]
    models = await show_models(request, fits)
    kept = {name: value for name, value in asked.items() if name in request.query_params}
    return answer_page(request, "/models", models, walked, has_more=len(walked) < len(places), kept=kept)


@stores(
    "POST",
    "/models",
    name="models.create",
    summary="Create a model",
    about=(
        "The new model has no version and cannot run yet. A director brings it a version when it starts, and so "
        "does a training. The owner must be your own account."
    ),
    body=Body(NewModel),
    answers={201: Answer("The model, which has no version yet.", ModelView)},
    refusals={404, 409},
)
async def make_model(request: Request) -> Response:
    account = request.account
    name, said = parse_make(await read_body(request, max_bytes=MOST_BODY))
    if not Model(name=name, created_ms=0).may_be_changed_by(account):
        raise forbidden(f"A model of this account has the owner '{account.name}'.")
    models = request.services.catalog.models
    if sum(other.partition("/")[0] == account.name for _, other in await models.list_all("created")) >= MOST_OWNED:
        raise forbidden(f"An account has at most {MOST_OWNED:,} models.")
    size = ENTRY_BYTES + count_bytes(said)
    await retain(request, account.name, size)
    if not await models.make(name, said):
        await uncount(request, account.name, size)
        raise model_exists()
    request.services.lookups.forget(name)
    return await _answer(request, name, status=201)


@reads(
    "/models/{owner}/{name}",
    name="models.get",
    summary="Get a model, with its latest version",
    about="The answer has the latest version with its schema, and an example if an operator chose one.",
    answers={200: Answer("The model.", ModelView)},
    refusals={400},
)
async def get_model(request: Request) -> Response:
    return json_response((await show_models(request, [await find_visible_model(request)]))[0])


@stores(
    "PATCH",
    "/models/{owner}/{name}",
    name="models.update",
    summary="Change the description of a model",
    about=(
        "Only the given fields change, and an empty text removes one. The model must belong to the account, or the "
        "token needs the scope `admin`."
    ),
    body=Body(ModelChange),
    answers={200: Answer("The model as it is then.", ModelView)},
)
async def change_model(request: Request) -> Response:
    model = await own_model(request)
    said = parse_change(await read_body(request, max_bytes=MOST_BODY))
    models = request.services.catalog.models
    size = await models.growth(model.name, said)
    await retain(request, model.owner, size)
    if not await models.change(model.name, said):
        await uncount(request, model.owner, size)
        raise not_found()
    await uncount(request, model.owner, -size)
    request.services.lookups.forget(model.name)
    return await _answer(request, model.name)


@deletes(
    "/models/{owner}/{name}",
    name="models.delete",
    summary="Delete a private model that has no versions",
    about="A model with versions is refused with 422 `in_use`. Delete its versions first.",
    refusals={422},
)
async def delete_model(request: Request) -> Response:
    model = await own_model(request, private="a private model")
    models = request.services.catalog.models
    [size] = await models.read_kept_bytes([model.name])
    if not await models.remove(model.name):
        raise in_use("This model has versions: delete them first.")
    await uncount(request, model.owner, size)
    request.services.lookups.forget(model.name)
    return Response(status_code=204)


@reads(
    "/models/{owner}/{name}/readme",
    name="models.readme.get",
    summary="Get the readme of a model",
    about="The answer is the text as its author wrote it, usually Markdown. A model without a readme is a 404.",
    answers={200: Answer("The text.", str, TEXT)},
)
async def get_readme(request: Request) -> Response:
    model = await find_visible_model(request)
    readme = await request.services.catalog.models.readme(model.name)
    if not readme:
        raise not_found()
    # a caller wrote it: a browser must not take it for a page of this site
    return Response(readme, media_type="text/plain", headers={"X-Content-Type-Options": "nosniff"})


@reads(
    "/models/{owner}/{name}/examples",
    name="models.examples.list",
    summary="List the examples of a model",
    about=(
        "Operators choose predictions as examples with `director model example`. Each is kept as it was at that "
        "time, also after the prediction itself was removed."
    ),
    parameters=(CURSOR,),
    answers={200: Answer("A page of predictions as they were then, newest first.", Page[Raw])},
)
async def get_examples(request: Request) -> Response:
    model, cursor = await find_visible_model(request), cursor_of(request)
    models, path = request.services.catalog.models, f"/models/{model.name}/examples"
    sizes = await models.example_sizes(model.name)

    async def weigh(page: Sequence[str]) -> Sequence[int]:
        return [sizes[prediction_id] for prediction_id in page]

    page, older, newer = await fitting_slice(list(sizes), cursor, weigh)
    results: list[Raw] = await models.examples(model.name, page)
    return page_response(request, path, results, older=older, newer=newer)


async def find_visible_model(request: Request) -> Model:
    name = parse_model(request.path_params["owner"], request.path_params["name"])
    model = await request.services.lookups.model(name, request.account)
    if model is None:
        raise await no_version(request, VersionRef(model=name), not_found)
    return model


async def own_model(request: Request, *, private: str = "") -> Model:
    """Return the model of this path. Raises a 403 if the caller may see it and not change it. `private`: what the
    caller wants to delete. That must be private, unless the caller is an operator.
    """
    model = await find_visible_model(request)
    if not model.may_be_changed_by(request.account):
        raise forbidden("This model belongs to another account.")
    if private and model.visibility == "public" and "admin" not in request.account.scopes:
        raise forbidden(f"Only {private} can be deleted.")
    return model


async def _answer(request: Request, name: str, *, status: int = 200) -> Response:
    model = await request.services.catalog.model(name)
    if model is None:  # deleted in between
        raise not_found()
    return json_response((await show_models(request, [model]))[0], status)


def _sorting(request: Request) -> dict[str, str]:
    allowed = {"sort_by": tuple(ORDERS), "sort_direction": DIRECTIONS}
    asked = {name: request.query_params.get(name) or words[0] for name, words in allowed.items()}
    faults = [
        InvalidField("enum", name, f"{name} must be one of the following: {', '.join(allowed[name])}")
        for name, word in asked.items()
        if word not in allowed[name]
    ]
    if faults:
        raise invalid_input(faults)
    return asked


async def _walk(services: Services, account: Account, places: Sequence[str]) -> tuple[dict[str, Model], Sequence[str]]:
    """Return the models of one page that this account may see, by their places, and all places that were looked at."""
    found: dict[str, Model] = {}
    for start in range(0, min(len(places), MOST_READ), PAGE_SIZE):
        slice_ = places[start : start + PAGE_SIZE]
        models = await services.catalog.models.many([place.partition("/")[2] for place in slice_])
        for number, (place, model) in enumerate(zip(slice_, models, strict=True), start + 1):
            if model is not None and model.may_be_seen_by(account):
                found[place] = model
            if len(found) == PAGE_SIZE:
                return found, places[:number]
    return found, places[:MOST_READ]


NEEDED: Final = {
    "live": "Predictions of this version wait or run: let them end, or cancel them.",
    "dead": "Dead letters of this version wait for an operator: revive or drop them.",
    "served": "A director serves this version: end it, and try again a minute later.",
}


@reads(
    "/models/{owner}/{name}/versions",
    name="models.versions.list",
    summary="List the versions of a model",
    about=(
        "The newest version comes first, each with its schema. A page of large schemas is shorter, and has a `next`"
        " all the same."
    ),
    parameters=(CURSOR,),
    answers={200: Answer("A page, newest first.", Page[VersionView])},
)
async def list_versions(request: Request) -> Response:
    model = await find_visible_model(request)
    cursor, catalog = cursor_of(request), request.services.catalog
    path = f"/models/{model.name}/versions"
    marks = {f"{created:014}-{version}": version for created, version in await catalog.list_versions(model.name)}

    async def weigh(page: Sequence[str]) -> Sequence[int]:
        return await catalog.schema_bytes([(model.name, marks[mark]) for mark in page])

    page, older, newer = await fitting_slice(list(marks), cursor, weigh)
    versions = await catalog.versions(model.name, [marks[mark] for mark in page])
    return page_response(request, path, list(map(show_version, versions)), older=older, newer=newer)


@reads(
    "/models/{owner}/{name}/versions/{id}",
    name="models.versions.get",
    summary="Get a version, with its schema",
    about=(
        "The answer has the schema of input and output. `setup_run` says how the last setup of a model server went,"
        " with the end of what it printed."
    ),
    answers={200: Answer("The version, with how the last setup of a server of it went.", WholeVersionView)},
)
async def get_version(request: Request) -> Response:
    """Show the version with its schema, from which `run()` of the official Python client reads the output's type."""
    model, version_id = await find_visible_model(request), _id(request)
    version = await request.services.lookups.version(model.name, version_id)
    if version is None:
        raise not_found()
    setup = await request.services.catalog.setup_run(model.name, version_id)
    shown = None if setup is None else convert(setup, SetupRunView, from_attributes=True)
    return json_response(WholeVersionView(**asdict(show_version(version)), setup_run=shown))


@deletes(
    "/models/{owner}/{name}/versions/{id}",
    name="models.versions.delete",
    summary="Delete a version that is not used",
    about=(
        "A version that is served, or that a deployment or a waiting prediction needs, is refused with 422 "
        "`in_use`. Operators may delete versions of public models too."
    ),
    answers={202: NO_BODY},
    refusals={422},
)
async def delete_version(request: Request) -> Response:
    model = await own_model(request, private="a version of a private model")
    version_id, services = _id(request), request.services
    if not await services.catalog.has_version(model.name, version_id):
        raise not_found()
    if await services.deployments.one_of(await services.accounts.names(), model=model.name, version=version_id):
        raise in_use("A deployment stands for this version: release another one, or delete the deployment.")
    answer = await services.removal.remove(model.name, version_id)
    if answer != "done":
        raise in_use(NEEDED[answer])
    services.lookups.forget(model.name)
    return Response(status_code=202)


def _id(request: Request) -> str:
    version_id: str = request.path_params["id"]
    if not re.fullmatch(VERSION_ID, version_id):
        raise not_found()
    return version_id
