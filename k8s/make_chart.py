"""Make the Helm chart from the manifests for kustomize: `python k8s/make_chart.py build/chart/director`.

The manifests are the one source. `kubectl kustomize` renders them as they are, and once with each component. Where a
component makes a difference, the template gets an `if` on its value. WORDS and PLACES name what else values decide.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).parent
ABSENT = object()

# Each component, and the condition of a template that stands for it. `$` is the root, or in a pool a dictionary like it
OF_POOLS = {
    "root-model": "$.pool.root",
    "weights": "$.pool.weights",
    "keda": 'eq $.pool.scaling "keda"',
    "keda-live": 'eq $.pool.scaling "keda-live"',
}
OF_ALL = {
    "sentinel": 'eq $.Values.redis.mode "sentinel"',
    "files-volume": 'eq $.Values.files.kind "volume"',
    "files-s3": 'eq $.Values.files.kind "s3"',
    "ingress": "$.Values.ingress.enabled",
    "gateway": "$.Values.gateway.enabled",
    "monitoring": "$.Values.monitoring.enabled",
    "backup": "$.Values.backup.enabled",
    "priority": "$.Values.priorityClasses",
    "external-secrets": 'eq $.Values.secrets.from "store"',
    "dns-elsewhere": "$.Values.network.dnsElsewhere",
    "pod-identity": "$.Values.network.podIdentity",
}

LABELS = {"app.kubernetes.io/part-of": "director", "app.kubernetes.io/instance": "director"}
# Texts of the manifests that a value replaces. Those with zz- are names that `rendered` gives a pool
WORDS = {
    "zz-pool": "$.name",
    "zz-shared": "$.name",
    "zz-owner/zz-model": "$.pool.model",
    "zz-live": "$.pool.liveKey",
    "model:0.0.0": "$.pool.image",
    "director:0.4.0": 'printf "%s:%s" $.Values.image.repository ($.Values.image.tag | default $.Chart.AppVersion)',
    "docker.io/valkey/valkey:9.1.2": "$.Values.redis.image",
    "maxmemory 1433mb": 'printf "maxmemory %s" $.Values.redis.maxmemory',
    "director.example.com": "$.Values.host",
    "s3://director-files?region=eu-central-1": "$.Values.files.url",
    "keeper.director:": 'printf "keeper.%s:" $.Release.Namespace',
    "redis.director:": 'printf "redis.%s:" $.Release.Namespace',
    '="director"': 'printf "=%q" $.Release.Namespace',
    "kubectl -n director": 'printf "kubectl -n %s" $.Release.Namespace',
}
TEMPLATE = "spec template spec "
CONTAINER = TEMPLATE + "containers "
MODEL = TEMPLATE + "initContainers model "
SHARED = CONTAINER + "director "
KEDA = "spec ingress 0 from 0 namespaceSelector matchLabels kubernetes.io/metadata.name"
OURS = 'dict "app.kubernetes.io/part-of" "director" "app.kubernetes.io/instance" $.Release.Name'
MONITORED = f"merge ({OURS}) $.Values.monitoring.labels"
# The objects, a path of keys, names and numbers in them, and the value that stands there. With `?` the key is left out
# where the value is empty
PLACES = [
    (".*", "metadata namespace", "$.Release.Namespace"),
    (".*", "metadata labels app.kubernetes.io/instance", "$.Release.Name"),
    ("ServiceAccount/.*", "imagePullSecrets", "? $.Values.imagePullSecrets"),
    ("Deployment/api", CONTAINER + "api resources", "$.Values.api.resources"),
    ("Deployment/api", CONTAINER + "api lifecycle preStop exec command 1", "toJson $.Values.api.preStopSeconds"),
    ("HorizontalPodAutoscaler/api", "spec minReplicas", "$.Values.api.minReplicas"),
    ("HorizontalPodAutoscaler/api", "spec maxReplicas", "$.Values.api.maxReplicas"),
    ("ConfigMap/api-config", "data DIRECTOR_TRUSTED_PROXIES", "$.Values.trustedProxies"),
    ("Deployment/keeper", CONTAINER + "keeper resources", "$.Values.keeper.resources"),
    ("Deployment/keeper", "spec replicas", "$.Values.keeper.replicas"),
    ("StatefulSet/redis", CONTAINER + "redis resources", "$.Values.redis.resources"),
    ("StatefulSet/redis", "spec volumeClaimTemplates 0 spec resources requests storage", "$.Values.redis.storage"),
    ("StatefulSet/redis", "spec volumeClaimTemplates 0 spec storageClassName", "? $.Values.redis.storageClass"),
    ("PersistentVolumeClaim/files", "spec resources requests storage", "$.Values.files.storage"),
    ("PersistentVolumeClaim/files", "spec storageClassName", "? $.Values.files.storageClass"),
    ("PersistentVolumeClaim/files", "spec accessModes 0", "$.Values.files.accessMode"),
    ("Ingress/.*", "spec ingressClassName", "$.Values.ingress.className"),
    ("Ingress/.*", "spec tls 0 secretName", "$.Values.ingress.tlsSecret"),
    ("Ingress/api", "metadata annotations", "$.Values.ingress.annotations"),
    ("Ingress/internal", "metadata annotations", "$.Values.ingress.internalAnnotations"),
    ("HTTPRoute/api", "spec parentRefs", "$.Values.gateway.parentRefs"),
    ("(Service|Pod)Monitor/.*|PrometheusRule/.*", "metadata labels", MONITORED),
    ("NetworkPolicy/metrics-of-.*", KEDA, "$.Values.monitoring.namespace"),
    ("RoleBinding/prometheus", "subjects 0 namespace", "$.Values.monitoring.namespace"),
    ("RoleBinding/prometheus", "subjects 0 name", "$.Values.monitoring.serviceAccount"),
    ("CronJob/backup", "spec schedule", "$.Values.backup.schedule"),
    ("PersistentVolumeClaim/backups", "spec resources requests storage", "$.Values.backup.storage"),
    ("PersistentVolumeClaim/backups", "spec storageClassName", "? $.Values.backup.storageClass"),
    ("ExternalSecret/.*", "spec secretStoreRef", "$.Values.secrets.store"),
    ("NetworkPolicy/keda-to-.*", KEDA, "$.Values.network.kedaNamespace"),
    ("Deployment/director-.*", TEMPLATE + "terminationGracePeriodSeconds", "add 60 $.pool.runLimitSeconds"),
    ("ConfigMap/director-defaults-.*", "data DIRECTOR_RUN_LIMIT_S", "toJson $.Values.poolDefaults.runLimitSeconds"),
    ("ConfigMap/director-defaults-.*", "data DIRECTOR_DRAIN_S", "toJson $.Values.poolDefaults.runLimitSeconds"),
    ("Deployment/director-.*", TEMPLATE + "runtimeClassName", "? $.pool.runtimeClass"),
    ("Deployment/director-.*", TEMPLATE + "nodeSelector", "? $.pool.nodeSelector"),
    ("Deployment/director-.*", TEMPLATE + "tolerations +", "$.pool.tolerations"),
    ("Deployment/director-zz-pool", MODEL + "resources", "$.pool.resources"),
    ("Deployment/director-zz-pool", MODEL + "env +", "$.pool.env"),
    ("Deployment/director-zz-shared", SHARED + "resources", "$.pool.resources"),
    ("Deployment/director-zz-shared", SHARED + "env +", "$.pool.env"),
    ("Deployment/director-.*", TEMPLATE + "volumes model-tmp emptyDir sizeLimit", "$.pool.tmp"),
    ("Deployment/director-.*", TEMPLATE + "volumes coglet emptyDir sizeLimit", "$.pool.outputs"),
    ("Deployment/director-.*", TEMPLATE + "volumes shm emptyDir sizeLimit", "$.pool.shm"),
    ("PersistentVolumeClaim/weights-.*", "spec resources requests storage", "$.pool.weights"),
    ("PersistentVolumeClaim/weights-.*", "spec storageClassName", "? $.pool.weightsStorageClass"),
    ("ScaledObject/.*", "spec minReplicaCount", "$.pool.minReplicas"),
    ("ScaledObject/.*", "spec maxReplicaCount", "$.pool.maxReplicas"),
    ("ScaledObject/.*", "spec triggers 0 metadata listLength", "toJson $.pool.listLength"),
]
# Entries of values that go into a ConfigMap, over its own
MORE = {
    "ConfigMap/director-config": "$.Values.config",
    "ConfigMap/api-config": "$.Values.api.config",
    "ConfigMap/pool-zz-pool": "$.pool.config",
    "ConfigMap/pool-zz-shared": "$.pool.config",
    "ConfigMap/models-zz-shared": '(dict "pool.toml" $.pool.poolFile)',
}
# Values with a few words to choose from, and those whose fields are not ours
CHOICES = {
    ".redis.mode": ["single", "sentinel"],
    ".files.kind": ["none", "volume", "s3"],
    ".secrets.from": ["env", "existing", "store"],
    ".poolDefaults.scaling": ["none", "keda", "keda-live"],
}
FREE = (".resources", ".annotations", ".internalAnnotations", ".labels", ".config")


@dataclass(frozen=True)
class Value:
    """Stand for what a value says. `optional`: without a key where it is empty. `among`: as elements of a list."""

    expression: str
    optional: bool = False
    among: bool = False


@dataclass(frozen=True)
class Choice:
    """Stand for the first node whose condition holds. The last condition may be empty: it always holds."""

    cases: list[tuple[str, Any]]


# What the manifests say, with each component


def rendered(component: str = "") -> dict[str, Any]:
    """Return the objects by kind and name, of the base and of two pools: zz-pool, and zz-shared with `gpu-shared`."""
    with tempfile.TemporaryDirectory() as temporary:
        copied = Path(temporary) / "k8s"
        shutil.copytree(K8S, copied, ignore=shutil.ignore_patterns("secrets.env", "secrets", "overlays"))
        overlay = copied / "overlays/chart"
        (overlay / "pool").mkdir(parents=True)
        (overlay / "shared").mkdir()
        subprocess.run(["sh", copied / "secrets.sh", overlay], check=True)
        secrets = [{"name": f"{part}-secrets", "envs": [f"secrets/{part}.env"]} for part in parts_of_secrets()]
        write(
            overlay,
            namespace="director",
            labels=[{"pairs": LABELS}],
            resources=["../../base", "pool", "shared"],
            components=[f"../../components/{component}"] if component in OF_ALL else [],
            secretGenerator=secrets,
        )
        write(
            overlay / "pool",
            nameSuffix="-zz-pool",
            labels=[{"pairs": {"director/pool": "zz-pool"}, "includeSelectors": True}],
            resources=["pool.yaml"],
            components=[f"../../../components/{name}" for name in ("gpu-pool", component) if name not in {"", *OF_ALL}],
        )
        annotations = {"internal.config.kubernetes.io/needsHashSuffix": "enabled"}
        live = {"director/live": "zz-live"} if component == "keda-live" else {}
        pool = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "pool", "annotations": annotations | live},
            "data": {"DIRECTOR_MODEL": "zz-owner/zz-model"},
        }
        (overlay / "pool/pool.yaml").write_text(yaml.safe_dump(pool))
        write(
            overlay / "shared",
            nameSuffix="-zz-shared",
            labels=[{"pairs": {"director/pool": "zz-shared"}, "includeSelectors": True}],
            components=["../../../components/gpu-shared"],
            configMapGenerator=[{"name": "pool", "literals": []}, {"name": "models", "literals": ["pool.toml="]}],
        )
        done = subprocess.run(["kubectl", "kustomize", overlay], check=True, capture_output=True, text=True)
    objects = plain_names(list(yaml.safe_load_all(done.stdout)))
    kept = K8S / f"components/{component}/kept.yaml"
    if component and kept.exists():
        objects += yaml.safe_load_all(kept.read_text())
    for each in objects:
        if each["kind"] == "ConfigMap":
            each.setdefault("data", {})
    left_to_helm = ("Namespace", "Secret")
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects if each["kind"] not in left_to_helm}


def write(folder: Path, **fields: Any) -> None:
    text = yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **fields})
    (folder / "kustomization.yaml").write_text(text)


def parts_of_secrets() -> dict[str, str]:
    """Return the parts that have a Secret, each with the pattern of the names in it."""
    return dict(re.findall(r"^part (\w+) '(.*)'$", (K8S / "secrets.sh").read_text(), re.MULTILINE))


def plain_names(objects: list[Any]) -> list[Any]:
    """Return the objects without the hashes in names. In a chart the annotations of a pod have them."""
    hashed = {each["metadata"]["name"] for each in objects if each["kind"] in ("ConfigMap", "Secret")}

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        if isinstance(node, list):
            return [plain(value) for value in node]
        return re.sub(r"-[a-z0-9]{10}$", "", node) if isinstance(node, str) and node in hashed else node

    return [plain(each) for each in objects]


def with_values(objects: dict[str, Any]) -> dict[str, Any]:
    """Put values into PLACES."""
    for name, path, expression in PLACES:
        *way, last = path.split(" ")
        value = Value(expression.removeprefix("? "), optional=expression.startswith("? "), among=last == "+")
        for key in [key for key in objects if re.fullmatch(name, key)]:
            node = objects[key]
            for step in way:
                node = child(node, step)
            if node is None:  # it has no labels: it outlives its installation
                continue
            if last == "+":
                node.append(value)
            elif isinstance(node, list):
                node[int(last)] = value
            elif last in node or value.optional:
                node[last] = value
    return objects


def child(node: Any, step: str) -> Any:
    if isinstance(node, list):
        return node[int(step)] if step.isdigit() else next(each for each in node if each.get("name") == step)
    return node.get(step) if step == "labels" else node[step]


def merge(base: Any, others: dict[str, Any]) -> Any:
    """Return one node that is the base, and each of the others where its condition holds."""
    changed = {condition: node for condition, node in others.items() if node != base}
    found = [base, *(node for node in changed.values() if node is not ABSENT)]
    if not changed:
        return base
    if ABSENT in changed.values():
        return choice(base, changed)
    if all(isinstance(node, dict) for node in found):
        return {
            key: merge(base.get(key, ABSENT), {when: node.get(key, ABSENT) for when, node in others.items()})
            for key in sorted({key for node in found for key in node})
        }
    if all(isinstance(node, list) for node in found):
        return [
            merge(keyed(base).get(key, ABSENT), {when: keyed(node).get(key, ABSENT) for when, node in others.items()})
            for key in in_order([list(keyed(node)) for node in found])
        ]
    return choice(base, changed)


def choice(base: Any, changed: dict[str, Any]) -> Choice:
    cases: list[tuple[str, Any]] = []
    for condition, node in changed.items():
        same = next((number for number, (_, known) in enumerate(cases) if known == node), None)
        if same is None:
            cases.append((condition, node))
        else:
            cases[same] = (f"or ({cases[same][0]}) ({condition})", node)
    if len({match[0] for condition, _ in cases if (match := re.search(r"\$[.\w]+", condition))}) > 1:
        raise ValueError(f"more than one value decides what stands here: {cases}")
    return Choice(cases if base is ABSENT else [*cases, ("", base)])


def keyed(elements: list[Any]) -> dict[str, Any]:
    """Return the elements by what names each of them in a list of its kind. Words have a number."""
    if all(isinstance(element, str) for element in elements):
        return {str(number): element for number, element in enumerate(elements)}
    named = [element if isinstance(element, dict) else {} for element in elements]
    keys = [str(one.get("mountPath") or one.get("name") or each) for one, each in zip(named, elements, strict=True)]
    return dict(zip(keys, elements, strict=True))


def in_order(lists: list[list[str]]) -> list[str]:
    """Return all keys: each after the one that it follows in the list that has it first."""
    ordered: list[str] = []
    for keys in lists:
        for before, key in zip([None, *keys], keys, strict=False):
            if key not in ordered:
                ordered.insert(ordered.index(before) + 1 if before is not None else 0, key)
    return ordered


# Templates


def lines(head: str, node: Any, indent: str) -> Iterator[str]:
    """Write a node after its head: a key and a colon, or the dash of a list."""
    if isinstance(node, Choice):
        yield from branches(node, lambda case: lines(head, case, indent))
    elif isinstance(node, Value) and node.among:
        yield from (f"{{{{- range {node.expression} }}}}", f"{indent}- {{{{ toJson . }}}}", "{{- end }}")
    elif isinstance(node, Value) and node.optional:
        yield from (f"{{{{- with {node.expression} }}}}", f"{indent}{head} {{{{ toJson . }}}}", "{{- end }}")
    elif isinstance(node, Value):
        yield f"{indent}{head} {{{{ toJson ({node.expression}) }}}}"
    elif isinstance(node, dict | list) and node:
        first, *rest = block(node, indent + "  ")
        if head == "-" and not first.startswith("{{-"):
            yield f"{indent}- {first.lstrip()}"
        else:
            yield from (f"{indent}{head}", first)
        yield from rest
    elif isinstance(node, str) and node.endswith("\n"):
        yield f"{indent}{head} |"
        yield from (text(f"{indent}  {line}" if line else "") for line in node.splitlines())
    else:
        yield f"{indent}{head} {text(json.dumps(node, ensure_ascii=False))}"


def block(node: Any, indent: str) -> Iterator[str]:
    for head, value in (
        [(f"{key}:", node[key]) for key in node] if isinstance(node, dict) else [("-", each) for each in node]
    ):
        yield from lines(head, value, indent)


def branches(node: Choice, write: Callable[[Any], Iterable[str]]) -> Iterator[str]:
    word = "if"
    for condition, case in node.cases:
        yield f"{{{{- {word} {condition} }}}}" if condition else "{{- else }}"
        yield from write(case) if case is not ABSENT else ()
        word = "else if"
    yield "{{- end }}"


def text(written: str) -> str:
    """Replace WORDS by values, and keep other braces from Helm."""
    kept = written.replace("{{", '{{ "{{" }}')
    for word, expression in WORDS.items():
        kept = kept.replace(word, f"{{{{ {expression} }}}}")
    return kept


def document(key: str, node: Any) -> Iterator[str]:
    """Write an object. A pod has a checksum of all that it reads, so that a change rolls it."""
    if isinstance(node, Choice):
        yield from branches(node, lambda case: document(key, case))
        return
    node = dict(node)
    data = node.pop("data", None)
    if node["kind"] in ("Deployment", "StatefulSet"):
        annotations = node["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations |= {f"checksum/{name}": Value(f"{data_of(read)} | sha256sum") for name, read in read_by(node)}
    # neither `helm uninstall` nor another value deletes what is on a volume, or a class that other installations name
    if node["kind"] in ("PersistentVolumeClaim", "PriorityClass"):
        node["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    yield "---"
    yield from block(node, "")
    if data is not None:
        yield from ("data:", f"{{{{- {data_of(key)} | nindent 2 }}}}")


def read_by(node: Any) -> list[tuple[str, str]]:
    """Return what a pod reads: the names of ConfigMaps and Secrets, and of the templates with their content."""
    said = json.dumps(node, default=lambda odd: [case for _, case in getattr(odd, "cases", []) if case is not ABSENT])
    maps = re.findall(r'"configMap(?:Ref)?": {"name": "([^"]*)"', said)
    secrets = re.findall(r'"name": "([a-z]+-secrets)"', said)
    found = {name: f"ConfigMap/{name}" for name in maps} | {name: f"Secret/{name}" for name in secrets}
    return [(re.sub("-zz-(pool|shared)$", "", name), key) for name, key in sorted(found.items())]


def data_of(key: str) -> str:
    return f'include "director.data" (dict "of" "{key}" "more" {MORE.get(key, "dict")} "context" $)'


def secrets() -> dict[str, Any]:
    """Return the Secrets of secrets.sh. Their data are templates of the same names."""
    made = {}
    for part in parts_of_secrets():
        labels = LABELS | {"app.kubernetes.io/instance": Value("$.Release.Name")}
        metadata = {"name": f"{part}-secrets", "namespace": Value("$.Release.Namespace"), "labels": labels}
        secret = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": {}}
        from_env = 'eq $.Values.secrets.from "env"'
        condition = f"and ({from_env}) ({OF_ALL['files-s3']})" if part == "files" else from_env
        made[f"Secret/{part}-secrets"] = Choice([(condition, secret)])
    return made


def templates() -> dict[str, str]:
    """Return each file of templates with its text."""
    variants = {condition: with_values(rendered(name)) for name, condition in (OF_POOLS | OF_ALL).items()}
    objects = merge(with_values(rendered()), variants)
    data: list[str] = []
    for part, pattern in parts_of_secrets().items():
        lines_of = f'include "director.secret" (dict "names" {json.dumps(pattern)} "env" $.Values.secrets.env)'
        data += [f'{{{{- define "Secret/{part}-secrets" }}}}', f"{{{{- {lines_of} }}}}", "{{- end }}"]
    for key, node in objects.items():
        if key.startswith("ConfigMap/"):
            content = node.cases[0][1] if isinstance(node, Choice) else node
            data += [f'{{{{- define "{key}" }}}}', *block(content["data"], ""), "{{ end }}"]
    files = {"_data.tpl": data}
    for kind in ("pool", "shared"):
        files[f"_{kind}.tpl"] = [f'{{{{- define "director.{kind}" }}}}']
    for key, node in (objects | secrets()).items():
        kind = key.rpartition("-zz-")[2]
        name = f"_{kind}.tpl" if kind != key else f"{key.replace('/', '-').lower()}.yaml"
        files.setdefault(name, []).extend(document(key, node))
    for kind in ("pool", "shared"):
        files[f"_{kind}.tpl"].append("{{- end }}")
    return {name: "\n".join(content) + "\n" for name, content in files.items()}


def schema(value: Any, path: str = "") -> dict[str, Any]:
    """Return the JSON schema of values, by their defaults: no other names, and the same types."""
    if path in CHOICES:
        return {"enum": CHOICES[path]}
    if isinstance(value, dict) and value and not path.endswith(FREE):
        fields = {name: schema(each, f"{path}.{name}") for name, each in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": fields}
    types = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
    return {"type": types[type(value)]}


def schema_of_values(values: dict[str, Any]) -> dict[str, Any]:
    judged = schema(values)
    fields = judged["properties"]
    default = fields["poolDefaults"]
    own = {
        "image": {"type": "string", "minLength": 1},
        "model": {"type": "string", "pattern": "^[^/]+/[^/]+$"},
        "poolFile": {"type": "string", "minLength": 1},
    }
    needed = {"required": ["image"], "oneOf": [{"required": ["model"]}, {"required": ["poolFile"]}]}
    fields["pools"] = {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 40},
        "additionalProperties": default | {"properties": default["properties"] | own} | needed,
    }
    fields["global"] = {"type": "object"}  # Helm hands it to every chart
    return judged


def make(folder: Path) -> None:
    if folder.exists():
        if not (folder / "Chart.yaml").exists():
            sys.exit(f"{folder} is no chart: name one that may be replaced, or a new folder")
        shutil.rmtree(folder)
    shutil.copytree(K8S / "chart", folder)
    for name, content in templates().items():
        (folder / "templates" / name).write_text(content)
    values = yaml.safe_load((folder / "values.yaml").read_text())
    (folder / "values.schema.json").write_text(json.dumps(schema_of_values(values), indent=2) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
