"""Find directors and model servers that need a person: who went without a word, whose servers cannot run anything.

Pure. Goes by what directors tell with each beat; one of an older release tells less, and less is found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from director.core.ids import QueueName
from director.core.words import several, some, span
from director.diagnosis.queue_view import state_of
from director.diagnosis.situation import Code, Finding, Situation, waits
from director.store.directors import LOOP, Beat, DirectorFound, ServerFound

__all__ = ("GONE_S", "directors_gone", "servers_unwell")

GONE_S: Final = 600.0  # one that has been away for longer is no news
UNWELL_S: Final = 30.0
UNWELL: Final = frozenset({"resting", "doubted", "defunct", "unhealthy", "unreachable"})


def directors_gone(situation: Situation) -> Iterator[Finding]:
    """Who went without a word, by queue; but for as many as came there since, in their place."""
    there = _by_queue(situation.directors)
    for queue in situation.queues:
        gone = [one for one, _ in there.get(queue, ()) if _is_gone(one) and one.last.queue == queue]
        first_ms = min((one.last.at_ms for one in gone), default=0)
        missed = gone[sum(_came_since(one, first_ms) for one, _ in there.get(queue, ())) :]
        if missed:
            held = sum(one.held or 0 for one in missed)
            left = sum(one.is_alive for one, _ in there[queue])  # the numbers of the queue are of a moment before
            names = some([f"{one.name}, {span(one.silent_ms / 1000)} ago" for one in missed])
            yield Finding(
                code="director_gone",
                level="bad" if held or not left else "warn",
                title=f"{several(len(missed), 'director')} went silent",
                detail=f"Last heard: {names}; with {several(held, 'claim')} in hand. {several(left, 'director')} left.",
                queue=queue,
                ask="director directors",
            )


def servers_unwell(situation: Situation) -> Iterator[Finding]:
    """Servers that cannot run anything, under the first of the causes that they have."""
    now_ms, there = situation.now_ms, _by_queue(situation.directors)
    for queue, stats in situation.queues.items():
        left = known = [server for one, beat in there.get(queue, ()) if one.is_alive for server in beat.about.servers]
        for code, (title, is_so) in TROUBLES.items():
            found = [one for one in left if is_so(one, now_ms)]
            left = [one for one in left if one not in found]
            if found or (code == state_of(stats) and not known):
                yield Finding(
                    code=code,
                    level="warn" if stats.slots else "bad",
                    title=title,
                    detail=f"{_told(found, len(known), now_ms)} {waits(stats)}.",
                    queue=queue,
                    ask=f"director queues show {queue}",
                )


TROUBLES: Final[Mapping[Code, tuple[str, Callable[[ServerFound, int], bool]]]] = {
    "server_auth": ("Servers refuse their director's key", lambda one, now_ms: one.detail.startswith("server_auth")),
    "setup_loop": ("A model is in a setup loop", lambda one, now_ms: one.failed_starts >= LOOP),
    "setup_failed": ("A model's setup failed", lambda one, now_ms: one.state == "setup_failed"),
    "servers_unwell": (
        "Servers are unwell",
        lambda one, now_ms: one.state in UNWELL and now_ms - one.since_ms > UNWELL_S * 1000,
    ),
}


def _is_gone(one: DirectorFound) -> bool:
    return not one.is_alive and one.silent_ms <= GONE_S * 1000 and one.last.state != "draining"


def _came_since(one: DirectorFound, at_ms: int) -> bool:
    since_ms = one.last.about.since_ms
    return one.is_alive and since_ms is not None and since_ms >= at_ms


def _by_queue(directors: Sequence[DirectorFound]) -> dict[QueueName, list[tuple[DirectorFound, Beat]]]:
    """Who is in each queue, with the last beat there: there may be a thousand of either."""
    found: dict[QueueName, list[tuple[DirectorFound, Beat]]] = {}
    for one in directors:
        for beat in one.beats:
            found.setdefault(beat.queue, []).append((one, beat))
    return found


def _told(servers: Sequence[ServerFound], known: int, now_ms: int) -> str:
    if not servers:
        return "Its directors tell no more."
    return f"{len(servers)} of {several(known, 'server')}: {some([_line(one, now_ms) for one in servers])}."


def _line(server: ServerFound, now_ms: int) -> str:
    since = span(max(0, now_ms - server.since_ms) / 1000)
    again = f", {server.failed_starts} starts in a row failed" if server.failed_starts >= LOOP else ""
    why = f" ({server.detail})" if server.detail else ""
    return f"{server.url} is {server.state} for {since}{again}{why}"
