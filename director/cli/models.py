"""Commands on the catalogue: `director model`, `collection` and `hardware`. They never register a version."""

import argparse
import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec.structs import asdict

from director.broker.replies import Order
from director.cli.arguments import (
    CALLER,
    DECLARED,
    EXAMPLE_ID,
    JSON,
    LISTED,
    MOST_LISTED,
    SERVICE,
    Run,
    arg,
    command,
    flag,
    group,
    model_name,
)
from director.cli.client import Client, Service, read, service
from director.cli.inputs import Described, show_inputs, show_kind
from director.cli.operators import Backend, audit, operator, prediction_id, typist
from director.cli.output import printable
from director.cli.tables import Answer, answer_page, tabulate
from director.core.data_uri import MOST_PICTURE, is_picture
from director.core.errors import SettingsError, UnknownModel
from director.core.ids import VERSION_DIGITS, QueueName, queue_name
from director.core.model_config import ModelConfig
from director.core.trends import quantile_s
from director.core.usage import Price
from director.core.view import iso
from director.core.words import several, span
from director.store.ledger import check_price
from director.store.models import Model

SAID: Final = {
    "description": "what it does",
    "github_url": "where its source is",
    "paper_url": "the paper behind it",
    "license_url": "its license",
    "cover_image_url": "a picture of it: an address, or @FILE for a small one that the page shows itself",
    "hardware": "what it runs on",
}
PRICES: Final = {  # the fields of Price
    "input": "for a million tokens of the input",
    "cached": "for a million of them that the server had cached; without it, as others",
    "output": "for a million tokens of the output",
    "second": "for a second of its runs",
    "run": "for a run",
}
COLUMNS: Final = ("model", "visibility", "version", "state", "runs", "p50")
OWN_COLUMNS: Final = ("model", "visibility", "version", "runs")
MORE: Final = f"-n lists up to {MOST_LISTED:,}"
NO_SETUP: Final = "no log of a setup is kept. A running server writes its log where it runs, as a container or a unit"
SHOWN: Final = ("name", "visibility", "latest", "is_official", *SAID, "default_example")
YES_NO: Final = {"yes": "1", "no": ""}
NAME: Final = arg("of NAME", "the model, owner/name")
SLUG: Final = arg("of SLUG", "the collection, as in its address")
SKU: Final = arg("of SKU", "the short name of the hardware")


def with_file(line: str) -> str:
    """Return NAME=@FILE with what is in the file."""
    name, _, value = line.partition("=")
    if not value.startswith("@"):
        return line
    try:
        return f"{name}={_read_file(value[1:]).decode()}"
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{value[1:]} cannot be read: {exc}") from exc


def _read_file(path: str) -> bytes:
    """Read a file where the command is typed: the API reads none. Raises SettingsError."""
    if CALLER.get() is not None:
        raise argparse.ArgumentTypeError("a file is read where the command is typed")
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc}") from exc


PICTURES: Final = {  # how a file of each kind begins
    "png": re.compile(rb"\x89PNG"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),  # audio and video may be RIFF too
    "gif": re.compile(rb"GIF8"),
}


def with_picture(given: str) -> str:
    """Return @FILE as a data URI. Raises SettingsError for what is no small picture."""
    if not given.startswith("@"):
        return given
    content = _read_file(given[1:])
    kind = next((kind for kind, begin in PICTURES.items() if begin.match(content)), "")
    picture = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    if not is_picture(picture):
        most = f"a PNG, JPEG, WebP or GIF of at most {MOST_PICTURE * 3 // 4 - 50:,} bytes"
        raise SettingsError(f"{given[1:]} is not {most}. The page of the model makes a picture smaller itself.")
    return picture


READ_BY: Final[dict[str, Any]] = {"cover_image_url": {"type": with_picture}}
group("collection", "set best --name 'The best' --models acme/painter")
group("hardware", "set gpu-t4 'Nvidia T4'")


def _list_own(chosen: Service, given: argparse.Namespace) -> Answer:
    """List the models that a token without a scope over all accounts may see."""
    if given.cursor:
        raise SettingsError(f"--cursor goes on with a list of all accounts. Yours has one part: {MORE}.")
    with Client(chosen) as client:
        found = list(islice(client.models(), given.n + 1))
    results = [
        {
            "name": f"{one['owner']}/{one['name']}",
            **{name: one.get(name) for name in ("visibility", "description", "run_count")},
            "latest": (one.get("latest_version") or {}).get("id", ""),
        }
        for one in found[: given.n]
    ]
    rows = [[one["name"], one["visibility"], one["latest"] or "none", str(one["run_count"])] for one in results]
    has_more = len(found) > given.n
    more = [f"there are more: {MORE}"] if has_more else []
    return Answer(
        {"results": results, **({"more": True} if has_more else {})},
        lambda: "\n".join(
            [tabulate(OWN_COLUMNS, rows, words=OWN_COLUMNS[:3], empty="no models yet, or none that you may see"), *more]
        ),
    )


