import argparse
import base64
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from director import __version__
from director.cli import predictions
from director.cli.arguments import model_name, port_number
from director.cli.backend import redis_url
from director.cli.client import PredictionAnswer, _detail, service
from director.cli.client import Service as Service_
from director.cli.inputs import Described, FileFault, check_output, parse_input, read_inputs, save_output
from director.cli.main import main, make_parser
from director.cli.output import say
from director.cli.printing import Printer
from director.cli.tables import print_json
from director.core.errors import DirectorError, SettingsError
from director.core.schema import Eta, Place
from director.core.states import Status
from director.core.view import iso
from director.local.home import Home, Nowhere, State


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    for name in ("DIRECTOR_URL", "DIRECTOR_TOKEN", "DIRECTOR_REDIS_URL", "DIRECTOR_HOME", "DIRECTOR_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def given(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**({"home": ".director", "url": "", "token": "", "redis": "", "context": ""} | values))


def up_in(folder: str, **state: Any) -> None:
    home = Home(Path(folder))
    home.make()
    home.write(State(**state))


class Service:
    """An API on loopback that gives these answers in order. None closes the connection instead."""

    def __init__(self, *answers: tuple[int, dict[str, Any]] | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.got: list[tuple[Any, bytes]] = []

    @contextmanager
    def serving(self) -> Iterator[str]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.got.append((self.headers, self.rfile.read(int(self.headers.get("content-length") or 0))))
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


def test_no_command_prints_the_help_in_groups(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "\npredictions:\n  predict  " in out
    assert out.index("\nstart here:\n") < out.index("\npredictions:\n") < out.index("\nprocesses:\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["queus"], "did you mean queues?"),
        (["predictt"], "did you mean predict?"),
        (["queues", "pase"], "did you mean pause?"),
        (["zzzz"], "`director --help` lists all"),
        (["predict", "a/b", "--priority", "hgh"], "did you mean high?"),
        (["completion", "zzzz"], "choose from bash, zsh, fish"),
    ],
)
def test_a_mistyped_word_is_corrected(line, says, capsys):
    with pytest.raises(SystemExit):
        main(line)
    assert f"'{line[-1]}' is unknown: {says}" in capsys.readouterr().err


@pytest.mark.parametrize("line", [["version"], ["-v"], ["--version"]])
def test_each_way_to_ask_for_the_version_prints_it(line, capsys):
    with contextlib.suppress(SystemExit):
        main(line)
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("line", [["nonsense"], ["predict", "no-slash"], ["up", "--port", "70000"], ["token"]])
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
    assert said.startswith(
        f"director: Redis is away: No such file or directory, at unix://{tmp_path}/nowhere. See --redis and"
    )
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
    assert capsys.readouterr().err.startswith("director: there is no prediction ../accounts/x?y= for")


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


TYPES = {
    "text": {"type": "string"},
    "n": {"type": "integer"},
    "f": {"type": "number"},
    "on": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}},
    "object": {"type": "object"},
    "maybe": {"type": "integer", "nullable": True},
    "words": {"type": "string", "nullable": True},
    "size": {"allOf": [{"$ref": "#/components/schemas/size"}]},
    "mode": {"allOf": [{"$ref": "#/components/schemas/mode"}]},
    "stop": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "either": {"type": ["integer", "null"]},
    "any": {},
    "fixed": {"const": "123"},
}
DOCUMENT = {
    "components": {
        "schemas": {
            "Input": {"properties": TYPES},
            "size": {"type": "integer", "enum": [1, 2]},
            "mode": {"enum": ["1"]},
        }
    }
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("text=" + each, each) for each in ("123", "true", "null", "[1, 2]", '{"a":1}', '"q"', "", "a=b", "{oops")),
        ("n=3", 3),
        ("n=007", "007"),
        ("n=x", "x"),
        ("f=0.5", 0.5),
        ("f=1", 1),
        ("on=true", True),
        ("on=yes", "yes"),
        ("on=True", True),
        ("on=False", False),
        ("text=True", "True"),
        ("n=1e3", 1000),
        ("n=1.5", 1.5),
        ("f=1e3", 1000.0),
        ("fixed=123", "123"),
        ("list=" + "[" * 5000, "[" * 5000),
        ('list=["a","b"]', ["a", "b"]),
        ('object={"a":1}', {"a": 1}),
        ("maybe=null", None),
        ("words=null", "null"),
        ("size=2", 2),
        ("mode=1", "1"),
        ("stop=5", "5"),
        ('stop=["a"]', ["a"]),
        ("either=null", None),
        ("any=3", 3),
        ("unknown=[1]", [1]),
    ],
)
def test_schema_decides_how_a_typed_value_is_read(text, value):
    [read] = read_inputs([parse_input(text)], Described.of(DOCUMENT)).values()
    assert read == value
    assert type(read) is type(value)


