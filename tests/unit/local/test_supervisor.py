import os
import re
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from director.local.home import Home
from director.local.launcher.launch import LOG_KEPT_BYTES
from director.local.launcher.processes import how_it_ended, is_alive, mark
from director.local.supervisor import Part, Supervisor, supervising
from tests.support.eventually import eventually

PATIENCE_S = 20

Supervise = Callable[[], AbstractAsyncContextManager[Supervisor]]


@pytest.fixture
def heard() -> list[str]:
    """Return the lines that the supervisor reported."""
    return []


@pytest.fixture
def supervise(tmp_path: Path, heard: list[str]) -> Supervise:
    home = Home(tmp_path)
    home.make()

    @asynccontextmanager
    async def supervised() -> AsyncGenerator[Supervisor, None]:
        with anyio.fail_after(PATIENCE_S):
            async with supervising(home=home, say=heard.append, changed=lambda: None, first_pause_s=0.01) as supervisor:
                yield supervisor

    return supervised


@pytest.fixture
def part(tmp_path: Path) -> Callable[..., Part]:
    def made(name: str, source: str, **given: object) -> Part:
        command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(source)]
        return Part(name=name, command=command, env=dict(os.environ), cwd=tmp_path, **given)

    return made


async def until(is_so: Callable[[], object]) -> None:
    await eventually(is_so, "what happens in other processes", limit_s=60)


async def test_log_of_a_running_part_stays_short(
    tmp_path: Path, supervise: Supervise, part: Callable[..., Part]
) -> None:
    source = """
    import signal
    for number in range(40_000):
        print(number, "x" * 60, flush=True)
    print("written", flush=True)
    signal.pause()
    """
    log = Home(tmp_path).log("loud")
    async with supervise() as supervisor:
        supervisor.start([part("loud", source)])
        await until(lambda: log.exists() and "written" in Home(tmp_path).last_lines("loud", 1))
        await until(lambda: log.stat().st_size <= LOG_KEPT_BYTES)
        assert Home(tmp_path).last_lines("loud", 1) == ["written"]


def says(path: Path, name: str) -> str:
    """A program that notes in a file that it is ready, and that it was asked to end."""
    return f"""
    import signal, time
    def note(what):
        with open({str(path)!r}, "a") as file:
            file.write("{name} " + what + "\\n")
    def ended(*_):
        note("ended")
        raise SystemExit
    signal.signal(signal.SIGTERM, ended)
    note("ready")
    while True:
        signal.pause()
    """


def deaf(notes: Path) -> str:
    return f"""
    import pathlib, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path({str(notes)!r}).touch()
    signal.pause()
    """


async def test_the_pause_doubles_while_a_part_keeps_dying(supervise, part, heard):
    async with supervise() as supervisor:
        supervisor.start([part("hasty", "raise SystemExit(3)")])
        await until(lambda: supervisor.ends["hasty"] >= 3)
    pauses = [re.search(r"exit code 3.* in (.*) s$", line).group(1) for line in heard[:3]]
    assert pauses == ["0.01", "0.02", "0.04"]


