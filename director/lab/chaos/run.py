"""Carry out one run: stage, calibrate, load under faults, heal, wait for rest, check. None of the run's processes is
left after it, however it ends. Ctrl-C stops it at once.
"""

import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio import to_thread
from msgspec import Struct

from director.broker import keys
from director.broker.redis_client import ask
from director.core.errors import DirectorError
from director.lab.chaos import neighbours, usage
from director.lab.chaos.checker import Report, check
from director.lab.chaos.client import Burst, Counts, Errand, come_back
from director.lab.chaos.evidence import RULES, Rules
from director.lab.chaos.failovers import master_at, reigns, unmade
from director.lab.chaos.journal import Answered, Fault, Healed, Journal, Line, Rested, now_ms, read
from director.lab.chaos.neighbours import Visit
from director.lab.chaos.nemesis import Nemesis
from director.lab.chaos.plan import (
    ALONE,
    BESIDE,
    BLACK_HOLE,
    DELETE_VERSION,
    MISSING_AT_FIRST,
    NARROW_AT,
    NARROW_IN_PEACE,
    ODDLY,
    SCHEDULE_S,
    SENTINEL,
    SERVER,
    SLOW_DISK,
    Plan,
    Planned,
    batch_times,
    rollout,
    schedule,
)
from director.lab.chaos.rest import LEFTOVERS, count_owed_to_living, join, leftovers, predictions, server_log
from director.lab.chaos.scene import (
    API,
    COGS,
    CROWDED,
    EQUALS,
    FRONT,
    IN_LINE,
    MODELS,
    PASSING,
    SERVED,
    SLOTS,
    SLOTS_OF,
    Options,
    Scene,
    find_library,
    open_scene,
)
from director.local.home import Home
from director.local.launcher import child
from director.local.launcher.processes import UpError
from director.runtime.process import one_error
from director.runtime.startup import raise_descriptor_limit
from director.store.batches import OVER

LOAD: Final = 0.4  # of the sustained rate without faults: the rest is for work that must be done twice
REST_S: Final = (
    120.0  # plus one lease, since the last change: a busy machine had 6 of 8,000 predictions left after 75 s
)
LONGEST_REST_S: Final = 900.0
LOOK_S: Final = 0.25
REGISTERED_S: Final = 15.0  # for a director to find that its queue is missing in a registry: it looks every 5 s
# A director whose version was deleted logs errors, and the logs of a rollout are judged too. Release 0.3.0 spins once
# its kernel gives up a connection, so that its processes are not judged by what they use either.
NOT_IN_A_ROLLOUT: Final = (DELETE_VERSION, BLACK_HOLE)
# Release 0.3.0 takes some odd answers for a death. At its keeper, each delivery to a host takes a step of the schedule
# of all others there: a receiver that was missing for 12 s was given up after 15 attempts in 9 s.
NOT_OF_THE_FORMER: Final[Sequence[Plan]] = (ODDLY, MISSING_AT_FIRST)
LAST_WEBHOOK_S: Final = 0.5
RESTED_S: Final = 4.0
TRIED_S: Final = 0.1
SLOW_MS: Final = 500  # a server with `appendfsync always` gives no answer for as long as its disk gives none
RUSH_S: Final = 8.0
RUSHES: Final = (1.0, 0.3)  # seconds from the start, in peace; then a part of the time with faults
PEACE_S: Final = 14.0  # the backlog of a rush should be gone by then: it takes 11 to 12 s
WATCHES: Final[Sequence[tuple[Plan, float, float]]] = (
    (ALONE, 0.2, 3.8),
    (BESIDE, 8.5, 5.0),  # once most of what the neighbours began with is done
)  # from when on and how long the bystander is watched
VISIT: Final = Visit(part="peace", at_s=4.2, seconds=9.6)
WATCH_S: Final = 14.3
VISIT_S: Final = 12.0  # under faults
VISITED: Final = 0.5  # a part of the time with faults, once the rush is over
LEAST_VISITED_S: Final = 90.0  # in a shorter run, the servers that they kill and hang are no longer made up for
LARGE_S: Final = 2.0  # from their creation until all large predictions have a slot
LEAST_S: Final = 10.0  # a shorter run has no time for a rush
MOST_S: Final = 2_400.0  # of a number of predictions: an hour after their ends, Redis forgets outputs and events
ATTEMPTS: Final = 3
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HOME_PREFIX: Final = "director-chaos-"
NONE: Final[Mapping[str, int]] = {}