def test_without_a_schema_a_value_is_json_if_it_parses():
    typed = [parse_input(text) for text in ("n=3", "text=hello there", 'quoted="3"', "sum=1+1=2")]
    assert read_inputs(typed, None) == {"n": 3, "text": "hello there", "quoted": "3", "sum": "1+1=2"}


def test_input_file_becomes_a_data_uri(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "a.unheard-of").write_bytes(b"?")
    assert parse_input(f"image=@{tmp_path}/a.png") == ("image", "data:image/png;base64,iVBORw==")
    assert parse_input(f"image=@{tmp_path}/a.unheard-of")[1].startswith("data:application/octet-stream;base64,")


LISTS = {"images": {"type": "array", "items": {"type": "string", "format": "uri"}}, "image": {"type": "string"}}


def test_list_gets_each_of_its_values_and_the_files_of_a_folder(tmp_path):
    for name in ("b.png", "a.png", ".hidden"):
        (tmp_path / name).write_bytes(name.encode())
    a, b = (f"data:image/png;base64,{base64.b64encode(name).decode()}" for name in (b"a.png", b"b.png"))

    def read(*typed):
        return read_inputs([parse_input(each) for each in typed], Described(inputs=LISTS))

    assert read(f"images=@{tmp_path}/a.png") == {"images": [a]}
    assert read(f"images=@{tmp_path}") == {"images": [a, b]}
    assert read(f"images=@{tmp_path}/b.png", 'images=["https://x/1"]', "images=https://x/2") == {
        "images": [b, "https://x/1", "https://x/2"]
    }
    assert read(f"image=@{tmp_path}/a.png", "images=[]") == {"image": a, "images": []}
    for wrong in ([f"image=@{tmp_path}"], ["image=a", "image=b"]):
        with pytest.raises(SettingsError, match="takes"):
            read(*wrong)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFault, match="has no files"):
        read(f"images=@{tmp_path}/empty")


def test_unreadable_file_is_reported_in_one_line(capsys):
    assert main(["predict", "a/b", "-i", "image=@nowhere.png"]) == 1
    said = "director: cannot read nowhere.png: No such file or directory. Check the path after the @.\n"
    assert capsys.readouterr().err == said


PICTURE = f"data:image/png;base64,{base64.b64encode(b'picture').decode()}"


def test_output_file_is_saved(tmp_path):
    assert save_output(PICTURE, str(tmp_path / "out.png")) == [str(tmp_path / "out.png")]
    assert (tmp_path / "out.png").read_bytes() == b"picture"
    for output in ("just text", ["a"], None):
        with pytest.raises(FileFault, match="not a file"):
            save_output(output, str(tmp_path / "out.png"))


