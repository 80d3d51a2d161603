from director.broker.linker import link
from director.core.states import TERMINAL, Status


def test_scripts_know_the_same_terminal_statuses() -> None:
    line = next(line for line in link("get").splitlines() if line.startswith("local records_TERMINAL"))
    assert {status for status in Status if f"{status} = true" in line} == TERMINAL
    assert line.count("= true") == len(TERMINAL)