def chaos(options: Options, say: Callable[[str], None]) -> Report:
    """Raises KeyboardInterrupt if a signal ended the run, UpError if it could not be carried out."""
    raise_descriptor_limit()
    if options.faketime and find_library(options.faketime) is None:
        raise UpError(
            f"There is no file {options.faketime}. Name the libfaketime.so.1 of this machine with --faketime."
        )
    with _home(options, say) as home:
        report = anyio.run(_until_judged, home, options, say, backend_options={"use_uvloop": True})
        if report is None:
            raise KeyboardInterrupt
        if options.is_kept or not report.ok:
            say(f"journals and logs stay in {options.kept_in or home.path}")
        elif options.home is None:
            shutil.rmtree(home.path)
        return report


@contextmanager
def _home(options: Options, say: Callable[[str], None]) -> Generator[Home]:
    """Yield a new, locked folder. A failed run leaves its folder for reading, so a used one is refused."""
    home = Home(options.home or Path(tempfile.mkdtemp(prefix=HOME_PREFIX)))
    home.make()
    if home.state_file.exists():
        raise UpError(f"{home.shown} has been used. Choose a new folder with --home, or leave it out.")
    say(f"seed {options.seed}: {options.seconds:g} s with a lease of {options.lease_s:g} s, in {home.path}")
    try:
        with home.lock():
            yield home
    except DirectorError as exc:
        raise UpError(f"{exc} Journals and logs stay in {options.kept_in or home.path}.") from exc


async def _until_judged(home: Home, options: Options, say: Callable[[str], None]) -> Report | None:
    """Return the report, or None if a signal came first."""
    report = None

    async def cancel_on_signal() -> None:
        async for _ in signals:
            tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(*SIGNALS) as signals, one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_signal)
            async with open_scene(home, options) as scene:
                report = await Run(scene, say).judge()
            tasks.cancel_scope.cancel()
    return report


async def watch_disk(folder: Path, journal: Journal) -> None:
    """Note when the disk of this folder stands still: a fault that the machine makes, and the plan does not know."""
    with (folder / "disk").open("wb", buffering=0) as file:
        while True:
            began, took_ms = now_ms(), await to_thread.run_sync(_sync_ms, file.fileno())
            if took_ms >= SLOW_MS:
                journal.write(Fault(at=began, kind=SLOW_DISK, target="redis", phase="begin"))
                journal.write(Fault(at=began + took_ms, kind=SLOW_DISK, target="redis", phase="end"))
            await anyio.sleep(TRIED_S)


def _sync_ms(file: int) -> int:
    began = time.monotonic()
    os.pwrite(file, bytes(512), 0)
    os.fsync(file)
    return round(1000 * (time.monotonic() - began))


def length_s(options: Options, rate: float) -> float:
    """Return for how long a load of this rate lasts."""
    return max(options.seconds, min(options.predictions / rate, MOST_S))


