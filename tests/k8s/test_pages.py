"""Pools that the how-tos show: each renders in an overlay, and keeps to its schemas and rules."""

import pytest
import yaml

from tests.k8s.rules import complaints
from tests.k8s.rules.settings import director_settings
from tests.k8s.schemas import VERSIONS, misfits
from tests.site.commands import blocks_of
from tests.support.manifests import K8S, Manifest, Pod, pods, rendered

HOW_TO = K8S.parent / "docs/how-to"
SMALL = K8S / "overlays/small"
POOL = "pool/kustomization.yaml"


def shown(page: str) -> list[str]:
    """Return the blocks of YAML of a page of how-tos."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    fenced = (each.text.removeprefix("```yaml\n").partition("```\n")[0] for each in blocks_of(text))
    return [each for each in fenced if each.startswith(("apiVersion:", "patches:"))]


def with_patches(kustomization: str, more: str) -> str:
    pool = yaml.safe_load(kustomization)
    pool["patches"] = [*pool.get("patches", []), *yaml.safe_load(more)["patches"]]
    return yaml.safe_dump(pool)


def pool_of(objects: list[Manifest]) -> Pod:
    [pod] = [each for each in pods(objects) if each.component == "director"]
    return pod


def assert_good(objects: list[Manifest]) -> None:
    assert complaints(objects) == []
    assert [wrong for version in (VERSIONS[0], VERSIONS[-1]) for wrong in misfits(objects, version)] == []


@pytest.mark.kubectl
@pytest.mark.heavy
@pytest.mark.parametrize("gpus", ["1", "4"])
def test_pool_for_vllm_renders_and_follows_the_rules(gpus: str) -> None:
    pool, settings, tensor_parallel = shown("kubernetes-vllm.md")
    chosen = pool if gpus == "1" else with_patches(pool, tensor_parallel)
    objects = rendered(SMALL, files=((POOL, chosen), ("pool/pool.yaml", settings)))
    assert_good(objects)
    pod = pool_of(objects)
    model, read = pod.container("model"), director_settings(pod, objects)
    assert model["command"] == ["vllm", "serve"]
    assert model["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert model["startupProbe"]["periodSeconds"] * model["startupProbe"]["failureThreshold"] == 3600
    assert read is not None
    assert (read.runner, read.end_servers) == ("openai", False)
    assert f"--max-num-seqs={read.concurrent_predictions}" in model["args"]
    assert [f"--port={url.rpartition(':')[2]}" in model["args"] for url in read.servers] == [True]


@pytest.mark.kubectl
@pytest.mark.heavy
def test_patch_of_resources_renders_and_follows_the_rules() -> None:
    [patch] = shown("kubernetes.md")
    kustomization = with_patches((SMALL / POOL).read_text(encoding="utf-8"), patch)
    objects = rendered(SMALL, files=((POOL, kustomization),))
    assert_good(objects)
    assert pool_of(objects).container("model")["resources"]["limits"] == {
        "cpu": "8",
        "memory": "64Gi",
        "nvidia.com/gpu": "2",
    }
