"""A runner that does what a test says, for moments that no real server can be made to show."""

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Raw

from director.servers.runners.runner import Capabilities, Ended, Health, HealthStatus, Outcome, RunEvent, RunRequest


class ScriptedRunner:
    """`cancels` and `shutdowns` count the calls. The run raises `fault` once its events are used up."""

    url = "http://scripted"

    capabilities = Capabilities(restarts=True)

    def __init__(self, *events: RunEvent, fault: Exception | None = None) -> None:
        self.events = list(events)
        self.fault = fault
        self.now = Health(status=HealthStatus.READY, since="first")
        self.hears_shutdown = True
        self.is_rude = False
        self.cancels = 0
        self.shutdowns = 0
        self.requests: list[RunRequest] = []
        self.started = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.let_go = asyncio.Event()

    async def health(self) -> Health:
        return self.now

    async def openapi_schema(self) -> Raw | None:
        return None

    async def run(self, request: RunRequest) -> AsyncGenerator[RunEvent, None]:
        self.requests.append(request)
        self.started.set()
        try:
            for event in self.events:
                yield event
            if self.fault is not None:
                raise self.fault
            if self.events and isinstance(self.events[-1], Ended):
                return
            await self.goes_on.wait()
            yield Ended(outcome=Outcome.CANCELED)
        finally:
            self.let_go.set()

    def knows(self, remote: str) -> bool:
        return False

    async def cancel(self, prediction_id: str) -> bool:
        self.cancels += 1
        if self.is_rude:
            raise ConnectionError("it hung up")
        return True

    async def shutdown(self) -> bool:
        self.shutdowns += 1
        return self.hears_shutdown

    async def aclose(self) -> None: ...