@operator("model list", *LISTED, needs="view", ask_own=_list_own, examples=("", "-n 1000 --json"))
@operator("model", *LISTED, needs="view", ask_own=_list_own, examples=("",))
async def _list(backend: Backend, given: argparse.Namespace) -> Answer:
    """List models, the newest version first: their state, their runs, and the median time of a run in the last 24
    hours. Those whose servers were never ready come first.
    """
    from director.operate.views import stats_of_newcomers, words_of

    models = backend.catalog.models
    places = [f"{at_ms:013d}/{name}" for at_ms, name in reversed(await models.list_all("latest"))]
    rest = [place for place in places if not given.cursor or place < given.cursor]
    some = rest[: given.n]
    found = [model for model in await models.many([_name_in(place) for place in some]) if model is not None]
    newcomers = {} if given.cursor else stats_of_newcomers(await backend.directors.newcomers())
    latest = {model.name: queue_name(model.name, model.latest) for model in found if model.latest}
    known = dict(await backend.queues.stats_of(list(latest.values())))
    runs, half = await _count_runs(backend, found), await _read_medians(backend, list(latest.values()))
    facts = {
        model.name: {
            "state": words_of(known[queue])[0] if queue in known else None,
            "runs": runs[model.name],
            "p50_s": half.get(queue) if queue else None,
        }
        for model in found
        for queue in [latest.get(model.name)]
    }
    rows = [[str(model), "-", "none", words_of(stats)[0], "0", "-"] for model, stats in newcomers.items()]
    rows += [
        [
            *(one.name, one.visibility, one.latest or "none", str(facts[one.name]["state"] or "-")),
            f"{runs[one.name]:,}",
            _show_time(facts[one.name]["p50_s"]),
        ]
        for one in found
    ]
    following = some[-1] if len(some) < len(rest) else None
    empty = "no models yet: a director registers its model (`director run`)"
    results = [{name: getattr(model, name) for name in SHOWN} | facts[model.name] for model in found]
    return answer_page(results, COLUMNS, rows, following, words=COLUMNS[:4], empty=empty)


def _name_in(place: str) -> str:
    return place.partition("/")[2]


def _show_time(seconds: Any) -> str:
    return "-" if seconds is None else span(seconds)


async def _count_runs(backend: Backend, models: Sequence[Model]) -> dict[str, int]:
    """Return how often each model was run, by all its versions."""
    names = {model.name for model in models}
    queues = [queue for queue in await backend.catalog.queues() if queue.rpartition(":")[0] in names]
    counts = {model.name: model.former_runs for model in models}
    for queue, count in (await backend.catalog.runs(queues)).items():
        counts[queue.rpartition(":")[0]] += count
    return counts


async def _read_medians(backend: Backend, queues: Sequence[QueueName]) -> dict[QueueName, float | None]:
    trends = await backend.trends.many(queues, "24h", now_s=backend.clock.now_ms() / 1000)
    return {queue: quantile_s(trend.whole.runs, 0.5) for queue, trend in trends.items()}


@command(
    "model show",
    JSON,
    *SERVICE,
    arg("of NAME", "the model, owner/name or owner/name:version", type=model_name),
    examples=("acme/painter", "acme/painter --json"),
)
def _show(given: argparse.Namespace) -> int:
    """Show a model: what it does, its inputs and its output, and a line that runs it."""
    name, _, version = given.of.partition(":")
    with Client(service(given)) as client:
        body = client.model(name)
        pinned = client.version(name, version) if version else None
    facts = read(body, dict[str, Any])
    shown = read(pinned, dict[str, Any]) if pinned else facts.get("latest_version")
    answer = Answer(pinned or body, lambda: "\n".join(map(printable, _describe(given.of, facts, shown))))
    return answer.show(is_json=given.json)


