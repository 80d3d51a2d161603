"""Run the batches: one role of the keeper. Any number of keepers may run it, and each batch is at one of them.

A batch is validated, then its lines run within a window, then its files are made. Each step goes on where it was after
a kill: what was done is in the batch's hash, in committed parts, or is found again by its idempotency key.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import anyio
import msgspec
from anyio.abc import TaskGroup

from api.batches.lines import ENDED, BatchFault
from api.batches.meters import LOOK_S
from api.batches.notify import Notifier
from api.batches.parts import Archive
from api.batches.patience import with_patience
from api.batches.runs import Callers
from api.batches.source import Source
from api.batches.validation import INPUT_GONE, Validation
from api.batches.work import Capacity, Stop, Work
from api.services.services import Services
from api.sites.sites import State
from director.core.errors import BackendUnavailable
from director.core.ids import FileId
from director.files.store import FileStore
from director.runtime import crash
from director.runtime.metrics import Registry
from director.runtime.sweep import repeat
from director.store.batches import (
    CLOSED,
    LEASE_S,
    LIVE,
    OVER,
    Batch,
    Batches,
    BatchStatus,
    End,
    Fields,
    Kind,
    Lease,
    Lost,
)

log = logging.getLogger(__name__)
TICK_S: Final = 1.0
RENEW_S: Final = 1.0  # how soon a cancel is noticed, too
MOST_SEEN: Final = 1_000  # batches that one look considers
MOST_AT_ONCE: Final = 64  # batches of one keeper that have not ended, and as many whose webhook is due
SHARES: Final = 3  # one account alone has 16 of these, a second one 12 of the others
# Since their batch ended: a failover, or a power cut with everysec, may take that back. Then its files are made again.
PARTS_NEEDED_MS: Final = 15_000
PARKED_MS: Final = 60_000
RESULTS_LOST: Final = BatchFault(code="results_lost", message="Some results are gone from the file store.")
KINDS: Final[Sequence[Kind]] = ("output", "error")


class Engine:
    """The batches of one keeper."""

    def __init__(self, state: State, notifier: Notifier) -> None:
        self._state = state
        self._services: Services = state["services"]
        self._notifier = notifier
        self._batches = Batches(self._services.redis, self._services.scripts)
        self._capacity = Capacity()
        self._running: dict[FileId, BatchRun] = {}
        self._later: dict[FileId, float] = {}  # when one may be taken again
        self._is_draining = False
        self._is_taking = False

    def show(self, registry: Registry) -> None:
        self._capacity.meter.show(registry)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def begin() -> None:
                await self._take(tasks)

            async def look() -> None:
                await self._capacity.meter.look(self._batches, self._services.clock)

            clock = self._services.clock
            tasks.start_soon(partial(repeat, look, role="batches' metrics", tick_s=LOOK_S, clock=clock))
            await repeat(begin, role="batches", tick_s=TICK_S, clock=clock)

    async def run_once(self) -> int:
        """Bring the batches that may be taken now as far as possible. Returns how many these were."""
        taken = 0
        async with anyio.create_task_group() as tasks:
            taken += await self._take(tasks)
        return taken

    async def drain(self) -> None:
        """Commit what has ended, and give the batches back: another keeper goes on at once."""
        self._is_draining = True
        while self._running or self._is_taking:
            for run in self._running.values():
                run.stop.leave()
            await self._services.clock.sleep(0.05)

    async def _take(self, tasks: TaskGroup) -> int:
        """Start the batches that come next, each once it is leased. Returns how many these were."""
        self._is_taking = True
        try:
            return await self._take_next(tasks)
        finally:
            self._is_taking = False

    async def _take_next(self, tasks: TaskGroup) -> int:
        taken = 0
        store, gate = self._services.files, self._services.gate
        if store is None or not gate.is_open:
            return taken
        now_s = self._services.clock.monotonic()
        self._later = {batch_id: at_s for batch_id, at_s in self._later.items() if at_s > now_s}
        live, due = await self._batches.waiting(MOST_SEEN, now_ms=self._services.clock.now_ms())
        for (account, batch_id), is_live in (*((each, True) for each in live), *((each, False) for each in due)):
            if self._is_draining:
                break
            if batch_id in self._running or batch_id in self._later or not self._may_take(account, is_live=is_live):
                continue
            lease = Lease(self._services.scripts, account, batch_id)
            if await lease.hold() in ("busy", "gone"):
                continue
            run = None
            try:
                if (batch := await self._batches.get(account, batch_id)) is not None:
                    run = BatchRun(batch, lease, self._state, store, self._capacity, self._notifier)
            except BackendUnavailable:
                raise
            except Exception:  # such as hours in a time zone that is unknown here: the others go on
                log.exception("a batch cannot be read", extra={"batch": batch_id})
            if run is None:
                self._later[batch_id] = now_s + LEASE_S
                await lease.give_back()  # another keeper may know more
                continue
            self._capacity.accounts[account] += 1
            self._running[batch_id] = run
            tasks.start_soon(self._run, run)
            taken += 1
        return taken

    def _may_take(self, account: str, *, is_live: bool) -> bool:
        """Return whether the account has less than its share of the slots that are free: some are left for others. An
        owed webhook waits for no lines.
        """
        same = [run.batch.account for run in self._running.values() if run.batch.is_live == is_live]
        return same.count(account) * SHARES < MOST_AT_ONCE - len(same)

    async def _run(self, run: "BatchRun") -> None:
        batch_id, later_s = run.batch.id, 0.0
        try:
            later_s = await run.run()
        except* Lost:
            log.warning("another keeper has a batch", extra={"batch": batch_id})
        except* Exception:  # the others go on
            log.exception("a batch failed, trying again", extra={"batch": batch_id})
            later_s = LEASE_S
        finally:
            del self._running[batch_id]
            self._capacity.accounts[run.batch.account] -= 1
        if later_s:
            self._later[batch_id] = self._services.clock.monotonic() + later_s


class BatchRun:
    """One batch at one keeper, from where it is to its end, or until this keeper leaves it to another one."""

    def __init__(
        self, batch: Batch, lease: Lease, state: State, store: FileStore, capacity: Capacity, notifier: Notifier
    ) -> None:
        self.batch = batch
        self.stop = Stop()
        self._lease = lease
        self._services: Services = state["services"]
        self._batches = Batches(self._services.redis, self._services.scripts)
        self._store = store
        self._capacity = capacity
        self._notifier = notifier
        self._callers = Callers(state, batch)
        self._source = Source(self._services, store, batch, capacity.turn)
        self._last: Archive | None = None

    async def run(self) -> float:
        """Return the seconds after which there is more to do, or 0. Raises Lost, in a group."""
        later_s = 0.0
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                if await self._advance():
                    later_s = await self._settle()
                tasks.cancel_scope.cancel()
        except* Lost:
            await self._clear_up()
            raise
        with suppress(BackendUnavailable):
            await self._lease.give_back()
        return later_s

    async def _clear_up(self) -> None:
        """Leave nothing of a batch that was erased, such as a part that was being stored."""
        with suppress(BackendUnavailable), anyio.move_on_after(LEASE_S):
            if await self._batches.get(self.batch.account, self.batch.id) is None and self._last is not None:
                await self._last.remove_unsettled()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with suppress(BackendUnavailable):
                self._note(await self._lease.hold())

    def _note(self, status: str) -> None:
        """Learn from the status that Redis has. Raises Lost."""
        if status in ("busy", "gone"):
            raise Lost
        if status == "cancelling":
            self.stop.end_as("cancelled")
        elif self._services.clock.now_ms() >= self.batch.expires:
            self.stop.end_as("expired")

    async def _advance(self) -> bool:
        """Bring it to its end, step by step. Returns False if this keeper leaves it."""
        self._note(self.batch.status)
        if self.batch.status == "validating":
            await self._validate()
        if self.batch.is_live and not self.batch.ends_as and not self.stop.is_leaving:
            await self._work()
        if self.batch.ends_as and self.batch.is_live:
            await self._join()
        return not self.batch.is_live

    async def _validate(self) -> None:
        checked = Validation(self._source, self._callers)
        if not self.stop:
            await checked.run(is_stopped=self.stop.__bool__)
        if self.stop:
            return
        now_ms = self._services.clock.now_ms()
        if checked.faults:
            fields: Fields = {"errors": msgspec.json.encode(checked.faults), "status": "failed", "at:failed": now_ms}
        else:
            fields = {"total": checked.total, "status": "in_progress", "at:in_progress": now_ms}
        await self._write(fields, allowed=("validating",), is_over=bool(checked.faults))
        self._note(self.batch.status)  # its caller may have canceled it meanwhile

    async def _work(self) -> None:
        """Run its lines. Where it stops before their end, write the others as not run."""
        errors = b""
        if self.batch.opens:  # its turn was the time of its hours
            await self._write({"opens": 0}, turn=self.batch.created)
        if self.batch.total:
            work = Work(
                self.batch,
                source=self._source,
                archive=self._archive(),
                callers=self._callers,
                capacity=self._capacity,
                stop=self.stop,
            )
            try:
                await work.run()
                if self.stop.is_leaving:
                    return
                if work.is_stuck:
                    await self._give_way()
                    return
                if self.stop.end is not None:
                    await work.write_rest(ENDED[self.stop.end])
            finally:
                work.close()
            if not self.stop and work.is_closed:
                await self._wait_for_hours()
                return
            if not work.is_whole:
                errors = msgspec.json.encode([INPUT_GONE])
        end: End = self.stop.end or ("failed" if errors else "completed")
        status: BatchStatus = "cancelling" if end == "cancelled" else "finalizing"
        now_ms = self._services.clock.now_ms()
        await self._write({"ends_as": end, "status": status, "errors": errors, "at:finalizing": now_ms})

    async def _wait_for_hours(self) -> None:
        """Leave it, with its turn when its hours begin, unless its caller has canceled it. Another keeper may go on.
        Nothing but the hours holds its lines up until then.
        """
        opens = min(self._callers.opens_at() or self.batch.expires, self.batch.expires)
        await self._write({"opens": opens, "waits": b""}, allowed=("in_progress",), turn=CLOSED + opens)

    async def _give_way(self) -> None:
        """Leave it for PARKED_MS, as one out of its hours: no line is accepted, and others may have its slot."""
        opens = min(self._services.clock.now_ms() + PARKED_MS, self.batch.expires)
        await self._write({"opens": opens}, allowed=("in_progress",), turn=CLOSED + opens)

    async def _join(self) -> None:
        """Make its files of the parts. It ends with that."""
        archive = self._archive()
        files = {kind: await archive.join(kind) for kind in KINDS}
        now_ms, end = self._services.clock.now_ms(), "failed" if archive.lost else self.batch.ends_as
        fields: dict[str, str | bytes | int] = {"status": end, f"at:{end}": now_ms, "written": ""}
        fields |= {"errors": msgspec.json.encode([RESULTS_LOST])} if archive.lost else {}
        fields |= {kind: file.id for kind, file in files.items() if file is not None}
        await self._write(fields, is_over=True)
        log.info("batch ended", extra={"batch": self.batch.id, "status": end})
        crash.at("after_batch_end")

    async def _settle(self) -> float:
        """List the files, delete the parts once no end can be taken back, notify the receiver. Return the seconds until
        there is more to do.
        """
        batch, archive, now_ms = self.batch, self._archive(), self._services.clock.now_ms()
        needed_ms = 0
        if not batch.settled:
            for file_id in filter(None, (batch.output, batch.error)):
                await archive.list(FileId(file_id))
            needed_ms = max(0, batch.times[batch.status] + PARTS_NEEDED_MS - now_ms) if batch.stored_parts else 0
            if not needed_ms:
                await with_patience(archive.remove_parts)
                await with_patience(partial(self._batches.drop_parts, batch))
                await self._write({"settled": 1}, allowed=(batch.status,))
        if later_s := await self._notifier.notify(self.batch, self._lease):
            return later_s
        if needed_ms:
            await self._write({"webhook": ""}, allowed=(batch.status,), turn=OVER + now_ms + needed_ms)
        else:
            await self._write({}, allowed=(batch.status,), turn="-")
        return needed_ms / 1000

    def _archive(self) -> Archive:
        self._last = Archive(self._services, self._store, self._lease, self.batch)
        return self._last

    async def _write(
        self,
        fields: Fields,
        *,
        allowed: Sequence[BatchStatus] = LIVE,
        is_over: bool = False,
        turn: int | Literal["", "-"] = "",
    ) -> None:
        """Write if its status is one of `allowed`, and read it again. Raises Lost."""
        write = partial(self._lease.write, nonce=secrets.token_hex(8), allowed=allowed, is_over=is_over, turn=turn)
        await with_patience(partial(write, fields))
        found = await with_patience(partial(self._batches.get, self.batch.account, self.batch.id))
        if found is None:
            raise Lost
        self.batch = found
