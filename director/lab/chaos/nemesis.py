"""Carry out the planned faults, and mend everything at the end. Only processes and links of the scene are hit. Nothing
stays frozen or cut after the block, however it ends.
"""

import math
import signal
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import httpx
from msgspec.structs import replace
from redis import exceptions

from director.broker import keys
from director.broker.redis_client import servers as masters
from director.core.errors import DirectorError
from director.core.ids import QueueName
from director.lab.chaos.journal import Answered, Fault, Journal, Sent, now_ms
from director.lab.chaos.plan import (
    AGAIN_MS,
    ALL_LINKS,
    AT_A_SYNC,
    BLACK_HOLE,
    CLOCK_STEP,
    CUT_MASTER,
    DELETE_VERSION,
    FAILOVERS,
    KILL_MASTER,
    KINDS,
    MOVE_SLOT,
    NARROW,
    REPLACE,
    SERVER,
    SINK,
    STOP_MASTER,
    Planned,
)
from director.lab.chaos.proxy import Link
from director.lab.chaos.scene import API, FRONT, PASSING, Scene
from director.lab.chaos.servers import ClusterNodes, Sentinels
from director.local.launcher.processes import UpError

RESTART: Final = "restart"
CRASH_AT: Final = "DIRECTOR_CRASH_AT"
CREATED: Final = b"HTTP/1.1 201"
LATE_S: Final = 2.0
LONGEST_MEND_S: Final = 60.0
DELETION_DELAY_S: Final = (0.004, 0.008)  # each piece waits this long, each way: under load pieces queue up
FORGOTTEN_S: Final = 5.0
FREEZE_S: Final = 2.0  # less than a command may take, so that the deletion goes on afterwards
FOUND_AGAIN_S: Final = 10.0
ASK_AGAIN_S: Final = 0.3
LONGEST_MOVE_S: Final = 10.0
ROOM_BYTES: Final = 4 * 1024  # memory that a full server has left: enough for a few predictions


