"""Describe devices, the models that share them, and how the server of such a model is started, as a pool file says it.
Refuse what cannot be satisfied. Pure.

A model that shares devices has no fixed server: this process starts its server, and puts it to rest to make room.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from director.core.settings import DirectorSettings, mistake
from director.core.words import size

Place = Mapping[str, int]  # bytes by name of device; empty for a model that needs no device

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,32}\Z")]
Argument = Annotated[str, Meta(max_length=4096)]
Arguments = Annotated[tuple[Argument, ...], Meta(max_length=256)]
Env = Mapping[Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z")], Argument]
UrlPath = Annotated[str, Meta(pattern=r"\A(/[\x21-\x7e]{0,255})?\Z")]
Seconds = Annotated[float, Meta(ge=0, le=86400)]
Weight = Annotated[float, Meta(ge=0.001, le=1000)]


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """`memory`: the bytes that models may take together. `env`: the variables that show a server this device.

    `used`: a command that prints the MiB in use there, such as
    `nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --id=0`. Without it memory counts as free once all
    processes of a server have ended. `asleep`: bytes that sleeping servers keep there, beside `memory`.
    """

    name: Name
    memory: int
    env: Env = {}
    used: Arguments = ()
    asleep: int = 0


class Model(Struct, frozen=True, kw_only=True):
    """Say of a model what the pool file says, as far as the planner needs it. `name` is its label, as in logs.

    `places`: where it may be loaded, with the bytes that it takes there. A model that names its devices has one place,
    a model for any device has one for each, and one that needs no device has one that is empty. `keep`: it is always
    loaded. `weight`: how much one waiting prediction counts beside one of another model. `min_loaded_s`: it stays
    loaded for as long at least; None for as long as loading it takes, while anything waits for it. `max_wait_s`: after
    this time it may take the place of a model that is busy.
    """

    name: str
    places: tuple[Place, ...]
    keep: bool = False
    weight: Weight = 1.0
    min_loaded_s: Seconds | None = None
    max_wait_s: Seconds = 300.0
    run_limit_s: float = 1800.0
    slots: int = 1


class Launch(Struct, frozen=True, kw_only=True):
    """How the server of a model is started and put to rest. Exactly one of `command` and `folder` is given.

    `{port}` in an argument of `command` stands for the port. `folder` is a Cog folder. `ready` is the path that answers
    200 once the server can run. `sleep` and `wake` are paths that are called with POST; without them a server is ended:
    asked by SIGTERM, and killed after `grace_s`. `load_s` is the expected time of a load, until one is measured.
    """

    command: Arguments = ()
    folder: Argument = ""
    env: Env = {}
    ready: UrlPath = ""
    sleep: UrlPath = ""
    wake: UrlPath = ""
    load_s: Seconds = 60.0
    grace_s: Seconds = 10.0


# Reading them from a pool file

ANY: Final = "any"
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
MOST_DEVICES: Final = 64
SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT])(i?)B")
MOST_SIZE: Final = 1 << 60

LAUNCH: Final = frozenset(Launch.__struct_fields__)
TERMS: Final = frozenset({"keep", "weight", "min_loaded_s", "max_wait_s"})
WHERE: Final = frozenset({"memory", "device", "devices", "asleep"})
HOSTED: Final = LAUNCH | TERMS | WHERE


class WrongField(Exception):
    """An error in a table. The message begins with the field."""


def read_device(table: Mapping[str, Any], others: Sequence[Device]) -> Device:
    """Return one `[[device]]`. Without `env` it is shown by CUDA_VISIBLE_DEVICES, counted from 0. Raises WrongField."""
    for name in ("name", "memory"):
        if not table.get(name):
            raise WrongField(f"`{name}` is missing")
    if "asleep" in table:
        raise WrongField("`asleep` is a field of a model")
    given = {"env": {VISIBLE: str(len(others))}, **table, "memory": _bytes("memory", table["memory"])}
    try:
        device = msgspec.convert(given, Device)
    except msgspec.ValidationError as exc:
        raise WrongField(_describe(exc)) from exc
    if device.name in (ANY, *(other.name for other in others)):
        raise WrongField(f"`name`: {device.name!r} is taken")
    return device


class Found(Struct, frozen=True):
    """One `[[model]]` that shares devices. `asleep`: the bytes that its server keeps while it sleeps."""

    model: Model
    launch: Launch
    asleep: int


def read_hosted(
    given: Mapping[str, Any], settings: DirectorSettings, label: str, devices: Sequence[Device], folder: Path
) -> Found:
    """Return what these fields of a `[[model]]` say. A Cog folder lies beside the pool file. Raises WrongField."""
    places, asleep = _places(given, devices), _bytes("asleep", given["asleep"]) if "asleep" in given else 0
    rest = {
        "name": label,
        "places": places,
        "slots": settings.concurrent_predictions,
        "run_limit_s": settings.run_limit_s,
    }
    try:
        launch = msgspec.convert({name: value for name, value in given.items() if name in LAUNCH}, Launch)
        model = msgspec.convert({name: value for name, value in given.items() if name in TERMS} | rest, Model)
    except msgspec.ValidationError as exc:
        raise WrongField(_describe(exc)) from exc
    if bool(launch.command) == bool(launch.folder):
        raise WrongField("`command`: give either this or `folder`")
    if bool(launch.sleep) != bool(launch.wake):
        raise WrongField("`sleep` and `wake` go together")
    if model.keep and len(places) > 1:
        raise WrongField("`keep`: name its device, since in any of them it may find no room")
    if asleep and (len(places) > 1 or not launch.sleep):
        raise WrongField("`asleep` goes with `sleep` and with a device that is named")
    if any(asleep >= taken for taken in places[0].values()):
        raise WrongField("`asleep`: it is less than what it takes when it is loaded")
    if launch.folder:
        launch = replace(launch, folder=str(folder / launch.folder))
    return Found(model, launch, asleep)


def set_aside(devices: Sequence[Device], found: Iterable[Found]) -> tuple[list[Device], list[Model]]:
    """Subtract what sleeping servers keep from the memory of devices and models, as if all servers slept. The planner
    of swaps then needs to know nothing of it.
    """
    aside, models = Counter[str](), list[Model]()
    for each in found:
        [place, *others] = each.model.places
        aside.update(dict.fromkeys(place, each.asleep))
        rest = {name: taken - each.asleep for name, taken in place.items()}
        models.append(replace(each.model, places=(rest, *others)))
    less = [replace(each, memory=each.memory - aside[each.name], asleep=aside[each.name]) for each in devices]
    return less, models


def check_fits(models: Sequence[Model], devices: Sequence[Device]) -> None:
    """Raise WrongField, with the sum, if a model fits nowhere beside those that are kept. Call it after `set_aside`."""
    memory = {device.name: device for device in devices}
    for model in models:
        kept = [other for other in models if other.keep and other is not model]
        sums = [_sum(place, kept, memory) for place in model.places]
        if all(sums):
            raise WrongField(f"{model.name} never fits: {sums[0]}")


def _sum(place: Place, kept: Sequence[Model], devices: Mapping[str, Device]) -> str:
    """Return what is asked of the first device of a place that is too small, or nothing if each is large enough."""
    for name, taken in place.items():
        device = devices[name]
        parts = {"it": taken} | {f"{each.name} (kept)": each.places[0].get(name, 0) for each in kept}
        asked = sum(parts.values())
        if asked > device.memory:
            parts["servers that sleep"] = device.asleep
            terms = " + ".join(f"{size(much)} for {what}" for what, much in parts.items() if much)
            return f"{terms} = {size(asked + device.asleep)}, and {name} has {size(device.memory + device.asleep)}"
    return ""


def _places(given: Mapping[str, Any], devices: Sequence[Device]) -> tuple[Place, ...]:
    named, one, memory = given.get("devices"), given.get("device"), given.get("memory")
    known = [device.name for device in devices]
    if named is not None:
        if one is not None or memory is not None:
            raise WrongField("`devices` says the memory on each: leave out `device` and `memory`")
        if not isinstance(named, dict) or not named:
            raise WrongField('`devices`: expected a table, as in { gpu0 = "12GiB" }')
        wanted = {name: _bytes("devices", taken) for name, taken in named.items()}
        places: tuple[Place, ...] = (wanted,)
    elif one is None and memory is None:
        return ({},)
    elif one is None or memory is None:
        raise WrongField("`memory` and `device` go together")
    else:
        taken = _bytes("memory", memory)
        places = tuple({name: taken} for name in (known if one == ANY else [one]))
    for name in dict.fromkeys(name for place in places for name in place):
        if name not in known:
            raise WrongField(f"`device`: there is no [[device]] {name!r:.40}")
    if not places:
        raise WrongField("`device`: there is no [[device]]")
    return places


def _bytes(field: str, text: object) -> int:
    found = SIZE.fullmatch(text) if isinstance(text, str) else None
    number = round(float(found[1]) * (1024 if found[3] else 1000) ** ("KMGT".index(found[2]) + 1)) if found else 0
    if not 0 < number <= MOST_SIZE:
        raise WrongField(f'`{field}`: expected a size, as in "80GiB"')
    return number


def _describe(exc: msgspec.ValidationError) -> str:
    """Return field and reason. A wrong name of a variable stands at a key in the field."""
    text = str(exc).replace(" - at `key` in `$.", " (a name in it) - at `$.")
    name, reason = mistake(msgspec.ValidationError(text))
    return f"`{name}`: {reason}" if name else reason
