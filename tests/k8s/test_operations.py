"""Commands of the operations pages and of verify.sh name objects, containers and labels that an overlay renders."""

import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from director.cli.backend import redis_url
from director.cli.client import service
from director.cli.main import made_parser
from director.local.home import Nowhere
from tests.support.manifests import K8S, Manifest, environment, overlay, pods

ROOT = K8S.parent
PAGES = ("docs/how-to/kubernetes.md", "k8s/README.md", "k8s/verify.sh")
KINDS = {"deploy": "Deployment", "deployment": "Deployment", "statefulset": "StatefulSet", "service": "Service"}

pytestmark = pytest.mark.kubectl


@pytest.mark.parametrize("page", PAGES)
def test_every_command_names_what_an_overlay_renders(page: str) -> None:
    found = commands((ROOT / page).read_text())
    assert len(found) > 5
    assert [(" ".join(words), wrong) for words in found for wrong in wrongs(words)] == []


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("exec deploy/web -- director", "there is no Deployment web"),
        ("exec deploy/api -c web -- director", "no container web"),
        ("exec redis-3 -c redis -- sh", "there is no pod redis-3"),
        ("port-forward service/api 8081", "no port 8081"),
        ("wait --for delete pod -l app.kubernetes.io/component=web", "nothing has the label"),
        ("delete pvc data-redis-9", "there is no disk data-redis-9"),
    ],
)
def test_a_command_about_nothing_is_found(command: str, wrong: str) -> None:
    assert [said for said in wrongs(shlex.split(command)) if wrong in said]


def commands(text: str) -> list[list[str]]:
    """Return the words of each kubectl command in our namespace, up to what runs in the container."""
    text = text.replace("\\\n", " ")
    verbs = "exec|scale|wait|rollout|delete|logs|port-forward|get|apply"
    found = re.findall(rf"(?:kubectl -n director|(?<![\w-])k) ((?:{verbs}) [^`|&;)\n]*)", text)
    return [re.sub(r"[\"'][^\"']*[\"']?", "", line.partition(" -- ")[0]).split() for line in found]


def objects() -> list[Manifest]:
    return [each for name in ("ha", "small") for each in overlay(name)]


def wrongs(words: list[str]) -> list[str]:
    said = []
    containers = {each["name"] for pod in pods(objects()) for each in pod.containers} | {"restore"}
    names = [word for word in words[1:] if "/" in word and "." not in word and "=" not in word]
    for word in names:
        kind, _, name = word.partition("/")
        if kind in KINDS and not [
            one for one in objects() if (one["kind"], one["metadata"]["name"]) == (KINDS[kind], name)
        ]:
            said.append(f"there is no {KINDS[kind]} {name}")
        if kind == "pod":
            said += no_pod(name)
    for before, word in pairwise(words):
        if before == "-c" and word not in containers:
            said.append(f"no container {word}")
        if before == "-l" and not [pod for pod in pods(objects()) if tuple(word.split("=")) in pod.labels.items()]:
            said.append(f"nothing has the label {word}")
        if before == "pod" and not word.startswith("-"):
            said += no_pod(word)
        if before == "pvc" and not re.fullmatch("data-redis-[0-2]", word):
            said.append(f"there is no disk {word}")
    if words[0] == "exec":
        said += [wrong for word in words if re.fullmatch(r"redis-\d+", word) for wrong in no_pod(word)]
    if words[0] == "port-forward":
        ports = [port["port"] for one in objects() if one["kind"] == "Service" for port in one["spec"]["ports"]]
        said += [f"no port {words[-1]}"] if int(words[-1].partition(":")[2] or words[-1]) not in ports else []
    return said


def no_pod(name: str) -> list[str]:
    return [] if name == "restore" or re.fullmatch("redis-[0-2]", name) else [f"there is no pod {name}"]


def test_commands_in_an_api_pod_know_their_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    api = next(pod for pod in pods(overlay("small")) if pod.component == "api").container("api")
    for name in (*os.environ, *(given := environment(api, overlay("small")))):
        monkeypatch.setenv(name, given[name]) if name in given else monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = made_parser().parse_args(["ps"])
    with pytest.raises(Nowhere, match="a token is missing: give --token"):
        service(asked)
    asked.token = "a-token"
    assert service(asked).url == f"http://127.0.0.1:{api['ports'][0]['containerPort']}"
    assert redis_url(made_parser().parse_args(["doctor"])) == given["DIRECTOR_REDIS_URL"]


def test_verify_and_the_pages_restore_in_the_same_way() -> None:
    ways = {way for page in PAGES for way in re.findall(r"-i restore -- sh -c ('.*') <", (ROOT / page).read_text())}
    assert len(ways) == 1


def test_verify_asks_ports_and_settings_that_there_are() -> None:
    text = (K8S / "verify.sh").read_text()
    api = next(pod for pod in pods(overlay("kind")) if pod.component == "api").container("api")
    assert {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)} == {api["ports"][0]["containerPort"]}
    assert "printenv DIRECTOR_MODEL" in text
    maps = [each.get("data", {}) for each in overlay("kind") if each["kind"] == "ConfigMap"]
    assert [data for data in maps if "DIRECTOR_MODEL" in data]
    claim = yaml.safe_load((K8S / "restore-pod.yaml").read_text())["spec"]["volumes"][0]["persistentVolumeClaim"]
    assert claim["claimName"] == "data-redis-0"


@pytest.mark.parametrize(
    ("nodes", "fails", "table"),
    [
        (1, "", {"apply": "passed", "a drained node": "skipped: one node", "to zero and back": "passed"}),
        (2, "", {"a drained node": "passed", "a backup, and its restore": "passed"}),
        (2, "drain", {"a drained node": "FAILED"}),
        (1, "wait --for delete pod -l", {"to zero and back": "FAILED"}),
    ],
)
def test_verify_says_what_failed_and_what_was_skipped(
    tmp_path: Path, nodes: int, fails: str, table: dict[str, str]
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"""#!/bin/sh
        case "$*" in
            *annotate*) exit 1 ;;  # no KEDA
            *"get nodes"*) seq {nodes} ;;
            *exists*) echo 0 ;;
            {f'*"{fails}"*) exit 1 ;;' if fails else ""}
        esac
        """
    )
    kubectl.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    script = ["sh", K8S / "verify.sh", tmp_path]
    done = subprocess.run(script, env=env, check=False, timeout=60, capture_output=True, text=True)
    said = dict(re.findall(r"^(\S.*?) {2,}(\S.*?) +\d+ s$", done.stdout, re.MULTILINE))
    assert {name: said.get(name) for name in table} == table
    assert len(said) == 6
    assert done.returncode == (1 if fails else 0)


@pytest.mark.parametrize("script", sorted(K8S.rglob("*.sh")), ids=lambda path: path.name)
def test_every_script_is_one_for_a_posix_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True, timeout=30)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, "-s", "sh", "-S", "warning", script], check=True, timeout=60)
