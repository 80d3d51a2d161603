import pytest

from director.servers.runners.cog_answers import COGLET, python_kind


@pytest.mark.parametrize(
    ("version", "hears"),
    [("", False), ("odd", False), ("0.9.26", False), ("0.12.1", False), ("0.13.0", True), ("0.16.12", True)],
)
def test_python_servers_before_0_13_hear_nothing_during_a_run(version: str, hears: bool) -> None:
    assert python_kind(version).hears_meanwhile is hears
    assert COGLET.hears_meanwhile


def test_only_coglet_acts_on_a_second_cancel_and_omits_logs() -> None:
    assert not python_kind("0.16.12").cancels_again
    assert python_kind("0.16.12").tells_all_at_end
    assert (COGLET.cancels_again, COGLET.tells_all_at_end) == (True, False)
