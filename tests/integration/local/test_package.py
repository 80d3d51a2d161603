"""Test the wheel in an environment of its own, beside programs that have the names of our packages."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder

from director.local.launcher.processes import free_port
from tests.integration.local.test_serve import written
from tests.integration.local.test_up import PATIENCE_S, until
from tests.support.clients import install_aside
from tests.support.eventually import eventually
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults

TOOLS = {"uv": "uv==0.13.9", "pipx": "pipx==1.18.4"}
INSTALL_S = 300

REPOSITORY = Path(__file__).parents[3]
FOREIGN = 'raise RuntimeError("the api of another program")\n'


class Environment:
    """A virtual environment with the wheel alone. What it depends on comes from the environment of the tests."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.program = folder / "bin" / "director"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        [self.packages] = folder.glob("lib/python*/site-packages")
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        quietly = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
        python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *quietly, wheel], check=True)

    def start(self, *arguments: str, folder: Path, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(self.program), *arguments],
            cwd=folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def says(self, *arguments: str, folder: Path) -> tuple[int, str]:
        process = self.start(*arguments, folder=folder)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [built] = WheelBuilder(str(REPOSITORY)).build(
        directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"]
    )
    return Path(built)


@pytest.fixture
def environment(tmp_path: Path, wheel: Path) -> Environment:
    return Environment(tmp_path / "environment", wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a user, with an `api` and a `lua` of its own."""
    folder = tmp_path / "project"
    for name in ("api", "lua"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(FOREIGN)
    return folder


def test_wheel_takes_no_name_that_it_does_not_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"director", "api", "director_queue"}
    assert "director/lua/enqueue.lua" in names


@pytest.mark.parametrize("where", ["the folder", "the path"])
async def test_api_starts_where_the_user_has_an_api_too(
    environment: Environment, project: Path, server: RedisServer, tmp_path: Path, where: str
) -> None:
    port, path = free_port(), {"PYTHONPATH": str(project)} if where == "the path" else {}
    env: Mapping[str, str] = {"DIRECTOR_REDIS_URL": server.url, **path}
    process = environment.start("api", "--port", str(port), folder=project, **env)
    try:
        async with httpx.AsyncClient(trust_env=False) as client:

            async def answer() -> int:
                assert process.poll() is None, process.communicate()[0]
                try:
                    return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code
                except httpx.TransportError:
                    return 0

            await eventually(answer, "it is ready, with its scripts", until=lambda status: status == 200)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("taken", "command", "says"),
    [
        ("api", "api", "site-packages/api belongs to another program"),
        ("director", "doctor", "another program is installed as `director`"),
    ],
)
def test_name_that_another_program_took_is_said(
    environment: Environment, project: Path, taken: str, command: str, says: str
) -> None:
    (environment.packages / taken / "__init__.py").write_text("")
    code, said = environment.says(command, folder=project)
    assert code != 0
    assert says in said
    assert "Install" in said
    assert "Traceback" not in said


@pytest.mark.cog
@pytest.mark.parametrize("tool", TOOLS)
def test_installed_program_starts_anywhere_and_its_next_step_works(
    tool: str, wheel: Path, project: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Install the wheel as a program, as a new user does: an empty HOME, the newest dependencies, no Cog."""
    assert pytestconfig.cache is not None
    packages = Path(pytestconfig.cache.mkdir("clients")) / tool
    quietly = ("--quiet", "--disable-pip-version-check")
    install_aside(
        packages, [sys.executable, "-m", "pip", "install", *quietly, "--target", str(packages), TOOLS[tool]], tool
    )
    home = tmp_path / "home"
    programs = home / ".local" / "bin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIRECTOR_", "VIRTUAL_ENV"))}
    env = kept | {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    line = [packages / "bin" / "uv", "tool", "install"] if tool == "uv" else [sys.executable, "-m", "pipx", "install"]
    installed = subprocess.run(
        [*line, "--python", sys.executable, wheel],
        env=env | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert installed.returncode == 0, installed.stderr
    written(project / "painter", "def predict(text: str) -> str:\n    return text.upper()\n")

    with (
        running([programs / "director", "up", "--port", "0"], "Ctrl-C ends everything", folder=project, env=env) as up,
        running(
            [programs / "director", "serve", "painter", "--model", "acme/painter", "--python", sys.executable],
            "acme/painter is ready",
            folder=project,
            env=env,
        ),
    ):
        assert "without the example models, which need cog and pillow" in up.read_text()
        assert "\n  director serve FOLDER --model owner/name\n" in up.read_text()
        asked = [programs / "director", "predict", "acme/painter", "-i", "text=hello"]
        assert subprocess.run(asked, cwd=project, env=env, capture_output=True, check=True).stdout == b"HELLO\n"


@contextmanager
def running(
    line: Sequence[str | Path], ready: str, *, folder: Path, env: Mapping[str, str]
) -> Generator[Path, None, None]:
    """Start a command in a folder, and yield the file with its output when that says that it is ready."""
    out = folder / f"{line[1]}.txt"
    with out.open("wb") as file:
        process = subprocess.Popen(line, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        until(lambda: ready in out.read_text() or process.poll() is not None, out.read_text)
        assert process.poll() is None, out.read_text()
        yield out
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
