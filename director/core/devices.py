"""Describe devices, the models that share them, and how the server of such a model is started. Pure.

A model that shares devices has no fixed server: this process starts its server, and puts it to rest to make room.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

Place = Mapping[str, int]  # bytes by name of device; empty for a model that needs no device

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,32}\Z")]
Argument = Annotated[str, Meta(max_length=4096)]
Arguments = Annotated[tuple[Argument, ...], Meta(max_length=256)]
Env = Mapping[Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z")], Argument]
Path = Annotated[str, Meta(pattern=r"\A(/[\x21-\x7e]{0,255})?\Z")]
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
    ready: Path = ""
    sleep: Path = ""
    wake: Path = ""
    load_s: Seconds = 60.0
    grace_s: Seconds = 10.0