def test_files_of_a_list_are_numbered_and_those_of_a_folder_named(tmp_path):
    save_output([PICTURE, PICTURE.upper().replace("CGLJDHVYZQ==", "cGljdHVyZQ")], str(tmp_path / "x.png"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x-0.png", "x-1.png"]
    folder = tmp_path / "folder"
    folder.mkdir()
    save_output({"image": PICTURE, "../mask": [PICTURE], "seed": 3}, str(folder))
    assert sorted(each.name for each in folder.iterdir()) == [".._mask-0.png", "image.png"]


def test_place_of_an_output_is_checked_before_the_run(tmp_path):
    check_output(str(tmp_path / "x.png"), None)
    check_output(str(tmp_path / "new") + "/", None)
    assert (tmp_path / "new").is_dir()
    with pytest.raises(FileFault, match="there is no folder"):
        check_output(str(tmp_path / "nowhere" / "x.png"), None)
    for output in ({"type": "integer"}, {"type": "array", "x-cog-array-display": "concatenate"}):
        with pytest.raises(FileFault, match="not a file"):
            check_output(str(tmp_path / "x.png"), Described(output=output))
    check_output(str(tmp_path / "x.png"), Described(output={"type": "string", "format": "uri"}))


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        *((parse_input, text, "name=value") for text in ("text", "=5")),
        (parse_input, "text=caf\udce9", "UTF-8"),
        *((model_name, text, "owner/name") for text in ("hello", "a/b/c", "a b/c", "/b", "a/", "a/b:", "a/b:1")),
        *((model_name, text, "owner/name") for text in ("A/b", "")),
        *((port_number, text, "not a port") for text in ("-1", "65536", "http", "")),
    ],
)
def test_malformed_argument_is_refused(parse, text, says):
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        parse(text)


PREDICTION = {"id": "abc", "status": "processing"}
SCHEMA = {"components": {"schemas": {"Input": {"properties": {"text": {}, "n": {}}}}}}
MODEL = (200, {"latest_version": {"openapi_schema": SCHEMA}})
DONE = (200, PREDICTION | {"status": "succeeded", "output": "hi"})
AWAY = (503, {"detail": "Redis is away. Please try again."})


def predict(service: Service, monkeypatch: pytest.MonkeyPatch, *, away_s: float = 60) -> int:
    monkeypatch.setattr(predictions, "AWAY_S", away_s)
    monkeypatch.setattr(predictions, "AWAY_LOOK_S", 0)
    with service.serving() as url:
        return main(["predict", "a/b", "-i", "text=hi", "--url", url, "--token", "t"])


