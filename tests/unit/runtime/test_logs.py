import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from director.runtime.logs import QUIET, JsonLines, PeopleLines, configure

TOKEN = "whsec_in_the_query"


@pytest.fixture
def as_before() -> Iterator[None]:
    """Give the root logger, and those of libraries, back as they were."""
    loggers = [logging.getLogger(name) for name in ("", *QUIET)]
    before = [(logger, logger.level, logger.handlers[:], logger.propagate) for logger in loggers]
    factory, source, make_record = logging.getLogRecordFactory(), logging._srcfile, logging.Logger.makeRecord
    yield
    logging.setLogRecordFactory(factory)
    logging._srcfile = source
    logging.Logger.makeRecord = make_record  # type: ignore[method-assign]
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def line(message: object = "claim taken back", *args: object, exc_info: Any = None, **facts: object) -> dict[str, Any]:
    record = logging.getLogger("director.keeper").makeRecord(
        "director.keeper", logging.WARNING, __file__, 1, message, args, exc_info, extra=facts
    )
    text = JsonLines(process="keeper").format(record)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_line_has_time_level_logger_process_message_and_facts() -> None:
    said = line(prediction="abc", attempt=2, delay_s=0.5, told=None)
    assert said.pop("time").endswith("+00:00")
    assert said == {
        "level": "warning",
        "logger": "director.keeper",
        "process": "keeper",
        "message": "claim taken back",
        "prediction": "abc",
        "attempt": 2,
        "delay_s": 0.5,
        "told": None,
    }


def for_people(message: str, level: int = logging.INFO, exc_info: Any = None, **facts: object) -> str:
    logger = logging.getLogger("director.keeper")
    text = PeopleLines().format(logger.makeRecord(logger.name, level, __file__, 1, message, (), exc_info, extra=facts))
    return text.partition(" ")[2]


def test_line_for_people_has_message_and_facts_and_cannot_control_the_terminal() -> None:
    assert (
        for_people("model registered", model="acme/painter", slots=2) == "model registered  model=acme/painter  slots=2"
    )
    assert for_people("waiting for redis", logging.WARNING, error="\x1b[2Jno") == (
        "warning: waiting for redis  error=\N{REPLACEMENT CHARACTER}[2Jno"
    )
    assert for_people("setup failed", setup_logs="a\nb") == "setup failed\n    setup_logs: a\n    b"


def test_people_get_the_traceback_below_the_line() -> None:
    try:
        raise ValueError("late")
    except ValueError as exc:
        said = for_people("it broke", logging.ERROR, exc_info=(type(exc), exc, exc.__traceback__))
    assert said.startswith("error: it broke\n    Traceback")
    assert said.endswith("\n    ValueError: late")


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_gets_lines_for_people(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    configure("info", process="director")
    [handler] = logging.getLogger().handlers
    assert isinstance(handler.formatter, PeopleLines if is_terminal else JsonLines)


def test_an_exception_brings_its_traceback_in_the_same_line() -> None:
    try:
        raise ValueError("too\nlate")
    except ValueError as exc:
        said = line(exc_info=(type(exc), exc, exc.__traceback__))
    assert "Traceback" in said["exception"]
    assert "ValueError: too\nlate" in said["exception"]


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


RING: list[object] = []
RING.append(RING)


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        (object, "<class 'object'>"),
        (Mute(), "<Mute>"),
        (b"\xff", "/w=="),
        ("\ud800", "\\ud800"),
        (2**80, 2**80),
        ({Mute(): 1}, {"<Mute>": 1}),
        ({"deep": "\ud800"}, "{'deep': '\\ud800'}"),
        (float("nan"), None),
        (RING, "[[...]]"),
    ],
)
def test_no_fact_can_break_a_line(fact: object, shown: object) -> None:
    said = line(fact=fact, prediction="abc", attempt=2)
    assert (said["message"], said["prediction"], said["attempt"]) == ("claim taken back", "abc", 2)
    assert said["fact"] == shown


def test_a_fact_never_hides_what_the_line_says_of_itself() -> None:
    said = line(level="mine", exception="mine too")
    assert (said["level"], said["level_"], said["exception_"]) == ("warning", "mine", "mine too")


@pytest.mark.usefixtures("as_before")
def test_a_configured_process_logs_facts_and_keeps_its_own_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", process="api")
    logging.getLogger("api.app").info("ready", extra={"port": 1, "time": "mine", "levelname": "mine"})
    [said] = map(json.loads, capsys.readouterr().err.splitlines())
    assert (said["message"], said["level"], said["port"], said["time_"]) == ("ready", "info", 1, "mine")


def test_message_that_does_not_fit_its_arguments_is_still_logged() -> None:
    assert line("%d of %d", "x")["message"] == "%d of %d"
    assert line("%d of %d", 1, 2)["message"] == "1 of 2"


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("level", ["debug", "info"])
def test_no_library_logs_a_url_at_any_level(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(level, process="keeper")
    logging.getLogger("httpx").info("HTTP Request: POST https://hooks.example/?secret=%s", TOKEN)
    logging.getLogger("httpcore.connection").debug("connect %s", TOKEN)
    logging.getLogger("uvicorn.access").info("GET /?%s", TOKEN)
    logging.getLogger("director.keeper").info("draining")
    said = capsys.readouterr().err
    assert TOKEN not in said
    assert [json.loads(text)["message"] for text in said.splitlines()] == ["draining"]


@pytest.mark.usefixtures("as_before")
def test_the_level_is_the_least_that_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning", process="api")
    logging.getLogger("api.app").info("this is not read")
    logging.getLogger("api.app").warning("redis is away")
    [said] = capsys.readouterr().err.splitlines()
    assert json.loads(said)["process"] == "api"


@pytest.mark.usefixtures("as_before")
def test_to_configure_twice_does_not_say_everything_twice(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", process="api")
    configure("info", process="api")
    logging.getLogger("api.app").info("ready")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("as_before")
def test_a_line_of_a_library_is_filled_as_logging_says(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", process="keeper")
    log = logging.getLogger("pillow")
    log.info("%s of %d", "one", 2)
    log.info("%(one)s of %(all)d", {"one": "one", "all": 2})
    log.info("100 % of it")
    said = [json.loads(text)["message"] for text in capsys.readouterr().err.splitlines()]
    assert said == ["one of 2", "one of 2", "100 % of it"]


def test_process_warns_of_a_former_setting_at_its_start(
    as_before: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIRECTOR_MAX_LOG_BYTES", "1000")
    configure("INFO", process="keeper")
    [warning] = map(json.loads, capsys.readouterr().err.splitlines())
    assert warning["level"] == "warning"
    assert warning["reason"].startswith("DIRECTOR_MAX_LOG_BYTES is no setting any more")