def _describe(name: str, facts: Mapping[str, Any], version: Mapping[str, Any] | None) -> Iterator[str]:
    yield f"{name}  {facts.get('visibility')}, {several(int(facts.get('run_count') or 0), 'run')}"
    if facts.get("description"):
        yield str(facts["description"])
    if version is None:
        yield "It has no version yet: a director brings one (`director run`)."
        return
    yield f"version {version['id'][:VERSION_DIGITS]} of {version['created_at']}, {version['cog_version']}"
    try:
        described = Described.of(version["openapi_schema"])
    except (KeyError, TypeError, AttributeError):
        yield "Its schema says nothing of its inputs."
        return
    rows = list(show_inputs(described))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    yield "inputs" if rows else "inputs  none"
    for input_name, kind, text in rows:
        yield f"  {input_name:<{widths[0]}}  {kind:<{widths[1]}}  {text}".rstrip()
    yield f"output  {show_kind(described.output, described.schemas) or 'anything'}"
    needed = "".join(f" -i {input_name}=…" for input_name in described.required)
    yield f"run it  director predict {name}{needed}"


def _show_setup(chosen: Service, given: argparse.Namespace) -> Answer:
    """Show the log of the last setup, to a token without a scope over all accounts."""
    with Client(chosen) as client:
        latest = read(client.model(given.of), dict[str, Any]).get("latest_version")
        if latest is None:
            raise SettingsError(f"{given.of} has no version yet.")
        run = read(client.version(given.of, latest["id"]), dict[str, Any]).get("setup_run")
    text = f"{_setup_line(run['status'], run['completed_at'])}\n{run['logs']}" if run else NO_SETUP
    return Answer({"servers": [], "setup_run": run}, text.rstrip())


