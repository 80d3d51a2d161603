import argparse
import base64
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from director.cli import predictions
from director.cli.arguments import model_name, port_number
from director.cli.backend import redis_url
from director.cli.client import FileFault, Seen, _detail, parse_input, save_output, service
from director.cli.main import main
from director.cli.output import say
from director.cli.printing import Printer
from director.cli.tables import print_json
from director.core.states import Status
from director.local.home import Home, Nowhere, State


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    for name in ("DIRECTOR_URL", "DIRECTOR_TOKEN", "DIRECTOR_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def given(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**({"home": ".director", "url": "", "token": "", "redis": ""} | values))


def up_in(folder: str, **state: Any) -> None:
    home = Home(Path(folder))
    home.make()
    home.write(State(**state))


class Service:
    """An API on loopback that gives these answers in order. None closes the connection instead."""

    def __init__(self, *answers: tuple[int, dict[str, Any]] | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    @contextmanager
    def serving(self) -> Iterator[str]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                service.asked.append(f"{self.command} {self.path}")
                answer = service.answers.pop(0)
                if answer is None:
                    return
                body = json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


def test_help_of_a_process_lists_its_settings(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "DIRECTOR_LEASE_S (15.0)\n      Time without a heartbeat" in capsys.readouterr().out


@pytest.mark.parametrize("line", [[], ["nonsense"], ["predict", "no-slash"], ["up", "--port", "70000"], ["token"]])
def test_wrong_command_line_prints_usage_and_exits_2(line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 2
    assert "usage: director" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["predict", "a/b"],
        ["get", "x"],
        ["cancel", "x"],
        ["explain", "x"],
        ["queues"],
        ["token", "create", "--account", "a"],
        ["token", "revoke"],
        ["account", "list"],
        ["account", "set", "a", "--rate", "1"],
        ["bench", "latency"],
        ["bench", "throughput"],
    ],
    ids=" ".join,
)
def test_every_command_without_a_service_explains_how_to_start_one(line, capsys):
    assert main(line) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("director: ")
    assert err.count("\n") == 1
    assert "director up" in err


def test_missing_service_is_reported_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    up_in(".director", url=f"http://127.0.0.1:{port}", token="t")
    assert main(["get", "x"]) == 1
    assert f"no answer from http://127.0.0.1:{port}" in capsys.readouterr().err


def test_missing_redis_is_reported_in_one_line(capsys, tmp_path):
    assert main(["queues", "--redis", f"unix://me:secret@{tmp_path}/nowhere"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"director: Redis is away: ConnectionError, at unix://{tmp_path}/nowhere. See --redis and")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["token", "create", "--account", "No Name"], "is no account name"),
        (["token", "create", "--account", "a", "--lanes", "fast"], "--lanes takes high, normal, low"),
    ],
    ids=["account", "lanes"],
)
def test_invalid_token_options_are_refused_before_redis_is_asked(line, says, capsys):
    assert main([*line, "--redis", "unix:///nowhere"]) == 1
    assert says in capsys.readouterr().err


