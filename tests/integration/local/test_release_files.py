"""Test what `make release` puts into `dist`: the bill of materials, its hashes, and builds that repeat."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import python_with
from tests.support.release_files import LISTED, OURS, SUMS, build, normal, validate, write_release

pytestmark = pytest.mark.faults

EPOCH = "1760000000"
SAYS_NO_LICENCE = {"protobuf"}  # its packages name none in their metadata


@pytest.fixture(scope="module")
def tool(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    [locked] = re.findall(r"^cyclonedx-bom==.*$", (OURS / "requirements.lock").read_text(), re.MULTILINE)
    return python_with(Path(pytestconfig.cache.mkdir("clients")), locked, "-c", str(OURS / "requirements.lock"))


@pytest.fixture(scope="module")
def dist(tool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    write_release(folder, tool, EPOCH)
    return folder


@pytest.fixture(scope="module")
def bill(dist: Path) -> dict[str, Any]:
    [file] = dist.glob("director-*.cdx.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def hashes(text: str) -> dict[str, set[str]]:
    """Return the hashes of each package of a list for pip."""
    blocks = re.split(r"\n(?=\w)", text.strip())
    return {normal(block.partition("==")[0]): set(re.findall("sha256:([0-9a-f]{64})", block)) for block in blocks}


def digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.name != SUMS}


def test_bill_has_exactly_what_the_wheel_and_its_extras_need(dist: Path, bill: dict[str, Any]) -> None:
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        needs = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    wanted = {
        normal(re.split(r"[\s<>=;]", need)[0])
        for need in needs
        if (extra := re.search(r"extra == '(\w+)'", need)) is None or extra[1] in {"s3", "otel"}
    }
    root = bill["metadata"]["component"]
    [direct] = [each["dependsOn"] for each in bill["dependencies"] if each["ref"] == root["bom-ref"]]
    assert {normal(each.partition("==")[0]) for each in direct} == wanted
    assert {normal(each["name"]) for each in bill["components"]} == hashes(LISTED.read_text()).keys()
    assert (root["name"], root["version"]) == ("director-queue", wheel.name.split("-")[1])


def test_each_component_has_version_licence_and_hashes(bill: dict[str, Any]) -> None:
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)$", (OURS / "requirements.lock").read_text(), re.MULTILINE))
    versions = {normal(name): version for name, version in locked.items()}
    listed = hashes(LISTED.read_text())
    for component in bill["components"]:
        name = normal(component["name"])
        assert component["version"] == versions[name], name
        assert component["purl"] == f"pkg:pypi/{name}@{component['version']}"
        assert bool(component.get("licenses")) is (name not in SAYS_NO_LICENCE), name
        named = [each for reference in component["externalReferences"] for each in reference.get("hashes", [])]
        assert {each["content"] for each in named if each["alg"] == "SHA-256"} == listed[name] != set()


def test_bill_is_valid_and_an_invalid_one_is_refused(bill: dict[str, Any], tool: Path) -> None:
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"].startswith("2025-10-09T08:53:20")
    validate(json.dumps(bill), tool)
    with pytest.raises(RuntimeError, match="licenses"):
        validate(json.dumps(bill | {"components": [bill["components"][0] | {"licenses": "MIT"}]}), tool)


def test_sums_hold_for_each_file_of_the_release(dist: Path, bill: dict[str, Any]) -> None:
    named = {name: digest for digest, name in (line.split("  ") for line in (dist / SUMS).read_text().splitlines())}
    assert named == digests(dist)
    assert len(named) == 3
    [wheel] = [name for name in named if name.endswith(".whl")]
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": named[wheel]}]


def test_source_unpacked_elsewhere_builds_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """The files are new, in another folder, and readable by their owner only."""
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    for path in source.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        path.touch()
    build(source, tmp_path / "again")
    assert digests(tmp_path / "again") == {
        name: digest for name, digest in digests(dist).items() if name.endswith((".whl", ".tar.gz"))
    }
    quietly = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    pip = [sys.executable, "-m", "pip", "wheel", *quietly, "-w", str(tmp_path / "wheel"), str(source)]
    subprocess.run(pip, check=True)
    assert digests(tmp_path / "wheel").items() <= digests(dist).items(), "`make wheel` builds another one"
