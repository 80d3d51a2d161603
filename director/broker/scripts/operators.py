"""What is kept of what operators do. Changes nothing else: what they change has scripts of its own."""

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.scripts.wire import Wire

__all__ = ("OperatorScripts",)


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
