"""Commands of the operations pages and of verify.sh name objects, containers and labels that an overlay renders."""

import json
import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

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


# A cluster with KEDA, two nodes and one Redis, as kubectl shows it. Each case puts lines before these
ANSWERS = (
    ("exists", "echo 0"),
    ("nodes -o name", "echo node/a; echo node/b"),
    ("deployment -l", "echo deployment.apps/director-hello"),
    ("readyReplicas", "echo 1"),
    ("scaledobject -o name", "echo scaledobject.keda.sh/director-hello"),
    ("spec.replicas", "echo 1"),
    ("nodeName", "echo a"),
    ("token create", "echo made; echo secret-token"),
    ("printenv DIRECTOR_MODEL", "echo example/hello"),
    ("get deployment,statefulset -o jsonpath={range .items[*]}{.kind}", "echo Deployment api 3"),
    ("apply -k", "echo service/api unchanged; echo poddisruptionbudget.policy/api configured"),
    ("get nodes", "echo 'v1.36.2 containerd://2.1.9 \"Debian\" amd64 4 16Gi'"),
    ("get storageclass", "echo standard rancher.io/local-path Delete WaitForFirstConsumer"),
    ("version", "echo 'Client Version: v1.32.4'; echo 'Server Version: v1.36.2'"),
)
ALL = {
    "apply": "passed",
    "the first director stays": "passed",
    "a prediction": "passed",
    "a second apply changes nothing": "passed",
    "a new pod of the pool": "passed",
    "API and keepers rolled under load": "passed",
    "to zero and back": "passed",
    "to zero and back by KEDA": "passed",
    "a drained node": "passed",
    "the master deleted by force": "skipped: one Redis",
    "a backup, and its restore": "passed",
    "uninstall keeps the data": "passed",
}
HA = (
    ("spec.replicas", "echo 3"),
    ("exec redis-2 -c redis -- sh -c REDISCLI_AUTH=$ADMIN_PASSWORD valkey-cli --user admin role", "echo master"),
)
NO_KEDA = ("annotate", "exit 1"), ("scaledobject", "exit 1")


class Verified(Struct, frozen=True):
    code: int
    table: dict[str, str]
    report: dict[str, Any]
    asked: list[str]


def verified(folder: Path, *first: tuple[str, str], by: str = "kustomize") -> Verified:
    """Run verify.sh against a kubectl and a helm that play these answers. Other commands succeed and say nothing."""
    cases = "".join(f"    *'{words}'*) {does} ;;\n" for words, does in (*first, *ANSWERS))
    for name in ("kubectl", "helm"):
        program = folder / name
        said = f'echo "{name} $*" | tr "\\n" " " >> {folder}/asked; echo >> {folder}/asked'
        program.write_text(f'#!/bin/sh\n{said}\ncase "$*" in\n{cases}esac\n')
        program.chmod(0o755)
    (folder / "overlay").mkdir()
    env = {"PATH": f"{folder}:/usr/bin:/bin", "TMPDIR": str(folder), "SETTLE_S": "1"}
    options = ["--json", str(folder / "report.json"), *(["--helm", "chart"] if by == "helm" else [])]
    script = ["sh", K8S / "verify.sh", *options, folder / "overlay"]
    done = subprocess.run(script, env=env, check=False, timeout=120, capture_output=True, text=True)
    said = dict(re.findall(r"^(\S.*?) {2,}(\S.*?) +\d+ s$", done.stdout, re.MULTILINE))
    report = json.loads((folder / "report.json").read_text())
    return Verified(done.returncode, said, report, (folder / "asked").read_text().splitlines())


@pytest.mark.parametrize("by", ["kustomize", "helm"])
def test_verify_tries_all_of_a_cluster_that_works(tmp_path: Path, by: str) -> None:
    done = verified(tmp_path, by=by)
    assert (done.code, done.table) == (0, ALL)
    verbs = [words.split()[1] for words in done.asked if words.startswith("helm ")]
    assert verbs == (["upgrade", "upgrade", "uninstall", "upgrade", "version"] if by == "helm" else [])
    by_kustomize = [words for words in done.asked if "apply -k" in words or "delete -k" in words]
    assert len(by_kustomize) == (0 if by == "helm" else 4)