@operator("model logs", NAME, needs="view", ask_own=_show_setup, examples=("acme/painter",))
async def _logs(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show the last lines of the model servers' logs: of each setup that failed, and of the last one that ended. A
    server that runs writes its log where it runs, and Director does not keep it.
    """
    queue = await backend.queues.find(given.of)
    newcomers = [one for one in await backend.directors.newcomers() if one.last.queue == given.of]
    if queue is None and not newcomers:
        raise _unknown_model(given.of)
    directors = [*newcomers, *(await backend.directors.of([queue]) if queue else [])]
    servers = [
        {"director": one.name, "url": each.url, "state": each.state, "since": iso(each.since_ms), "log": each.log}
        for one in directors
        if one.is_alive
        for each in one.last.about.servers
    ]
    run = await backend.catalog.setup_run_of(queue) if queue else None
    lines = [line for one in servers for line in (_name_server(one), *(f"| {row}" for row in one["log"].splitlines()))]
    if run is not None:
        lines.append(f"{_setup_line(run.status, run.completed_at)} on {run.server}")
        lines += [f"| {row}" for row in run.logs.splitlines()]
    if not any(one["log"] for one in servers) and not (run and run.logs):
        lines.append(NO_SETUP)
    return Answer({"servers": servers, "setup_run": run}, lambda: "\n".join(map(printable, lines)))


def _setup_line(status: str, completed_at: str | None) -> str:
    return f"setup {status} at {completed_at or 'an unknown time'}"


def print_logs(given: argparse.Namespace) -> int:
    """Do as `director model logs`, for `director logs`."""
    return cast(Run, DECLARED["model logs"].run)(given)


def _name_server(one: Mapping[str, str]) -> str:
    return f"{one['url']} of {one['director']} is {one['state']} since {one['since']}"


@operator(
    "model set",
    arg("--visibility", "private: only its owner and operators", choices=("public", "private")),
    arg("--official", "mark it as official", choices=tuple(YES_NO)),
    *(arg(f"--{field.replace('_', '-')} TEXT", text, **READ_BY.get(field, {})) for field, text in SAID.items()),
    NAME,
    examples=("acme/painter --visibility private --description 'Paints.'", "acme/painter --cover-image-url @cat.png"),
)
async def _set(backend: Backend, given: argparse.Namespace) -> Answer:
    """Change what is shown of a model; an empty text removes it."""
    said = {field: text for field in ("visibility", *SAID) if (text := getattr(given, field)) is not None}
    if given.official is not None:
        said["is_official"] = YES_NO[given.official]
    picture = said.get("cover_image_url", "")
    if picture.startswith("data:") and not is_picture(picture):
        raise SettingsError(f"a picture is a PNG, JPEG, WebP or GIF of at most {MOST_PICTURE:,} characters.")
    if not said:
        raise SettingsError("nothing to change: give --visibility, --official or a text.")
    seen = {"visibility": given.visibility} if given.visibility else {}
    async with backend.changes.noting("model_changed", by=typist(), model=given.of, fields=sorted(said), **seen):
        if not await backend.catalog.models.change(given.of, said):
            raise _unknown_model(given.of)
    return _answer_done(given, "changed. An API may show the former value until its cache expires")


@operator(
    "model price",
    *(arg(f"--{name} PRICE", text, type=float, dest=f"price_{name}") for name, text in PRICES.items()),
    flag("--none", "remove the price"),
    NAME,
    examples=("acme/llm", "acme/llm --input 0.5 --cached 0.1 --output 1.5", "acme/painter --second 0.0005"),
)
async def _price(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show or set the price of a model: `director usage` turns what was used into money by it, also afterwards."""
    said = {name: value for name in PRICES if (value := getattr(given, f"price_{name}")) is not None}
    if said and given.none:
        raise SettingsError("give prices, or --none.")
    if said or given.none:
        stored = (await backend.ledger.prices([given.of])).get(given.of, Price())
        price = check_price(msgspec.to_builtins(stored) | said) if said else None
        async with backend.changes.noting("model_changed", by=typist(), model=given.of, fields=["price"]):
            try:
                await backend.ledger.set_price(given.of, price)
            except UnknownModel as exc:
                raise _unknown_model(given.of) from exc
    if await backend.catalog.model(given.of) is None:
        raise _unknown_model(given.of)
    price = (await backend.ledger.prices([given.of])).get(given.of)
    if price is None:
        return Answer({"name": given.of, "price": None}, f"{given.of} has no price")
    lines = [f"  {name:<7} {value:g}  {PRICES[name]}" for name, value in asdict(price).items() if value is not None]
    return Answer({"name": given.of, "price": price}, "\n".join((f"{given.of}:", *lines)))


@operator(
    "model alias",
    flag("--remove", "remove the alias"),
    arg("alias ALIAS", "the other name, such as gpt-4o; without one, list all", nargs="?", default=""),
    arg("of NAME", "the model, owner/name or owner/name:version", nargs="?", default=""),
    examples=("", "gpt-4o acme/llm", "gpt-4o --remove"),
)
async def _alias(backend: Backend, given: argparse.Namespace) -> Answer:
    """List, set or remove other names of models in OpenAI's API; every API follows within a second."""
    if bool(given.alias) != bool(given.of or given.remove) or (given.of and given.remove):
        raise SettingsError("give an alias with its model, an alias with --remove, or nothing to list all.")
    with audit() as by:
        if given.of:
            await backend.aliases.put(given.alias, given.of, by=by)
        elif given.remove and not await backend.aliases.remove(given.alias, by=by):
            raise SettingsError(f"there is no alias {given.alias}: `director model alias` shows all.")
    aliases = await backend.aliases.all()
    named = sorted({target.partition(":")[0] for target in aliases.values()})
    known = dict(zip(named, await backend.catalog.models.many(named), strict=True))
    rows = [
        (alias, target, "" if known[target.partition(":")[0]] else "no such model yet")
        for alias, target in aliases.items()
    ]
    columns = ("alias", "model", "")
    empty = "no aliases: `director model alias gpt-4o acme/llm` sets one"
    return Answer(aliases, lambda: tabulate(columns, rows, words=columns, empty=empty))


@operator(
    "model config",
    arg("--set NAME=VALUE", "VALUE is JSON or text, or @FILE", action="append", default=[], type=with_file),
    arg("--unset NAME", "use what its directors were started with", action="append", default=[]),
    NAME,
    examples=("acme/painter", "acme/painter --set attempts=5 --unset slots"),
)
async def _config(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show or change how a model is run; directors apply it within seconds."""
    said = dict(map(_read_pair, given.set)) | dict.fromkeys(given.unset)
    stored = await backend.configs.get(given.of)
    if stored is not None and said:
        try:
            config = msgspec.convert(msgspec.to_builtins(stored.config) | said, ModelConfig)
        except msgspec.ValidationError as exc:
            raise SettingsError(f"not a configuration: {exc}") from exc
        try:
            with audit() as by:
                await backend.configs.put(given.of, config, by=by, was=stored.revision)
        except UnknownModel as exc:
            raise _unknown_model(given.of) from exc
        stored = await backend.configs.get(given.of)
    if stored is None:
        raise _unknown_model(given.of)
    lines = [
        f"{given.of}: revision {stored.revision}{f', by {stored.changed_by}' if stored.changed_by else ''}",
        *(
            f"  {name} = {msgspec.json.encode(value).decode()}"
            for name, value in msgspec.to_builtins(stored.config).items()
        ),
    ]
    return Answer(stored, "\n".join(lines))


def _unknown_model(name: str) -> SettingsError:
    return SettingsError(f"there is no model {name}: `director model list` shows all.")


def _read_pair(line: str) -> tuple[str, object]:
    """Read NAME=VALUE. VALUE is JSON, or else text. Raises SettingsError."""
    name, has_value, value = line.partition("=")
    if not has_value:
        raise SettingsError(f"{line!r} is not NAME=VALUE. To remove a value use --unset NAME.")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


@operator(
    "model example",
    NAME,
    arg("prediction PREDICTION", "the id of the prediction to show"),
    flag("--default", "show it with the model in lists too"),
    flag("--remove", "show it no longer"),
    examples=(f"acme/painter {EXAMPLE_ID} --default",),
)
async def _example(backend: Backend, given: argparse.Namespace) -> Answer:
    """Show a prediction with its model, as it is now."""
    from director.store.models import Examples

    name = prediction_id(given.prediction)
    shown = {"model": given.of, "prediction": name}
    if not given.remove:
        async with backend.changes.noting("example_shown", by=typist(), **shown):
            examples = Examples(backend.redis, backend.scripts_with_files)
            await examples.show(given.of, name, is_default=given.default)
        return _answer_done(given)
    async with backend.changes.noting("example_hidden", by=typist(), **shown):
        if not await backend.examples.hide(given.of, name):
            raise SettingsError(f"{given.prediction} is not shown with {given.of}.")
    return _answer_done(given)


@operator(
    "collection set",
    arg("--name TEXT", "its name for people", required=True),
    arg("--description TEXT", "what its models have in common", default=""),
    arg("--models OWNER/NAME", "in the order to show them", nargs="*", default=[]),
    SLUG,
    examples=("best --name 'The best' --models acme/painter acme/echo",),
)
async def _put(backend: Backend, given: argparse.Namespace) -> Answer:
    """Write a collection, new or not."""
    from director.store.models import Collection

    asked = {"name": given.name, "description": given.description, "models": given.models}
    try:
        collection = msgspec.convert(asked, Collection)
    except msgspec.ValidationError as exc:
        raise SettingsError(f"not a collection: {exc}") from exc
    async with backend.changes.noting("collection_written", by=typist(), slug=given.of, models=given.models):
        await backend.collections.put(given.of, collection)
    return _answer_done(given)


@operator("collection remove", SLUG, examples=("best",))
async def _remove(backend: Backend, given: argparse.Namespace) -> Answer:
    """Remove a collection; its models stay."""
    async with backend.changes.noting("collection_removed", by=typist(), slug=given.of):
        await backend.collections.remove(given.of)
    return _answer_done(given)


@operator("hardware set", SKU, arg("name NAME", "its name for people"), examples=("gpu-t4 'Nvidia T4'",))
async def _put_hardware(backend: Backend, given: argparse.Namespace) -> Answer:
    """Name a kind of hardware."""
    async with backend.changes.noting("hardware_written", by=typist(), sku=given.of, named=given.name):
        await backend.collections.put_hardware(given.of, given.name)
    return _answer_done(given)


@operator("hardware remove", SKU, examples=("gpu-t4",))
async def _remove_hardware(backend: Backend, given: argparse.Namespace) -> Answer:
    """Remove a kind of hardware."""
    async with backend.changes.noting("hardware_removed", by=typist(), sku=given.of):
        await backend.collections.remove_hardware(given.of)
    return _answer_done(given)


async def _order(backend: Backend, given: argparse.Namespace, order: Order, text: str) -> Answer:
    queue = await backend.queue(given.of)
    directors = await backend.directors.of([queue])
    shelves = [each.about.shelf for one in directors for each in one.heartbeats if one.is_alive]
    if not any(shelves):
        raise SettingsError(f"{queue} shares no device: `director devices` shows the models that do.")
    await backend.queue_administration.order(queue, order, by=typist())
    return Answer({"queue": queue, "order": order}, f"{queue} {text}")


@operator("model load", NAME, needs="operate", examples=("acme/painter",))
async def _load(backend: Backend, given: argparse.Namespace) -> Answer:
    """Load a model that shares devices, as soon as there is room. Ends `rest` and `pin`."""
    return await _order(backend, given, "load", "is loaded as soon as there is room; then what waits decides again")


@operator("model rest", NAME, needs="operate", examples=("acme/painter",))
async def _rest(backend: Backend, given: argparse.Namespace) -> Answer:
    """Put a model that shares devices to rest once its runs have ended, until `director models load`."""
    return await _order(backend, given, "rest", "is put to rest once its runs have ended, until it is to load again")


@operator("model pin", NAME, needs="operate", examples=("acme/painter",))
async def _pin(backend: Backend, given: argparse.Namespace) -> Answer:
    """Load a model that shares devices and keep it loaded, until `director models load` or `rest`."""
    return await _order(backend, given, "pin", "is loaded and stays so, until `director models load` or `rest`")


def _answer_done(given: argparse.Namespace, text: str = "done") -> Answer:
    return Answer({"name": given.of, "done": True}, f"{given.of}: {text}")
