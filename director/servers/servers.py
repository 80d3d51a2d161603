"""Know all model servers of this director, which of them can run, and what the end of a run says about its server.

Never asks a server anything: the watch reports each look at one. A server that keeps failing rests (`Trust`), a
server that needs a restart is in doubt until the watch has seen to that, and neither holds up the others.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from director.broker.replies import Readiness
from director.servers.runners.answers import SERVER_AUTH
from director.servers.runners.runner import Ended, Health, HealthStatus, Outcome
from director.servers.server import UNSEEN, Permit, Permits, Server
from director.store.directors import LOOP

log = logging.getLogger(__name__)

SOON_AGAIN: Final = 100  # runs
ALONE_S: Final = 3600.0
RETRIES: Final = (HealthStatus.STARTING, HealthStatus.UNREACHABLE)


class Standing(Struct, frozen=True):
    """The readiness of all servers. `slots`: of those that can run, busy or free; each place of a batch counts."""

    slots: int
    state: Readiness


class Servers:
    """All servers, and the permits for their slots. `on_news` is called whenever a server's state may have changed."""

    def __init__(self, servers: list[Server], now: Callable[[], float] = time.monotonic) -> None:
        self.all = servers
        self.permits = Permits(servers, now)
        self.on_news: Callable[[], None] = lambda: None
        self._now = now
        self._away_at = now()
        self._back_at: float | None = None
        self._last_account = ""
        self._alone_since = -math.inf

    def any_ready(self) -> bool:
        return any(server.can_run for server in self.all)

    @property
    def standing(self) -> Standing:
        """Return what they can do together. A state that needs the operator counts only if no other may recover."""
        if self.any_ready():
            return Standing(sum(server.usable * (server.places or 1) for server in self.all if server.can_run), "ready")
        statuses = {_prospect(server) for server in self.all}
        if HealthStatus.STARTING in statuses:
            return Standing(0, "starting")
        if any(server.is_locked for server in self.all):
            return Standing(0, SERVER_AUTH)
        return Standing(0, "setup_failed" if HealthStatus.SETUP_FAILED in statuses else "starting")

    def setup_wait_s(self, waited_s: float) -> float:
        now = self._now()
        back_at = now if self._back_at is None else self._back_at
        return max(0.0, min(waited_s - (now - back_at), back_at - self._away_at))

    def add(self, server: Server) -> None:
        self.all.append(server)
        self._refresh()

    def remove(self, server: Server) -> None:
        self.all.remove(server)
        self._refresh()

    def resize(self, server: Server, slots: int) -> None:
        if server.slots != slots:
            server.slots, server.fewer, server.full_at = slots, None, None
            self._refresh()

    def saw(self, server: Server, health: Health) -> None:
        server.failed_starts = _failed_starts(server, health)
        server.health = health
        self._refresh()

    def started(self, server: Server, since: str) -> None:
        """Take in a new start of the server: it has all its slots again, and is not in doubt."""
        server.since, server.fewer = since, None
        server.doubt.clear()

    def doubt(self, permit: Permit) -> None:
        """Ask for a restart of the permit's server, unless it was restarted since."""
        if permit.since == permit.server.since:
            self.distrust(permit.server)

    def distrust(self, server: Server) -> None:
        server.doubt.set()
        self.on_news()

    def ended(self, permit: Permit, ended: Ended, *, unasked: bool, account: str = "") -> None:
        """Judge the server by the end of an account's run. `unasked`: the run was not asked to stop."""
        server, batch = permit.server, permit.batch
        if ended.server_is_dead and not (ended.has_no_slot and self._found_fewer(permit)):
            self.doubt(permit)
        if ended.goes_on is not None:
            self.permits.extend(server, ended.goes_on)
        counts = unasked and (batch is None or ended.outcome not in batch.ends)  # one request is one failure
        if batch is not None and unasked:
            batch.ends.add(ended.outcome)
        # A run that fails while the server rests began before: runs that fail together are one reason to rest
        counts = counts and (ended.outcome is Outcome.SUCCEEDED or not server.is_resting)
        account = self._unless_alone(account)
        if ended.outcome is Outcome.SUCCEEDED:
            took_s = self._now() - permit.started_at
            server.run_s = took_s if server.run_s == math.inf else server.run_s + (took_s - server.run_s) / 5
            for other in self.all:
                other.trust.went_well_elsewhere(account)
        if ended.is_locked:
            if not server.is_resting:
                self._lock(server, ended.error or "")
            return
        dead = ended.server_is_dead
        rest = server.trust.note(ended.outcome, since=permit.since, is_dead=dead, account=account) if counts else None
        if rest is None:
            return
        facts = {"server": server.runner.url, "failures": server.trust.failures, "rest_s": rest.seconds}
        log.warning("a model server keeps failing and gets no work for some time", extra=facts)
        server.refusal = ""
        self._rest(server, rest.seconds)
        if rest.restart:
            self.doubt(permit)

    def _found_fewer(self, permit: Permit) -> bool:
        """Judge a server that is full although our count has a free slot. True if no restart is needed for that.
        It has lost a slot, and gets it back by a restart. If it is soon full again, it never had as many slots as
        configured, and gets fewer runs instead. With no other run of ours on it, each time is a reason to restart it.
        """
        server = permit.server
        if permit.since != server.since or server.running < 2:
            return False
        if server.doubt.is_set():  # another run found the same
            return True
        is_again = server.full_at is not None and server.runs - server.full_at < SOON_AGAIN
        server.full_at = server.runs
        if not is_again:
            return False
        server.fewer = max(1, server.usable - 1)
        log.error(
            "DIRECTOR_CONCURRENT_PREDICTIONS is more than the model server has slots",
            extra={"server": server.runner.url, "told": server.slots, "slots": server.fewer},
        )
        return True

    def _unless_alone(self, account: str) -> str:
        """Return the account, or '' if no other account had a run here for an hour: its failures then harm no other."""
        if account != self._last_account:
            self._alone_since = self._now() if self._last_account else -math.inf
            self._last_account = account
        return "" if self._now() - self._alone_since >= ALONE_S else account

    def _lock(self, server: Server, refusal: str) -> None:
        rest = server.trust.rest()
        facts = {"server": server.runner.url, "why": refusal, "code": SERVER_AUTH, "rest_s": rest.seconds}
        log.error("a model server does not let the director in and gets no work for some time", extra=facts)
        server.refusal = refusal
        self._rest(server, rest.seconds)

    def _rest(self, server: Server, seconds: float) -> None:
        server.is_resting = True
        asyncio.get_running_loop().call_later(seconds, self._end_rest, server)
        self.on_news()

    def _end_rest(self, server: Server) -> None:
        server.is_resting = False
        self.permits.refresh(server)
        self.on_news()

    def _refresh(self) -> None:
        if self.any_ready() != (self._back_at is not None):
            if self._back_at is None:
                self._back_at = self._now()
            else:
                self._away_at, self._back_at = self._now(), None
        self.permits.refresh(*self.all)
        self.on_news()


def _failed_starts(server: Server, health: Health) -> int:
    """Count with this look at it. A start failed if its setup did, or if the server was gone before it could run."""
    before = server.health
    if health.can_run:
        return 0
    if health.status is HealthStatus.SETUP_FAILED:
        return server.failed_starts + (before.status is not health.status or before.since != health.since)
    was_starting = before.status is HealthStatus.STARTING and before is not UNSEEN
    return server.failed_starts + (was_starting and health.status is HealthStatus.UNREACHABLE)


def _prospect(server: Server) -> HealthStatus:
    is_loop = server.failed_starts >= LOOP and server.health.status in RETRIES
    return HealthStatus.SETUP_FAILED if is_loop else server.health.status