class Nemesis:
    def __init__(self, scene: Scene, journal: Journal, say: Callable[[str], None]) -> None:
        self._scene, self._journal, self._say = scene, journal, say
        self._began_at = self._ends_at = 0.0
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)  # by target
        self._stopped: set[str] = set()
        self._perform: dict[str, Callable[[Planned], Coroutine[Any, Any, None]]] = {
            **dict.fromkeys(("kill_director", "kill_cog", "kill_keeper", "kill_redis", "kill_sentinel"), self._kill),
            **dict.fromkeys(FAILOVERS, self._fail_over),
            **dict.fromkeys(("crash_director", "crash_api"), self._crash),
            **dict.fromkeys(("stop_director", "stop_cog"), self._stop),
            **dict.fromkeys(("partition", "latency", "reset", NARROW), self._on_links),
            BLACK_HOLE: self._black_hole,
            "kill_api": self._kill_api,
            "kill_power": self._kill_power,
            "lose_reply": self._lose_reply,
            "sink_outage": self._sink_outage,
            "memory_full": self._memory_full,
            "resize": self._resize,
            MOVE_SLOT: self._move_slot,
            "restart_directors": self._restart_directors,
            DELETE_VERSION: self._delete_version,
            CLOCK_STEP: self._step_clock,
            "suspend_machine": self._suspend_machine,
            RESTART: self._restart,
            REPLACE: self._replace,
        }

    @property
    def kinds(self) -> set[str]:
        return set(self._perform)

    async def run(self, faults: Sequence[Planned], *, seconds: float) -> None:
        self._began_at = anyio.current_time()
        self._ends_at = self._began_at + seconds
        async with anyio.create_task_group() as tasks:
            for fault in faults:
                await anyio.sleep_until(self._began_at + fault.at_ms / 1000)
                tasks.start_soon(self._in_turn, fault)
        await self._heal()

    async def _in_turn(self, fault: Planned) -> None:
        """Carry out a fault once its target is back. A drawn fault is left out if that takes long: on a busy machine an
        API needs 10 s to start, is killed every 8 s, and would never be back. After the load only replacements are
        carried out: without them the last mixtures of a rollout would not be tried.
        """
        latest = self._began_at + fault.at_ms / 1000 + LATE_S if fault.kind in KINDS else math.inf
        async with self._turns[fault.target]:
            if anyio.current_time() < min(self._ends_at, latest) or fault.kind == REPLACE:
                await self._perform[fault.kind](fault)

    async def _heal(self) -> None:
        """Raises UpError with the name of a process that is not ready."""
        scene = self._scene
        if scene.clock is not None and scene.clock.offset_s < scene.clock.highest_s:
            self._step(scene.clock.highest_s - scene.clock.offset_s)
        late = ""
        with anyio.move_on_after(LONGEST_MEND_S):
            for late in scene.names:
                await scene.until_ready(late)
            return
        raise UpError(f"{late} does not work again after the faults. Its log is {scene.home.log(late)}.")

    async def _kill(self, fault: Planned, *, by: signal.Signals = signal.SIGKILL) -> None:
        with self._note(fault) as pid:
            self._scene.signal(fault.target, by)
            await self._until_back(fault.target, pid)

    async def _kill_api(self, fault: Planned) -> None:
        if fault.detail == "before its answer":
            with anyio.move_on_after(2.0):
                await self._scene.links[FRONT].lose_reply(CREATED)
        await self._kill(fault)

    async def _kill_power(self, fault: Planned) -> None:
        """Kill the server as a power cut does: the last writes of its log are gone. No client got a reply to them, and
        none of their replies is passed on afterwards.
        """
        scene = self._scene
        links = scene.to_redis
        with self._note(fault) as pid:
            for link in links:
                link.hold_replies()
            try:
                with suppress(DirectorError):  # a server that is away already loses nothing more
                    synced = await scene.find_synced()
                    await anyio.sleep(fault.lasts_ms / 1000)
                    scene.cut_power(synced, is_torn=fault.detail != AT_A_SYNC)
                scene.signal(SERVER, signal.SIGKILL)
                for link in links:
                    link.reset()
                await scene.until_restarted(SERVER, pid)
            finally:
                for link in links:
                    link.pass_replies()
            await self._until_back(SERVER, pid)

    async def _fail_over(self, fault: Planned) -> None:
        """Strike the master until another server has taken over and some time has passed. Then wait until it follows
        the other one.
        """
        servers = self._scene.servers
        assert isinstance(servers, Sentinels)  # noqa: S101 - for the type checker
        struck = replace(fault, target=await servers.master())
        ways: dict[str, Callable[[str], AbstractContextManager[None]]] = {
            KILL_MASTER: partial(self._keep_killed, servers),
            STOP_MASTER: lambda name: self._freeze([name]),
            CUT_MASTER: servers.cut_off,
        }
        with self._note(struck):
            with ways[fault.kind](struck.target):
                await servers.until_another_than(struck.target)
                await anyio.sleep(fault.lasts_ms / 1000)
            await servers.until_whole()
            await self._make_room()  # what was set while it was away would stay

    async def _move_slot(self, fault: Planned) -> None:
        """Move a queue, with all that its model has, to the next master. It is noted once it was done: it excuses no
        delay, and a master that is restarted meanwhile refuses it.
        """
        servers = self._scene.servers
        assert isinstance(servers, ClusterNodes)  # noqa: S101 - for the type checker
        with suppress(exceptions.RedisError, DirectorError), anyio.move_on_after(LONGEST_MOVE_S):
            queues = await self._scene.queues()
            await servers.move(keys.meta(queues[int(fault.detail) % len(queues)]))
            with self._note(fault):
                pass

    async def _crash(self, fault: Planned) -> None:
        """Replace a process by one that dies at a given point. Kill it if it does not reach that point in time."""
        scene, name = self._scene, fault.target
        environment = scene.roles[name].env
        give_up_at = anyio.current_time() + fault.lasts_ms / 1000
        with self._note(Planned(at_ms=fault.at_ms, kind=RESTART, target=name)) as first:
            environment[CRASH_AT] = fault.detail
            scene.signal(name, signal.SIGTERM)
            await scene.until_restarted(name, first)
            del environment[CRASH_AT]  # at once: it may die before it is ready, and the next process must not die
            armed = scene.pid(name)
            with anyio.CancelScope(deadline=give_up_at):
                await scene.until_gone(name, armed)
            with self._note(fault, pid=armed):
                if scene.pid(name) == armed:
                    scene.signal(name, signal.SIGKILL)
                await self._until_back(name, armed)

    async def _stop(self, fault: Planned) -> None:
        self._stopped.add(fault.target)
        try:
            with self._note(fault), self._freeze([fault.target]):
                await anyio.sleep(fault.lasts_ms / 1000)
        finally:
            self._stopped.discard(fault.target)

    @contextmanager
    def _keep_killed(self, servers: Sentinels, name: str) -> Iterator[None]:
        """Kill this server. It starts again after the block."""
        with servers.keep_away(name):
            self._scene.signal(name, signal.SIGKILL)
            yield

    @contextmanager
    def _freeze(self, names: Sequence[str]) -> Iterator[None]:
        """Stop these processes for the block. A process that took the place of one of them was not stopped."""
        stopped = {name: self._scene.pid(name) for name in names}
        for name in names:
            self._scene.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name, pid in stopped.items():
                if self._scene.pid(name) == pid:
                    self._scene.signal(name, signal.SIGCONT)

    async def _restart_directors(self, fault: Planned) -> None:
        """Restart the directors as a rollout does: the next one only when the successor of the last one is ready."""
        for name in self._scene.stage.directors:
            await self._in_turn(Planned(at_ms=fault.at_ms, kind=RESTART, target=name))

    async def _restart(self, fault: Planned) -> None:
        await self._kill(fault, by=signal.SIGTERM)

    async def _replace(self, fault: Planned) -> None:
        self._scene.release(fault.target, fault.detail)
        await self._restart(fault)

    async def _delete_version(self, fault: Planned) -> None:
        with self._note(fault):
            kill = Planned(at_ms=fault.at_ms, kind="kill_director", target=fault.target)
            for _ in range(int(fault.detail)):
                with self._note(kill) as pid:
                    await self._delete_at_start(fault.target, pid)
            await self._until_accepted(f"{fault.kind}-{fault.at_ms}")

    async def _delete_at_start(self, name: str, pid: int) -> None:
        """Let the director's successor reach Redis in the middle of the API's deletion, then freeze the API."""
        scene = self._scene
        way, deleting, queue = scene.links[f"{name}:redis"], scene.links[f"{API}:redis"], scene.to_delete
        way.cut()
        try:
            scene.signal(name, signal.SIGKILL)
            await scene.until_restarted(name, pid)
            await scene.until_listening(name)
            deleting.delay_s = DELETION_DELAY_S  # so that its writes do not come all at once
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._delete, queue)
                with anyio.move_on_after(FORGOTTEN_S):
                    await scene.until_known(queue, is_known=False)
                    with self._freeze([API]), anyio.move_on_after(FREEZE_S):
                        way.mend()
                        await scene.until_known(queue, is_known=True)
        finally:
            way.mend()
            deleting.delay_s = (0.0, 0.0)
        await self._until_back(name, pid)

    async def _delete(self, queue: QueueName) -> None:
        self._say_when(f"the deletion was answered {await self._scene.delete_version(queue)}")

    async def _until_accepted(self, key: str) -> None:
        with anyio.move_on_after(FOUND_AGAIN_S):
            while True:
                self._journal.write(Sent(at=now_ms(), key=key, action="create", tenant="tenant-0", model=PASSING))
                answer = await self._scene.create_passing(key=key)
                if answer is not None and answer.is_success:
                    made, status = answer.json(), answer.status_code
                    shown = {"id": made["id"], "shown": made["status"]}
                    self._journal.write(Answered(at=now_ms(), key=key, action="create", status=status, **shown))
                    return
                await anyio.sleep(ASK_AGAIN_S)

    async def _on_links(self, fault: Planned) -> None:
        hit = self._hit(fault)
        with self._note(fault):
            for link in hit:
                match fault.kind:
                    case "partition":
                        link.cut()
                    case "latency":
                        most_s = int(fault.detail) / 1000
                        link.delay_s = (most_s / 2, most_s)
                    case "reset":
                        link.reset()
                    case _:
                        link.bytes_s = float(fault.detail)
            try:
                await anyio.sleep(fault.lasts_ms / 1000)
            finally:
                for link in hit:
                    if fault.kind == NARROW:  # a link stays narrow if another fault on it is mended meanwhile
                        link.bytes_s = 0.0
                    else:
                        link.mend()

    def _hit(self, fault: Planned) -> list[Link]:
        return self._scene.to_redis if fault.target == ALL_LINKS else [self._scene.links[fault.target]]

    async def _black_hole(self, fault: Planned) -> None:
        """Its end is noted some seconds later: what was lost meanwhile is sent again at growing distances, and a
        connection that was begun in it is given up first.
        """
        hit = self._hit(fault)
        with self._note(fault):
            for link in hit:
                link.vanish()
            try:
                await anyio.sleep(fault.lasts_ms / 1000)
            finally:
                for link in hit:
                    link.come_back()
            await anyio.sleep(AGAIN_MS / 1000)

    async def _lose_reply(self, fault: Planned) -> None:
        with self._note(fault), anyio.move_on_after(fault.lasts_ms / 1000):
            await self._scene.links[fault.target].lose_reply(fault.detail.encode())

    async def _sink_outage(self, fault: Planned) -> None:
        with self._note(fault):
            for mode, lasts_ms in ((fault.detail, fault.lasts_ms), ("ok", 0)):
                with suppress(httpx.TransportError):
                    await self._scene.http.put(f"{self._scene.roles[SINK].url}/mode/{mode}")
                await anyio.sleep(lasts_ms / 1000)

    async def _memory_full(self, fault: Planned) -> None:
        with self._note(fault):
            with suppress(exceptions.RedisError):  # if it is down now, it accepts no writes either
                for redis in await masters(self._scene.redis):
                    memory = await redis.info("memory")
                    # the server's buffers for its log and its replicas do not count towards the limit
                    used = memory["used_memory"] - memory.get("mem_not_counted_for_evict", 0)
                    await redis.config_set("maxmemory", used + ROOM_BYTES)
            await anyio.sleep(fault.lasts_ms / 1000)
            await self._make_room()

    async def _make_room(self) -> None:
        for name in self._scene.servers.data:
            with suppress(exceptions.RedisError):
                await self._scene.servers.direct[name].config_set("maxmemory", 0)

    async def _resize(self, fault: Planned) -> None:
        with self._note(fault), suppress(DirectorError):
            await self._scene.resize(streams=int(fault.detail))

    async def _step_clock(self, fault: Planned) -> None:
        self._step(int(fault.detail))

    async def _suspend_machine(self, fault: Planned) -> None:
        """A suspended machine stops all its processes, and CLOCK_MONOTONIC with them. When it wakes, a minute has
        passed by the server's clock only. The wall clocks of the other processes are not stepped.
        """
        running = [name for name in self._scene.names if name not in self._stopped]
        with self._note(fault), self._freeze(running):
            self._step(int(fault.detail))
            await anyio.sleep(fault.lasts_ms / 1000)

    def _step(self, seconds: int) -> None:
        """The record comes first: a time from after the step must not precede it."""
        if self._scene.clock is None:
            raise UpError("The server of this run was started without libfaketime.")
        with self._note(Planned(at_ms=0, kind=CLOCK_STEP, target=SERVER, detail=f"{seconds:+d}")):
            self._scene.clock.step(seconds)

    @contextmanager
    def _note(self, fault: Planned, *, pid: int = 0) -> Iterator[int]:
        hit, kind, target, detail = pid or self._scene.pid(fault.target), fault.kind, fault.target, fault.detail
        line = Fault(at=now_ms(), kind=kind, target=target, phase="begin", detail=detail, pid=hit)
        self._journal.write(line)
        lasts = f" for {fault.lasts_ms / 1000:g} s" if fault.lasts_ms else ""
        self._say_when(f"{kind.replace('_', ' ')}: {target}{f' ({detail})' if detail else ''}{lasts}")
        try:
            yield hit
        finally:
            self._journal.write(replace(line, at=now_ms(), phase="end"))

    def _say_when(self, what: str) -> None:
        self._say(f"  {anyio.current_time() - self._began_at:5.1f} s  {what}")

    async def _until_back(self, name: str, pid: int) -> None:
        await self._scene.until_restarted(name, pid)
        await self._scene.until_ready(name)
