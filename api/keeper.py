"""Run a keeper that runs batches too: `python -m api.keeper`. `director keeper` becomes this if DIRECTOR_OPENAI is on.

Lines of batches are accepted as the API accepts them, so the process has the API's services beside the keeper's roles.
They may log in at Redis as the API's user.
"""

import logging
import sys
from functools import partial

from api.batches.engine import Engine
from api.batches.notify import Notifier
from api.services.meters import Meters
from api.sites.sites import Plan, all_running
from api.web.errors import Code
from director.core.clock import SystemClock
from director.core.errors import SettingsError, UnsafeBackend
from director.core.settings import ApiSettings, KeeperSettings, load
from director.keeper import keeper
from director.runtime import process
from director.runtime.startup import raise_descriptor_limit
from director.runtime.tracing import OFF
from director.webhooks.delivery import Schedule
from director.webhooks.sender import AllowList, Sender

log = logging.getLogger(__name__)


async def run(api: ApiSettings, settings: KeeperSettings) -> None:
    """Run until a signal. Raises UnsafeBackend and SettingsError."""
    sender, clock = Sender(AllowList.parse(settings.webhook_allow)), SystemClock()
    async with all_running(
        Plan.of(api), Meters(Code), clock=clock, on_unsafe=_say_why, tracing=OFF, serves=False
    ) as state:
        accounts = state["services"].accounts
        engine = Engine(state, Notifier(sender, accounts, clock, Schedule.parse(settings.webhook_schedule)))
        await keeper.run(settings, started=_say_port, beside=[engine])
    await sender.aclose()


def _say_port(port: int) -> None:
    log.info("health is served", extra={"port": port})


def _say_why(exc: UnsafeBackend) -> None:
    log.error("batches cannot run: set DIRECTOR_BATCHES_REDIS_URL with the API's user", extra={"error": str(exc)})


def main() -> int:
    try:
        settings = load(KeeperSettings)
        api = load(ApiSettings, redis_url=settings.batches_redis_url or settings.redis_url)
    except SettingsError as exc:
        sys.stderr.write(f"director keeper: {exc}\n")
        return 2
    raise_descriptor_limit()
    process.serve("keeper", "keeper", partial(run, api), settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
