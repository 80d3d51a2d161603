import pytest

from director.servers.runners.runner import Outcome
from director.servers.servers import LONGEST_S, Trust

FAILED = Outcome.FAILED


def noted(trust: Trust, *outcomes: Outcome, is_dead: bool = False) -> list[float | None]:
    return [trust.note(outcome, since="first", is_dead=is_dead) for outcome in outcomes]


def test_a_success_in_between_forgives_all() -> None:
    trust = Trust(2, counts_failed=True)
    assert noted(trust, FAILED, Outcome.SUCCEEDED, FAILED) == [None, None, None]
    assert not trust.is_on_trial


def test_each_failure_on_trial_doubles_the_rest_up_to_a_minute() -> None:
    rests = noted(Trust(2, counts_failed=True), *[FAILED] * 10)[1:]
    assert [rest for rest in rests if rest] == [1, 2, 4, 8, 16, 32, *[LONGEST_S] * 3]


def test_server_that_fails_for_days_rests_a_minute_each_time() -> None:
    assert noted(Trust(1, counts_failed=True), *[FAILED] * 2000)[-1] == LONGEST_S


def test_a_success_ends_the_trial_and_the_doubling() -> None:
    trust = Trust(1, counts_failed=True)
    noted(trust, FAILED, FAILED, Outcome.SUCCEEDED)
    assert not trust.is_on_trial
    assert noted(trust, FAILED) == [1]


def test_refused_input_is_not_a_failure_of_the_server() -> None:
    assert noted(Trust(1, counts_failed=True), Outcome.INVALID) == [None]


def test_all_runs_lost_to_one_death_are_one_failure() -> None:
    trust = Trust(2, counts_failed=True)
    assert noted(trust, *[Outcome.LOST] * 8, is_dead=True) == [None] * 8
    assert trust.note(Outcome.LOST, since="second", is_dead=True) == 1


def test_each_death_of_a_server_that_proved_alive_is_a_failure() -> None:
    trust = Trust(3)
    for _ in range(2):
        assert noted(trust, *[Outcome.LOST] * 8, is_dead=True) == [None] * 8
        trust.acquit()
    assert noted(trust, Outcome.LOST, is_dead=True) == [1]


def test_account_that_ready_servers_lose_counts_once_in_a_row() -> None:
    trust = Trust(3)
    counted = []
    for account in "aaabba":
        trust.note(Outcome.LOST, since="first", is_dead=True, account=account)
        counted.append(trust.failures)
        trust.acquit()
    assert counted == [1, 1, 1, 2, 2, 3]


def test_lost_runs_count_each_time_if_the_account_succeeds_elsewhere() -> None:
    trust = Trust(3)
    for _ in range(3):
        trust.note(Outcome.LOST, since="first", is_dead=True, account="a")
        trust.acquit()
        trust.went_well_elsewhere("a")
    assert (trust.failures, trust.is_on_trial) == (3, True)


def test_account_that_is_refused_as_by_a_full_server_counts_once() -> None:
    trust = Trust(3)
    for account in "aaabba":
        trust.note(Outcome.REFUSED, since="first", may_be_full=True, account=account)
    assert trust.failures == 3
    assert trust.note(Outcome.REFUSED, since="first", may_be_full=True) == 2, "no other account could suffer"


def test_repeated_failures_of_one_account_count_once() -> None:
    trust = Trust(2, counts_failed=True)
    assert [trust.note(FAILED, since="first", account="a") for _ in range(20)] == [None] * 20
    assert trust.note(FAILED, since="first", account="b") == 1
    assert trust.note(FAILED, since="first", account="b") is None, "nor does it lengthen the rest"
    assert trust.note(FAILED, since="first", account="a") == 2


def test_failures_count_each_time_if_the_account_succeeds_elsewhere() -> None:
    trust = Trust(3, counts_failed=True)
    rests = []
    for _ in range(3):
        rests.append(trust.note(FAILED, since="first", account="a"))
        trust.went_well_elsewhere("a")
    assert rests == [None, None, 1]


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.REFUSED, Outcome.CANCELED])
def test_failures_that_no_input_causes_count_each_time(outcome: Outcome) -> None:
    trust = Trust(2, counts_failed=True)
    assert [trust.note(outcome, since="first", account="a") is None for _ in range(2)] == [True, False]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_server_never_rests_without_a_limit(outcome: Outcome) -> None:
    assert noted(Trust(0, counts_failed=True), *[outcome] * 20) == [None] * 20


def test_errors_of_the_model_itself_never_count() -> None:
    trust = Trust(2)
    for account in "abababab":
        assert trust.note(FAILED, since="first", account=account, error="ValueError: NSFW content detected") is None
    assert (trust.failures, trust.is_on_trial) == (0, False)


def test_words_of_sickness_count_from_two_accounts_only() -> None:
    trust = Trust(2)
    rests = [trust.note(FAILED, since="first", account=each, error="CUDA error: no device") for each in "aaaabba"]
    assert rests == [None] * 6 + [1]


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("No CUDA GPUs are available", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", True),
        ("HIP error: invalid device function", True),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", True),
        ("no picture of a hip person", False),
        ("barracuda was not found", False),
    ],
)
def test_words_of_a_sick_accelerator_are_known(error: str, counts: bool) -> None:
    trust = Trust(1)
    rests = [trust.note(FAILED, since="first", account=each, error=error) for each in "ab"]
    assert (rests[-1] is not None) == counts


def test_words_that_one_account_echoes_count_never() -> None:
    trust = Trust(1)
    for error in ("CUDA error", "out of memory") * 10:
        assert trust.note(FAILED, since="first", account="a", error=error) is None
        trust.went_well_elsewhere("a")


@pytest.mark.parametrize("counts_failed", [True, False])
def test_words_of_a_dead_engine_count_from_two_accounts_only(counts_failed: bool) -> None:
    trust = Trust(3, counts_failed=counts_failed)
    lost = [trust.note(Outcome.LOST, since="first", by_words=True, account="a") for _ in range(20)]
    assert lost == [None] * 20
    rests = [trust.note(Outcome.LOST, since="first", by_words=True, account=account) for account in "bababa"]
    assert any(rests)


def test_success_elsewhere_does_not_acquit_a_sick_server() -> None:
    trust = Trust(1)
    assert trust.note(FAILED, since="first", account="a", error="CUDA error") is None
    trust.went_well_elsewhere("a")
    assert trust.note(FAILED, since="first", account="b", error="CUDA error") == 1


def test_error_of_the_model_ends_the_trial_of_a_server() -> None:
    trust = Trust(1)
    assert noted(trust, Outcome.LOST) == [1]
    assert trust.note(FAILED, since="first", error="ValueError: no") is None
    assert not trust.is_on_trial
