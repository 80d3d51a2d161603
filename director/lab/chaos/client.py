"""Play the callers of a run, in a process of its own: `python -m director.lab.chaos.client < errand.json`. The client
sends each order once it is due, and tries again with the same key until an answer says what became of it. It
records every try and every answer, and never looks into Redis.
"""

import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from director.core.ids import PredictionId, created_ms_of
from director.core.states import TERMINAL
from director.lab.chaos import batches
from director.lab.chaos.calls import PAUSE_S, SILENT_S, TRY_S, call
from director.lab.chaos.journal import (
    Action,
    Answered,
    Followed,
    Heard,
    Journal,
    Listed,
    Seen,
    Sent,
    Visited,
    now_ms,
    read,
)
from director.lab.chaos.parties import FILL, Script
from director.lab.chaos.plan import (
    ALONE,
    BATCH,
    BESIDE,
    LARGE,
    MISSING_AT_FIRST,
    NOT_IN_PEACE,
    TALKER,
    Order,
    Plan,
    bystanders,
    calls,
    fill,
    key_of,
    large,
    make_plain,
    orders,
    rush,
)
from director.lab.chaos.wire import Answer, Caller, Unanswered

LEAVES_AFTER: Final = (1, 3)  # number of events
RETRIED: Final = "retried"
READERS: Final = 8
PAGE: Final = 3  # number of events; few, so that most lists have several pages
PATIENCE_S: Final = 60.0
LOOKS_AFTER_END: Final = 4
LOOKING_S: Final = 30.0
NEAR_MS: Final = 3  # a list is asked for what was created in these milliseconds around it

End = Literal["done", "broken", "silent", "whole", "left"]


@dataclass
class Reader:
    """A reader resumes after `after` whenever the stream breaks, and accepts only `done` as the end. It leaves after
    some events, so that each reader resumes even if nothing breaks. `token` is for all requests but the stream.
    """

    api: Caller
    id: str
    journal: Journal
    token: str
    after: str = ""
    leaves_after: Sequence[int] = LEAVES_AFTER
    is_done: bool = False
    heard: int = 0

    async def follow(self) -> None:
        while True:
            status, end = await self._visit()
            if end == "done" or 400 <= status < 500:
                return
            if end != "left":
                await anyio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads visits, plans nothing

    async def list(self) -> None:
        found: list[tuple[int, str]] = []
        after = 0
        with suppress(Unanswered):
            while True:
                answer = await self._ask(f"/events?after={after}&limit={PAGE}")
                if answer.status != 200:
                    return
                page = msgspec.json.decode(answer.body)
                if not page["events"]:
                    break
                found += [(event["seq"], event["type"]) for event in page["events"]]
                after = page["next"]
            self.journal.write(Listed(at=now_ms(), id=self.id, events=found))

    async def _visit(self) -> tuple[int, End]:
        came, after, status = now_ms(), self.after, 0
        end: End = "left"
        has_begun = False
        try:
            answer = await self._ask()
            status = answer.status
            if status == 200:
                path = "/" + msgspec.json.decode(answer.body)["urls"]["stream"].split("/", 3)[3]
                headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
                async with self.api.follow(path, headers=headers, within_s=TRY_S, silent_s=SILENT_S) as stream:
                    status, pieces = stream[0].status, stream[1]
                    has_begun = status == 200
                    if has_begun:
                        end = await self._listen(pieces)
            if status != 200:
                end = "broken"
        except Unanswered as exc:
            end = "silent" if has_begun and isinstance(exc.__cause__, TimeoutError) else "broken"
        finally:
            self.journal.write(Visited(at=came, until=now_ms(), id=self.id, after=after, status=status, end=end))
        return status, end

    async def _ask(self, page: str = "") -> Answer:
        headers = {"authorization": f"Bearer {self.token}"}
        return await self.api.ask("GET", f"/v1/predictions/{self.id}{page}", headers=headers, within_s=TRY_S)

    async def _listen(self, pieces: AsyncIterator[bytes]) -> End:
        rest = b""
        async for piece in pieces:
            *blocks, rest = (rest + piece).split(b"\n\n")
            for heard in _events_in(self.id, blocks):
                self.journal.write(heard)
                self.after = heard.mark or self.after
                self.heard += 1
                if heard.event == "done":
                    return "done"
                if self.heard in self.leaves_after:
                    return "left"
        return "whole"


