"""Run a director whose models are swapped by a rule of the simulation, and keep a tape of its decisions:
`python -m tests.support.ruled_director RULE TAPE run --config pool.toml`. `director` is its own planner.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct

from director.cli.main import main
from director.core.devices import Device, Model
from director.gpus import garage
from director.gpus.plan import Condition, Decision, plan
from director.lab.simulate.swaps import RULES, Standing, Timed


class Look(Struct, frozen=True):
    """One decision. `at_s`: by the clock that says what time it is."""

    at_s: float
    seen: dict[str, Condition]
    decision: Decision


class Ruled:
    """Stands in for the planner."""

    def __init__(self, rule: str, tape: Path) -> None:
        self._decide, _ = RULES[rule]
        self._is_planner = rule == "director"
        self._began_at: dict[str, float] = {}  # the last run or load of a model
        self._tape = tape.open("ab", buffering=0)

    def __call__(
        self,
        devices: Sequence[Device],
        models: Sequence[Model],
        seen: Mapping[str, Condition],
        used_s: Mapping[str, float] = {},
    ) -> Decision:
        if self._is_planner:
            decision = plan(devices, models, seen, used_s)
        else:
            decision = self._decide(self._played(devices, models, seen))
        self._tape.write(msgspec.json.encode(Look(time.time(), dict(seen), decision)) + b"\n")
        return decision

    def _played(self, devices: Sequence[Device], models: Sequence[Model], seen: Mapping[str, Condition]) -> Any:
        """Return what the rule looks at of a play."""
        now_s = time.monotonic()
        standings = {model.name: self._standing(model, seen[model.name], now_s) for model in models}
        waiting = [name for name, one in standings.items() if one.waiting]
        waiting.sort(key=lambda name: -max(each.oldest_s for each in seen[name].waiting))
        line = {number: standings[name] for number, name in enumerate(waiting)}
        return SimpleNamespace(devices=devices, standings=standings, line=line)

    def _standing(self, model: Model, one: Condition, now_s: float) -> Standing:
        began_at = now_s - (model.run_limit_s - one.longest_run_left_s if one.running else one.since_s)
        if one.running or one.state == "loaded":
            self._began_at[model.name] = max(began_at, self._began_at.get(model.name, began_at))
        waiting = deque(range(sum(each.count for each in one.waiting)))
        return Standing(
            timed=Timed(model=model),
            state=one.state,
            since_s=now_s - one.since_s,
            place=one.place,
            waiting=waiting,
            used_at_s=self._began_at.get(model.name, 0.0),
        )


def tape_of(path: Path) -> list[Look]:
    return [msgspec.json.decode(line, type=Look) for line in path.read_bytes().splitlines()]


if __name__ == "__main__":
    rule, tape = sys.argv[1:3]
    del sys.argv[1:3]
    garage.plan = Ruled(rule, Path(tape))  # type: ignore[attr-defined]
    sys.exit(main())
