"""Commands on the catalogue: `director model`, `collection` and `hardware`. They never register a version."""

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from director.cli.arguments import EXAMPLE_ID, CommandParser, Commands, add_action, add_group, add_json, add_redis
from director.cli.backend import Backend, audited, on_backend, typist
from director.cli.output import print_json

if TYPE_CHECKING:
    from director.store.models import Model


# option: help
SAID: Final = {
    "description": "what it does",
    "github_url": "where its source is",
    "paper_url": "the paper behind it",
    "license_url": "its license",
    "cover_image_url": "a picture of it",
    "hardware": "what it runs on",
}
COLUMNS: Final = ("model", "visibility", "version")
SHOWN: Final = ("name", "visibility", "latest", "is_official", *SAID, "default_example")
YES_NO: Final = {"yes": "1", "no": ""}


def add(commands: Commands) -> None:
    models = commands.add_parser(
        "model",
        aliases=["models"],
        help="list models; set what is shown of them, and to whom",
        description="List every model.",
        examples=("director models",),
    )
    add_json(models)
    add_redis(models)
    models.set_defaults(run=_list)
    model = models.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    add_action(model, "list", "list every model", _list, "director model list", again=True)
    changed = add_action(
        model,
        "set",
        "change what is shown of a model; an empty text removes it",
        _set,
        "director model set acme/painter --visibility private --description 'Paints.'",
        again=True,
    )
    changed.add_argument("--visibility", choices=("public", "private"), help="private: only its owner and operators")
    changed.add_argument("--official", choices=tuple(YES_NO), help="mark it as official")
    for field, text in SAID.items():
        changed.add_argument(f"--{field.replace('_', '-')}", metavar="TEXT", help=text)
    configured = add_action(
        model,
        "config",
        "show or change how a model is run; directors apply it within seconds",
        _config,
        "director model config acme/painter",
        "director model config acme/painter --set attempts=5 --unset slots",
        again=True,
    )
    configured.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="VALUE is JSON or text, or @FILE"
    )
    configured.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="use what its directors were started with"
    )
    shown = add_action(
        model,
        "example",
        "show a prediction with its model, as it is now",
        _example,
        f"director model example acme/painter {EXAMPLE_ID} --default",
        again=True,
    )
    for parser in (changed, configured, shown):
        parser.add_argument("of", metavar="NAME")
    shown.add_argument("prediction", metavar="PREDICTION")
    shown.add_argument("--default", action="store_true", help="show it with the model in lists too")
    shown.add_argument("--remove", action="store_true", help="show it no longer")
    collection = add_group(
        commands,
        "collection",
        "write collections of models",
        "director collection set best --name 'The best' --models acme/painter",
    )
    put = add_action(
        collection,
        "set",
        "write a collection, new or not",
        _put,
        "director collection set best --name 'The best' --models acme/painter acme/echo",
    )
    put.add_argument("--name", required=True, metavar="TEXT")
    put.add_argument("--description", default="", metavar="TEXT")
    put.add_argument("--models", nargs="*", default=[], metavar="OWNER/NAME", help="in the order to show them")
    removed = add_action(
        collection, "remove", "remove a collection; its models stay", _remove, "director collection remove best"
    )
    for parser in (put, removed):
        parser.add_argument("of", metavar="SLUG")
    hardware = add_group(
        commands, "hardware", "write what GET /v1/hardware shows", "director hardware set gpu-t4 'Nvidia T4'"
    )
    named = add_action(
        hardware, "set", "name a kind of hardware", _put_hardware, "director hardware set gpu-t4 'Nvidia T4'"
    )
    unnamed = add_action(
        hardware, "remove", "remove a kind of hardware", _remove_hardware, "director hardware remove gpu-t4"
    )
    for parser in (named, unnamed):
        parser.add_argument("of", metavar="SKU")
    named.add_argument("name", metavar="NAME")


def _list(given: argparse.Namespace) -> int:
    from director.cli.output import fitted, line_width

    async def read(backend: Backend) -> "list[Model]":
        models = backend.catalog.models
        names = [name for _, name in await models.listed("latest")][::-1]
        return [model for model in await models.many(names) if model is not None]

    found = on_backend(given, read)
    if given.json:
        print_json([{name: getattr(model, name) for name in SHOWN} for model in found])
    elif found:
        rows = [(model.name, model.visibility, model.latest or "none") for model in found]
        print("\n".join(fitted(COLUMNS, rows, width=line_width(), words=COLUMNS)))
    else:
        print("no models yet: a director registers its model (`director run`)")
    return 0


