"""Compare the places that name findings: the table, the doctor, explain, `top`, the alerts and the reference."""

import re
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from director import __version__
from director.core.data_bytes import Fullness
from director.core.policy import Objective
from director.core.samples import Burn
from director.core.split import Split
from director.core.view import iso
from director.operate.doctor import CHECKS, FINE
from director.operate.findings import (
    Expiry,
    Finding,
    Heaviest,
    Neglected,
    Situation,
    away,
    causes_of,
    find,
)
from director.operate.kinds import CODES, KINDS, Code, Stage
from director.operate.story import Cause
from director.store.account_data import Holder
from director.store.directors import DirectorFound, ShelfFound
from director.store.owed import FailingHost
from director.store.processes import Process
from tests.unit.operate.test_alerts import RULES
from tests.unit.operate.test_doctor import SOUND
from tests.unit.operate.test_findings import BROKEN, NOW, SERVER, USUAL, Q, director, ended, running, situation
from tests.unit.operate.test_story import known

LATE = {"normal": {name: Burn(met=0, missed=40, rate=2.0) for name in ("5m", "1h")}}
FAILING = FailingHost(host="hooks.example", count=1, id="abc", attempts=5, oldest_at=iso(NOW - 600_000))


def on_device(**facts: Any) -> DirectorFound:
    shelf = ShelfFound(
        **{"machine": "m1", "state": "absent", "since_ms": NOW, "place": {"gpu0": 1}, "room": {"gpu0": 2}} | facts
    )
    one = director()
    [heartbeat] = one.heartbeats
    return replace(one, heartbeats=(replace(heartbeat, about=replace(heartbeat.about, shelf=shelf)),))


def promised(share: float) -> dict[str, Any]:
    return {"objectives": {"normal": Objective(share=share, within_s=1)}, "closer": {"burns": {Q: LATE}}}


SPLIT = Split(
    model="acme/echo", former="a1" * 32, version="b2" * 32, share=0, began_ms=NOW - 60_000, since_ms=NOW - 5_000,
    release=1, created_ms=NOW, by="keeper", stopped_why="9 of 60 runs of the new version failed",
)  # fmt: skip
API = Process(name="api-1", role="api", version=__version__, since_ms=NOW, ahead_s=0)

FAULTS: dict[Code, Situation] = {
    "redis_disk": situation(closer={"writes_to_disk": False}),
    "redis_full": situation(closer={"memory": Fullness(2, 1)}),
    "redis_filling": situation(closer={"memory": Fullness(95, 100)}),
    "redis_slow": situation(closer={"redis_ms": 120.0}),
    "keeper_silent": situation(closer={"neglected": {Q: Neglected(due_retries=1)}}),
    "files_away": situation(closer={"processes": [replace(API, files="there is no such bucket")]}),
    "queue_not_served": situation(directors=0, slots=0),
    "director_gone": situation(director(), director("d2", silent_s=40)),
    "setup_loop": situation(director("d1", replace(BROKEN, failed_starts=7))),
    "setup_failed": situation(director("d1", BROKEN)),
    "server_auth": situation(director("d1", replace(SERVER, state="resting", detail="server_auth: 401"))),
    "servers_unwell": situation(director("d1", replace(SERVER, state="unreachable"))),
    "load_fails": situation(on_device(failed=3, why="no weights", is_stuck=True)),
    "no_room": situation(on_device(is_stuck=True, why="It does not fit beside acme/a.")),
    "server_stays": situation(on_device(state="leaving", overdue_s=90.0)),
    "swaps_thrash": situation(on_device(state="loaded", loads=60, lost_s=1800.0)),
    "setup_slow": situation(director("d1", replace(SERVER, state="starting", since_ms=NOW - 61_000))),
    "no_schema": situation(director("d1", replace(SERVER, has_schema=False))),
    "version_changed": situation(director("d1", replace(SERVER, is_other_version=True))),
    "breaker_open": situation(breaker="open"),
    "queue_paused": situation(paused=True),
    "run_hangs": situation(running(75), closer={"usual": {Q: USUAL}}),
    "runs_time_out": situation(ended(ended=3, failed=3, timed_out_in_a_row=3)),
    "model_failing": situation(ended(ended=9, failed=9)),
    "split_stopped": situation(closer={"stopped": {"acme/front": SPLIT}}),
    "objective_burning": situation(**promised(0.5)),
    "objective_missed": situation(**promised(0.9)),
    "tenant_flooding": situation(
        normal=900, closer={"heaviest": {Q: Heaviest(account="noisy", waiting=900, accounts=2)}}
    ),
    "account_holds_most": situation(
        closer={"holder": Holder(account="noisy", bytes=60, total=70, accounts=2), "memory": Fullness(80, 100)}
    ),
    "dead_letters": situation(dead=1),
    "webhooks_late": situation(owed_late=1),
    "receiver_dead": situation(closer={"failing": [FAILING]}),
    "token_expires": situation(closer={"expiring": [Expiry("acme", "t1", NOW + 1)]}),
    "clock_off": situation(closer={"processes": [replace(API, ahead_s=60)]}),
    "former_release": situation(director("d1", version="0.0.9")),
}
FOUND: dict[Code, Finding] = {"redis_away": away("Redis is away: TimeoutError")} | {
    code: next(one for one in find(fault) if one.code == code) for code, fault in FAULTS.items()
}
STAGES = {
    "waits": known(queue=Q, webhook=""),
    "runs": known(queue=Q, token="t", started=NOW, lease=NOW),
    "owes": known(queue=Q, status="succeeded", webhook="https://hooks.example/x", owed=NOW),
}


