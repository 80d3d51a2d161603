"""Build the files of a release: wheel, sdist, bill of materials in CycloneDX, and SHA256SUMS.

`make release` runs `python -m tests.support.release_files FOLDER PYTHON`. PYTHON has cyclonedx-bom, in an environment
of its own. It reads licences and dependencies from an environment, and hashes from a list: it is asked for both.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

OURS: Final = Path(__file__).parents[2]
# The wheel's dependencies with those of the extras s3 and otel, as the image has them
LISTED: Final = OURS / "k8s" / "requirements" / "image.txt"
SUMS: Final = "SHA256SUMS"
VALIDATE: Final = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))
"""


def write_release(folder: Path, tool: Path, epoch: str) -> None:
    """Fill an empty folder. `epoch`: the Unix time that the bill bears. `tool`: a Python that has cyclonedx-bom."""
    build(OURS, folder)
    [wheel] = folder.glob("*.whl")
    bill = bill_of(wheel, tool, epoch)
    validate(bill, tool)
    version = wheel.name.split("-")[1]
    (folder / f"director-{version}.cdx.json").write_text(bill)
    lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines))


def build(source: Path, folder: Path) -> None:
    """Build wheel and sdist. The same source gives the same bytes: hatchling sorts, and fixes times and modes."""
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), cwd=source)


def bill_of(wheel: Path, tool: Path, epoch: str) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        environment = Path(temporary) / "environment"
        python = str(environment / "bin" / "python")
        _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", str(LISTED))
        bill = _asked(tool, epoch, "environment", python)
    listed = _asked(tool, epoch, "requirements", str(LISTED))
    hashed = {normal(each["name"]): each["externalReferences"] for each in listed["components"]}
    for component in bill["components"]:
        component["externalReferences"] += hashed[normal(component["name"])]
    bill["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": _sha256(wheel)}]
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"


def validate(bill: str, tool: Path) -> None:
    _run(str(tool), "-c", VALIDATE, said=bill)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _asked(tool: Path, epoch: str, *about: str) -> dict[str, Any]:
    options = ("--pyproject", str(OURS / "pyproject.toml"), "--spec-version", "1.6", "--output-reproducible")
    bill: dict[str, Any] = json.loads(
        _run(str(tool), "-m", "cyclonedx_py", *about, *options, SOURCE_DATE_EPOCH=epoch),
    )
    return bill


def _run(*command: str, cwd: Path | None = None, said: str | None = None, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | env, input=said, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stdout}{done.stderr}")
    return done.stdout


def _sha256(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    write_release(Path(sys.argv[1]), Path(sys.argv[2]).absolute(), os.environ["SOURCE_DATE_EPOCH"])
