"""A promise that was broken: which, for whom, how, and what the journals say about it. Pure."""

from msgspec import Struct

__all__ = ("Breach",)


class Breach(Struct, frozen=True):
    """`id` is a prediction's, or whatever else broke it: a queue, a key, a server. `evidence` is in order of time."""

    invariant: str
    id: str
    what: str
    evidence: tuple[str, ...] = ()