async def come_back(url: str, tokens: Sequence[str], folder: Path) -> None:
    """Read all batches, once all is at rest. Let every reader that missed the end resume once more, then list all
    events.
    """
    await batches.look_at_all(url, tokens, folder)
    api = Caller(url)
    with closing(Journal(folder / "readers.jsonl")) as journal, closing(api):
        readers: dict[str, Reader] = {}
        for line in read(folder / "client.jsonl"):
            if isinstance(line, Followed):
                readers[line.id] = Reader(api, line.id, journal, tokens[line.tenant], leaves_after=())
            elif isinstance(line, Heard):
                readers[line.id].after = line.mark or readers[line.id].after
                readers[line.id].is_done = line.event == "done"
        upcoming = iter(readers.values())

        async def several() -> None:
            for reader in upcoming:
                if not reader.is_done:
                    await reader.follow()
                await reader.list()

        with anyio.move_on_after(PATIENCE_S):  # a reader that still waits has not received the end
            async with anyio.create_task_group() as tasks:
                for _ in range(READERS):
                    tasks.start_soon(several)


async def look_on(url: str, prediction_id: str, by: Literal["get", "list"], token: str, journal: Journal) -> None:
    """Look at one prediction again and again, on a connection of its own, until some looks after its end."""
    after, before = (_date(created_ms_of(PredictionId(prediction_id)) + ms) for ms in (-NEAR_MS, NEAR_MS))
    query = f"?created_after={after}&created_before={before}"
    path = "/v1/predictions" + (f"/{prediction_id}" if by == "get" else query)
    ends = 0
    with anyio.move_on_after(LOOKING_S), closing(Caller(url)) as api:
        while ends < LOOKS_AFTER_END:
            asked = now_ms()
            with suppress(Unanswered):
                status = await status_of(api, path, prediction_id, token)
                if status is not None:
                    journal.write(Seen(at=now_ms(), id=prediction_id, asked=asked, by=by, status=status))
                    ends += status in TERMINAL
            await anyio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads looks, plans nothing


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def status_of(api: Caller, path: str, prediction_id: str, token: str) -> str | None:
    """Return the status of a prediction in the answer, alone or on a page of a list; '' if no page has it; None if the
    API cannot answer. A page with large outputs is short and has a next one.
    """
    while True:
        answer = await api.ask("GET", path, headers={"authorization": f"Bearer {token}"}, within_s=TRY_S)
        if answer.status not in (200, 404):
            return None
        body = msgspec.json.decode(answer.body)
        for each in body.get("results", [body]):
            if each.get("id") == prediction_id:
                return str(each["status"])
        if not body.get("next"):
            return ""
        following = urlsplit(body["next"])
        path = f"{following.path}?{following.query}"


def _events_in(prediction_id: str, blocks: Sequence[bytes]) -> Iterator[Heard]:
    for block in blocks:
        lines = [line.partition(": ") for line in block.decode().split("\n")]
        fields = {name: value for name, _, value in lines if name}
        if "event" in fields:
            data = "\n".join(value for name, _, value in lines if name == "data").replace(FILL, "")
            yield Heard(at=now_ms(), id=prediction_id, event=fields["event"], mark=fields.get("id", ""), data=data)
        elif lines[0][2] == RETRIED:
            yield Heard(at=now_ms(), id=prediction_id, event=RETRIED)


WAIT_S: Final = 60.0  # for an answer that the API holds until the prediction has ended
GIVE_UP_S: Final = 40.0
MOST_IN_FLIGHT: Final = 256
MOST_READERS: Final = 64
CALIBRATION_CALLERS: Final = 32
CALIBRATION: Final = "calibration"
RUSH_CALLERS: Final = 32
FULL_MS: Final = 5_000  # until each slot that is free has a run
EVENTS: Final = ("start", "output", "logs", "completed")


