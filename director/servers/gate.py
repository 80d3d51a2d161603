"""Keep work from the server of a model that shares devices, while that model is not loaded."""

import asyncio
from typing import Final, Literal

import msgspec
from msgspec import Struct

from director.broker.replies import Swap

GateState = Literal["open", "draining", "at_rest", "loading"]
# Why a model that shares devices is not ready, by the reason of its swap or the state of its gate
NOT_LOADED: Final = {
    "loading": "It is being loaded and is not ready yet",
    "waiting_for_device": "Other models have its device, and it will be loaded when there is room",
    "at_rest": "It has not been loaded yet, since it shares a device with other models",
}


class Gate(Struct, eq=False):
    """Keeps work from a server while its model is put to rest and loaded, so that a swap costs no run and no attempt.

    Only an open gate gives permits, and the health of a server behind another one is no failure. `draining`: what was
    claimed still runs. `at_rest`: nothing asks the server anything. `loading`: it is watched until it can run.
    `changes` counts loads and rests: a look at the server that began before one says nothing after it. `may_close`: the
    model shares its devices. A gate of any other model stays open.
    """

    state: GateState = "open"
    changes: int = 0
    watched: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    swap: Swap | None = None
    may_close: bool = False

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    @property
    def why(self) -> str:
        """Why it is not open, in words for callers of the model."""
        eta = "" if self.swap is None or self.swap.eta_s is None else f", in about {self.swap.eta_s:.0f} s"
        return NOT_LOADED.get(self.swap.reason if self.swap else self.state, NOT_LOADED["at_rest"]) + eta
