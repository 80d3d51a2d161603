"""Components that an installation may choose: each renders in an overlay, and keeps to its schemas and rules."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.k8s.rules import complaints
from tests.k8s.schemas import VERSIONS, misfits
from tests.k8s.test_redis_pods import asked, etc, placed, program, programs, started, surroundings
from tests.support.manifests import K8S, Manifest, pods, rendered
from tests.support.servers import binary

__all__ = ["etc", "programs"]
CHOSEN = {
    **dict.fromkeys(("backup", "priority", "pull-secret", "dns-elsewhere", "pod-identity"), "."),
    **dict.fromkeys(("weights", "runtime-class"), "pool"),
}
SMALL = K8S / "overlays/small"


def chosen(name: str) -> list[Manifest]:
    return rendered(SMALL, also=name, into=CHOSEN[name])


@pytest.mark.kubectl
@pytest.mark.heavy
@pytest.mark.parametrize("name", CHOSEN)
def test_a_component_renders_and_follows_the_rules(name: str) -> None:
    assert chosen(name) != rendered(SMALL)
    assert complaints(chosen(name)) == []
    assert [wrong for version in (VERSIONS[0], VERSIONS[-1]) for wrong in misfits(chosen(name), version)] == []


@pytest.mark.kubectl
@pytest.mark.heavy
@pytest.mark.parametrize("name", ["files-s3", "files-volume", "monitoring", "runtime-class", "sentinel"])
def test_pod_with_several_models_takes_the_components_of_an_overlay(name: str) -> None:
    objects = rendered(K8S / "overlays/shared", also=name, into=CHOSEN.get(name, "."))
    assert complaints(objects) == []
    assert [wrong for version in (VERSIONS[0], VERSIONS[-1]) for wrong in misfits(objects, version)] == []


def test_each_component_is_part_of_an_overlay_or_tried_here() -> None:
    files = [*K8S.glob("overlays/**/kustomization.yaml"), *K8S.glob("components/*/kustomization.yaml")]
    used = {name for file in files for name in re.findall(r"/([a-z0-9-]+)(?=[\],\n])", file.read_text())}
    assert {path.name for path in (K8S / "components").iterdir()} - used - CHOSEN.keys() == {"external-secrets"}


@pytest.mark.kubectl
@pytest.mark.heavy
def test_a_private_registry_is_asked_by_every_pod() -> None:
    accounts = {each["metadata"]["name"]: each for each in chosen("pull-secret") if each["kind"] == "ServiceAccount"}
    used = {pod.spec["serviceAccountName"] for pod in pods(chosen("pull-secret"))}
    assert [name for name in used if accounts[name].get("imagePullSecrets") != [{"name": "registry"}]] == []


def test_secrets_of_a_store_have_the_keys_that_the_script_makes(tmp_path: Path) -> None:
    subprocess.run(["sh", K8S / "secrets.sh", tmp_path], check=True, timeout=30)
    for each in yaml.safe_load_all((K8S / "components/external-secrets/secrets.yaml").read_text()):
        name = each["metadata"]["name"]
        file = tmp_path / "secrets" / f"{name.removesuffix('-secrets')}.env"
        made = {line.partition("=")[0] for line in file.read_text().splitlines()}
        given = {one["secretKey"] for one in each["spec"]["data"]}
        assert given <= made
        assert {key for key in made - given if not key.endswith("_FORMER")} == set()
        assert each["spec"]["target"]["name"] == name
        assert all(one["secretKey"] == one["remoteRef"]["property"] for one in each["spec"]["data"])


@pytest.mark.heavy
def test_a_backup_is_restored_by_the_commands_of_the_page(tmp_path: Path, etc: Path, programs: Path) -> None:
    """A backup is a copy as a replica gets it. No setting changes meanwhile, so an interrupted one leaves nothing."""
    cli = shutil.which("valkey-cli") or shutil.which("redis-cli")
    if cli is None:
        pytest.skip("neither valkey-cli nor redis-cli in PATH: nothing here makes a backup")
    page = (K8S.parent / "docs/how-to/backup.md").read_text()
    [restore] = re.findall(r"exec -i restore -- sh -c '(.*)' < director\.rdb", page)
    socket = placed(etc, tmp_path)
    program(programs, "valkey-cli", f'exec {cli} -s {socket} "$@"')
    (programs / "valkey-check-rdb").symlink_to(binary("valkey"))
    with started(etc / "start.sh", surroundings(tmp_path, programs)):
        assert asked(socket, "admin", "admin", "SET", "contact:1", "kept")
        backup = tmp_path / "director.rdb"
        env = surroundings(tmp_path, programs)
        with backup.open("wb") as copy:
            subprocess.run(["sh", etc / "copy.sh"], env=env, check=True, timeout=60, stdout=copy)
        assert asked(socket, "admin", "admin", "SET", "contact:1", "changed")
    with backup.open("rb") as copy:
        restored = ["sh", "-c", restore.replace("/data", str(tmp_path))]
        subprocess.run(restored, env=env, stdin=copy, check=True, timeout=30)
    backup.write_bytes(backup.read_bytes()[:-1])  # the connection broke: what is on the disk stays
    with backup.open("rb") as copy:
        assert subprocess.run(restored, env=env, stdin=copy, check=False, timeout=30).returncode != 0
    with started(etc / "start.sh", surroundings(tmp_path, programs)):
        assert asked(socket, "admin", "admin", "GET", "contact:1") == b"kept"
        assert asked(socket, "admin", "admin", "SET", "contact:2", "new")
    with started(etc / "start.sh", surroundings(tmp_path, programs)):
        assert asked(socket, "admin", "admin", "GET", "contact:2") == b"new"


@pytest.mark.parametrize(("service", "asked_one"), [("redis", "redis"), ("redis-0", "redis-0")])
def test_a_backup_asks_the_one_redis_or_the_first_of_three(
    tmp_path: Path, programs: Path, service: str, asked_one: str
) -> None:
    job = next(
        each
        for each in yaml.safe_load_all((K8S / "components/backup/backup.yaml").read_text())
        if each["kind"] == "CronJob"
    )
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    *shell, script = container["command"]
    program(programs, "getent", f'[ "$2" = {service} ]')
    program(programs, "valkey-cli", 'echo "$2" > unfinished')
    program(programs, "valkey-check-rdb", "exit 0")
    env = surroundings(tmp_path, programs)
    subprocess.run([*shell, script.replace("/backups", str(tmp_path))], env=env, check=True, timeout=30)
    assert [copy.read_text().strip() for copy in tmp_path.glob("director-*.rdb")] == [asked_one]


@pytest.mark.kubectl
@pytest.mark.heavy
def test_alerts_on_disk_and_backup_name_what_is_rendered() -> None:
    rules = yaml.safe_load((K8S / "components/monitoring/disk.yaml").read_text())["spec"]["groups"][0]["rules"]
    disk, backup = (re.findall(r'(\w+)=~?"([^"]+)"', rule["expr"]) for rule in rules)
    assert "kube_cronjob_created" in rules[1]["expr"], "a backup that never succeeded has no time of success"
    stateful = next(each for each in chosen("backup") if each["kind"] == "StatefulSet")
    claim = f"{stateful['spec']['volumeClaimTemplates'][0]['metadata']['name']}-{stateful['metadata']['name']}-0"
    assert [wanted for label, wanted in disk if label == "persistentvolumeclaim" and re.fullmatch(wanted, claim)]
    job = next(each for each in chosen("backup") if each["kind"] == "CronJob")
    for labels in (disk, backup):
        assert {wanted for label, wanted in labels if label == "namespace"} == {job["metadata"]["namespace"]}
    assert ("cronjob", job["metadata"]["name"]) in backup
