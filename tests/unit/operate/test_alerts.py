import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct, field

from tests.support.rules import LABELS_OF, strangers
from tests.unit.cli.test_cli_lines import is_a_command

ROOT = Path(__file__).parents[3]
FILE = ROOT / "k8s/monitoring/alerts.yaml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}
Q = "acme/echo:0123456789ab"
OF_Q = f'queue="{Q}"'


class Fault(Struct, frozen=True):
    """Series as promtool writes them, one value a minute; the time of the check; the labels of the alert."""

    series: dict[str, str]
    at: str = "20m"
    labels: dict[str, str] = field(default_factory=lambda: {"queue": Q})


def by_keepers(name: str, values: str) -> dict[str, str]:
    lane = ', lane="normal"' if name == "director_queue_waiting" else ""
    return {f'{name}{{{OF_Q}{lane}, instance="{k}"}}': values for k in ("k1", "k2")}


NO_DIRECTORS = by_keepers("director_queue_directors", "0x90")
NOTHING_WAITS = by_keepers("director_queue_waiting", "0x90")
A_CROWD = by_keepers("director_queue_waiting", "900x90")
ONE_HAS_MOST = {f"director_queue_largest_share{{{OF_Q}}}": "0.95x90"}
BURNS = {f'director_objective_burn_rate{{{OF_Q}, lane="normal", window="5m"}}': "18x90"}
BURNT = {name.replace("5m", "1h"): values for name, values in BURNS.items()}
SHARE = f'director_objective_share{{{OF_Q}, lane="normal"}}'
ALL_LATE = dict.fromkeys((*BURNS, *BURNT), "9.75x90") | {SHARE: "0.9x90"}
ABSENT = "absent"
SETUP_OF_A_NEW_MODEL = 'director_queue_setup_failed{queue="acme/new"}'  # none of its servers was ever ready
# A healthy service: two keepers, work that waits a little, runs that end
WELL = {
    'director_info{process="keeper", instance="k1"}': "1x90",
    **by_keepers("director_queue_waiting", "3x90"),
    **by_keepers("director_queue_directors", "2x90"),
    f"director_queue_paused{{{OF_Q}}}": "0x90",
    f"director_queue_setup_failed{{{OF_Q}}}": "0x90",
    SETUP_OF_A_NEW_MODEL: "0x90",
    f"director_queue_breaker_open{{{OF_Q}}}": "0x90",
    f"director_queue_dead{{{OF_Q}}}": "2x90",
    f"director_queue_tenants{{{OF_Q}}}": "3x90",
    f"director_queue_largest_share{{{OF_Q}}}": "0.4x90",
    f'director_servers{{{OF_Q}, state="ready"}}': "2x90",
    f'director_servers{{{OF_Q}, state="setup_failed"}}': "0x90",
    f'director_servers{{{OF_Q}, state="resting"}}': "0x90",
    SHARE: "0.95x90",
    f'director_objective_met_total{{{OF_Q}, lane="normal"}}': "0+100x90",
    f'director_objective_missed_total{{{OF_Q}, lane="normal"}}': "0+1x90",
    f'director_objective_burn_rate{{{OF_Q}, lane="normal", window="5m"}}': "0.2x90",
    f'director_objective_burn_rate{{{OF_Q}, lane="normal", window="1h"}}': "0.2x90",
    **{f'director_findings{{{OF_Q}, code="{code}"}}': "0x90" for code in ("run_hangs", "runs_time_out", "no_schema")},
    f'director_given_back_total{{{OF_Q}, error="infrastructure", became="dead"}}': "0x90",
    f'director_reaped_total{{{OF_Q}, became="waiting"}}': "5x90",
    f'director_reaped_total{{{OF_Q}, became="dead"}}': "0x90",
    f'director_ends_total{{{OF_Q}, status="succeeded", error="none"}}': "0+100x90",
    f'director_ends_total{{{OF_Q}, status="failed", error="model_failed"}}': "0+5x90",
    'director_repaired_total{repair="placed"}': "0x90",
    "director_webhooks_owed_oldest_seconds{}": "30x90",
    "director_batches_oldest_waiting_seconds{}": "600x90",
    'director_webhooks_total{outcome="given_up"}': "0x90",
    'director_api_refusals_total{code="queue_full"}': "0+6x90",
    'director_api_requests_total{status="201"}': "0+600x90",
    'director_api_requests_total{status="503"}': "0+6x90",
    'director_redis_up{job="api", instance="a1"}': "1x90",
    'director_files_up{job="api", instance="a1"}': "1x90",
    'director_redis_round_trip_seconds_bucket{le="0.05"}': "0+1000x90",
    'director_redis_round_trip_seconds_bucket{le="0.1"}': "0+1000x90",
    'director_redis_round_trip_seconds_bucket{le="+Inf"}': "0+1000x90",
    "director_redis_memory_bytes{}": "50x90",
    "director_redis_memory_limit_bytes{}": "100x90",
    "director_redis_durable{}": "1x90",
    'director_state_age_seconds{instance="k1"}': "8x90",
    'director_state_age_seconds{instance="k2"}': "500x90",
    'director_loop_lag_seconds_bucket{job="api", instance="a1", le="0.25"}': "0+120x90",
    'director_loop_lag_seconds_bucket{job="api", instance="a1", le="1.0"}': "0+120x90",
    'director_loop_lag_seconds_bucket{job="api", instance="a1", le="+Inf"}': "0+120x90",
}
HERE = {"job": "api", "instance": "a1"}
# Series that differ in each fault
FAULTS = {
    "DirectorQueueNotServed": Fault(by_keepers("director_queue_directors", "2x9 0x80"), "30m"),
    "DirectorSetupFailing": Fault({f"director_queue_setup_failed{{{OF_Q}}}": "0x9 1x80"}),
    "DirectorServersUnwell": Fault({f'director_servers{{{OF_Q}, state="resting"}}': "0x9 1x80"}),
    "DirectorBreakerOpen": Fault({f"director_queue_breaker_open{{{OF_Q}}}": "0x9 1x80"}),
    "DirectorQueuePaused": Fault({f"director_queue_paused{{{OF_Q}}}": "0x9 1x80"}, "50m"),
    "DirectorObjectiveBurning": Fault(BURNS | BURNT, "70m", {"queue": Q, "lane": "normal"}),
    "DirectorRunHangs": Fault({f'director_findings{{{OF_Q}, code="run_hangs"}}': "0x9 1x80"}),
    "DirectorRunsTimeOut": Fault({f'director_findings{{{OF_Q}, code="runs_time_out"}}': "0x9 1x80"}),
    "DirectorFinding": Fault(
        {f'director_findings{{{OF_Q}, code="no_schema"}}': "0x9 1x80"}, "30m", {"queue": Q, "code": "no_schema"}
    ),
    "DirectorTenantFlooding": Fault(ONE_HAS_MOST | A_CROWD),
    "DirectorDeadLettersGrowing": Fault({f"director_queue_dead{{{OF_Q}}}": "2x29 3x60"}, "35m"),
    "DirectorPoisonInput": Fault(
        {f'director_given_back_total{{{OF_Q}, error="infrastructure", became="dead"}}': "0x29 1x60"}, "35m"
    ),
    "DirectorModelFailing": Fault(
        {f'director_ends_total{{{OF_Q}, status="failed", error="model_failed"}}': "0+500x90"}, "40m"
    ),
    "DirectorLost": Fault({f'director_reaped_total{{{OF_Q}, became="waiting"}}': "5x29 8x60"}, "35m"),
    "DirectorRepairing": Fault({'director_repaired_total{repair="placed"}': "0x29 1x60"}, "35m", {"repair": "placed"}),
    "DirectorWebhooksOwedLong": Fault({"director_webhooks_owed_oldest_seconds{}": "30+60x90"}, "30m", {}),
    "DirectorWebhooksGivenUp": Fault({'director_webhooks_total{outcome="given_up"}': "0x29 1x60"}, "35m", {}),
    "DirectorRefusing": Fault(
        {'director_api_refusals_total{code="queue_full"}': "0+600x90"}, labels={"code": "queue_full"}
    ),
    "DirectorApiFailing": Fault({'director_api_requests_total{status="503"}': "0+100x90"}, labels={}),
    "DirectorRedisUnavailable": Fault({'director_redis_up{job="api", instance="a1"}': "1x9 0x80"}, labels=HERE),
    "DirectorRedisSlow": Fault({'director_redis_round_trip_seconds_bucket{le="0.05"}': "0+900x90"}, labels={}),
    "DirectorRedisFull": Fault({"director_redis_memory_bytes{}": "95x90"}, labels={}),
    "DirectorDurabilityUnsafe": Fault({"director_redis_durable{}": "1x9 0x80"}, labels={}),
    "DirectorKeeperAbsent": Fault(
        {'director_info{process="keeper", instance="k1"}': ABSENT}, labels={"process": "keeper"}
    ),
    "DirectorBatchesWait": Fault({"director_batches_oldest_waiting_seconds{}": "0+120x90"}, "80m", {}),
    "DirectorFilesAway": Fault({'director_files_up{job="api", instance="a1"}': "1x9 0x80"}, labels=HERE),
    "DirectorStateOld": Fault({'director_state_age_seconds{instance="k1"}': "8+60x90"}, labels={}),
    "DirectorLoopLag": Fault(
        {'director_loop_lag_seconds_bucket{job="api", instance="a1", le="0.25"}': "0+100x90"}, labels=HERE
    ),
}
# The same faults, seen otherwise
OTHERWISE = [
    ("DirectorObjectiveBurning", Fault(ALL_LATE, "70m", {"queue": Q, "lane": "normal"})),
    ("DirectorSetupFailing", Fault({f'director_servers{{{OF_Q}, state="setup_failed"}}': "0x9 1x80"})),
    ("DirectorSetupFailing", Fault({SETUP_OF_A_NEW_MODEL: "0x9 1x80"}, labels={"queue": "acme/new"})),
    # at the first evaluation, and not for a moment only
    ("DirectorSetupFailing", Fault({f'director_servers{{{OF_Q}, state="setup_failed"}}': "0x9 1x80"}, at="10m")),
    ("DirectorSetupFailing", Fault({f'director_servers{{{OF_Q}, state="setup_failed"}}': "0x9 1 0x80"}, at="12m")),
    ("DirectorPoisonInput", Fault({f'director_reaped_total{{{OF_Q}, became="dead"}}': "0x29 1x60"}, "35m")),
    ("DirectorDeadLettersGrowing", Fault({f"director_queue_dead{{{OF_Q}}}": "_x29 1x60"}, "35m")),
]
# Series that look like a fault and are harmless
HARMLESS = {
    "nothing waits where no director is": ("DirectorQueueNotServed", NO_DIRECTORS | NOTHING_WAITS),
    "a pool starts from zero": ("DirectorQueueNotServed", by_keepers("director_queue_directors", "0x10 1x80")),
    "it is paused": ("DirectorQueueNotServed", NO_DIRECTORS | {f"director_queue_paused{{{OF_Q}}}": "1x90"}),
    "paused without work": ("DirectorQueuePaused", NOTHING_WAITS | {f"director_queue_paused{{{OF_Q}}}": "1x90"}),
    "it burns since a moment": ("DirectorObjectiveBurning", BURNS),
    "it burnt before": ("DirectorObjectiveBurning", BURNT),
    "few wait": ("DirectorTenantFlooding", ONE_HAS_MOST),
    "no other account waits": (
        "DirectorTenantFlooding",
        ONE_HAS_MOST | A_CROWD | {f"director_queue_tenants{{{OF_Q}}}": "1x90"},
    ),
    "all have much": ("DirectorTenantFlooding", A_CROWD),
    "dead letters were dropped": ("DirectorDeadLettersGrowing", {f"director_queue_dead{{{OF_Q}}}": "9x74 3x15"}),
    "it was taken back, and waits": (
        "DirectorPoisonInput",
        {f'director_reaped_total{{{OF_Q}, became="waiting"}}': "5x74 8x15"},
    ),
    "the only one failed": (
        "DirectorModelFailing",
        {
            f'director_ends_total{{{OF_Q}, status="succeeded", error="none"}}': "7x90",
            f'director_ends_total{{{OF_Q}, status="failed", error="model_failed"}}': "0x74 1x15",
        },
    ),
    "Redis may have all memory": ("DirectorRedisFull", {"director_redis_memory_limit_bytes{}": "0x90"}),
}


