"""The command on webhooks that are owed: `director webhooks`."""

import argparse

from director.cli.arguments import arg, group
from director.cli.operators import Backend, audit, operator
from director.cli.tables import Answer
from director.core.words import several

group("webhooks", "redeliver hooks.example.com")


@operator(
    "webhooks redeliver",
    arg("host HOST", "the receiver, by the host of its address"),
    needs="operate",
    examples=("hooks.example.com",),
)
async def _redeliver(backend: Backend, given: argparse.Namespace) -> Answer:
    """Retry now the webhooks that are owed to this receiver. They are looked for among at most 2,000 next attempts, an
    equal part of each partition: repeat it later for the rest. `director doctor` names receivers that fail.
    """
    with audit() as by:
        done = await backend.redelivery.redeliver(given.host, by=by)
    gone = f", {several(done.left, 'webhook')} cannot be sent any more" if done.left else ""
    more = ". Not all that is owed was looked at: repeat it later" if done.more else ""
    return Answer(done, f"{several(done.done, 'webhook')} sent again{gone}{more}")
