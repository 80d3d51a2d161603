"""Test `director up` as a newcomer uses it: the real command, real parts, and the printed commands pasted back."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from director.local.home import UP, Home
from director.local.launcher.processes import Mark, free_port, is_alive
from tests.support.disk import fill, small_disk
from tests.support.eventually import wait_until
from tests.support.servers import redis_server

pytestmark = pytest.mark.cog

DIRECTOR = [sys.executable, "-m", "director"]
PATIENCE_S = 90
READY = "Ctrl-C ends everything"


def until(is_so: Callable[[], object], why: Callable[[], str] = str, patience_s: float = PATIENCE_S) -> None:
    """Look until the condition is true, since it depends on other processes."""
    wait_until(is_so, why, limit_s=patience_s, every_s=0.05)


CONFIGURED = tempfile.mkdtemp(prefix="director-config-")


def environment() -> dict[str, str]:
    """Return ours without settings. Contexts go to a folder of the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIRECTOR_")}
    return kept | {"XDG_CONFIG_HOME": CONFIGURED}


def director(*line: str, home: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DIRECTOR, *line, "--home", str(home)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment() | settings,
    )


class Started:
    def __init__(self, process: "subprocess.Popen[bytes]", home: Path, out: Path) -> None:
        self.process = process
        self.home = home
        self._out = out

    @property
    def said(self) -> str:
        return self._out.read_text()

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.home / "up.json").read_bytes())

    @property
    def processes(self) -> dict[str, Mark]:
        return Home(self.home).read().processes

    def wait_for(self, text: str, patience_s: float = PATIENCE_S) -> None:
        until(lambda: text in self.said or self.process.poll() is not None, lambda: self.said, patience_s)
        assert text in self.said, self.said

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextmanager
def started(home: Path, *options: str, out: Path | None = None) -> Generator[Started, None, None]:
    """Start `director up` on a free port and wait until it is ready. Leave nothing of it behind."""
    home.mkdir(exist_ok=True)
    out = out or home / "out.txt"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [*DIRECTOR, "up", "--port", "0", "--home", str(home), *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
    try:
        up = Started(process, home, out)
        up.wait_for(READY)
        yield up
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        director("down", home=home)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[Started, None, None]:
    with started(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_printed_curl_line_gives_the_models_output(up):
    [line] = [line for line in up.said.splitlines() if line.startswith("  curl ")]
    answer = subprocess.run(shlex.split(line), capture_output=True, check=True, env=environment())
    prediction = json.loads(answer.stdout)
    assert (prediction["status"], prediction["output"]) == ("succeeded", ["hello 1\n", "hello 2\n", "hello 3\n"])


def test_printed_python_gives_the_models_output(up):
    lines = up.said.splitlines()
    program = "\n".join(line.strip() for line in lines[lines.index("  import replicate") :][:3])
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment()
    )
    assert answer.stdout == "hello 1\nhello 2\nhello 3\n\n"


def test_up_json_shows_the_addresses_and_what_runs(up):
    assert up.state["url"] in up.said
    assert up.state["token"] in up.said
    assert set(up.state["servers"]) == {"example/hello", "example/thumbnail"}
    assert list(up.state["pids"])[:2] == [UP, "valkey"]
    assert set(up.state["pids"]) == {
        UP,
        "valkey",
        "keeper",
        "api",
        *(f"{part}-{model}" for part in ("model", "director") for model in ("hello", "thumbnail")),
    }
    assert all(is_alive(one) for one in up.processes.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads command lines in /proc")
def test_no_command_line_has_a_secret(up):
    leaders = {mark.pid for mark in up.processes.values()}
    ours = [each for each in Path("/proc").iterdir() if each.name.isdecimal() and group_of(each) in leaders]
    environments = b"\0".join((each / "environ").read_bytes() for each in ours)
    secrets = set(re.findall(rb"DIRECTOR_\w*(?:SECRET|TOKEN|PASSWORD)=([^\0]+)", environments))
    assert len(secrets) == len(up.state["servers"]), "each pair of director and model server has its own"
    secrets.add(up.state["token"].encode())
    lines = [(each / "cmdline").read_bytes() for each in ours]
    assert len(lines) > len(leaders), "workers of model servers too"
    assert [line for line in lines if any(secret in line for secret in secrets)] == []


def group_of(process: Path) -> int:
    try:
        return os.getpgid(int(process.name))
    except ProcessLookupError:  # it has ended meanwhile
        return 0


def test_predict_prints_only_the_output_on_stdout(up):
    answer = director("predict", "example/hello", "-i", "text=hi", "-i", "n=2", home=up.home)
    assert (answer.returncode, answer.stdout) == (0, "hi 1\nhi 2\n")
    assert "succeeded after" in answer.stderr


def test_predict_for_machines_prints_the_prediction(up):
    answer = director("predict", "example/hello", "-i", "text=hi", "-i", "n=1", "--json", home=up.home)
    prediction = json.loads(answer.stdout)
    assert (prediction["status"], prediction["output"], answer.stderr) == ("succeeded", ["hi 1\n"], "")

    again = director("get", prediction["id"], "--json", home=up.home)
    assert json.loads(again.stdout) == prediction


def test_predict_accepts_a_version_and_sends_and_saves_files(up, tmp_path):
    picture, small = tmp_path / "picture.png", tmp_path / "small.png"
    Image.new("RGB", (600, 300), "red").save(picture)
    queues = json.loads(director("queues", "--json", home=up.home).stdout)["results"]
    [short] = [one["queue"].rpartition(":")[2] for one in queues if one["queue"].startswith("example/thumbnail:")]
    answer = director("predict", "example/thumbnail", "-i", f"image=@{picture}", "-o", str(small), home=up.home)
    assert answer.returncode == 0, answer.stderr
    assert Image.open(io.BytesIO(small.read_bytes())).size == (128, 64)
    version = httpx.get(
        f"{up.state['url']}/v1/predictions", headers={"authorization": f"Bearer {up.state['token']}"}
    ).json()["results"][0]["version"]
    assert version.startswith(short)
    by_version = director("predict", f"example/thumbnail:{version}", "-i", f"image=@{picture}", home=up.home)
    assert by_version.stdout.startswith(f"{up.state['url']}/v1/outputs/")
    fetched = httpx.get(by_version.stdout.strip())
    assert (fetched.content, fetched.headers["content-type"]) == (small.read_bytes(), "image/png")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["predict", "example/hello", "-i", "n=2"], "text"),
        (["predict", "unknown/nothing"], "there is no model unknown/nothing"),
        (["up"], "up already at http://"),
    ],
    ids=["refused input", "unknown model", "second up"],
)
def test_refused_command_is_one_line(up, line, says):
    answer = director(*line, home=up.home)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.count("\n") == 1
    assert says in answer.stderr


