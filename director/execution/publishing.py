"""Turn the success of a training into a version of its destination, before the end is written.

Waits for a Redis that is away, as the last write does. Never touches a training that did not succeed.
"""

import logging
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.states import Status
from director.execution.ends import Finish, GiveBack
from director.execution.holdings import Held
from director.store.removal import TrainedVersions

log = logging.getLogger(__name__)

AWAY_S: Final = 1.0
GONE: Final = "The destination of this training is gone, or the version that it trained is."


class Publishing:
    """One for all of a director's claims."""

    def __init__(self, versions: TrainedVersions, clock: Clock) -> None:
        self._versions = versions
        self._clock = clock

    async def publish(self, held: Held, end: Finish | GiveBack | None) -> Finish | GiveBack | None:
        """The end of a training as it is to be written; None where the claim was lost before the version was made."""
        record = held.claim.record
        if not isinstance(end, Finish) or end.status is not Status.SUCCEEDED:
            return end
        while not held.is_lost:
            try:
                made = await self._versions.make(record, weights_of(end.output))
            except BackendUnavailable:
                await self._clock.sleep(AWAY_S)
                continue
            if made is None:
                return replace(end, status=Status.FAILED, code="destination_gone", error=GONE, output=b"")
            log.info("training made a version", extra={"prediction": record.id, "version": made.version})
            return replace(end, output=msgspec.json.encode(made))
        return None


def weights_of(output: bytes) -> str | None:
    """The address of the weights in what a model's `train` returned: its `weights`, or all of it."""
    said: Any = msgspec.json.decode(output) if output else None
    weights = said.get("weights") if isinstance(said, dict) else said
    return weights if isinstance(weights, str) else None
