"""Commands of the operations pages and of verify.sh name objects, containers and labels that an overlay renders."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from msgspec import Struct

from director.cli.backend import redis_url
from director.cli.client import service
from director.cli.main import make_parser
from director.local.home import Nowhere
from tests.support.eventually import wait_until
from tests.support.manifests import K8S, Manifest, environment, overlay, pods

ROOT = K8S.parent
PAGES = (
    "docs/how-to/kubernetes.md",
    "docs/how-to/kubernetes-operations.md",
    "docs/how-to/backup.md",
    "docs/reference/internals/manifests.md",
    "k8s/verify.sh",
)
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
    asked = make_parser().parse_args(["ps"])
    with pytest.raises(Nowhere, match="a token is missing: give --token"):
        service(asked)
    asked.token = "a-token"
    assert service(asked).url == f"http://127.0.0.1:{api['ports'][0]['containerPort']}"
    assert redis_url(make_parser().parse_args(["doctor"])) == given["DIRECTOR_REDIS_URL"]


def test_verify_and_the_pages_restore_in_the_same_way() -> None:
    ways = {way for page in PAGES for way in re.findall(r"-i restore -- sh -c ('.*') <", (ROOT / page).read_text())}
    assert len(ways) == 1


def test_verify_asks_ports_and_settings_that_there_are() -> None:
    text = (K8S / "verify.sh").read_text()
    api = next(pod for pod in pods(overlay("kind")) if pod.component == "api").container("api")
    assert {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)} == {api["ports"][0]["containerPort"]}
    assert "jsonpath={.data.DIRECTOR_MODEL}" in text
    maps = [each.get("data", {}) for each in overlay("kind") if each["kind"] == "ConfigMap"]
    assert [data for data in maps if "DIRECTOR_MODEL" in data]
    claim = yaml.safe_load((K8S / "restore-pod.yaml").read_text())["spec"]["volumes"][0]["persistentVolumeClaim"]
    assert claim["claimName"] == "data-redis-0"


LOAD = "echo accepted; cat > /dev/null; echo '9 accepted, 9 succeeded, 1.0 s without an accept at most'"
# A cluster with KEDA, two nodes and one Redis, as kubectl shows it. Each case puts lines before these
ANSWERS = (
    ("exists", "echo 0"),
    ("{.spec.unschedulable}", "echo; echo"),
    ("deployment -l", "echo deployment.apps/director-hello"),
    ("readyReplicas", "echo 1"),
    ("scaledobject -o name", "echo scaledobject.keda.sh/director-hello"),
    ("spec.replicas", "echo 1"),
    ("nodeName", "echo a"),
    ("token create", "echo made; echo secret-token"),
    ("configMapRef", "echo director-config; echo pool-hello-abc"),
    ("pool-hello-abc -o jsonpath={.data.DIRECTOR_MODEL}", "echo example/hello"),
    ("http://api:8080", LOAD),
    ('127.0.0.1:8080 example/hello {"text": "verify"} 0', LOAD),
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
    "three Redis rolled under load": "skipped: one Redis",
    "to zero and back": "passed",
    "to zero and back by KEDA": "passed",
    "a drained node": "passed",
    "the master deleted by force": "skipped: one Redis",
    "a backup, and its restore": "passed",
    "uninstall keeps the data": "passed",
}
ROLE = "-c redis -- sh -c REDISCLI_AUTH=$ADMIN_PASSWORD valkey-cli --user admin role"
HA = (
    ("spec.replicas", "echo 3"),
    (f"exec redis-1 {ROLE}", '[ ! -e "$0.deleted" ] || echo master'),
    (f"exec redis-2 {ROLE}", '[ -e "$0.deleted" ] || echo master'),
    ("delete pod redis-2 --force", 'touch "$0.deleted"'),
)
OF_THREE = {
    "three Redis rolled under load": "passed",
    "the master deleted by force": "passed",
    "a backup, and its restore": "skipped: three Redis",
}
SCALES = "to zero and back", "a backup, and its restore", "uninstall keeps the data"
PAUSED = "echo accepted; echo '9 accepted, 9 succeeded, 61.0 s without an accept at most'; exit 1"
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
    script = ["env", "--default-signal=INT", "sh", K8S / "verify.sh", *options, folder / "overlay"]
    done = subprocess.run(
        script, env=env, check=False, timeout=120, capture_output=True, text=True, start_new_session=True
    )
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
        ((("{.spec.unschedulable}", "echo; echo NoSchedule; echo true"),), {"a drained node": "skipped: one node"}),
        (
            NO_KEDA,
            {"the first director stays": "skipped: no KEDA", "to zero and back by KEDA": "skipped: no KEDA"},
        ),
        (HA, OF_THREE),
        ((("drain", "exit 1"),), {"a drained node": "FAILED"}),
        ((("director scale", "exit 1"),), dict.fromkeys(SCALES, "FAILED")),
        ((("readyReplicas", "echo"),), {"the first director stays": "FAILED"}),
        (
            (("creationTimestamp", "echo 2026-11-28T08:00:00Z"), ("readyReplicas", "echo")),
            {"the first director stays": "skipped: not a first install"},
        ),
        ((("apply -k", "echo configmap/api configured"),), {"a second apply changes nothing": "FAILED"}),
        ((("apply -k", "echo secret/api configured"),), {}),
        (
            (("get deployment,statefulset -o jsonpath={range .items[*]}{.kind}", "date +%N"),),
            {"a second apply changes nothing": "FAILED"},
        ),
        ((("get pvc data-redis-0", "exit 1"),), {"uninstall keeps the data": "FAILED"}),
        ((("http://api:8080", "exit 1"),), {"API and keepers rolled under load": "FAILED"}),
        ((("http://api:8080", PAUSED),), {"API and keepers rolled under load": "FAILED"}),
        (
            (("} 0 10", PAUSED), *HA),
            OF_THREE | {"API and keepers rolled under load": "FAILED", "three Redis rolled under load": "FAILED"},
        ),
        ((("} 0 15", PAUSED), *HA), OF_THREE | {"the master deleted by force": "FAILED"}),
        ((("--force", "exit 1"), *HA), OF_THREE | {"the master deleted by force": "FAILED"}),
        (
            (("delete pod redis-2", "touch $0.deleted"), (f"exec redis-1 {ROLE}", "echo slave"), *HA),
            OF_THREE | {"the master deleted by force": "FAILED"},
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


def test_verify_says_that_an_overlay_has_no_pool_with_one_model(tmp_path: Path) -> None:
    done = verified(tmp_path, ("{.data.DIRECTOR_MODEL}", "echo"))
    assert (done.code, done.table) == (1, {"apply": "FAILED"})
    assert "no pool with one model" in done.report["rows"][0]["at"]


def test_verify_empties_the_pool_before_it_uninstalls(tmp_path: Path) -> None:
    asked = verified(tmp_path).asked
    [at] = [number for number, words in enumerate(asked) if " delete -k " in words]
    steps = ["paused-replicas=0", "scale deployment.apps/director-hello --replicas 0", "wait --for delete pod -l"]
    assert [step in words for step, words in zip(steps, asked[at - 3 : at], strict=True)] == [True] * 3


def test_report_of_verify_has_what_a_bug_needs_and_no_secret(tmp_path: Path) -> None:
    done = verified(tmp_path, ("drain", "exit 3"), ("get pods", "echo api-1 Pending Unschedulable"))
    report = done.report
    assert (report["overlay"], report["by"]) == ("overlay", "kustomize")
    assert report["versions"] == ["Client Version: v1.32.4", "Server Version: v1.36.2"]
    assert report["nodes"] == ['v1.36.2 containerd://2.1.9 "Debian" amd64 4 16Gi']
    assert report["storage_classes"] == ["standard rancher.io/local-path Delete WaitForFirstConsumer"]
    assert [row["name"] for row in report["rows"]] == [*ALL]
    assert all(row["seconds"] >= 0 for row in report["rows"])
    [drained] = [row for row in report["rows"] if row["name"] == "a drained node"]
    assert (drained["rc"], drained["said"], drained["at"]) == (3, "FAILED", "drain")
    assert drained["pods"] == ["api-1 Pending Unschedulable"]
    [load] = [row["note"] for row in report["rows"] if row["name"] == "API and keepers rolled under load"]
    assert load == "9 accepted, 9 succeeded, 1.0 s without an accept at most"
    text = (tmp_path / "report.json").read_text()
    made = re.findall("=(.+)", (tmp_path / "overlay/secrets.env").read_text())
    assert len(made) > 9
    assert [secret for secret in (*made, "secret-token") if secret in text] == []


def test_token_of_verify_is_in_no_command_and_is_revoked(tmp_path: Path) -> None:
    asked = verified(tmp_path, ("token revoke", 'cat > "$0.revoked"')).asked
    assert [words for words in asked if "secret-token" in words] == []
    assert (tmp_path / "kubectl.revoked").read_text() == "secret-token\n"


CTRL_C = "kill -INT 0"  # to all processes of the group
HANGS = 'echo $$ >> "$0.pids"; echo accepted; %s; exec sleep 300'


@pytest.mark.parametrize("signal", ["kill $PPID", CTRL_C])
def test_an_interrupt_during_a_drain_leaves_nothing_behind(tmp_path: Path, signal: str) -> None:
    done = verified(tmp_path, ("drain", HANGS % signal))
    assert (done.code, done.report["rows"][-1]["said"]) == (130, "interrupted")
    assert [words for words in done.asked if "drain a" in words]
    assert any("uncordon a" in words for words in done.asked[-10:])
    assert_ended(tmp_path)


@pytest.mark.parametrize("signal", ["kill $PPID", CTRL_C])
def test_an_interrupt_under_load_ends_the_load(tmp_path: Path, signal: str) -> None:
    restarted = ("restart deployment/api", HANGS % signal)
    assert verified(tmp_path, ("http://api:8080", HANGS % "true"), restarted).code == 130
    assert_ended(tmp_path, 2)


def test_an_interrupt_leaves_no_pool_paused(tmp_path: Path) -> None:
    asked = verified(tmp_path, ("wait --for delete pod -l", HANGS % CTRL_C)).asked
    assert [words for words in asked if words.rstrip().endswith("paused-replicas-")]
    assert_ended(tmp_path)


def assert_ended(folder: Path, count: int = 1) -> None:
    pids = (folder / "kubectl.pids").read_text().split()
    assert len(pids) == count
    assert [
        pid for pid in pids if (stat := Path(f"/proc/{pid}/stat")).exists() and ") Z " not in stat.read_text()
    ] == []
    assert not list(folder.glob("tmp.*"))


@pytest.mark.parametrize(("limit_s", "code"), [("0.4", 1), ("9", 0)])
def test_load_of_verify_finds_a_pause_and_ends_with_its_input(limit_s: str, code: int) -> None:
    """The server is away for a second. Each time a client that repeats gets all that it asked for."""
    [client] = re.findall(r"^client='\n(.*?)^'$", (K8S / "verify.sh").read_text(), re.MULTILINE | re.DOTALL)
    seen: list[str] = []

    class Away(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(503 if len(seen) in (2, 3) else 201)
            self.end_headers()
            self.wfile.write(b'{"id": "%d"}' % len(seen))

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "succeeded"}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Away) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        words = [client, f"http://127.0.0.1:{server.server_port}", "a/model", "{}", "0", limit_s]
        with subprocess.Popen(
            [sys.executable, "-c", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as load:
            assert load.stdin is not None
            load.stdin.write("a-token\n")
            load.stdin.flush()
            wait_until(lambda: len(seen) >= 5 or load.poll() is not None, "it is refused five times")
            said, _ = load.communicate(timeout=30)
        server.shutdown()
    assert set(seen) == {"Bearer a-token"}
    assert re.fullmatch(r"accepted\n(\d) accepted, \1 succeeded, \d\.\d s without an accept at most\n", said)
    assert load.returncode == code


def test_verify_waits_for_no_command_without_an_end(tmp_path: Path) -> None:
    text = (K8S / "verify.sh").read_text()
    [within] = re.findall(r"^within\(\) \{.*?^\}$", text, re.MULTILINE | re.DOTALL)
    script = f"{within}\nwithin 1 sleep 60\necho $?\necho given | within 9 cat\nwithin 9 sh -c 'exit 7'\necho $?"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["143", "given", "7"]
    bare = re.findall(r"(?m)^ *(?:kubectl|helm) .*|(?:&& |\|\| |; |\$\()(?:kubectl|helm) .*", text)
    assert bare == []


@pytest.mark.parametrize("script", sorted(K8S.rglob("*.sh")), ids=lambda path: path.name)
def test_every_script_is_one_for_a_posix_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True, timeout=30)
    if checker := shutil.which("shellcheck"):
        # names that a file which sources this one reads, or that a sourced one gives; words that are split on purpose
        subprocess.run(
            [checker, "-s", "sh", "-S", "warning", "-e", "SC2154,SC2034,SC2046", script], check=True, timeout=60
        )
