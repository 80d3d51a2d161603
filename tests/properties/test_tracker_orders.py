"""Give the tracker events in any order: late, twice, inverted, after the end, or from the attempt before.

Files are stored and outputs are judged at any time or without a request. Whatever comes, there is one end that stays.
The shown output only grows, in order and without repetition. Nothing is requested twice and no end is dropped.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from director.core.states import TERMINAL, Status, WebhookEvent
from director.execution.tracker import (
    Ask,
    Effect,
    Finish,
    GiveBack,
    Halt,
    Happening,
    Judged,
    Limits,
    Stop,
    Tell,
    Tracker,
    Verdict,
    Write,
)
from director.execution.uploads import Upload, Uploaded
from director.servers.runners.runner import (
    Accepted,
    Began,
    Ended,
    Logged,
    Measured,
    Outcome,
    Produced,
    Received,
    Restarted,
    Unreceived,
)
from tests.unit.execution.test_tracker import NAME, RECEIVED, RECORD

FILE = "data:image/png;base64,iVBORw=="
TEXT = "data:text/plain;base64,aGk="
URL = "http://director.test/v1/outputs/"
MOST_OUTPUT = 400

items = st.sampled_from([1, None, {FILE: 1}, "x" * 150, TEXT, FILE, [FILE, FILE], {"a": FILE}])


def raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def produced(index: int, item: Any) -> Produced:
    """Return an output that contains its number."""
    return Produced(raw([index, item]), index)


progress = st.one_of(
    st.just(Began()),
    st.just(Accepted("job 7")),
    st.builds(produced, st.integers(0, 6), items),
    st.builds(Logged, st.text(max_size=20)),
    st.builds(Measured, st.just("n"), items.map(raw), st.sampled_from(["replace", "increment"])),
)
ends = st.builds(
    Ended,
    outcome=st.sampled_from(Outcome),
    output=st.none() | (items | st.lists(items, max_size=3)).map(raw),
    logs=st.none() | st.text(max_size=40),
    error=st.none() | st.text(max_size=10),
)


def has_file(value: Any) -> bool:
    """Return True if a file is left in the value."""
    match value:
        case list():
            return any(map(has_file, value))
        case dict():
            return any(map(has_file, value.values()))
        case _:
            return value in (FILE, NAME)


class AnyOrder(RuleBasedStateMachine):
    """One tracker, and every effect that it requested so far."""

    def __init__(self) -> None:
        super().__init__()
        self.effects: list[Effect] = []
        self.uploads: dict[int, Upload] = {}
        self.asks: list[Ask] = []
        self.seen: list[Happening] = []
        self.at = 0.0
        self.turn = 0
        self.is_allowed = False
        self.has_failed = False
        self.was_given = False
        self.answered: set[int] = set()
        self.output = b""
        self.logs = ""

    @initialize(
        is_moderated=st.booleans(), stores=st.sampled_from([True, True, False]), last_word=st.sampled_from(Verdict)
    )
    def begin(self, is_moderated: bool, stores: bool, last_word: Verdict) -> None:
        self.last_word = last_word
        self.is_moderated = is_moderated
        limits = Limits(output=MOST_OUTPUT, logs=200, inline=50 if stores else None)
        self.run = Tracker(RECORD, limits, is_moderated=is_moderated)

    def tell(self, event: Happening) -> None:
        was_ended = self.run.ended
        self.at += 1
        new = self.run.apply(event, self.at)
        assert not (was_ended and new), "a tracker that has ended does nothing"
        self.effects += new
        for effect in new:
            if isinstance(effect, Upload):
                assert effect.number not in self.uploads, "a file is asked for once"
                assert not self.has_failed, "the store failed, and is asked for nothing more"
                self.uploads[effect.number] = effect
            elif isinstance(effect, Ask):
                assert not self.asks, "a verdict is asked for once"
                self.asks.append(effect)

    @rule(event=progress)
    def the_run_shows_something(self, event: Happening) -> None:
        self.seen.append(event)
        self.tell(event)

    @rule(item=items)
    def the_next_output(self, item: Any) -> None:
        """Send outputs in sequence. Random ones are mostly ignored and would not get far."""
        self.the_run_shows_something(produced(self.turn, item))
        self.turn += 1

    @rule()
    def the_server_gives_a_file(self) -> None:
        self.was_given = True
        self.the_run_shows_something(Received(NAME, RECEIVED))

    @precondition(lambda self: self.was_given)
    @rule()
    def the_next_output_names_it(self) -> None:
        self.the_next_output({"a": NAME})

    @rule(too_large=st.booleans())
    def a_file_cannot_be_taken(self, too_large: bool) -> None:
        self.has_failed |= not self.run.is_over
        self.the_run_shows_something(Unreceived(too_large=too_large))

    @rule(item=items)
    def the_run_succeeds(self, item: Any) -> None:
        self.the_run_ends(Ended(outcome=Outcome.SUCCEEDED, output=raw([item])))

    @precondition(lambda self: len(self.seen) > 2)
    @rule(ended=ends)
    def the_run_ends(self, ended: Ended) -> None:
        self.seen.append(ended)
        self.tell(ended)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def an_event_comes_again(self, data: st.DataObject) -> None:
        self.tell(data.draw(st.sampled_from(self.seen)))

    @precondition(lambda self: self.run.began_at is not None)
    @rule()
    def the_server_restarts(self) -> None:
        if not self.run.is_over:
            self.output, self.logs, self.turn = b"", "", 0
            self.answered |= set(self.uploads)  # they have no further effect
        self.tell(Restarted("stream_lagged"))

    @precondition(lambda self: self.uploads)
    @rule(data=st.data(), works=st.booleans())
    def files_are_stored_or_not(self, data: st.DataObject, works: bool) -> None:
        self.answer(data.draw(st.sampled_from(sorted(self.uploads))), works=works)

    @rule(number=st.integers(0, 9), works=st.booleans())
    def unrequested_files_are_stored(self, number: int, works: bool) -> None:
        if number not in self.uploads:
            before = len(self.effects)
            self.tell(Uploaded(number, (URL,) if works else None))
            assert len(self.effects) == before

    @precondition(lambda self: self.asks)
    @rule(verdict=st.sampled_from(Verdict))
    def a_verdict_comes(self, verdict: Verdict) -> None:
        self.is_allowed |= verdict is Verdict.ALLOWED
        self.tell(Judged(verdict, "why"))

    @precondition(lambda self: not self.asks)
    @rule(verdict=st.sampled_from(Verdict))
    def a_verdict_comes_without_a_request(self, verdict: Verdict) -> None:
        before = len(self.effects)
        self.tell(Judged(verdict, "why"))
        assert len(self.effects) == before

    @rule(why=st.sampled_from(Stop))
    def a_stop_is_requested(self, why: Stop) -> None:
        assert not (self.run.stop(why) and self.run.ended)

    def answer(self, number: int, *, works: bool) -> None:
        files = self.uploads[number].files
        self.has_failed |= not works and number not in self.answered
        self.answered.add(number)
        self.tell(Uploaded(number, tuple(f"{URL}{number}" for _ in files) if works else None))

    @invariant()
    def there_is_at_most_one_end_and_it_is_the_last(self) -> None:
        found = [effect for effect in self.effects if isinstance(effect, Finish | GiveBack)]
        assert len(found) <= 1
        assert bool(found) == self.run.ended
        assert not found or self.effects[-1] is found[0]
        if found and isinstance(found[0], Finish):
            self.is_a_true_end(found[0])

    def is_a_true_end(self, end: Finish) -> None:
        assert end.status in TERMINAL
        assert end.status is not Status.ABORTED
        assert (end.error == "") == (end.status in (Status.SUCCEEDED, Status.CANCELED))
        assert len(end.output) <= MOST_OUTPUT
        assert self.run.limits.inline is None or not has_file(msgspec.json.decode(end.output or b"null"))
        if self.is_moderated and end.output:
            assert end.status is Status.SUCCEEDED
            assert self.asks == [Ask(end.output)]
            assert self.is_allowed

    @invariant()
    def what_is_shown_only_grows(self) -> None:
        output, logs = bytes(self.run.output or b"[]")[:-1], self.run.logs
        assert output.startswith(self.output)
        assert logs.startswith(self.logs) or logs.startswith("…") or len(logs) > 200
        self.output, self.logs = output, logs

    @invariant()
    def what_was_written_is_what_is_shown(self) -> None:
        written = [event for effect in self.effects if isinstance(effect, Write) for event in effect.events]
        kinds = [kind for kind, _ in written]
        assert kinds.count("started") <= 1
        assert kinds[:1] in ([], ["started"])
        assert (self.run.began_at is not None) == ("started" in kinds) == (Tell(WebhookEvent.START) in self.effects)
        last = len(kinds) - kinds[::-1].index("restarted") if "restarted" in kinds else 0
        outputs = [msgspec.json.decode(data) for kind, data in written[last:] if kind == "output"]
        shown = msgspec.json.decode(bytes(self.run.output or b"[]"))
        assert outputs == shown[: len(outputs)]
        assert [number for number, _ in shown] == list(range(len(shown)))
        assert len(outputs) == len(shown) or self.wrote_all_it_may(written)
        assert self.run.limits.inline is None or not has_file(outputs)
        assert not self.is_moderated or not (outputs or shown or Tell(WebhookEvent.OUTPUT) in self.effects)

    def wrote_all_it_may(self, written: list[tuple[str, bytes]]) -> bool:
        """Check that progress beyond the bound is sent and no longer written."""
        return sum(len(data) for _, data in written) > MOST_OUTPUT // 2

    @invariant()
    def nothing_is_asked_for_twice(self) -> None:
        stops = [effect.why for effect in self.effects if isinstance(effect, Halt)]
        assert len(stops) <= 1
        assert self.effects.count(Tell(WebhookEvent.START)) <= 1

    def teardown(self) -> None:
        """Check that a run that has ended, with every request answered, has an end."""
        if not hasattr(self, "run"):
            return
        self.tell(Ended(outcome=Outcome.SUCCEEDED, output=Raw(b"1")))
        assert self.run.is_over
        for number in sorted(self.uploads):
            self.answer(number, works=True)
        if self.asks:
            self.a_verdict_comes(self.last_word)
        assert self.run.ended, "a terminal effect was dropped"
        self.there_is_at_most_one_end_and_it_is_the_last()
        self.what_is_shown_only_grows()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