class Burst(Struct, frozen=True, kw_only=True):
    """In a rush, all equal tenants want `slots` slots of the model for `seconds`. A large one starts predictions with
    large outputs of each model, which all end `seconds` later, at once. In a watch, the bystander uses the model.
    """

    at_s: float
    seconds: float
    models: Sequence[str]
    slots: int = 0


class Errand(Struct, frozen=True, kw_only=True):
    """Without `rate` the client calibrates (closed loop). The first `tenants` of `tokens` are ordinary ones, the next
    `equals` are equal ones, and the last is the bystander. For the first `quiet_s` no run crashes its model server.
    Orders with the plans `left_out` are plain ones. With `full`, it only takes so many slots of each model at once.
    """

    url: str
    tokens: Sequence[str]
    tenants: int
    equals: int
    sink_url: str
    models: Sequence[str]
    seed: int
    seconds: float
    journal: str
    rate: float | None = None
    quiet_s: float = 0.0
    left_out: Sequence[Plan] = ()
    rushes: Sequence[Burst] = ()
    large: Sequence[Burst] = ()
    watches: Mapping[Plan, Burst] = {}
    full: Mapping[str, int] = {}
    has_calls: bool = False
    batches: Sequence[float] = ()  # seconds from the start at which one is made


class Counts(Struct, kw_only=True):
    sent: int = 0
    accepted: int = 0
    refused: int = 0
    given_up: int = 0
    rate: float = 0.0


