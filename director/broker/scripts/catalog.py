"""What is said of models, one key at a time: no script of these touches a queue."""

from collections.abc import Mapping
from typing import Literal, cast

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.scripts.wire import Wire

Amended = Literal["done", "exists", "unknown"]
Configured = Literal["done", "changed", "unknown"]
Withdrawn = Literal["done", "versions"]


class CatalogScripts(Wire):
    """The calls about one model."""

    async def amend(
        self,
        model: str,
        what: Literal["make", "change"],
        *,
        said: Mapping[str, str] | None = None,
        nonce: str = "",
    ) -> Amended:
        """Make it, or change what is said of it. Safe to repeat; `nonce` tells who makes it."""
        fields: list[Arg] = [part for pair in (said or {}).items() for part in pair]
        return cast(Amended, (await self._call("amend", [keys.model(model)], [what, nonce, *fields])).decode())

    async def configure(
        self, model: str, config: bytes, *, by: str, at_ms: int, was: int | None, nonce: str
    ) -> tuple[Configured, int]:
        """Write how it is run, b"" to take that back; with the revision that it is then. `nonce` tells the change."""
        args: list[Arg] = ["" if was is None else was, config, by, at_ms, nonce]
        word, *revision = await self._call("configure", [keys.model(model)], args)
        return cast(Configured, word.decode()), int(revision[0]) if revision else 0

    async def note_setup(self, model: str, version: str, said: bytes) -> bool:
        """Write how its last setup went; False where there is no such version."""
        return bool(await self._call("note_setup", [keys.version(model, version)], [said]))

    async def withdraw(
        self,
        model: str,
        what: Literal["model", "going", "gone"],
        *,
        version: str = "",
        runs: int = 0,
        latest: str = "",
    ) -> Withdrawn:
        """Take it away, or tell it of a version that goes. Safe to repeat."""
        reply = await self._call("withdraw", [keys.model(model)], [what, version, runs, latest])
        return cast(Withdrawn, reply.decode())


# What is kept of what operators do. Changes nothing else: what they change has scripts of its own.


class OperatorScripts(Wire):
    """The log of changes."""

    async def note(
        self,
        id: str,  # noqa: A002 - the word for it
        *,
        kind: str,
        by: str,
        account: str,
        queue: str,
        detail: bytes,
        at_ms: int,
    ) -> bool:
        """Add one entry; False where there is one of this id and kind already. `detail`: JSON."""
        args: list[Arg] = [id, kind, by, account, queue, detail, at_ms]
        return bool(await self._call("note", [keys.changes()], args))