def test_load_that_fails_is_told_with_the_last_words_of_the_server() -> None:
    why = "loads\nRuntimeError: the weights are broken\nthe server ended: exit code 3"
    [found] = [one for one in find(situation(on_device(failed=2, why=why))) if one.code == "load_fails"]
    assert "failed: RuntimeError: the weights are broken; the server ended: exit code 3." in found.detail


@pytest.mark.parametrize("timed_out", [0, 3], ids=["fail", "time out"])
def test_newer_evidence_makes_no_other_finding(timed_out: int) -> None:
    newest = [ended(ended=9, failed=9, timed_out_in_a_row=timed_out, failed_id=name) for name in ("p1", "p2")]
    [[first], [second]] = [find(situation(one)) for one in newest]
    assert first.about != second.about
    assert (first.code, first.queue, first.subject) == (second.code, second.queue, second.subject)


def test_two_findings_of_one_code_have_two_subjects() -> None:
    thrash = [replace(on_device(machine=name, loads=60, lost_s=1800.0), name=name) for name in ("m1", "m2")]
    stopped = situation(closer={"stopped": {"acme/front": SPLIT, "acme/back": SPLIT}})
    for found in (find(situation(*thrash)), find(stopped)):
        assert len(found) == len({one.subject for one in found}) == 2


def test_each_finding_has_one_row_and_one_fault_that_shows_it() -> None:
    assert list(FOUND) == sorted(CODES, key=list(FOUND).index)
    assert set(FOUND) == set(CODES) == set(KINDS)


@pytest.mark.parametrize("code", CODES)
def test_finding_says_who_can_act_and_what_is_next(code: Code) -> None:
    found = FOUND[code]
    assert (found.code, found.who) == (code, KINDS[code].who)
    assert found.ask.startswith("director ")
    assert found.detail.endswith(".")
    assert "{" not in found.title + found.detail + found.ask


@pytest.mark.parametrize("code", CODES)
def test_doctor_names_the_finding_in_its_line(code: Code) -> None:
    found, check = FOUND[code], KINDS[code].check
    if check not in FINE:  # the doctor measures these itself
        assert check in CHECKS
        return
    verdict, said, mend = CHECKS[check](replace(SOUND, findings=[found]))
    assert verdict == ("fail" if found.level == "bad" else "warn")
    assert f"{found.title}{f' ({Q})' if found.queue else ''}: {found.detail}" in said
    commands = " or ".join(f"`{command}`" for command in found.commands)
    assert mend == f"{commands} (who acts: {found.who})"


@pytest.mark.parametrize("part", [0.7, 0.8, 0.95, 1.01])
def test_doctor_and_findings_judge_memory_alike(part: float) -> None:
    info = {**SOUND.info, "used_memory": int(part * (1 << 30)), "maxmemory": 1 << 30}
    found = find(situation(closer={"memory": Fullness.of([info])}))
    verdict, said, _ = CHECKS["memory"](replace(SOUND, info=info))
    assert verdict == {"bad": "fail", "warn": "warn"}[found[0].level] if found else "ok"
    assert all(one.title in said for one in found)


@pytest.mark.parametrize("stage", get_args(Stage))
def test_explain_names_what_holds_a_prediction_up(stage: Stage) -> None:
    causes = causes_of(STAGES[stage], list(FOUND.values()))
    assert [one.code for one in causes] == [code for code in FOUND if stage in KINDS[code].stages]
    for one in causes:
        found = FOUND[one.code]
        assert one == Cause(code=one.code, title=found.title, who=found.who, detail=found.detail, ask=found.ask)


def test_explain_names_only_findings_of_its_queue() -> None:
    elsewhere = replace(FOUND["queue_paused"], queue="acme/other:0123456789ab")
    assert causes_of(STAGES["waits"], [elsewhere]) == []
    other = known(queue=Q, status="succeeded", webhook="https://other.example/x", owed=NOW)
    assert causes_of(other, [FOUND["receiver_dead"]]) == []


def test_each_finding_has_an_alert_that_asks_for_it() -> None:
    assert {kind.alert for kind in KINDS.values()} <= set(RULES)
    for name, rule in RULES.items():
        asked = set(re.findall(r'code=~?"([a-z_|]+)"', rule["expr"])) if "director_findings" in rule["expr"] else set()
        codes = {code for one in asked for code in one.split("|")}
        assert codes in (set(), {code for code, kind in KINDS.items() if kind.alert == name}), name
