"""Read from a Redis server's configuration how much it may lose, and refuse a server that is too weak."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from redis import exceptions
from redis.asyncio import Redis

from director.broker.redis_client import ask, servers
from director.core.errors import UnsafeBackend
from director.core.settings import CommonSettings

# Scripts carry the `#!lua` shebang, which these and newer servers check
LEAST_VERSIONS: Final = {"redis": (7, 0), "valkey": (7, 2)}
STRONGEST_FIRST: Final = ("replicated", "always", "everysec", "memory")
MENDS: Final = {
    "always": "set `appendonly yes` and `appendfsync always`",
    "everysec": "set `appendonly yes` and `appendfsync everysec`",
    "replicated": "set `appendonly yes`, `appendfsync always` and `min-replicas-to-write 1`",
}
DIRECTLY: Final = "redis://host:port"
TOGETHER: Final = "redis+cluster://host:port,host:port"
# A level that is named because CONFIG GET is forbidden -> the weaker levels that it includes
IMPLIED: Final = {"replicated": ("everysec",), "always": ("everysec",), "everysec": (), "memory": ()}


class Server(Struct, frozen=True):
    kind: str
    version: str
    level: str
    run_id: str


async def check(redis: Redis, settings: CommonSettings) -> Server:
    """Check every server and return the weakest. Raises UnsafeBackend for one that is too old or would lose work."""
    try:
        behind = await ask(lambda: servers(redis))
    except exceptions.ResponseError as exc:
        raise UnsafeBackend(f"This is not a node of a Redis Cluster: name it {DIRECTLY}.") from exc
    found = [await _check(one, settings, is_alone=one is redis) for one in behind]
    return max(found, key=lambda server: STRONGEST_FIRST.index(server.level))


async def _check(redis: Redis, settings: CommonSettings, *, is_alone: bool) -> Server:
    try:
        info = await ask(lambda: redis.info("server"))
    except exceptions.NoPermissionError as exc:
        raise UnsafeBackend("The user in the Redis URL may not use INFO: allow it, +info.") from exc
    if is_alone and info.get("server_mode", info.get("redis_mode")) == "cluster":  # Valkey's name, and Redis's
        raise UnsafeBackend(f"This is a node of a Redis Cluster: name several of its nodes, {TOGETHER}.")
    kind = "valkey" if "valkey_version" in info else "redis"
    version = str(info.get("valkey_version") or info["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < LEAST_VERSIONS[kind]:
        least = ".".join(map(str, LEAST_VERSIONS[kind]))
        raise UnsafeBackend(f"This is {kind} {version}: {least} or newer is needed.")
    try:
        answer = await ask(lambda: redis.config_get("appendonly", "appendfsync", "maxmemory-policy", "min-replicas-*"))
    except exceptions.ResponseError as exc:
        if not settings.assume_durability:
            raise UnsafeBackend(
                "The server does not tell its configuration (CONFIG GET is forbidden). "
                "Name its level in DIRECTOR_ASSUME_DURABILITY: always, everysec, replicated or memory."
            ) from exc
        reached = {"memory", settings.assume_durability, *IMPLIED[settings.assume_durability]}
    else:
        config = {str(name): str(value) for name, value in answer.items()}
        policy = config.get("maxmemory-policy", "noeviction")
        if policy != "noeviction":
            raise UnsafeBackend(
                f"The server's maxmemory-policy is {policy}: it would drop whole queues. "
                "Set `maxmemory-policy noeviction`."
            )
        reached = levels(config)
    level = next(word for word in STRONGEST_FIRST if word in reached)
    if settings.durability not in reached:
        raise UnsafeBackend(
            f"The server's durability is {level}, and {settings.durability} is asked for. There, "
            f"{MENDS[settings.durability]}, or accept less by name: DIRECTOR_DURABILITY={level}."
        )
    return Server(kind, version, level, str(info["run_id"]))


def levels(config: Mapping[str, str]) -> set[str]:
    """Return every level that this configuration reaches. Without `always` the last second is only in a buffer."""
    reached = {"memory"}
    if config.get("appendonly") == "yes" and config.get("appendfsync") in ("always", "everysec"):
        reached.add("everysec")
        if config["appendfsync"] == "always":
            reached.add("always")
        if int(config.get("min-replicas-to-write", "0")) > 0:
            reached.add("replicated")
    return reached
