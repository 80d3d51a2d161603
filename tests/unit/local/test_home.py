import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from director.local.home import UP, Home, State
from director.local.launcher.processes import Mark, UpError, claimable, is_alive, mark
from director.local.server import EmbeddedServer, find_binary
from director.local.up import down
from director.runtime.startup import raise_descriptor_limit

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_state_is_read_back_and_readable_by_this_user_only(home):
    state = State(url="http://127.0.0.1:1", token="dr_x", redis_url="unix:///s").running({UP: Mark(1, "then")})
    home.write(state)
    assert home.read() == state
    assert home.read().processes == {UP: Mark(1, "then")}
    assert mode(home.state_file) == 0o600
    assert mode(home.path) == 0o700


def test_token_is_written_for_this_user_alone_and_through_no_link(home, tmp_path):
    other = tmp_path / "other"
    other.write_text("kept")
    for make in (lambda file: file.symlink_to(other), lambda file: (file.write_text("old"), file.chmod(0o644))):
        (home.path / "token").unlink(missing_ok=True)
        make(home.path / "token")
        file = home.write_token("dr_x")
        assert (file.read_text(), file.stat().st_mode & 0o777, other.read_text()) == ("dr_x\n", 0o600, "kept")
        assert not file.is_symlink()


def test_home_without_up_json_is_empty_and_a_broken_one_says_why(home):
    assert home.read() == State()
    home.state_file.write_text('{"url": 5}')
    with pytest.raises(UpError, match="Delete it"):
        home.read()


def test_a_failed_write_leaves_the_old_state_and_no_litter(home, monkeypatch):
    home.write(State(token="old"))

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        home.write(State(token="new"))
    assert home.read().token == "old"
    assert [path.name for path in home.path.glob("up.json*")] == ["up.json"]


def test_a_home_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UpError, match=r"Cannot make .*file.*--home"):
        Home(tmp_path / "file" / "home").make()


def test_only_the_end_of_a_long_log_is_kept(home):
    home.log("api").write_bytes(b"old\n" * 1_000_000 + b"the last line\n")
    os.close(home.open_log("api"))
    assert home.log("api").stat().st_size == 1 << 19
    assert home.last_lines("api", 2) == ["old", "the last line"]


def test_a_short_log_is_added_to(home):
    home.log("api").write_text("before\n")
    descriptor = home.open_log("api")
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert home.last_lines("api") == ["before", "after"]
    assert home.last_lines("never started") == []


def test_down_ends_what_a_killed_up_left_and_may_be_repeated(home):
    with subprocess.Popen(SLEEPER, start_new_session=True) as left:
        one = mark(left.pid)
        home.write(State(token="t").running({UP: Mark(left.pid, "an earlier process"), "api": one}))
        assert down(home)
        left.wait()
    assert not is_alive(one)
    assert home.read() == State(token="t")
    assert not down(home)


def test_down_spares_another_process_with_the_same_pid(home):
    with subprocess.Popen(SLEEPER) as other:
        home.write(State().running({UP: Mark(other.pid, "before"), "api": Mark(other.pid, "before")}))
        assert not down(home)
        assert other.poll() is None
        other.kill()


def test_long_socket_path_becomes_a_loopback_port_with_a_password(tmp_path):
    home = Home(tmp_path / ("deep" * 20) / "er")
    home.make()
    server = EmbeddedServer(home.valkey, Path("/bin/true"))
    server.prepare()
    config = (home.valkey / "valkey.conf").read_text()
    password, port = re.fullmatch(r"redis://:(.{20,})@127\.0\.0\.1:(\d+)/0", server.url).groups()
    assert f"port {port}\nbind 127.0.0.1\nrequirepass {password}\n" in config
    assert mode(home.valkey / "valkey.conf") == 0o600


def test_two_servers_on_one_folder_are_refused(home):
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(home.valkey / "valkey.sock"))
        old.listen()
        with pytest.raises(UpError, match="still answers"):
            EmbeddedServer(home.valkey, Path("/bin/true")).prepare()
    # what it left behind does not count
    EmbeddedServer(home.valkey, Path("/bin/true")).prepare()


def test_the_wheel_brings_a_server_and_a_wrong_program_is_named():
    version = subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True)
    assert "server v=" in version.stdout
    with pytest.raises(UpError, match="no program no-such-server"):
        find_binary("no-such-server")


def test_foreign_address_is_one_clear_line():
    with pytest.raises(UpError, match="--host"):
        claimable("192.0.2.1", 0)


def test_the_descriptor_limit_is_raised_to_the_hard_one():
    source = (
        "import resource; from director.runtime.startup import raise_descriptor_limit;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 4096)));"
        "print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    answer = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["4096", "4096", "4096"]
    assert raise_descriptor_limit() >= 64