def test_help_imports_no_heavy_library():
    source = (
        "import sys\nfrom director.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('redis', 'httpx', 'anyio', 'starlette', 'msgspec', 'rich') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def without_a_reader(*command: str, to: str = "", **options: Any) -> Any:
    """Run Python with a standard output that no process reads, or that goes to this file."""
    reader, writer = os.pipe()
    os.close(reader)
    out = os.open(to, os.O_WRONLY) if to else writer
    try:
        return subprocess.run([sys.executable, *command], stdout=out, stderr=subprocess.PIPE, text=True, **options)
    finally:
        os.close(writer)


def test_closed_pipe_does_not_end_a_command():
    source = (
        "import sys\nfrom director.cli.output import say\nsay('one')\nsay('two')\nprint('goes on', file=sys.stderr)"
    )
    assert without_a_reader("-c", source, check=True).stderr == "goes on\n"


def test_last_line_of_a_part_cannot_control_the_terminal(monkeypatch, capsys):
    line = "model-painter ended (exit code 1: \x1b[2Jno GPU)"
    say(line)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    say(line)
    assert capsys.readouterr().out.splitlines() == [line, line.replace("\x1b", "\ufffd")]


def test_full_disk_does_not_end_a_command():
    source = "import os\nfrom director.cli.output import say\nsay('one')\nos.write(2, b'goes on')\nos._exit(0)"
    assert without_a_reader("-c", source, to="/dev/full", check=True).stderr == "goes on"


@pytest.mark.parametrize(
    ("line", "says"),
    [(["completion", "bash"], ""), (["--help"], ""), (["completion", "zsh"], "director: [Errno 28] No space")],
    ids=["reader gone", "reader of help gone", "disk full"],
)
def test_failed_write_exits_with_1_and_at_most_one_line(line, says):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    answer = without_a_reader("-m", "director", *line, to="/dev/full" if says else "", env=env)
    assert answer.returncode == 1
    assert answer.stderr.startswith(says)
    assert answer.stderr.count("\n") == bool(says)


@pytest.mark.parametrize("token", ["dr_\né", "dr_1\n2"])
def test_malformed_token_is_refused_and_not_shown(token, capsys):
    assert main(["get", "06gzx0rcvbz008pmq2tvpfvnvc", "--url", "http://127.0.0.1:1", "--token", token]) == 1
    said = capsys.readouterr().err
    assert said.startswith("director: not a token")
    assert "dr_1" not in said


def test_id_cannot_address_another_route(capsys):
    api = Service((404, {"detail": "It does not exist"}))
    with api.serving() as url:
        assert main(["cancel", "../accounts/x?y=", "--url", url, "--token", "t"]) == 1
    assert api.asked == ["POST /v1/predictions/..%2Faccounts%2Fx%3Fy%3D/cancel"]
    assert capsys.readouterr().err.startswith("director: It does not exist. Check the name or the id")


def test_options_win_over_environment_and_environment_over_home(monkeypatch):
    def found(**line: str) -> tuple[str, str, str]:
        return service(given(**line)).url, service(given(**line)).token, redis_url(given(**line))

    up_in(".director", url="http://home", token="of-home", redis_url="redis://home")
    assert found() == ("http://home", "of-home", "redis://home")
    monkeypatch.setenv("DIRECTOR_URL", "http://env/v1/")
    monkeypatch.setenv("DIRECTOR_TOKEN", "of-env")
    monkeypatch.setenv("DIRECTOR_REDIS_URL", "redis://env")
    assert found() == ("http://env", "of-env", "redis://env")
    assert found(url="http://line", token="of-line", redis="redis://line") == ("http://line", "of-line", "redis://line")


def test_token_of_a_home_is_not_sent_to_another_service():
    up_in(".director", url="http://home", token="of-home")
    with pytest.raises(Nowhere, match="token is missing"):
        service(given(url="http://elsewhere"))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("n=3", "n", 3),
        ("delay=0.5", "delay", 0.5),
        ("on=true", "on", True),
        ("list=[1,2]", "list", [1, 2]),
        ("text=hello there", "text", "hello there"),
        ('text="3"', "text", "3"),
        ("text=", "text", ""),
        ("sum=1+1=2", "sum", "1+1=2"),
        ("text={oops", "text", "{oops"),
    ],
)
def test_input_value_is_json_if_it_parses_else_text(text, name, value):
    assert parse_input(text) == (name, value)


def test_input_file_becomes_a_data_uri(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "a.unheard-of").write_bytes(b"?")
    assert parse_input(f"image=@{tmp_path}/a.png") == ("image", "data:image/png;base64,iVBORw==")
    assert parse_input(f"image=@{tmp_path}/a.unheard-of")[1].startswith("data:application/octet-stream;base64,")


def test_unreadable_file_is_reported_in_one_line(capsys):
    assert main(["predict", "a/b", "-i", "image=@nowhere.png"]) == 1
    said = "director: cannot read nowhere.png: No such file or directory. Check the path after the @.\n"
    assert capsys.readouterr().err == said


def test_output_file_is_saved(tmp_path):
    save_output(f"data:image/png;base64,{base64.b64encode(b'picture').decode()}", str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes() == b"picture"
    for output in ("just text", ["a"], None):
        with pytest.raises(FileFault, match="not a file"):
            save_output(output, str(tmp_path / "out.png"))


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        *((parse_input, text, "name=value") for text in ("text", "=5")),
        *((model_name, text, "owner/name") for text in ("hello", "a/b/c", "a b/c", "/b", "a/", "a/b:", "a/b:1")),
        *((model_name, text, "owner/name") for text in ("A/b", "")),
        *((port_number, text, "not a port") for text in ("-1", "65536", "http", "")),
    ],
)
def test_malformed_argument_is_refused(parse, text, says):
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        parse(text)


PREDICTION = {"id": "abc", "status": "processing"}
DONE = (200, PREDICTION | {"status": "succeeded", "output": "hi"})
AWAY = (503, {"detail": "Redis is away."})


def predict(service: Service, monkeypatch: pytest.MonkeyPatch, *, away_s: float = 60) -> int:
    monkeypatch.setattr(predictions, "AWAY_S", away_s)
    monkeypatch.setattr(predictions, "AWAY_LOOK_S", 0)
    with service.serving() as url:
        return main(["predict", "a/b", "-i", "text=hi", "--url", url, "--token", "t"])


