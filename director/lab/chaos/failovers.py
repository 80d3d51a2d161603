"""Find what failovers lost, and judge it: I21. Replication is asynchronous, so a successor may lack the last changes of
its master. They are in the master's log, at the end of a file: once it follows another server, it begins the next one.
A breach of a promise about such a prediction is counted apart, as explained by a failover. No other breach is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Final

from director.lab.chaos.caller import MISSING
from director.lab.chaos.evidence import Evidence, Findings, group
from director.lab.chaos.history import NO_RECORD, SHOWN
from director.lab.chaos.journal import Reign, Unmade
from director.lab.chaos.plan import SERVER
from director.lab.chaos.rest import Change, changes

PROMOTED: Final = re.compile(r"^\d+:\w (\d+ \w+ \d+ [\d:.]+) \* (?:MASTER|PRIMARY) MODE enabled", re.MULTILINE)
# Promises about a single prediction, which it cannot keep if its last changes are gone. Neither a write of a holder
# whose claim was lost, nor more runs than slots, nor leftovers are among them.
EXCUSED: Final = frozenset({"I1", "I2", "I3", "I5", "I6", "I8", "I10", "I12", "I13", "I18", "I20", "I22", "I25", "I29"})
# A master looks once a second at its replicas, and counts whole seconds: with a lag of 2 s, one that was cut off
# accepted predictions for 3.8 s
TICKS_S: Final = 2.0
PAUSE_MS: Final = 1_000  # between two changes, of a master that is frozen


def reigns(logs: Mapping[str, Path]) -> list[Reign]:
    """Return each promotion, in order of time, as the promoted server wrote it into its log."""
    found = [
        Reign(at=round(datetime.strptime(when, "%d %b %Y %H:%M:%S.%f").astimezone().timestamp() * 1000), server=name)
        for name, path in logs.items()
        for when in PROMOTED.findall(path.read_text(errors="replace"))
    ]
    return sorted(found, key=lambda reign: reign.at)


def master_at(promotions: Sequence[Reign], at: int) -> str:
    return next((reign.server for reign in reversed(promotions) if reign.at <= at), SERVER)


def unmade(data: Mapping[str, Path], promotions: Sequence[Reign]) -> Iterator[Unmade]:
    """Yield each prediction with changes that a master made and its successor never got."""
    if not promotions:
        return
    logs = {name: list(changes(folder)) for name, folder in data.items()}
    marks = {name: {change.mark for file in files for change in file} for name, files in logs.items()}
    for name, files in logs.items():
        for file in files:
            heirs = _heirs(promotions, name, max((change.at for change in file), default=0))
            # what it got as a replica since, the masters of that time have
            known = set().union(*(marks[heir.server] for heir in heirs if heir.server != name))
            for prediction_id, at in _behind(file, known).items() if heirs else ():
                yield Unmade(at=at, id=prediction_id, server=name, promoted=heirs[0].at)


def _heirs(promotions: Sequence[Reign], name: str, at: int) -> Sequence[Reign]:
    """Return the promotions after the last reign of this server that began before this time."""
    in_turn = [Reign(at=0, server=SERVER), *promotions]
    mine = [place for place, reign in enumerate(in_turn) if reign.server == name and reign.at <= at]
    return in_turn[mine[-1] + 1 :] if mine else []


def _behind(file: Sequence[Change], known: set[int]) -> dict[str, int]:
    """Return the predictions changed behind what is known, with the times of their first such changes. A change without
    a time may be made again, so it is not the last known one: only what follows directly on that.
    """
    found: dict[str, int] = {}
    last = max((place for place, change in enumerate(file) if change.at and change.mark in known), default=-1)
    at = file[last].at if last >= 0 else 0
    for change in dropwhile(lambda change: change.mark in known, file[last + 1 :]):
        at = change.at or at
        found.setdefault(change.id, at)
    return found


def subjects(evidence: Evidence) -> set[str]:
    """Return the predictions that lost changes, and the idempotency keys that stood for them."""
    keys = {key for key, tries in evidence.creates.items() if any(each.answer.id in evidence.unmade for each in tries)}
    return keys | evidence.unmade.keys()


def explains(invariant: str, what: str) -> bool:
    """Return whether changes that a failover lost explain this breach about their prediction. A successor has a state
    that its master had: a record that it has comes to one end, and the webhook of that end arrives.
    """
    match invariant:
        case "I1":
            return what == NO_RECORD
        case "I2":
            return what.startswith(SHOWN)
        case "I3":
            return not what.startswith(MISSING)
        case _:
            return invariant in EXCUSED


def losses_are_bounded(evidence: Evidence) -> Findings:
    """I21: a failover loses no more than what was accepted in the promised seconds, without a pause of its master."""
    lost = (line for lines in evidence.unmade.values() for line in lines)
    for (server, promoted), several in group(lost, lambda line: (line.server, line.promoted)).items():
        times = sorted(line.at for line in several)
        seconds = sum(min(later - earlier, PAUSE_MS) for earlier, later in pairwise(times)) / 1000
        if seconds > evidence.rules.lag_s + TICKS_S:
            yield server, f"its successor, promoted at {promoted}, never got its changes of {seconds:.1f} s"