def test_each_alert_has_a_fault_that_it_is_tried_with() -> None:
    assert set(FAULTS) == set(RULES)
    for name, fault in [*FAULTS.items(), *OTHERWISE]:
        assert set(fault.series) <= set(WELL), name
    for why, (name, series) in HARMLESS.items():
        assert name in RULES, why
        assert set(series) <= set(WELL), why


@pytest.mark.parametrize("name", RULES)
def test_a_rule_asks_for_what_there_is(name: str) -> None:
    assert strangers(RULES[name]["expr"]) == set()


@pytest.mark.parametrize("given", [*WELL])
def test_a_series_of_these_tests_is_one_that_there_is(given: str) -> None:
    name, _, rest = given.partition("{")
    assert set(re.findall(r'(\w+)="', rest)) <= LABELS_OF[name] | {"job", "instance"}


def test_what_nothing_here_has_is_found() -> None:
    assert strangers('rate(director_starts_total{tenant="x"}[5m])') == {"director_starts_total{tenant}"}
    assert strangers("sum by (account) (director_queue_dead)") == {"account"}
    assert strangers("director_run_seconds") == {"director_run_seconds"}, "it has buckets, a sum and a count"


@pytest.mark.parametrize("name", RULES)
def test_an_alert_names_the_cause_and_what_to_ask_next(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in ("page", "ticket")
    told = rule["annotations"]
    assert set(told) == {"summary", "runbook"}
    assert told["summary"].endswith(".")
    assert "$value" not in str(told)
    used = set(re.findall(r"\$labels\.(\w+)", str(told)))
    assert used <= FAULTS[name].labels.keys()
    commands = re.findall(r"\bdirector ((?:[a-z]+ ?)+)", told["runbook"])
    assert commands
    for command in commands:
        assert is_a_command(command.split()), command


def case(name: str, fault: Fault | None, harmless: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a promtool test of what is well, of one fault, or of what only looks like one."""
    given = WELL | (fault.series if fault else {}) | dict(harmless or {})
    expected = [told(name, fault)] if fault else []
    return {
        "name": f"{name}: {'fault' if fault else 'harmless' if harmless else 'well'}",
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in given.items() if values != ABSENT],
        "alert_rule_test": [{"eval_time": fault.at if fault else "80m", "alertname": name, "exp_alerts": expected}],
    }


def told(name: str, fault: Fault) -> dict[str, Any]:
    rule = RULES[name]
    words = {
        what: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: fault.labels[match[1]], text)
        for what, text in rule["annotations"].items()
    }
    return {"exp_labels": rule["labels"] | fault.labels, "exp_annotations": words}


@pytest.mark.promtool
def test_each_alert_fires_for_its_fault_and_not_where_all_is_well(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool in PATH: install Debian's package prometheus")
    cases = [case(name, fault) for name, each in FAULTS.items() for fault in (each, None)]
    cases += [case(name, fault) for name, fault in OTHERWISE]
    cases += [case(name, None, series) for name, series in HARMLESS.values()]
    tests = tmp_path / "tests.yaml"
    tests.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": cases}))
    done = subprocess.run(
        [promtool, "test", "rules", str(tests)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