def _set(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError

    said = {field: text for field in ("visibility", *SAID) if (text := getattr(given, field)) is not None}
    if given.official is not None:
        said["is_official"] = YES_NO[given.official]
    if not said:
        raise SettingsError("nothing to change: give --visibility, --official or a text.")

    async def change(backend: Backend) -> bool:
        seen = {"visibility": given.visibility} if given.visibility else {}
        async with backend.changes.noting(
            "model_changed", by=typist(), model=given.of, fields=sorted(said), **seen
        ) as noted:
            is_changed = await backend.catalog.models.change(given.of, said)
            if not is_changed:
                noted.void()
        return is_changed

    if not on_backend(given, change):
        raise SettingsError(f"there is no model {given.of}: `director model list` shows all.")
    return _said(given, "changed. An API may show the former value until its cache expires")


def _config(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.errors import SettingsError, UnknownModel
    from director.core.model_config import ModelConfig, StoredConfig

    said = dict(map(_named_value, given.set)) | dict.fromkeys(given.unset)

    async def act(backend: Backend) -> StoredConfig:
        stored = await backend.configs.get(given.of)
        if stored is not None and said:
            changed = msgspec.to_builtins(stored.config) | said
            try:
                config = msgspec.convert(changed, ModelConfig)
            except msgspec.ValidationError as exc:
                raise SettingsError(f"not a configuration: {exc}") from exc
            await backend.configs.put(given.of, config, by=by, was=stored.revision)
            stored = await backend.configs.get(given.of)
        if stored is None:
            raise UnknownModel(given.of)
        return stored

    try:
        with audited() as by:
            stored = on_backend(given, act)
    except UnknownModel as exc:
        raise SettingsError(f"there is no model {given.of}: `director model list` shows all.") from exc
    if given.json:
        print_json(stored)
        return 0
    print(f"{given.of}: revision {stored.revision}{f', by {stored.changed_by}' if stored.changed_by else ''}")
    for name, value in msgspec.to_builtins(stored.config).items():
        print(f"  {name} = {msgspec.json.encode(value).decode()}")
    return 0


def _named_value(line: str) -> tuple[str, object]:
    """Read NAME=VALUE. VALUE is JSON, or @FILE with JSON, or else text. Raises SettingsError."""
    import msgspec

    from director.core.errors import SettingsError

    name, has_value, value = line.partition("=")
    if not has_value:
        raise SettingsError(f"{line!r} is not NAME=VALUE. To remove a value use --unset NAME.")
    try:
        text = Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{value[1:]} cannot be read: {exc}") from exc
    try:
        return name, msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name, text


def _example(given: argparse.Namespace) -> int:
    from director.core.errors import SettingsError
    from director.core.ids import PredictionId, is_prediction_id

    if not is_prediction_id(given.prediction):
        raise SettingsError(f"{given.prediction} is not the id of a prediction.")
    prediction_id = PredictionId(given.prediction)
    shown = {"model": given.of, "prediction": prediction_id}
    if not given.remove:

        async def show(backend: Backend) -> None:
            async with backend.changes.noting("example_shown", by=typist(), **shown):
                await backend.examples.show(given.of, prediction_id, is_default=given.default)

        return _done(given, show)

    async def hide(backend: Backend) -> bool:
        async with backend.changes.noting("example_hidden", by=typist(), **shown) as noted:
            is_hidden = await backend.examples.hide(given.of, prediction_id)
            if not is_hidden:
                noted.void()
        return is_hidden

    if not on_backend(given, hide):
        raise SettingsError(f"{given.prediction} is not shown with {given.of}.")
    return _said(given, "done")


def _put(given: argparse.Namespace) -> int:
    import msgspec

    from director.core.errors import SettingsError
    from director.store.models import Collection

    asked = {"name": given.name, "description": given.description, "models": given.models}
    try:
        collection = msgspec.convert(asked, Collection)
    except msgspec.ValidationError as exc:
        raise SettingsError(f"not a collection: {exc}") from exc

    async def put(backend: Backend) -> None:
        async with backend.changes.noting("collection_written", by=typist(), slug=given.of, models=given.models):
            await backend.collections.put(given.of, collection)

    return _done(given, put)


def _remove(given: argparse.Namespace) -> int:
    async def remove(backend: Backend) -> None:
        async with backend.changes.noting("collection_removed", by=typist(), slug=given.of):
            await backend.collections.remove(given.of)

    return _done(given, remove)


def _put_hardware(given: argparse.Namespace) -> int:
    async def put(backend: Backend) -> None:
        async with backend.changes.noting("hardware_written", by=typist(), sku=given.of, named=given.name):
            await backend.collections.put_hardware(given.of, given.name)

    return _done(given, put)


def _remove_hardware(given: argparse.Namespace) -> int:
    async def remove(backend: Backend) -> None:
        async with backend.changes.noting("hardware_removed", by=typist(), sku=given.of):
            await backend.collections.remove_hardware(given.of)

    return _done(given, remove)


def _done(given: argparse.Namespace, act: Callable[[Backend], Awaitable[None]]) -> int:
    on_backend(given, act)
    return _said(given, "done")


def _said(given: argparse.Namespace, text: str) -> int:
    if given.json:
        print_json({"name": given.of, "done": True})
    else:
        print(f"{given.of}: {text}")
    return 0