class Client:
    def __init__(self, errand: Errand, journal: Journal) -> None:
        self._errand = errand
        self._api = Caller(errand.url)
        self._journal = journal
        self._in_flight = anyio.CapacityLimiter(MOST_IN_FLIGHT)
        self._reading = anyio.CapacityLimiter(MOST_READERS)
        self.counts = Counts()

    async def load(self, rate: float) -> None:
        """Send orders at this rate (open loop), then wait for all requests and stop the readers."""
        began, due_s = anyio.current_time(), 0.0
        async with anyio.create_task_group() as readers:
            async with anyio.create_task_group() as tasks:
                for number, burst in enumerate(self._errand.rushes):
                    tasks.start_soon(self._rush, f"rush-{number}", burst, began + burst.at_s)
                for number, burst in enumerate(self._errand.large):
                    tasks.start_soon(self._large, f"{LARGE}-{number}", burst, began + burst.at_s)
                for part, burst in self._errand.watches.items():
                    tasks.start_soon(self._watch, part, burst, began + burst.at_s, readers)
                if self._errand.has_calls:
                    tasks.start_soon(self._call, tasks, began)
                for number, at_s in enumerate(self._errand.batches):
                    tasks.start_soon(self._batch, number, began + at_s)
                for upcoming in self._orders():
                    due_s += upcoming.gap / rate
                    if due_s >= self._errand.seconds:
                        break
                    is_quiet = due_s < self._errand.quiet_s
                    order = make_plain(upcoming, NOT_IN_PEACE if is_quiet else self._errand.left_out)
                    await anyio.sleep_until(began + due_s)
                    await self._in_flight.acquire_on_behalf_of(order)
                    tasks.start_soon(self._see_through, order, readers)
            readers.cancel_scope.cancel()
        self.counts.rate = self.counts.sent / self._errand.seconds

    async def _call(self, tasks: TaskGroup, at: float) -> None:
        errand, until = self._errand, at + self._errand.seconds
        for order in calls(errand.seed, tenants=errand.tenants):
            at += order.gap
            if at >= until:
                return
            await anyio.sleep_until(at)
            token = errand.tokens[order.tenant]
            tasks.start_soon(call, self._api, order, self._key(order), token, self._journal)

    async def _batch(self, number: int, at: float) -> None:
        errand = self._errand
        await anyio.sleep_until(at)
        tenant, token = number, errand.tokens[number]
        key = key_of(errand.seed, number, part=BATCH)
        await batches.make(self._api, key, token, seed=errand.seed, tenant=tenant, journal=self._journal)

    async def _rush(self, part: str, burst: Burst, at: float) -> None:
        first, [model] = self._errand.tenants, burst.models
        equal = range(first, first + self._errand.equals)
        wanted = rush(part, equal=equal, heavy=0, model=model, slots=burst.slots, seconds=burst.seconds)

        async def one_after_the_other() -> None:
            for order in wanted:
                await self.create(order)

        await anyio.sleep_until(at)
        async with anyio.create_task_group() as tasks:
            for _ in range(RUSH_CALLERS):
                tasks.start_soon(one_after_the_other)

    async def _large(self, part: str, burst: Burst, at: float) -> None:
        await anyio.sleep_until(at)
        until_ms = now_ms() + int(burst.seconds * 1000)
        async with anyio.create_task_group() as tasks:
            for order in large(part, models=burst.models, tenant=0, until_ms=until_ms):
                tasks.start_soon(self.create, order)

    async def fill(self) -> None:
        async with anyio.create_task_group() as tasks:
            for order in fill(self._errand.full, until_ms=now_ms() + FULL_MS):
                tasks.start_soon(self.create, order)

    async def _watch(self, part: Plan, burst: Burst, at: float, readers: TaskGroup) -> None:
        """Let the bystander create predictions, and read some of their streams from the creation to the end."""
        [model] = burst.models
        wanted = bystanders(part, tenant=len(self._errand.tokens) - 1, model=model, seconds=burst.seconds)

        async def see_through(order: Order) -> None:
            prediction_id = await self.create(order)
            if prediction_id and order.is_followed:
                readers.start_soon(self._follow, order, prediction_id, ())

        async with anyio.create_task_group() as tasks:
            for order in wanted:
                await anyio.sleep_until(at)
                at += order.gap
                tasks.start_soon(see_through, order)

    async def calibrate(self) -> None:
        """Count the rate of ends of some callers (closed loop)."""
        upcoming = self._orders()
        began = anyio.current_time()

        async def again_and_again() -> None:
            while anyio.current_time() < began + self._errand.seconds:
                order = next(upcoming)
                script = Script(ms=order.script.ms)
                plain = replace(order, plan="plain", script=script, cancel_after_s=None, start_by_s=None)
                await self.create(plain, wait=True)

        async with anyio.create_task_group() as tasks:
            for _ in range(CALIBRATION_CALLERS):
                tasks.start_soon(again_and_again)
        self.counts.rate = self.counts.accepted / (anyio.current_time() - began)

    def _orders(self) -> Iterator[Order]:
        errand = self._errand
        return orders(errand.seed, tenants=errand.tenants, models=errand.models)

    async def _see_through(self, order: Order, readers: TaskGroup) -> None:
        try:
            prediction_id = await self.create(order)
        finally:
            self._in_flight.release_on_behalf_of(order)
        if not prediction_id:
            return
        if order.is_followed:
            readers.start_soon(self._follow, order, prediction_id)
        if order.is_shared:
            token = self._errand.tokens[order.tenant]
            for by in ("get", "list"):
                readers.start_soon(look_on, self._errand.url, prediction_id, by, token, self._journal)
        if order.plan not in ("cancel", "repeat", "other_body"):
            return
        await anyio.sleep(order.then_ms / 1000)
        if order.plan == "cancel":
            await self._send(order, "cancel", f"/v1/predictions/{prediction_id}/cancel", {}, b"", plan="cancel")
        elif order.plan == "repeat":
            await self.create(order)
        else:
            other = replace(order.script, ms=order.script.ms + 1)
            await self.create(replace(order, script=other), plan="other body")

    async def _follow(self, order: Order, prediction_id: str, leaves_after: Sequence[int] = LEAVES_AFTER) -> None:
        if self._reading.available_tokens < 1 and order.plan not in (ALONE, BESIDE):
            return
        async with self._reading:
            self._journal.write(Followed(at=now_ms(), id=prediction_id, tenant=order.tenant))
            token = self._errand.tokens[order.tenant]
            await Reader(self._api, prediction_id, self._journal, token, leaves_after=leaves_after).follow()

    async def create(self, order: Order, *, wait: bool = False, plan: str = "") -> str:
        """Return the id, or '' without one."""
        self.counts.sent += 1
        limits = {"cancel-after": order.cancel_after_s, "x-start-by": order.start_by_s}
        headers = {"x-priority": order.lane, "idempotency-key": self._key(order)}
        headers |= {name: str(limit) for name, limit in limits.items() if limit}
        headers |= {"prefer": "wait"} if wait else {}
        receiver = "missing" if order.plan == MISSING_AT_FIRST else "hook"
        script, padding = msgspec.to_builtins(order.script), {"padding": "x" * order.padding} if order.padding else {}
        body = {
            "input": talk(order.script, self._key(order)) if order.model == TALKER else script | padding,
            "webhook": order.hook or f"{self._errand.sink_url}/{receiver}/{order.tenant}",
            "webhook_events_filter": EVENTS if order.all_events else EVENTS[-1:],
        }
        path = f"/v1/models/{order.model}/predictions"
        return await self._send(order, "create", path, headers, msgspec.json.encode(body), plan=plan or order.plan)

    async def _send(
        self, order: Order, action: Action, path: str, headers: Mapping[str, str], body: bytes, *, plan: str
    ) -> str:
        give_up_at = anyio.current_time() + GIVE_UP_S
        within_s = TRY_S if self._errand.rate else WAIT_S
        key = self._key(order)
        headers = {**headers, "authorization": f"Bearer {self._errand.tokens[order.tenant]}"}
        request = Sent(
            at=0,
            key=key,
            action=action,
            tenant=f"tenant-{order.tenant}",
            model=order.model,
            webhook=not order.hook,
            plan=plan,
            start_by_s=order.start_by_s or 0,
            cancel_after_s=order.cancel_after_s or 0,
        )
        while anyio.current_time() < give_up_at:
            self._journal.write(replace(request, at=now_ms()))
            answer = Answer(0)
            with suppress(Unanswered):
                answer = await self._api.ask("POST", path, body, headers=headers, within_s=within_s)
            is_ok = 200 <= answer.status < 300
            named = msgspec.json.decode(answer.body) if is_ok else {}
            answered = Answered(
                at=now_ms(),
                key=key,
                action=action,
                status=answer.status,
                id=named.get("id", ""),
                shown=str(named.get("status", "")),
                replayed=answer.headers.get("idempotency-replayed") == "true",
            )
            self._journal.write(answered)
            if is_ok:
                self.counts.accepted += action == "create"
                return answered.id
            # a caller with a start-by limit does not try again later
            if 400 <= answered.status < 500 and (answered.status != 429 or order.start_by_s is not None):
                self.counts.refused += 1
                return ""
            await anyio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - spreads tries, plans nothing
        self.counts.given_up += 1
        return ""

    def _key(self, order: Order) -> str:
        return key_of(self._errand.seed, order.number, part=CALIBRATION if self._errand.rate is None else order.part)


def talk(script: Script, tag: str) -> dict[str, str]:
    """Return an input of the model whose server has OpenAI's API."""
    return {"user": tag, "prompt": msgspec.json.encode(script).decode()}


async def run(errand: Errand) -> Counts:
    client = Client(errand, Journal(Path(errand.journal)))
    if errand.full:
        await client.fill()
    else:
        await (client.calibrate() if errand.rate is None else client.load(errand.rate))
    return client.counts


def main() -> None:
    errand = msgspec.json.decode(sys.stdin.buffer.read(), type=Errand)
    counts = anyio.run(run, errand, backend_options={"use_uvloop": True})
    sys.stdout.buffer.write(msgspec.json.encode(counts))


if __name__ == "__main__":
    main()
