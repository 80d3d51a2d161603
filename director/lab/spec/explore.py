"""Try every order of the page's actions. `python -m director.lab.spec.explore` does so for the page as it is, and for
each variant in which one of its checks or writes is left out: the rules have to find it.

For a search that ends, a prediction has at most MOST_CLAIMS claims, and then it ends. Time is the rest of the lease.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from director.lab.spec.page import (
    ACTIONS,
    CHECKS,
    INVARIANTS,
    OPEN,
    WAITS,
    Action,
    Call,
    State,
    check_step,
    is_by_claim,
)

MOST_CLAIMS: Final = 4
LEASE: Final = 2
STUCK: Final = "it can never come to rest"


class Variant(NamedTuple):
    """The page, or one that is broken on purpose. `tokens`: those that the next claim may get."""

    actions: Mapping[str, Action] = ACTIONS
    tokens: Callable[[tuple[str, ...]], set[str]] = lambda used: {*used, f"t{len(used) + 1}"}


WHOLE: Final = Variant()


class World(NamedTuple):
    """A state, and what no script knows: whether the director of the claim is dead, whether a lease was lost."""

    state: State = State()
    is_dead: bool = False
    has_lost: bool = False


class Step(NamedTuple):
    text: str
    after: World
    wrong: str = ""
    is_fair: bool = False


class Explored(NamedTuple):
    """`wrong`: the first rule that was broken, with the fewest steps that lead there."""

    states: int
    transitions: int
    depth: int
    wrong: str = ""
    steps: tuple[str, ...] = ()


def explore(variant: Variant = WHOLE) -> Explored:
    first = World()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    back: dict[World, set[World]] = {}
    layer, depth, transitions = [first], 0, 0

    def trace(world: World) -> tuple[str, ...]:
        before = came_from[world]
        return (*trace(before[0]), before[1]) if before else ()

    while layer:
        following = []
        for world in layer:
            for step in steps(variant, world):
                transitions += 1
                if wrong := step.wrong or check_world(step.after):
                    return Explored(len(came_from), transitions, depth, wrong, (*trace(world), step.text))
                if step.is_fair:
                    back.setdefault(step.after, set()).add(world)
                if step.after not in came_from:
                    came_from[step.after] = world, step.text
                    following.append(step.after)
        depth += bool(following)
        layer = following
    resting = [world for world in came_from if is_at_rest(world.state)]
    rests = set(resting)
    while resting:
        new = back.get(resting.pop(), set()) - rests
        rests |= new
        resting += new
    stuck = next((world for world in came_from if world not in rests), None)
    wrong, way = (STUCK, trace(stuck)) if stuck else ("", ())
    return Explored(len(came_from), transitions, depth, wrong, way)


def is_at_rest(state: State) -> bool:
    return state.status != OPEN and not state.owed


def check_world(world: World) -> str:
    if world.state.token and world.state.lease is None and not world.has_lost:
        return "it has a claim, and no lease"
    return next((what for what, holds in INVARIANTS.items() if not holds(world.state)), "")


def steps(variant: Variant, world: World) -> Iterator[Step]:
    """Yield the steps of scripts, and those of the world around them."""
    state = world.state
    for name, action in variant.actions.items():
        for text, call, is_current in calls(variant, name, state):
            if all(CHECKS[check](state, call) for check in action.asks):
                after = action.write(state, call)
                is_dead = world.is_dead and after.used == state.used and bool(after.token)
                wrong = check_step(name, state, after, call, is_current=is_current)
                yield Step(
                    text, World(after, is_dead, world.has_lost), wrong, is_fair(name, world, is_current=is_current)
                )
    if state.lease:
        yield Step("time passes", world._replace(state=replace(state, lease=state.lease - 1)), is_fair=True)
    if state.token and not world.is_dead:
        yield Step("its director dies", world._replace(is_dead=True))
    if state.lease is not None:
        yield Step("the server loses its lease", world._replace(state=replace(state, lease=None), has_lost=True))


def calls(variant: Variant, name: str, state: State) -> Iterator[tuple[str, Call, bool]]:
    """Yield each call of an action: as a text, with its facts, and whether its caller holds the claim."""
    if is_by_claim(name):
        for number, token in enumerate(state.used, start=1):
            yield f"{name} by claim {number}", Call(token, until=LEASE), bool(state.token) and number == len(state.used)
    elif name == "claim":
        for token in sorted(variant.tokens(state.used)) if len(state.used) < MOST_CLAIMS else ():
            yield f"claim as {token}", Call(token, until=LEASE), False
    elif name == "enqueue":
        yield from ((f"enqueue, {how} a webhook", Call(wants=how == "with"), False) for how in ("with", "without"))
    else:
        yield name, Call(until=LEASE), False


def is_fair(name: str, world: World, *, is_current: bool) -> bool:
    """Return True for what happens by itself, once nothing fails any more and nothing new is asked for."""
    if name == "end":
        return len(world.state.used) == MOST_CLAIMS  # a claim ends what was handed out too often
    if is_by_claim(name):
        return name == "finish" and is_current and not world.is_dead
    return name in ("claim", "take back", "bury", "deliver")


def leave_out() -> Iterator[tuple[str, Variant]]:
    """Yield the page without one check or one write, for each of them."""
    for name, action in ACTIONS.items():
        for check in action.asks:
            rest = tuple(each for each in action.asks if each != check)
            yield f"{name} does not ask whether {check}", change(name, replace(action, asks=rest))
        for variable in (each for each in action.writes if each != "used"):
            rest_of = {each: to for each, to in action.writes.items() if each != variable}
            yield f"{name} does not write `{variable}`", change(name, replace(action, writes=rest_of))


def change(name: str, action: Action) -> Variant:
    return Variant({**ACTIONS, name: action})


def without(*names: str) -> Mapping[str, Action]:
    return {name: action for name, action in ACTIONS.items() if name not in names}


ENDS_FIRST: Final = replace(ACTIONS["finish"], writes={**ACTIONS["finish"].writes, "owed": False})
BY_HAND: Final[dict[str, Variant]] = {
    "a token names its director, in place of its claim": Variant(
        {**ACTIONS, "claim": replace(ACTIONS["claim"], asks=WAITS)}, lambda _: {"a", "b"}
    ),
    "the webhook of an end is owed in a step of its own": Variant(
        {**ACTIONS, "finish": ENDS_FIRST, "owe": ACTIONS["owe again"]}
    ),
    "no claim is taken back": Variant(without("take back", "bury")),
    "no webhook is delivered": Variant(without("deliver")),
}
HARMLESS: Final = {
    "extend does not write `lease`": "a run that is longer than a lease begins again, and ends once",
    "finish does not write `ended`": "a director that asks again is told that its claim was lost, and the end stands",
    "write does not write `wrote`": "a run shows no progress",
    "owe again does not write `owed`": "a webhook that was delivered is not sent again",
    "revive does not write `wrote`": "events of its former life are shown again",
    "lend does not write `lease`": "recover takes a claim without a lease back",
}
"""Variants that no rule finds, each with the reason why it breaks no promise of the page."""


def variants() -> dict[str, Variant]:
    return {**dict(leave_out()), **BY_HAND}


def main() -> int:
    whole, missed = explore(), []
    print(f"the page: {whole.states:,} states, {whole.transitions:,} transitions, up to {whole.depth} steps in a row.")
    print(f"{whole.wrong}: {', '.join(whole.steps)}" if whole.wrong else "It keeps its rules.")
    for name, variant in variants().items():
        found = explore(variant)
        print(
            f"{name}:\n    "
            + (f"{found.wrong}: {', '.join(found.steps)}" if found.wrong else HARMLESS.get(name, "NOT FOUND"))
        )
        missed += [name] if bool(found.wrong) is (name in HARMLESS) else []
    return 1 if whole.wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
