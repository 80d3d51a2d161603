"""Test what `director chaos` says of the machine that it ran on."""

from types import SimpleNamespace

import pytest

from director.cli.main import main


@pytest.mark.parametrize(
    ("load", "ok", "is_told"),
    [(9.0, False, True), (1.0, False, False), (9.0, True, False)],
    ids=["busy", "quiet", "kept all the same"],
)
def test_broken_promises_on_a_busy_machine_name_its_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, ok: bool, is_told: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("director.lab.chaos.run.chaos", lambda options, say: SimpleNamespace(ok=ok))
    monkeypatch.setattr("director.lab.chaos.checker.text", lambda report: "the report")
    assert main(["chaos", "--seconds", "10"]) == (0 if ok else 1)
    assert ("busy before: load 9 on 2 cores" in capsys.readouterr().out) is is_told
