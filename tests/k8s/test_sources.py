"""Judge what is under k8s/ beside manifests: making secrets, building the image, rules for Prometheus."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from director.local.launcher.folder import COG
from tests.support.manifests import K8S, PAGE
from tests.unit.cli.test_cli_lines import is_a_command

ROOT = K8S.parent
RULES = K8S / "components/monitoring/rules.yaml"
LISTS = ("image", "build", "hello")
HEAD = """\
# k8s/monitoring/alerts.yaml, as the operator takes it. A test makes it, and holds the two together.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: director
spec:
"""


def made_rule() -> str:
    lines = (K8S / "monitoring/alerts.yaml").read_text().splitlines()
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines if not line.startswith("#"))


def test_the_operators_rules_equal_the_alert_rules() -> None:
    assert RULES.read_text() == made_rule(), "put what made_rule() makes into components/monitoring/rules.yaml"
    assert yaml.safe_load(made_rule())["spec"] == yaml.safe_load((K8S / "monitoring/alerts.yaml").read_text())


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secrets.env"
    file.write_text("REDIS_PASSWORD=mine")  # no end of the line: an editor's
    file.chmod(0o600)
    for _ in range(2):
        subprocess.run(["sh", K8S / "secrets.sh", tmp_path], check=True, timeout=30)
        made = dict(line.split("=", 1) for line in file.read_text().splitlines())
        assert made["REDIS_PASSWORD"] == "mine"
        assert made["REDIS_PASSWORD_FORMER"] == ""
        # a longer one is broken into two lines by kustomize: see test_apply.py
        given = [value for name, value in made.items() if name != "REDIS_PASSWORD" and not name.endswith("_FORMER")]
        assert len(set(given)) == len(given) >= 9
        assert all(re.fullmatch("[0-9a-f]{48}", value) for value in given)
    assert file.stat().st_mode & 0o777 == 0o600


def test_pods_start_cog_with_an_upload_address_as_up_does() -> None:
    component = yaml.safe_load((K8S / "components/uploads/kustomization.yaml").read_text())
    steps = yaml.safe_load(component["patches"][0]["patch"])
    words = {int(step["path"].rpartition("/")[2]): step["value"] for step in steps if "/args/" in step["path"]}
    assert words == {1: "-c", 2: COG}, "all of a node can read arguments: none is added"
    pool = yaml.safe_load_all((K8S / "components/gpu-pool/director.yaml").read_text())
    [director] = [each for each in pool if each["kind"] == "Deployment"]
    assert director["spec"]["template"]["spec"]["initContainers"][0]["args"][:3] == ["python", "-m", "cog.server.http"]


def test_git_ignores_the_secrets_files() -> None:
    ignored = {"/k8s/overlays/*/secrets.env", "/k8s/overlays/*/secrets/"}
    assert ignored <= set((ROOT / ".gitignore").read_text().splitlines())


def test_the_operations_page_shows_only_existing_commands() -> None:
    text = PAGE.read_text()
    shown = {tuple(words.split()) for words in re.findall(r"(?:`|-- )director ((?:[a-z-]+ ?)+)", text)}
    assert ("token", "create", "--account", "me") in {words[:4] for words in shown}
    assert [words for words in sorted(shown) if not is_a_command(words)] == []


# Containerfile


def steps(word: str) -> list[str]:
    text = (K8S / "Containerfile").read_text().replace("\\\n", " ")
    return [line.removeprefix(f"{word} ") for line in text.splitlines() if line.startswith(f"{word} ")]


def test_the_image_is_built_from_existing_and_pinned_sources() -> None:
    assert re.fullmatch(
        r"PYTHON=docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", steps("ARG")[0]
    )
    assert {each.partition(" ")[0] for each in steps("FROM")} == {"${PYTHON}"}
    for step in steps("COPY"):
        if not step.startswith("--from="):
            assert [place for place in step.split()[:-1] if not (ROOT / place).exists()] == []
    installs = [step for step in steps("RUN") if " install " in step or "pip wheel" in step]
    assert [step for step in installs if "--require-hashes" not in step and "--no-deps" not in step] == []


def test_the_last_stage_runs_director_as_an_unprivileged_user() -> None:
    last = (K8S / "Containerfile").read_text().rpartition("FROM ")[2]
    assert last.startswith("${PYTHON} AS director")
    assert "\nUSER 10001:10001\n" in last
    assert 'ENTRYPOINT ["director"]' in last


@pytest.mark.parametrize("name", LISTS)
def test_image_packages_match_the_lock_and_have_hashes(name: str) -> None:
    locked = packages((ROOT / "requirements.lock").read_text())
    text = (K8S / f"requirements/{name}.txt").read_text()
    pinned = packages(text)
    assert {each: version for each, version in pinned.items() if locked.get(each, version) != version} == {}
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\w)", text.strip()))


def test_the_image_has_every_dependency_of_the_wheel() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    assert needed
    names = {normal(name) for name in re.findall(r'^  "([\w-]+)', needed[1], re.MULTILINE)}
    assert names <= packages((K8S / "requirements/image.txt").read_text()).keys()


def packages(text: str) -> dict[str, str]:
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)}


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_manifests_name_this_release() -> None:
    found = re.search(r'^version = "([\d.]+?)(\.dev\d+)?"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    named: dict[str, set[str]] = {}
    for path in (*sorted(K8S.rglob("*.yaml")), PAGE, K8S / "README.md", K8S / "Containerfile"):
        for release in re.findall(r"\bdirector(?:-hello)?(?::|, newTag: )(\d+\.[\w.]+)", path.read_text()):
            named.setdefault(release, set()).add(str(path.relative_to(ROOT)))
    assert named.keys() == {found[1]}, f"put {found[1]} in place of the others: {named}"
    chart = yaml.safe_load((K8S / "chart/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (found[1], found[1])
