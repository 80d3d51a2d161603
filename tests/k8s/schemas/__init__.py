"""Would a cluster take an object, of its own or of KEDA, the Prometheus operator, the Gateway API? No unknown field."""

from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import kubernetes_validate
import yaml

from tests.support.manifests import Manifest

HERE: Final = Path(__file__).parent
VERSIONS: Final = tuple(f"1.{minor}" for minor in range(29, 38))
# The validator reads two megabytes of definitions for each object that it judges
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
OURS: Final = {path.stem for path in HERE.glob("*.yaml")}


def misfits(objects: list[Manifest], version: str) -> list[str]:
    """Return what a cluster of this version would refuse, or drop in silence."""
    return [
        f"{each['kind']}/{each['metadata']['name']}: {wrong}" for each in objects for wrong in _wrong(each, version)
    ]


def _wrong(each: Manifest, version: str) -> list[str]:
    if each["kind"] in OURS:
        return [f"{_place(error.instance_path)}: {error.message}" for error in _own(each["kind"]).iter_errors(each)]
    try:
        kubernetes_validate.validate(each, version, strict=True)
    except kubernetes_validate.ValidationError as exc:
        return [f"{_place(exc.absolute_path)}: {exc.message}"]
    except kubernetes_validate.SchemaNotFoundError as exc:
        return [exc.message]
    return []


@cache
def _own(kind: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(yaml.safe_load((HERE / f"{kind}.yaml").read_text()))


def _place(path: Any) -> str:
    return ".".join(map(str, path))
