import msgspec
import pytest

from director.core.schema import MOST_LOG_BYTES, SetupRun, read_setup_run, setup_run


def told(**said: str) -> SetupRun:
    return setup_run(
        "failed", **{"started_at": "", "completed_at": "", "logs": "", "server": "http://gpu-1:5000", **said}
    )


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("2026-01-01T01:00:00.123456789+01:00", "2026-01-01T00:00:00.123Z"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00.000Z"),
        ("", None),
        ("yesterday", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("2026-01-01T00:00:00Z" + " " * 1000, None),
    ],
)
def test_a_time_is_read_as_one_or_not_at_all(said: str, read: str | None) -> None:
    setup = told(started_at=said, completed_at=said)
    assert (setup.started_at, setup.completed_at) == (read, read)


def test_of_what_was_printed_the_end_is_kept() -> None:
    setup = told(logs="é" * MOST_LOG_BYTES + "x")
    assert len(setup.logs.encode()) == MOST_LOG_BYTES - 1, "no half of a character"
    assert setup.logs.endswith("éx")


def test_setup_run_is_read_back_and_unreadable_ones_are_missing() -> None:
    setup = told(logs="loading\n")
    assert read_setup_run(msgspec.json.encode(setup)) == setup
    for stored in (None, b"", b"{}", b"\xff", b'{"status": "odd"}'):
        assert read_setup_run(stored) is None
