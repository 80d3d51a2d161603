from director.broker.gatherer import source
from director.core.states import TERMINAL, Status


def test_scripts_know_the_same_terminal_statuses() -> None:
    line = next(line for line in source("get").splitlines() if line.startswith("local TERMINAL"))
    assert {status for status in Status if f"{status} = true" in line} == TERMINAL
    assert line.count("= true") == len(TERMINAL)