def test_predict_survives_a_short_outage_of_the_service(monkeypatch, capsys):
    service = Service(MODEL, (201, PREDICTION), AWAY, None, (502, {}), AWAY, DONE)
    assert predict(service, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert out == "hi\n"
    assert err.count("asking again: Redis is away") == 1
    assert "Please try" not in err
    assert service.asked == ["GET /v1/models/a/b", "POST /v1/models/a/b/predictions"] + 5 * ["GET /v1/predictions/abc"]


@pytest.mark.parametrize(
    ("answer", "away_s", "says"),
    [(AWAY, 0, "Redis is away."), ((401, {"detail": "This token is not known."}), 60, "This token is not known.")],
    ids=["away for long", "refused"],
)
def test_predict_that_gives_up_names_the_prediction(answer, away_s, says, monkeypatch, capsys):
    service = Service(MODEL, (201, PREDICTION), answer)
    assert predict(service, monkeypatch, away_s=away_s) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert says in said
    assert "director get abc" in said
    assert len(service.asked) == 3


def test_create_is_not_repeated_without_a_response(monkeypatch):
    service = Service(MODEL, None)
    assert predict(service, monkeypatch) == 1
    assert service.asked == ["GET /v1/models/a/b", "POST /v1/models/a/b/predictions"]


def typed(service: Service, *line: str) -> int:
    with service.serving() as url:
        return main([*line, "--url", url, "--token", "t"])


def test_an_unknown_input_is_named_with_the_closest_one(capsys):
    refused = (422, {"detail": "- input: text is required"})
    assert typed(Service(MODEL, refused), "predict", "a/b", "-i", "txt=x") == 1
    err = capsys.readouterr().err
    assert "» a/b has no input txt: did you mean text?" in err
    assert "text is required" in err


@pytest.mark.parametrize("line", [["get"], ["cancel"], ["explain"], ["wait"], ["logs"]], ids=lambda line: line[0])
def test_a_missing_prediction_is_named(line, capsys):
    assert typed(Service((404, {"detail": "The requested resource could not be found."})), *line, "nope") == 1
    assert "there is no prediction nope" in capsys.readouterr().err


def test_a_missing_model_is_named_with_the_closest_one(capsys):
    missing = (404, {"detail": "The requested resource could not be found."})
    models = (200, {"results": [{"owner": "example", "name": "hello"}]})
    assert typed(Service(missing, models), "predict", "example/helo") == 1
    assert "there is no model example/helo for this token: did you mean example/hello?" in capsys.readouterr().err


def test_a_model_that_is_awaited_keeps_the_words_of_the_service(capsys):
    assert typed(Service((404, {"detail": "A director for it waits for its server."})), "predict", "a/b") == 1
    assert "A director for it waits for its server." in capsys.readouterr().err


def test_detach_prints_the_id_and_sends_what_was_asked(capsys):
    service = Service((201, PREDICTION))
    options = ("--detach", "--priority", "low", "--idempotency-key", "k1", "--webhook", "https://r.example/")
    assert typed(service, "predict", "a/b", *options) == 0
    assert capsys.readouterr().out == "abc\n"
    [(headers, body)] = service.got
    assert (headers["X-Priority"], headers["Idempotency-Key"]) == ("low", "k1")
    assert json.loads(body) == {"input": {}, "webhook": "https://r.example/"}


def test_timeout_ends_the_wait_and_not_the_prediction(capsys):
    service = Service((201, PREDICTION))
    assert typed(service, "predict", "a/b", "--timeout", "0") == 1
    err = capsys.readouterr().err
    assert "it has not ended in 0.0 s, and goes on. It is prediction abc" in err
    assert len(service.asked) == 1


def test_wait_prints_the_output(capsys):
    assert typed(Service((200, DONE[1])), "wait", "abc") == 0
    assert capsys.readouterr().out == "hi\n"


def test_followed_logs_are_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(predictions, "LOOK_S", 0.0)
    looks = [{**PREDICTION, "logs": "one\n"}, {**PREDICTION, "logs": "one\ntwo\n"}, {**DONE[1], "logs": "one\ntwo\n"}]
    assert typed(Service(*((200, look) for look in looks)), "logs", "-f", "abc") == 0
    assert capsys.readouterr().out == "one\ntwo\n"


def test_ps_lists_what_waits_and_runs_over_all_pages(capsys):
    one, two, three = ({**PREDICTION, "id": name} for name in ("a1", "a2", "a3"))
    service = Service((200, {"results": [one]}), (200, {"results": [three], "next": "http://x/v1/p?c=1"}), AWAY)
    service.answers[-1] = (200, {"results": [two]})
    assert typed(service, "ps", "--json") == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["results"]] == ["a3", "a2", "a1"]
    asked = "GET /v1/predictions?status="
    assert service.asked == [f"{asked}processing", f"{asked}starting", "GET /v1/p?c=1"]


def test_open_prints_the_address_of_the_page(capsys):
    assert main(["open", "abc", "--url", "http://h:1/v1", "--token", "t"]) == 0
    assert capsys.readouterr().out == "http://h:1/#/predictions/abc\n"


def test_address_without_a_scheme_is_refused(capsys):
    assert main(["get", "abc", "--url", "127.0.0.1:8080", "--token", "t"]) == 1
    assert "it begins with http:// or https://" in capsys.readouterr().err


def test_context_names_a_service_and_the_file_of_its_token(tmp_path, monkeypatch, capsys):
    token = tmp_path / "token"
    token.write_text("secret-1\n")
    token.chmod(0o640)
    add = ["context", "add", "prod", "--url", "https://d.example/v1/", "--token-file", str(token)]
    assert main(add) == 1
    assert "chmod 600" in capsys.readouterr().err
    token.chmod(0o600)
    assert main(add) == 0
    assert main(["context", "add", "test", "--url", "http://t", "--token-file", str(token)]) == 0
    assert main(["context", "list", "--json"]) == 0
    assert "secret-1" not in capsys.readouterr().out
    kept = tmp_path / "config" / "director" / "contexts.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "secret-1" not in kept.read_text()

    assert service(given()) == Service_("https://d.example", "secret-1", "context prod"), "the first one is in use"
    assert service(given(context="test")).url == "http://t"
    monkeypatch.setenv("DIRECTOR_URL", "http://of-the-environment")
    monkeypatch.setenv("DIRECTOR_TOKEN", "of-the-environment")
    named = Service_("http://t", "secret-1", "context test")
    assert service(given(context="test")) == named, "an option comes before the environment"
    monkeypatch.delenv("DIRECTOR_URL")
    monkeypatch.delenv("DIRECTOR_TOKEN")
    monkeypatch.setenv("DIRECTOR_CONTEXT", "test")
    assert service(given()).url == "http://t"
    with pytest.raises(Nowhere, match="a token is missing"):
        service(given(url="http://other"))
    assert main(["context", "use", "tes"]) == 1
    assert "there is no context tes: did you mean test?" in capsys.readouterr().err
    up_in("home", url="http://up", token="of-up")
    assert service(given(home="home")) == Service_("http://up", "of-up", "the `up` of home"), "a named home comes first"
    assert main(["context", "remove", "prod"]) == 0
    token.unlink()
    with pytest.raises(SettingsError, match="cannot be read"):
        service(given())