def test_predict_survives_a_short_outage_of_the_service(monkeypatch, capsys):
    service = Service((201, PREDICTION), AWAY, None, (502, {}), AWAY, DONE)
    assert predict(service, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert out == "hi\n"
    assert err.count("asking again") == 1
    assert service.asked == ["POST /v1/models/a/b/predictions"] + 5 * ["GET /v1/predictions/abc"]


@pytest.mark.parametrize(
    ("answer", "away_s", "says"),
    [(AWAY, 0, "Redis is away."), ((401, {"detail": "This token is not known."}), 60, "This token is not known.")],
    ids=["away for long", "refused"],
)
def test_predict_that_gives_up_names_the_prediction(answer, away_s, says, monkeypatch, capsys):
    service = Service((201, PREDICTION), answer)
    assert predict(service, monkeypatch, away_s=away_s) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert says in said
    assert "director get abc" in said
    assert len(service.asked) == 2


def test_create_is_not_repeated_without_a_response(monkeypatch):
    service = Service(None)
    assert predict(service, monkeypatch) == 1
    assert service.asked == ["POST /v1/models/a/b/predictions"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*looks: tuple[Status, Any, str], err: io.StringIO | None = None) -> tuple[str, str]:
    """Return what is printed after these polls of one prediction: status, output, logs."""
    out, err = io.StringIO(), err or io.StringIO()
    printer = Printer(out, err)
    for status, output, logs in looks:
        printer.show(Seen(id="p", status=status, output=output, logs=logs))
    return out.getvalue(), err.getvalue()


def test_growing_output_is_printed_once_as_one_text():
    out, err = shown(
        (Status.STARTING, None, ""),
        (Status.PROCESSING, ["one "], "loading\n"),
        (Status.PROCESSING, ["one ", "two"], "loading\n"),
        (Status.SUCCEEDED, ["one ", "two", " three"], "loading\ndone\n"),
    )
    assert out == "one two three\n"
    assert err.count("loading\n") == 1
    assert err.count("done\n") == 1
    assert err.splitlines()[0] == "» starting (p)"
    assert err.splitlines()[-1].startswith("» succeeded after ")


def test_new_attempt_prints_its_output_again_and_says_so():
    out, err = shown(
        (Status.PROCESSING, ["first try"], ""),
        (Status.STARTING, None, ""),
        (Status.PROCESSING, [], ""),
        (Status.SUCCEEDED, ["second try"], ""),
    )
    assert out == "first try\nsecond try\n"
    assert "began again" in err


@pytest.mark.parametrize(
    ("output", "printed"),
    [
        ("text", "text\n"),
        ("text\n", "text\n"),
        (["https://a/1.png", "https://a/2.png"], "https://a/1.png\nhttps://a/2.png\n"),
        ({"a": 1}, '{\n  "a": 1\n}\n'),
        ([{"a": 1}, 2], '{\n  "a": 1\n}\n2\n'),
        (0, "0\n"),
        ([], ""),
        (None, ""),
    ],
    ids=json.dumps,
)
def test_each_kind_of_output_is_readable(output, printed):
    assert shown((Status.SUCCEEDED, output, ""))[0] == printed


def test_model_text_cannot_control_a_terminal_and_is_unchanged_elsewhere(monkeypatch):
    words = "\x1b]0;title\x07\x9b31mred\u202e\N{NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}é\t10 %\r20 %\r\nend"
    looks = Seen(id="p", status=Status.FAILED, output=[words, {"a": words}], logs=words, error=words)
    for kind in (Terminal, io.StringIO):
        out, err = kind(), kind()
        Printer(out, err).show(looks)
        monkeypatch.setattr("sys.stdout", kind())
        told = (out.getvalue(), err.getvalue(), predictions._facts(looks))
        if kind is io.StringIO:
            assert all(words in text for text in told)
        for text in told if kind is Terminal else ():
            assert "�]0;title��31mred�  é\t10 %\n20 %\nend" in text
            assert not set("\x1b\x07\x9b\u202e\r") & set(text)


def test_json_on_a_terminal_escapes_control_characters(monkeypatch):
    for kind in (Terminal, io.StringIO):
        monkeypatch.setattr("sys.stdout", kind())
        print_json({"a": "\x1b\x9b\u202eé"})
        text = sys.stdout.getvalue()
        assert json.loads(text) == {"a": "\x1b\x9b\u202eé"}
        assert ("\x9b" in text) == (kind is io.StringIO)


def test_wait_is_one_line_on_a_terminal_that_disappears(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    _, err = shown(
        (Status.STARTING, None, ""), (Status.STARTING, None, ""), (Status.SUCCEEDED, "x", ""), err=Terminal()
    )
    wait, _, rest = err.rpartition("\x1b[2K")
    assert wait.count("» starting 0 s") >= 2
    assert wait.count("\n") == 1
    assert wait.endswith("\r\x1b[1A"), "the line is emptied"
    assert rest.startswith("» succeeded after ")
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h"), "the cursor is shown again"


def test_fault_of_an_input_names_it_once() -> None:
    said = "- input.colour: input.colour must be one of the following: red\n- input.n: Invalid type.\n"
    answer = httpx.Response(422, json={"detail": said})
    assert _detail(answer) == "input.colour must be one of the following: red; input.n: Invalid type."


def test_fault_of_several_lines_is_shown_as_lines(monkeypatch, capsys) -> None:
    def refuse(argv: object) -> int:
        raise Nowhere("valkey does not start. Its log ends with:\n  no\x1b[31mspace")

    monkeypatch.setattr("director.cli.main._run", refuse)
    assert main([]) == 1
    assert capsys.readouterr().err == "director: valkey does not start. Its log ends with:\n  no\ufffd[31mspace\n"
