"""Check that a small campaign catches sabotaged builds, each a whole service with one rule taken out."""

from pathlib import Path
from typing import Final

import pytest
from msgspec import Struct
from msgspec.structs import replace

from director.lab.chaos.campaign import Campaign, campaign, check_again, text
from director.lab.chaos.plan import CLUSTER, SENTINEL, SINGLE, ServerKind
from tests.support.release import sabotaged, with_fault

SMALL: Final = Campaign(seeds=(1,), predictions=2_000, leases=(3.0,))
# The receiver gets the prediction as GET shows it once the end is written
WEBHOOK_FIRST: Final = """\
                if run._outbox is not None and isinstance(end, tracker.Finish):
                    record = msgspec.structs.replace(claim.record, status=end.status)
                    early = msgspec.structs.replace(run._outbox._snapshot(None), record=record)
                    await run._outbox._post.webhooks.send(early, "completed")
"""


class Sabotage(Struct, frozen=True):
    """The file, the place in it, what stands there instead, and one of the promises that it breaks."""

    file: str
    old: str
    new: str
    breaks: str


SABOTAGES: Final = {
    "a token is not compared": Sabotage("lua/finish.lua", "if r.token ~= token then return 'lost' end", "", "I4"),
    "a prediction is acknowledged before its end is written": Sabotage(
        "lua/claim.lua",
        "  leases[#leases + 1] = now + lease_ms\n  leases[#leases + 1] = id\n",
        "  share.take_away(id, r) redis.call('ZREM', keys.queue(queue, 'live'), id)\n",
        "I1",
    ),
    "a retry is lost": Sabotage(
        "lua/lib/requeue.lua",
        "  local placed = requeue.file_when_due(id, r, delay_ms > 0 and now + delay_ms or '')\n",
        "  local placed = { 'stream', '', 'mid', '', 'charged', '' }\n"
        "  redis.call('ZREM', keys.queue(r.queue, 'live'), id)\n",
        "I1",
    ),
    "a webhook is sent before the end is written": Sabotage(
        "director/execution/executor.py",
        "                finished = await run.settle(end)\n",
        f"{WEBHOOK_FIRST}                finished = await run.settle(end)\n",
        "I3",
    ),
    "a turn costs its account nothing": Sabotage(
        "lua/lib/share.lua",
        "turn.own, turn.charged, turn.has_moved = turn.own + charge, turn.charged + charge, true",
        "turn.has_moved = true",
        "I14",
    ),
    "a connection that the kernel gave up is read again and again": Sabotage(
        "director/broker/connections.py",
        "        except OSError as exc:  # a limit of ours arrives here as a cancellation\n",
        "        except ZeroDivisionError as exc:\n",
        "I23",
    ),
    "what others deliver at its host brings forward what a receiver refused": Sabotage(
        "director/webhooks/delivery.py",
        "is_missed=delivery.is_missed and not is_asked and not is_early,",
        "is_missed=True,",
        "I24",
    ),
    "what a run used is left out of its end": Sabotage(
        "director/execution/executor.py",
        "                    used=self._count_usage(now),\n",
        "",
        "I26",
    ),
    "a model server that is idle keeps one slot": Sabotage(
        "director/servers/servers.py",
        "        self.server.busy -= 1\n        return True\n",
        "        self.server.busy = max(1, self.server.busy - 1)\n        return True\n",
        "I27",
    ),
    "a stream that fails ends without a word": Sabotage(
        "api/openai/chunks.py",
        "        return error_event(failed)\n",
        '        return b""\n',
        "I28",
    ),
    "another run goes on with the text of a lost one": Sabotage(
        "api/openai/calls.py",
        '    on_lost = _read_choice(request, "X-On-Lost", ("fail", "restart"), "fail")\n',
        '    on_lost = _read_choice(request, "X-On-Lost", ("fail", "restart"), "restart")\n',
        "I29",
    ),
    "a call runs on when its caller has left": Sabotage(
        "api/openai/runs.py",
        "        if not (self._has_key if is_refused else self._continues):\n",
        "        if False:\n",
        "I30",
    ),
    "a batch that changes hands forgets its place": Sabotage(
        "api/batches/engine.py",
        "        self.batch = batch\n        self.stop = Stop()\n",
        '        self.batch = msgspec.structs.replace(batch, place="0 0", written=b"", completed=0, failed=0)\n'
        "        self.stop = Stop()\n",
        "I31",
    ),
    "an answer that cannot be read is taken for a death": Sabotage(
        "director/servers/runners/outcomes.py",
        "    Observation.UNREADABLE: Rule(Outcome.FAILED,",
        "    Observation.UNREADABLE: Rule(Outcome.LOST,",
        "I25",
    ),
}


# A failover explains losses of its own, and must not hide these
ON_SEVERAL: Final = [
    (kind, name)
    for kind in (SENTINEL, CLUSTER)
    for name in ("a token is not compared", "a prediction is acknowledged before its end is written")
]


@pytest.mark.parametrize("one", SABOTAGES.values(), ids=SABOTAGES)
def test_each_sabotage_changes_one_place_of_the_product(one: Sabotage) -> None:
    assert with_fault(one.file, one.old, one.new)


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "name"), [*((SINGLE, name) for name in SABOTAGES), *ON_SEVERAL])
def test_a_sabotaged_build_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: ServerKind, name: str
) -> None:
    one = SABOTAGES[name]
    monkeypatch.setenv("PYTHONPATH", str(sabotaged(tmp_path / "build", one.file, one.old, one.new)))
    *_, report = campaign(replace(SMALL, kind=kind), tmp_path / "out", disk_gb=20, faketime="", say=print)
    assert [each.what for each in report.outcomes] == ["judged"], (
        "it is caught by the checker, and not by a failed start"
    )
    assert one.breaks in report.breaches, text(report)
    assert check_again(tmp_path / "out", print).breaches == report.breaches