async def test_last_stage_ends_before_the_stage_before_it(supervise, part, tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    async with supervise() as supervisor:
        for name in ("floor", "house", "roof"):
            supervisor.start([part(name, says(notes, name))])
            await until(lambda name=name: f"{name} ready" in notes.read_text())
        alive = list(supervisor.marks.values())
    assert notes.read_text().splitlines()[3:] == ["roof ended", "house ended", "floor ended"]
    assert len(alive) == 3
    assert not any(is_alive(one) for one in alive)


async def test_stubborn_part_is_killed_after_its_grace(supervise, part, tmp_path):
    notes = tmp_path / "notes"
    async with supervise() as supervisor:
        supervisor.start([part("deaf", deaf(notes), grace_s=0.05)])
        await until(notes.exists)
        alive = supervisor.marks["deaf"]
    assert not is_alive(alive)


async def test_force_does_not_wait_for_any_grace(supervise, part, tmp_path):
    notes = tmp_path / "notes"
    async with supervise() as supervisor, anyio.create_task_group() as tasks:
        supervisor.start([part("deaf", deaf(notes), grace_s=3600)])
        await until(notes.exists)
        alive = supervisor.marks["deaf"]
        tasks.start_soon(supervisor.stop)
        await anyio.wait_all_tasks_blocked()
        assert is_alive(alive)
        supervisor.force()
    assert not is_alive(alive)


async def test_what_a_part_started_ends_with_it(supervise, part, tmp_path):
    note = tmp_path / "grandchild"
    parent = f"""
    import os, pathlib, signal
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    pathlib.Path({str(note)!r}).write_text(str(child))
    signal.pause()
    """
    async with supervise() as supervisor:
        supervisor.start([part("parent", parent)])
        await until(lambda: note.exists() and note.read_text())
        grandchild = mark(int(note.read_text()))
        assert grandchild is not None
    await until(lambda: not is_alive(grandchild))


async def test_a_failure_inside_the_block_still_ends_every_part(supervise, part):
    marks = {}

    async def fail() -> None:
        async with supervise() as supervisor:
            supervisor.start([part("sleeper", "import signal; signal.pause()")])
            await until(lambda: "sleeper" in supervisor.marks)
            marks.update(supervisor.marks)
            raise LookupError

    with pytest.raises(ExceptionGroup):
        await fail()
    assert marks
    assert not any(is_alive(one) for one in marks.values())


async def test_missing_command_is_named(supervise, heard, tmp_path):
    async with supervise() as supervisor:
        supervisor.start([Part(name="absent", command=["no-such-program"], env=dict(os.environ), cwd=tmp_path)])
        await until(lambda: supervisor.ends["absent"])
    assert heard[0] == (
        "absent ended (exit code 1: no-such-program: No such file or directory); starting it again in 0.01 s"
    )


async def test_last_line_of_a_part_that_gives_up_is_said_once(supervise, part, heard, tmp_path):
    note = tmp_path / "note"
    source = f"""
    import pathlib, sys
    note = pathlib.Path({str(note)!r})
    if note.exists():
        sys.exit(2)
    note.touch()
    print("starting", flush=True)
    sys.exit("director run: DIRECTOR_LEASE_S: Expected a number")
    """
    async with supervise() as supervisor:
        supervisor.start([part("director-painter", source)])
        await until(lambda: supervisor.ends["director-painter"] >= 2)
    assert [line.partition(";")[0] for line in heard[:2]] == [
        "director-painter ended (exit code 1: director run: DIRECTOR_LEASE_S: Expected a number)",
        "director-painter ended (exit code 2)",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
async def test_parts_die_with_a_supervisor_that_is_killed(part, tmp_path):
    note = tmp_path / "pid"
    source = f"""
    import os, pathlib, sys, anyio
    from director.local.home import Home
    from director.local.supervisor import Part, supervising
    async def main():
        home = Home(pathlib.Path({str(tmp_path)!r}))
        async with supervising(home=home, say=print, changed=lambda: None) as supervisor:
            child = "import os, signal; open({str(note)!r}, 'w').write(str(os.getpid())); signal.pause()"
            supervisor.start([Part(name="part", command=[sys.executable, "-c", child], env=dict(os.environ), cwd=".")])
            await anyio.sleep_forever()
    anyio.run(main)
    """
    async with await anyio.open_process([sys.executable, "-c", textwrap.dedent(source)]) as process:
        with anyio.fail_after(PATIENCE_S):
            await until(lambda: note.exists() and note.read_text())
            orphan = mark(int(note.read_text()))
            assert orphan is not None
            process.kill()
            await until(lambda: not is_alive(orphan))


def test_exit_codes_are_told_in_words():
    assert [how_it_ended(code) for code in (0, 1, -9, -250)] == [
        "exit code 0",
        "exit code 1",
        "killed by SIGKILL",
        "killed by signal 250",
    ]
