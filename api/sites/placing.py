"""Place a new run at exactly one of several sites. Another site is tried only when the previous one certainly took
nothing: its queue refused, or there was no connection to its server. If a reply was lost, the caller gets a 503, and
the run stays where it is.

An idempotency key is bound at the home first (`lua/bind.lua`). Only the request that binds it places the run and may
bind it to another site. Others get its prediction, or a 503 until that exists. After 20 seconds by the home's clock,
the next request takes the key over. A later enqueue is refused at its site, so the run is never at two sites.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from api.services.services import Services
from api.sites.sites import Site, Sites
from api.web.errors import invalid_header
from api.web.http import Request
from director.broker.replies import Accepted, Bound
from director.core.errors import BackendFull, BackendUnavailable, IdempotencyMismatch, QueueRefused, UnknownQueue
from director.core.ids import PredictionId, created_ms_of, new_prediction_id
from director.core.schema import NewPrediction
from director.core.split import read_mark
from director.store.accounts import Account
from director.store.catalog import Version

# Longer than all tries of a call take together, including their connections
SETTLED_MS: Final = 20_000
PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.4)
MOST_TAKEOVERS: Final = 3
FILE: Final = re.compile(rb"files\\?/[0-9a-z]{26}")  # in JSON a backslash may stand before a slash
File = Callable[[Services, Version, NewPrediction], Awaitable[Accepted]]
"""Files a prediction at one server. Raises QueueError if the server took nothing, and BackendUnavailable."""


async def choose_site(request: Request, version: Version, new: NewPrediction, file: File) -> tuple[Accepted, Services]:
    """File the prediction at one of several sites. Returns the services of that site too."""
    sites: Sites = request.sites
    order = await _order(sites, request, version, new)
    key = None if new.idempotency is None else _Key(sites, new, new.idempotency)
    refused: Exception | None = None
    try:
        for site, own in order:
            # before the first await, so that requests of the same moment do not all choose the same site
            site.expect(own.queue)
            there = _at(site, own, new, is_home=site is sites.home)
            if key is not None and (known := await key.take(there.id)) is not None:
                return known
            try:
                accepted = await file(site.services, own, there)
            except (QueueRefused, UnknownQueue) as exc:
                site.expect(own.queue, -1)
                refused = refused if isinstance(refused, QueueRefused) else exc
            except BackendUnavailable as exc:
                if isinstance(exc, BackendFull):  # it answers: lists, tokens and models are still read there
                    site.expect(own.queue, -1)
                else:
                    site.note_failure(str(exc))
                if not exc.is_untouched:
                    raise
                refused = refused or exc
            else:
                if accepted.replayed and key is not None:  # the site knew the key, but the home did not
                    await key.bind(accepted.id)
                if not accepted.replayed:
                    how = "forced" if "x-site" in request.headers else "chosen" if site is order[0][0] else "failover"
                    sites.home.services.meters.note_placement(site.name, how)
                return accepted, site.services
        if key is not None and key.bound is not None:
            await key.bind(None)
        raise refused or BackendUnavailable("no site takes it", is_untouched=True)
    finally:
        refused = None  # its traceback holds this frame, see without_frames


def _at(site: Site, version: Version, new: NewPrediction, *, is_home: bool) -> NewPrediction:
    """Return the prediction as it is filed at a site: the id names it."""
    now_ms, number = site.services.clock.now_ms(), site.row.number
    prediction_id = new.id if is_home else new_prediction_id(model=version.model, now_ms=now_ms, site=number)
    return replace(new, id=prediction_id, shard=version.shard_of(new.account), bound=True)


def check_site(request: Request, new: NewPrediction) -> None:
    """Raise a 422 if X-Site names a site that may not have it."""
    if (asked := request.headers.get("x-site")) is None:
        return  # without a look through the input
    names = [site.name for site in _find_allowed(request.sites, request.account, new)]
    if asked not in names:
        raise invalid_header("X-Site", " or ".join(names))


def _find_allowed(sites: Sites, account: Account, new: NewPrediction) -> Sequence[Site]:
    limits = account.limits
    has_budget = limits.meters_compute or limits.has_budget or limits.max_files_bytes is not None
    mark = read_mark(new.split)
    is_tried = mark is not None and mark.side == "new"
    # other sites know neither its files nor its destination nor the account's remaining budget, nor that it is a trial
    if new.kind or has_budget or is_tried or FILE.search(new.input):
        return [sites.home]
    return [sites.by_name[name] for name in sites.table.models.get(new.model, tuple(sites.by_name))]


async def _order(
    sites: Sites, request: Request, version: Version, new: NewPrediction
) -> Sequence[tuple[Site, Version]]:
    """Return the sites to try, best first, each with its own version."""
    allowed, asked = _find_allowed(sites, request.account, new), request.headers.get("x-site")
    if asked is not None:
        allowed = [site for site in allowed if site.name == asked]
    up = [site for site in allowed if site.row.takes_new and site.is_up]
    # for trainings and procedures only the home was asked
    order = [(sites.home, version)] if version.kind and up else await sites.in_order(version, new.account, up)
    if not order and len(up) == len(allowed) and all(site.is_up for site in up):
        raise UnknownQueue(version.queue)
    return order


class _Key:
    def __init__(self, sites: Sites, new: NewPrediction, pair: tuple[str, str]) -> None:
        self.bound: PredictionId | None = None
        self._sites = sites
        self._facts = {"account": new.account, "model": new.model}
        self._pair = pair

    async def bind(self, new: PredictionId | None) -> Bound | None:
        """Bind the key at home to `new` instead of what it is bound to. Returns what it stands for if that is other."""
        return await self._bind_at(self._sites.home, new, instead_of=self.bound)

    async def take(self, new: PredictionId) -> tuple[Accepted, Services] | None:
        """Bind the key to `new`. If it stands for another prediction, return that one with its services."""
        late: PredictionId | None = None
        for _ in range(MOST_TAKEOVERS):
            held = await self.bind(new)
            if held is None:
                self.bound = new
                return None if late is None else await self._bar_late(late)
            if held.fingerprint != self._pair[1]:
                raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
            site = self._sites.of(held.id)
            if site is not None and await _is_there(site.services, held):
                return Accepted(held.id, replayed=True), site.services
            if held.age_ms < SETTLED_MS:
                break
            self.bound = late = held.id
        raise BackendUnavailable("the same request is being placed")

    async def _bar_late(self, late: PredictionId) -> tuple[Accepted, Services] | None:
        """Bar `late` from its site, as the key stands for another. Returns it and its services if it is there."""
        site = self._sites.of(late)
        if site is None or site is self._sites.home:  # at home the key itself prevents it
            return None
        try:
            held = await self._bar(site, late)
        except BackendUnavailable:
            await self.bind(late)
            raise
        if held is None or held.fingerprint != self._pair[1]:
            return None
        await self.bind(held.id)
        return Accepted(held.id, replayed=True), site.services

    async def _bar(self, site: Site, late: PredictionId) -> Bound | None:
        """Bind the key at the site to a later id that is never placed, so that `late` is refused there. Returns the
        prediction that the key stands for there instead, if that exists.
        """
        now_ms = created_ms_of(late) + 1
        bar = new_prediction_id(model=self._facts["model"], now_ms=now_ms, site=site.row.number)
        held: Bound | None = None
        for _ in range(2):
            held = await self._bind_at(site, bar, instead_of=held.id if held else None)
            if held is None or await site.services.scripts.get(held.id, outlook=False) is not None:
                return held
        raise BackendUnavailable("the same request is being placed")

    async def _bind_at(self, site: Site, new: PredictionId | None, *, instead_of: PredictionId | None) -> Bound | None:
        scripts = site.services.scripts
        return await scripts.bind(new, **self._facts, idempotency=self._pair, instead_of=instead_of)


async def _is_there(services: Services, held: Bound) -> bool:
    for pause_s in PAUSES_S:
        await asyncio.sleep(pause_s)
        if await services.scripts.get(held.id, outlook=False) is not None:
            return True
        if held.age_ms >= SETTLED_MS:
            break
    return False
