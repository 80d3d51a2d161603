"""Call the scripts of the catalogue, one key at a time. None of them touches a queue."""

from collections.abc import Mapping
from typing import Literal, cast

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.scripts.wire import Wire

Amended = Literal["done", "exists", "unknown"]
Configured = Literal["done", "changed", "unknown"]
Withdrawn = Literal["done", "versions"]


class CatalogScripts(Wire):
    """The scripts for one model."""

    async def amend(
        self,
        model: str,
        what: Literal["make", "change"],
        *,
        said: Mapping[str, str] | None = None,
        nonce: str = "",
    ) -> Amended:
        """Make a model, or change its description. `nonce`: identifies the call that makes it. Safe to repeat."""
        fields: list[Arg] = [part for pair in (said or {}).items() for part in pair]
        return cast(Amended, (await self._call("amend", [keys.model(model)], [what, nonce, *fields])).decode())

    async def configure(
        self, model: str, config: bytes, *, by: str, at_ms: int, was: int | None, nonce: str
    ) -> tuple[Configured, int]:
        """Write a model's config, b"" to remove it, and return the new revision. `nonce`: identifies the change."""
        args: list[Arg] = ["" if was is None else was, config, by, at_ms, nonce]
        word, *revision = await self._call("configure", [keys.model(model)], args)
        return cast(Configured, word.decode()), int(revision[0]) if revision else 0

    async def note_setup(self, model: str, version: str, said: bytes) -> bool:
        """Write how the version's last setup went. Returns False for an unknown version."""
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
        """Remove a model, or note that one of its versions goes. Safe to repeat."""
        reply = await self._call("withdraw", [keys.model(model)], [what, version, runs, latest])
        return cast(Withdrawn, reply.decode())


# The log of operators' changes. The changes themselves have scripts of their own.


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
        """Add one entry. Returns False if there is one of this id and kind already. `detail`: JSON."""
        args: list[Arg] = [id, kind, by, account, queue, detail, at_ms]
        return bool(await self._call("note", [keys.changes()], args))
