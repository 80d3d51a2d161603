"""Play a trace with each policy and each number of slots, one after the other, on one server in memory."""

from collections.abc import Callable, Sequence

from director.local.scratch import own_server
from director.simulate.play import play
from director.simulate.report import Report, report
from director.simulate.trace import Trace
from director.simulate.tried import Tried

__all__ = ("simulate",)

Say = Callable[[str, int], None]


async def simulate(
    trace: Trace, policies: Sequence[Tried], slots: Sequence[int], say: Say = lambda name, done: None
) -> list[Report]:
    """A report of each play. `say` hears which one is under way, and how many of its predictions are done.

    Raises UpError where no server can be started, BackendUnavailable.
    """
    reports = []
    async with own_server() as redis:
        for tried in policies:
            for each in slots:
                name = f"{tried.name} × {each}"
                say(name, 0)

                def tell(done: int, name: str = name) -> None:
                    say(name, done)

                played = await play(redis, trace, tried, slots=each, say=tell)
                reports.append(report(trace, tried, played, slots=each))
    return reports