def test_ctrl_c_during_predict_cancels_the_prediction(up):
    line = ["predict", "example/hello", "-i", "text=hi", "-i", "n=3", "-i", "delay=600", "--home", str(up.home)]
    with subprocess.Popen(
        [*DIRECTOR, *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as running:
        prediction = running.stderr.readline().split("(")[1].rstrip(")\n")
        until(lambda: "processing" in director("get", prediction, home=up.home).stdout)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, out) == (130, ""), "a pipe gets no part of an output"
        assert err.endswith(f"canceled {prediction}\n")
    until(lambda: "canceled" in director("get", prediction, home=up.home).stdout)


def test_cancel_ends_a_running_prediction(up):
    headers = {"authorization": f"Bearer {up.state['token']}"}
    url = f"{up.state['url']}/v1/models/example/hello/predictions"
    created = httpx.post(url, headers=headers, json={"input": {"text": "hi", "n": 2, "delay": 600}}).json()
    assert director("cancel", created["id"], home=up.home).returncode == 0
    until(lambda: "canceled" in director("get", created["id"], home=up.home).stdout)


def test_new_token_is_accepted_at_once(up):
    made = json.loads(director("token", "create", "--account", "team-a", "--json", home=up.home).stdout)
    answer = httpx.get(f"{up.state['url']}/v1/predictions", headers={"authorization": f"Bearer {made['token']}"})
    assert (answer.status_code, answer.json()["results"]) == (200, [])


def test_queues_shows_a_director_beside_each_example(up):
    lines = director("queues", home=up.home).stdout.splitlines()
    assert lines[0].split()[:2] == ["queue", "state"]
    assert [line.split(":")[0] for line in lines[1:]] == ["example/hello", "example/thumbnail"]


def test_bench_latency_measures_both_ways(up):
    answer = director("bench", "latency", "-n", "5", "--json", home=up.home)
    facts = json.loads(answer.stdout)
    assert facts["rounds"] == 5
    assert facts["durability"] == "always"
    assert 0 < facts["direct_ms"]["median"] < facts["through_ms"]["median"]


def test_bench_throughput_asks_over_many_connections(up):
    answer = director("bench", "throughput", "--connections", "4", "--seconds", "2", "--json", home=up.home)
    facts = json.loads(answer.stdout)
    assert (facts["connections"], facts["durability"]) == (4, "always")
    assert 0 < facts["predictions_per_s"]["least"] <= facts["predictions_per_s"]["most"]


def test_doctor_finds_nothing_wrong_with_the_bundled_server(up):
    answer = director("doctor", "--json", home=up.home)
    verdicts = {each["check"]: each["verdict"] for each in json.loads(answer.stdout)["checks"]}
    assert {verdicts[name] for name in ("durability", "eviction", "memory", "password")} == {"ok"}


def test_taken_port_is_one_line(up, tmp_path):
    answer = director("up", "--port", up.state["url"].rpartition(":")[2], home=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.count("\n") == 1
    assert "is taken" in answer.stderr


def test_silent_redis_is_one_line(tmp_path):
    answer = director("up", "--redis", f"redis://127.0.0.1:{free_port()}", "--port", "0", home=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "Nothing answers at redis://127.0.0.1" in answer.stderr


def test_redis_that_would_lose_work_is_refused_with_advice(tmp_path):
    with redis_server(config={"appendonly": "no"}) as server:
        answer = director("up", "--redis", server.url, "--port", "0", home=tmp_path / "home")
    assert answer.returncode == 1
    assert "DIRECTOR_DURABILITY=memory" in answer.stderr


@pytest.mark.faults
def test_failing_part_is_named_with_its_log_and_nothing_stays(tmp_path):
    answer = director("up", "--port", "0", "--no-example", home=tmp_path, DIRECTOR_LEASE_S="-1")
    assert answer.returncode == 1
    assert f"keeper does not start. Its log, {tmp_path}/logs/keeper.log, ends with:" in answer.stderr
    assert "DIRECTOR_LEASE_S" in answer.stderr
    assert Home(tmp_path).read().pids == {}
    assert director("down", home=tmp_path).stdout.startswith("nothing runs")


@pytest.mark.faults
@pytest.mark.parametrize("part", ["api", "director-hello", "model-hello", "keeper", "valkey"])
def test_killed_part_is_restarted_and_the_service_goes_on(up, part):
    killed = up.processes[part]
    os.kill(killed.pid, signal.SIGKILL)
    up.wait_for(f"{part} ended (killed by SIGKILL); starting it again in 0.5 s")
    until(lambda: up.processes[part] != killed and is_alive(up.processes[part]))

    def works() -> bool:
        return director("predict", "example/hello", "-i", "text=hi", "-i", "n=1", home=up.home).returncode == 0

    until(works, lambda: up.said)


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker in /proc")
def test_model_server_with_a_dead_worker_is_restarted(up):
    # Cog's parent process survives: the director tells it to end, and up starts it again
    parent = up.processes["model-thumbnail"]
    threads = Path(f"/proc/{parent.pid}/task").iterdir()
    workers = {int(pid) for thread in threads for pid in (thread / "children").read_text().split()}
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    up.wait_for("model-thumbnail ended (exit code 0); starting it again")
    until(lambda: up.processes["model-thumbnail"] != parent)


@pytest.mark.faults
def test_next_up_after_ctrl_c_keeps_token_and_data(tmp_path):
    home = tmp_path / "home"
    with started(home) as first:
        token, processes = first.state["token"], first.processes
        made = json.loads(
            director("predict", "example/hello", "-i", "text=hi", "-i", "n=1", "--json", home=home).stdout
        )
        assert first.end(signal.SIGINT) == 0
        assert not [name for name, one in processes.items() if is_alive(one)]
        assert first.state["pids"] == {}
    with started(home, "--no-example") as second:
        assert second.state["token"] == token
        again = json.loads(director("get", made["id"], "--json", home=home).stdout)
        assert (again["status"], again["output"]) == ("succeeded", ["hi 1\n"])


@pytest.mark.faults
def test_down_ends_an_up_and_may_be_repeated(tmp_path):
    with started(tmp_path / "home", "--no-example") as running:
        processes = running.processes
        assert set(processes) == {UP, "valkey", "keeper", "api"}
        assert f"--server http://127.0.0.1:5000 --home {running.home}" in running.said
        assert director("down", home=running.home).stdout == "stopped\n"
        assert running.process.wait(PATIENCE_S) == 0
        assert not [name for name, one in processes.items() if is_alive(one)]
        assert director("down", home=running.home).stdout.startswith("nothing runs")


@pytest.mark.faults
def test_killed_up_leaves_nothing_in_the_way_of_the_next(tmp_path):
    home = tmp_path / "home"
    with started(home, "--no-example") as first:
        processes = first.processes
        first.end(signal.SIGKILL)
    with started(home, "--no-example") as second:
        assert not [name for name, one in processes.items() if is_alive(one)]
        assert all(is_alive(one) for one in second.processes.values())


@pytest.mark.faults
def test_full_disk_is_an_outage_that_heals_by_itself(tmp_path):
    with small_disk(tmp_path / "disk", mib=32) as disk, started(disk / "home", out=tmp_path / "out.txt") as up:
        accepted = [ask(up).json()["id"] for _ in range(3)]
        before = up.processes
        ballast = fill(disk)
        answers = [ask(up) for _ in range(5)]
        assert 503 in {answer.status_code for answer in answers} <= {201, 503}
        accepted += [answer.json()["id"] for answer in answers if answer.status_code == 201]
        os.kill(before["keeper"].pid, signal.SIGKILL)
        until(lambda: "keeper ended" in up.said and up.said.count("valkey ended") >= 3, lambda: up.said)
        assert ask(up).status_code == 503
        shutil.rmtree(ballast)
        freed = time.monotonic()
        until(lambda: ask(up).status_code == 201, lambda: up.said)
        assert time.monotonic() - freed < 30
        until(lambda: all('"succeeded"' in director("get", one, "--json", home=up.home).stdout for one in accepted))
        assert set(up.processes) == set(before)
        until(lambda: all(is_alive(one) for one in up.processes.values()))


def ask(up: Started) -> httpx.Response:
    return httpx.post(
        f"{up.state['url']}/v1/models/example/hello/predictions",
        headers={"Authorization": f"Bearer {up.state['token']}"},
        json={"input": {"text": "hi", "n": 1}},
        timeout=PATIENCE_S,
    )


@pytest.mark.redis7
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_up_runs_on_an_installed_redis_server(tmp_path):
    with started(tmp_path / "home", "--redis-server", "redis-server", "--no-example") as running:
        assert "redis 7" in running.said
        assert director("queues", home=running.home).stdout.startswith("no queues yet")