def test_home_of_the_environment_is_used(monkeypatch):
    monkeypatch.setenv("DIRECTOR_HOME", "elsewhere")
    assert make_parser("get").parse_args(["get", "x"]).home == "elsewhere"
    assert make_parser("get").parse_args(["get", "x", "--home", "here"]).home == "here"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    *looks: tuple[Status, Any, str], out: io.StringIO | None = None, err: io.StringIO | None = None, **given: bool
) -> tuple[str, str]:
    """Return what is printed after these polls of one prediction: status, output, logs."""
    out, err = out or io.StringIO(), err or io.StringIO()
    printer = Printer(out, err, **given)
    for status, output, logs in looks:
        printer.show(PredictionAnswer(id="p", status=status, output=output, logs=logs))
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


@pytest.mark.parametrize(("kind", "printed"), [(Terminal, "first try\nsecond try\n"), (io.StringIO, "second try\n")])
def test_new_attempt_prints_its_output_again_on_a_terminal_alone(kind, printed):
    out, err = shown(
        (Status.PROCESSING, ["first try"], ""),
        (Status.STARTING, None, ""),
        (Status.PROCESSING, [], ""),
        (Status.SUCCEEDED, ["second try"], ""),
        out=kind(),
    )
    assert out == printed
    assert ("began again" in err) == (kind is Terminal)


def test_stream_in_a_pipe_prints_early_and_no_piece_twice():
    out = io.StringIO()
    first = (Status.PROCESSING, ["one ", "two "], "")
    shown(first, out=out, streams=True)
    assert out.getvalue() == "one two "
    again = [(Status.PROCESSING, ["one ", "two ", "three"][:count], "") for count in range(4)]
    out, err = shown(first, *again, (Status.SUCCEEDED, ["one ", "two ", "three"], ""), streams=True)
    assert out == "one two three\n"
    assert "began again" not in err


@pytest.mark.parametrize("output", [["one ", "other "], ["one "]])
def test_stream_in_a_pipe_ends_if_another_attempt_differs(output):
    out = io.StringIO()
    with pytest.raises(DirectorError, match="its output is not what was printed"):
        shown((Status.PROCESSING, ["one ", "two "], ""), (Status.SUCCEEDED, output, ""), out=out, streams=True)
    assert out.getvalue() == "one two \n"


def test_a_wait_says_why_and_for_how_long(monkeypatch):
    monkeypatch.setattr("director.cli.printing.SOON_S", 0.0)
    why = "An operator paused this queue."
    place = Place(2, 3, Eta(9, 13), reason="paused", detail=why, since=iso(int(time.time() * 1000) - 180_000))
    err = io.StringIO()
    printer = Printer(io.StringIO(), err)
    for _ in range(2):
        printer.show(PredictionAnswer(id="p", status=Status.STARTING, queue=place))
    _, told = err.getvalue().splitlines()
    assert told == (
        "» waits: An operator paused this queue 3 min ago. "
        "It has place 2 in its account's line, 3 before it in total, about 9.0 s until it starts (9 of 10: 13 s)."
    )


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
    looks = PredictionAnswer(id="p", status=Status.FAILED, output=[words, {"a": words}], logs=words, error=words)
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
