"""A process is given exactly the variables, values and command line that it reads."""

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from director.cli.main import make_parser
from director.core.errors import DirectorError
from director.core.pool_file import PoolFile, Table, read_pool
from director.core.settings import ApiSettings, CommonSettings, DirectorSettings, KeeperSettings, describe, load
from director.execution.director import check_settings
from tests.support.manifests import Manifest, Pod, environment, pods

SETTINGS: Final[dict[str, tuple[type[CommonSettings], ...]]] = {
    "api": (ApiSettings,),
    "keeper": (KeeperSettings, ApiSettings),  # for batches
    "run": (DirectorSettings,),
}
# Further variables that a container of ours may have, although our process does not read them. Commands that are run
# in it read DIRECTOR_URL. The last three are of servers that it starts
BESIDE: Final = re.compile(
    r"REDIS_PASSWORD|API_REDIS_PASSWORD|SENTINEL_PASSWORD|UPLOAD_SECRET|DIRECTOR_URL|AWS_\w+|OTEL_\w+|HOME|USER|LOGNAME"
)


def is_given_what_it_reads(objects: list[Manifest]) -> Iterator[str]:
    """Each variable is one that its process knows, with a value that it takes; each command line is one."""
    everybody = {name for read in SETTINGS.values() for cls in read for name, _, _ in describe(cls)}
    everybody |= {"DIRECTOR_URL"}
    for pod in pods(objects):
        for container in pod.containers:
            if not _is_ours(container):
                continue
            where = f"{pod.name} {container['name']}"
            command = container.get("args", [])
            read = SETTINGS.get(command[0] if command else "")
            if read is None or not _parses(command):
                yield f"{where}: `director {shlex.join(command)}` is no command line"
                continue
            known = {name for cls in read for name, _, _ in describe(cls)}
            for each in container.get("env", []):
                if each["name"] not in known and not BESIDE.fullmatch(each["name"]):
                    yield f"{where}: {each['name']} is nothing that it reads"
            try:
                given = environment(container, objects)
                settings, *_ = [load(cls, given) for cls in read]
                yield from _runs_batches(where, given, read)
                if isinstance(settings, DirectorSettings):
                    for each in pool_of(container, pod, objects).tables:
                        if each.hosted is None:  # else it has servers once it runs
                            check_settings(each.settings)
                        _ = each.settings.policy
            except DirectorError as exc:
                yield f"{where}: {exc}"
            except KeyError:
                continue  # `refers_to_what_there_is` says it
            else:
                strange = {name for name in given if name.startswith("DIRECTOR_")} - everybody
                if pod.component != "api":  # to roll it costs nothing
                    unread = {name for name in given if name.startswith("DIRECTOR_")} & everybody - known
                    yield from (f"{where}: {name} is not read, and rolls it" for name in sorted(unread))
                yield from (f"{where}: {name} is nothing that anybody reads" for name in sorted(strange))
                yield from (
                    f"{where}: {name} names a variable that does not stand above it"
                    for name, value in given.items()
                    if "$(" in value
                )


def _runs_batches(where: str, given: Mapping[str, str], read: tuple[type[CommonSettings], ...]) -> Iterator[str]:
    """Where the API takes batches, keepers run them: as the API's user, with the same store of files."""
    if KeeperSettings in read and not given.get("DIRECTOR_BATCHES_REDIS_URL", "").startswith("redis"):
        yield f"{where}: DIRECTOR_BATCHES_REDIS_URL is missing, and its own user may accept no line of a batch"


def _is_ours(container: Manifest) -> bool:
    """Also a director in an image that has models too."""
    return container["name"] == "director" or bool(re.search(r"(^|/)director(:|@)", container["image"]))


def _parses(command: list[str]) -> bool:
    try:
        make_parser().parse_args(command)
    except SystemExit:
        return False
    return True


def director_settings(pod: Pod, objects: list[Manifest]) -> DirectorSettings | None:
    """None where it would not start: `is_given_what_it_reads` and `refers_to_what_there_is` say so."""
    try:
        return load(DirectorSettings, environment(pod.container("director"), objects))
    except (DirectorError, KeyError):
        return None


def director_tables(pod: Pod, objects: list[Manifest]) -> tuple[Table, ...]:
    """Return each model of a director with its settings; none where it would not start."""
    try:
        return pool_of(pod.container("director"), pod, objects).tables
    except (DirectorError, KeyError):
        return ()


def pool_of(container: Manifest, pod: Pod, objects: list[Manifest]) -> PoolFile:
    """Return what the product reads of the pool file that a director is given, or its only model. Raises SettingsError,
    and KeyError for a missing reference.
    """
    settings = load(DirectorSettings, environment(container, objects))
    given = make_parser().parse_args(container["args"])
    if given.config is None:
        return PoolFile((), (Table(settings),))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in mounted(str(given.config.parent), container, pod, objects).items():
            Path(folder, name).write_text(text)
        return read_pool(Path(folder, given.config.name), settings)


def mounted(path: str, container: Manifest, pod: Pod, objects: list[Manifest]) -> dict[str, str]:
    """Return the files of the ConfigMap that is mounted there. Raises KeyError without one."""
    volumes = {each["name"]: each for each in pod.spec["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    name = mounts[path]["configMap"]["name"]
    texts = {each["metadata"]["name"]: each.get("data", {}) for each in objects if each["kind"] == "ConfigMap"}
    return dict(texts[name])