@pytest.mark.parametrize(
    ("first", "differs"),
    [
        ((("nodes -o name", "echo node/a"),), {"a drained node": "skipped: one node"}),
        (
            NO_KEDA,
            {"the first director stays": "skipped: no KEDA", "to zero and back by KEDA": "skipped: no KEDA"},
        ),
        (HA, {"the master deleted by force": "passed", "a backup, and its restore": "skipped: three Redis"}),
        ((("drain", "exit 1"),), {"a drained node": "FAILED"}),
        ((("director scale", "exit 1"),), {"to zero and back": "FAILED", "a backup, and its restore": "FAILED"}),
        ((("readyReplicas", "echo"),), {"the first director stays": "FAILED"}),
        ((("apply -k", "echo secret/api configured"),), {"a second apply changes nothing": "FAILED"}),
        ((("get pvc data-redis-0", "exit 1"),), {"uninstall keeps the data": "FAILED"}),
        ((("http://api:8080", "exit 1"),), {"API and keepers rolled under load": "FAILED"}),
        (
            (*HA, ("--force", "exit 1")),
            {"the master deleted by force": "FAILED", "a backup, and its restore": "skipped: three Redis"},
        ),
    ],
)
def test_verify_says_what_failed_and_what_was_skipped(
    tmp_path: Path, first: tuple[tuple[str, str], ...], differs: dict[str, str]
) -> None:
    done = verified(tmp_path, *first)
    assert done.table == ALL | differs
    assert done.code == ("FAILED" in differs.values())


def test_verify_ends_after_an_apply_that_failed(tmp_path: Path) -> None:
    done = verified(tmp_path, ("apply -k", "exit 1"))
    assert (done.code, done.table) == (1, {"apply": "FAILED"})


def test_report_of_verify_has_what_a_bug_needs_and_no_secret(tmp_path: Path) -> None:
    done = verified(tmp_path, ("drain", "exit 3"))
    report = done.report
    assert (report["overlay"], report["by"]) == ("overlay", "kustomize")
    assert report["versions"] == ["Client Version: v1.32.4", "Server Version: v1.36.2"]
    assert report["nodes"] == ['v1.36.2 containerd://2.1.9 "Debian" amd64 4 16Gi']
    assert report["storage_classes"] == ["standard rancher.io/local-path Delete WaitForFirstConsumer"]
    assert [row["name"] for row in report["rows"]] == [*ALL]
    assert all(row["seconds"] >= 0 for row in report["rows"])
    [drained] = [row for row in report["rows"] if row["name"] == "a drained node"]
    assert (drained["rc"], drained["said"], drained["at"]) == (3, "FAILED", "drain a --ignore-daemonsets")
    text = (tmp_path / "report.json").read_text()
    made = re.findall("=(.+)", (tmp_path / "overlay/secrets.env").read_text())
    assert len(made) > 9
    assert [secret for secret in (*made, "secret-token") if secret in text] == []


def test_verify_uncordons_its_node_when_it_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):  # it writes no report
        verified(tmp_path, ("drain", "kill $PPID"))
    last = (tmp_path / "asked").read_text().splitlines()[-2:]
    assert ["drain a" in last[0], "uncordon a" in last[1]] == [True, True]
    assert not list(tmp_path.glob("tmp.*"))


def test_verify_waits_for_no_command_without_an_end(tmp_path: Path) -> None:
    text = (K8S / "verify.sh").read_text()
    [within] = re.findall(r"^within\(\) \{.*?^\}$", text, re.MULTILINE | re.DOTALL)
    script = f"{within}\nwithin 1 sleep 60\necho $?\necho given | within 9 cat\nwithin 9 sh -c 'exit 7'\necho $?"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["143", "given", "7"]
    bare = re.findall(r"(?m)^ *(?:kubectl|helm) .*|(?:&& |\|\| |; |\$\()(?:kubectl|helm) .*", text)
    assert [line for line in bare if "uncordon" not in line] == []


@pytest.mark.parametrize("script", sorted(K8S.rglob("*.sh")), ids=lambda path: path.name)
def test_every_script_is_one_for_a_posix_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True, timeout=30)
    if checker := shutil.which("shellcheck"):
        # names that a file which sources this one reads, or that a sourced one gives; words that are split on purpose
        subprocess.run(
            [checker, "-s", "sh", "-S", "warning", "-e", "SC2154,SC2034,SC2046", script], check=True, timeout=60
        )