class Run:
    def __init__(self, scene: Scene, say: Callable[[str], None]) -> None:
        self._scene = scene
        self._options = options = scene.options
        # fairness is judged within one release, so that a rollout has no peace and no rush
        self._seconds = options.seconds
        self._is_long = is_long = self._seconds >= LEAST_S and options.rollout is None
        self._watch_s = WATCH_S if options.rollout is None else 0.0
        self._peace_s = self._watch_s + PEACE_S if is_long else self._watch_s
        self._quiet_s = self._peace_s + NARROW_IN_PEACE.lasts_ms / 1000 if is_long else self._watch_s
        # a failover may lose a batch's last changes, and its lines are not among what the servers' logs excuse
        self._has_batches = options.rollout is None and options.kind != SENTINEL
        self._say = say
        self._journal = Journal(scene.journals / "nemesis.jsonl")

    async def judge(self) -> Report:
        with closing(self._journal), closing(Journal(self._scene.journals / "usage.jsonl")) as samples:
            await self._watch(samples)
        await come_back(self._front, self._scene.tokens, self._scene.journals)
        await self._write_down()
        return check(self._scene.journals)

    async def _watch(self, samples: Journal) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_disk, self._scene.home.path, self._journal)
            if self._options.rollout is None:
                tasks.start_soon(usage.watch, self._pids, samples)
            await self._calibrate()
            self._journal.write(Healed(at=now_ms()))
            self._say("healed; waiting for rest")
            await self._rest()
            self._say("taking all slots at once")
            await self._client(seconds=0, rate=1, full=Counter(self._slots()))
            await self._rest()
            rested = now_ms()
            await anyio.sleep(RESTED_S)
            self._journal.write(Rested(at=rested, until=now_ms()))
            tasks.cancel_scope.cancel()

    def _slots(self) -> Iterator[str]:
        """Yield the model of each slot."""
        for name, model in zip(COGS, SERVED, strict=True):
            yield from [model] * SLOTS_OF[name]

    def _pids(self) -> dict[str, int]:
        return {name: pid for name in self._scene.names if (pid := self._scene.pid(name))}

    async def _calibrate(self) -> None:
        scene, options = self._scene, self._options
        await scene.start()
        self._say(f"{len(scene.names)} processes are ready; calibrating for {options.calibration_s:g} s without faults")
        sustained = (await self._client(seconds=options.calibration_s)).rate
        if not sustained:
            raise UpError("The API accepted no prediction in the calibration.")
        rate = sustained * LOAD
        self._seconds = length_s(options, rate)
        self._say(f"sustained {sustained:.0f}/s; the load is {LOAD:.0%} of it: {rate:.0f}/s for {self._seconds:.0f} s")
        nemesis, faults = Nemesis(scene, self._journal, self._say), self._faults()
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._disturb, nemesis, faults)
                tasks.start_soon(self._neighbours)
                counts = await self._client(seconds=self._quiet_s + self._seconds, rate=rate)
        self._say(
            f"the load is over: {counts.sent} requests, {counts.accepted} accepted, {counts.refused} refused, "
            f"{counts.given_up} given up"
        )

    def _faults(self) -> list[Planned]:
        options, stage = self._options, self._scene.stage
        faults: list[Planned] = []
        if options.has_faults:
            if why := options.left_out:
                self._say(why)
            drawn = schedule(options.seed, seconds=self._seconds, lease_s=options.lease_s, stage=stage)
            faults += [fault for fault in drawn if not (options.rollout and fault.kind in NOT_IN_A_ROLLOUT)]
        if options.rollout:
            faults += rollout(str(options.rollout.after), seconds=self._seconds, stage=stage)
        return sorted(faults, key=lambda fault: fault.at_ms)

    async def _disturb(self, nemesis: Nemesis, faults: Sequence[Planned]) -> None:
        if self._quiet_s:
            then = ", then a rush, then large outputs over narrow links" if self._quiet_s > self._peace_s else ""
            self._say(f"{self._quiet_s:g} s without other faults: neighbours{then}")
            await anyio.sleep(self._peace_s)
        if self._quiet_s > self._peace_s:
            await nemesis.run([NARROW_IN_PEACE], seconds=self._quiet_s - self._peace_s)
        await nemesis.run(faults, seconds=self._seconds)

    async def _client(self, *, seconds: float, rate: float | None = None, full: Mapping[str, int] = NONE) -> Counts:
        scene, options, quiet_s = self._scene, self._options, self._quiet_s
        slots = SLOTS * SERVED.count(CROWDED)
        rushes = [self._watch_s + RUSHES[0], quiet_s + RUSHES[1] * self._seconds] if self._is_long else []
        # their ends meet narrow links
        large = [self._peace_s, quiet_s + NARROW_AT * self._seconds] if self._is_long else []
        times = batch_times(self._seconds) if rate and self._has_batches else ()
        errand = Errand(
            url=self._front,
            tokens=scene.tokens[: options.tenants + EQUALS + 1],
            tenants=options.tenants,
            equals=EQUALS,
            sink_url=scene.sink_url,
            models=MODELS,
            seed=options.seed,
            seconds=seconds,
            journal=str(scene.journals / "client.jsonl"),
            rate=rate,
            quiet_s=quiet_s,
            left_out=() if options.rollout is None else NOT_OF_THE_FORMER,
            rushes=[Burst(at_s=at_s, models=[CROWDED], slots=slots, seconds=RUSH_S) for at_s in rushes],
            large=[Burst(at_s=at_s, models=MODELS, seconds=LARGE_S) for at_s in large],
            watches={plan: Burst(at_s=at_s, models=[IN_LINE], seconds=lasts_s) for plan, at_s, lasts_s in WATCHES}
            if self._watch_s
            else {},
            full=full,
            has_calls=options.rollout is None,
            batches=[max(self._watch_s, quiet_s + at_s) for at_s in times],
        )
        return msgspec.json.decode(await self._play("client", errand), type=Counts)

    async def _neighbours(self) -> None:
        scene, options = self._scene, self._options
        if not self._watch_s:
            return
        under_faults = Visit(part="faults", at_s=self._quiet_s + VISITED * self._seconds, seconds=VISIT_S)
        # a shorter run would have the rush and the narrow links at the same time
        visits = [VISIT, under_faults] if options.has_faults and self._seconds >= LEAST_VISITED_S else [VISIT]
        errand = neighbours.Errand(
            url=self._front,
            api_url=scene.roles[API].url,
            tokens=scene.tokens,
            tenants=scene.neighbours,
            sink_url=scene.sink_url,
            crowded=CROWDED,
            quiet=IN_LINE,
            spare=PASSING,
            seed=options.seed,
            journal=str(scene.journals / "neighbours.jsonl"),
            visits=visits,
        )
        await self._play("neighbours", errand)

    async def _play(self, name: str, errand: Struct) -> bytes:
        """Run a party of callers until its errand is done. Return what it wrote."""
        scene = self._scene
        command = [sys.executable, "-P", "-m", f"director.lab.chaos.{name}"]
        log = scene.home.open_log(name)
        try:
            done = await anyio.run_process(
                child.bind_to_parent(*command),
                input=msgspec.json.encode(errand),
                stderr=log,
                check=False,
                start_new_session=True,
            )
        finally:
            os.close(log)
        if done.returncode:
            raise UpError(f"A party of the run failed: {name}. Its log is {scene.home.log(name)}.")
        return done.stdout

    @property
    def _front(self) -> str:
        return f"http://127.0.0.1:{self._scene.links[FRONT].port}"

    async def _rest(self) -> None:
        redis: Any = self._scene.redis  # its types say int or awaitable
        queues = await self._scene.queues()
        counts: dict[str, Any] = {keys.live(queue): partial(redis.zcard, keys.live(queue)) for queue in queues}
        owed = {keys.owed(keys.queue_partition(queue)) for queue in queues}
        counts |= {name: partial(count_owed_to_living, redis, name) for name in owed}
        counts[keys.batches()] = partial(redis.zcount, keys.batches(), "-inf", f"({OVER}")
        began = anyio.current_time()
        patience_s = REST_S + self._options.lease_s
        left, fewest = {"": 1}, math.inf
        with anyio.move_on_after(patience_s) as waiting:
            while left:
                counted = {name: await ask(count) for name, count in counts.items()}
                left = {name: count for name, count in counted.items() if count}
                if sum(left.values()) < fewest:  # a busy machine needs longer, but it goes on
                    fewest = sum(left.values())
                    waiting.deadline = min(anyio.current_time() + patience_s, began + LONGEST_REST_S)
                await anyio.sleep(LOOK_S)
        with anyio.move_on_after(REGISTERED_S):
            while any(rest.lost_by for rest in (await leftovers(self._scene.redis)).queues):  # noqa: ASYNC110 - no event
                await anyio.sleep(LOOK_S)
        await anyio.sleep(LAST_WEBHOOK_S)
        took_s = anyio.current_time() - began
        self._say(f"at rest after {took_s:.1f} s" if not left else f"not at rest after {took_s:.0f} s: {left}")

    async def _write_down(self) -> None:
        redis, folder = self._scene.redis, self._scene.journals
        answers = (line for line in read(folder / "client.jsonl") if isinstance(line, Answered))
        with closing(Journal(folder / "queue.jsonl")) as journal:
            async for prediction in predictions(redis, {line.id for line in answers if line.id}):
                journal.write(prediction)
        with closing(Journal(folder / "server.jsonl")) as journal:
            for line in self._server_lines():
                journal.write(line)
        (folder / LEFTOVERS).write_bytes(msgspec.json.encode(await leftovers(redis)))
        options = self._options
        rules = Rules(
            seed=options.seed,
            seconds=round(self._seconds, 1),
            lease_s=options.lease_s,
            attempts=ATTEMPTS,
            slots=SLOTS,
            slots_of=SLOTS_OF,
            left_out=options.left_out if options.has_faults else "",
            kind=options.kind,
            is_sampled=usage.IS_SAMPLED and options.rollout is None,
            schedule_s=() if options.rollout else SCHEDULE_S,  # other deliveries use up that of 0.3.0
            has_calls=options.rollout is None,
            has_batches=self._has_batches,
            is_counted=options.rollout is None,  # directors of 0.3.0 count nothing
            has_steps=True,
            lag_s=self._scene.servers.lag_s,
        )
        (folder / RULES).write_bytes(msgspec.json.encode(rules))

    def _server_lines(self) -> Iterator[Line]:
        scene, data = self._scene, self._scene.servers.data
        if len(data) == 1:
            yield from server_log(data[SERVER])
            return
        promotions = reigns({name: scene.home.log(name) for name in data})
        logs = {name: server_log(folder) for name, folder in data.items()}
        yield from join(logs, partial(master_at, promotions))
        yield from promotions
        yield from unmade(data, promotions)
