"""Test the shipped users of Redis: each has exactly the rights that it needs, on every kind of server."""

import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from redis import exceptions
from redis.asyncio import Redis

from director.broker import keys
from director.broker.linker import LUA, link
from director.broker.redis_client import client
from director.broker.rights import ALL, ASKED, NEEDED, PARTS, Part, check_rights, find_refused
from director.core.clock import SystemClock
from director.core.errors import UnsafeBackend
from director.core.ids import Partition, QueueName, lowest_id_at, new_prediction_id, partition_of_model
from director.store.accounts import Accounts
from director.store.services import Services
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, driving
from tests.support.servers import USERS, RedisServer, binary

HOUSE = Path(__file__).parents[3]
ROOMS = ("api", "director")
QUEUE = QueueName("acme/echo:0123456789ab")
LIVE = keys.live(QUEUE)
ELSEWHERE = keys.live(QueueName("acme/other:0123456789ab"))
ID = new_prediction_id(model="acme/echo", now_ms=SystemClock().now_ms())
SAMPLES: dict[str, Any] = {
    "account": "a",
    "batch_id": ID,
    "digest": "0" * 64,
    "director": "d1",
    "file_id": ID,
    "host": "hooks.example",
    "lane": "normal",
    "model": "acme/echo",
    "month": "202611",
    "name": "acme/echo",
    "number": 0,
    "of": "a",
    "order": "created",
    "partition": Partition(7),
    "prediction_id": ID,
    "process": "p1",
    "purpose": "files",
    "queue": QUEUE,
    "tenant": "a",
    "version_id": "0" * 64,
}
# The script that KEDA's scaler of the type `redis` has sent since 2.0
OF_KEDA = """
local listName = KEYS[1]
local listType = redis.call('type', listName).ok
local cmd = { zset = 'zcard', set = 'scard', list = 'llen', hash = 'hlen', none = 'llen' }
return redis.call(cmd[listType], listName)
"""
IN_A_SCRIPT = "ACL failure in script|user executing the script can't"
REFUSED_US = """
acl list
acl setuser director +@all
bgrewriteaof
client kill type normal
client list
client no-evict on
cluster reset
command
config rewrite
config set maxmemory 1
copy {p7}:rec:a {p7}:rec:b
dbsize
dump {p7}:rec:a
eval return(1) 0
eval redis.call('flushall') 0
expire {p7}:rec:a 1
failover
fcall f 0
flushall
flushdb
function flush
get stranger
get {q}:secret
getdel secret:files
hset stranger a 1
keys *
latency reset
memory doctor
migrate 127.0.0.1 1 secret:files 0 1000
module list
monitor
move secret:files 1
object freq secret:files
psubscribe *
publish stranger 1
randomkey
rename {p7}:rec:a {p7}:rec:b
replicaof 127.0.0.1 1
restore {p7}:rec:a 0 x
save
scan 0
script flush
script kill
select 1
shutdown nosave
slowlog reset
sort {p7}:rec:a
subscribe stranger
swapdb 0 1
type {p7}:rec:a
wait 0 0
xgroup destroy {p7}:q:acme/echo:0:normal:s0 directors
xsetid {p7}:log 1-1
xtrim {p7}:log maxlen 0
""".strip().splitlines()
# Beyond what the table in director/broker/rights.py names: what an intruder in one part would try
REFUSED: dict[Part, list[str]] = {
    "api": """
blpop {p7}:q:acme/echo:0:bell 1
hset contact run_id 0
xreadgroup group directors a streams {p7}:q:acme/echo:0:normal:s0 >
""".strip().splitlines(),
    "keeper": """
del version:acme/echo:0
get token:0
hgetall token:0
hset account:a webhook_secret whsec_mine
sadd accounts a
xadd changes * kind 0
zadd tokens:a 0 0
zrem {a:a}:listing 0
""".strip().splitlines(),
    "run": """
del account:a
get {a:a}:deployment:b
hdel account:a suspended
hget token:0 account
hgetall {a:a}:compute
hgetall {a:a}:usage
hset account:a max_running 1000
hset account:a webhook_secret whsec_mine
hset contact run_id 0
hset token:0 account a
sadd accounts a
set secret:files mine
set {a:a}:file:0 mine
smembers accounts
xadd changes * kind 0
zadd suspensions 0 a
zadd tokens:a 0 0
zrange tokens:a 0 1
zrevrangebylex {a:a}:listing + -
""".strip().splitlines(),
}
# Which part calls which script: the table in docs/reference/internals/scripts.md, and what each reads
SCRIPTS: dict[Part, str] = {
    "api": """
allow amend arrive bind bound budget cancel configure delist demand depart deploy drop enlist enqueue erase get grant
hours lease_batch limit migrate note open_batch order pause redeliver replay reserve resize retain revive rotate
settle spend split stats stay story stow unregister vacate withdraw write_batch
""",
    "keeper": """
cancel contact count_split deliver demand due expire fold forward get hours pause promote reap reconcile recount recover
retire sample settle spend split stats stow
""",
    "run": """
advance amend claim deliver extend finish forward get hours order pause register release stow survey unregister weigh
withdraw
""",
}
SENT = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '(CREATE|DELCONSUMER|GROUPS|STREAM)')?")
REFUSED_KEDA = f"""
evalsha 0 0
flushall
get secret:files
hgetall account:a
info
llen {keys.bell(QUEUE)}
script load return(1)
type {keys.record(ID)}
zadd {LIVE} 1 a
zcard secret:files
zrange {LIVE} 0 -1
""".strip().splitlines()


@pytest.fixture
async def ours(guarded: RedisServer, admin: Any) -> AsyncIterator[Redis]:
    redis = client(guarded.url)
    yield redis
    await redis.aclose()


async def reply_to(redis: Any, line: str) -> str:
    """Return the reply to a command line, or the text of its refusal."""
    try:
        return str(await redis.execute_command(*line.split()))
    except exceptions.ResponseError as exc:
        return type(exc).__name__


async def not_refused(redis: Redis, lines: list[str]) -> list[str]:
    replies = [(line, await reply_to(redis, line)) for line in lines]
    return [f"{line}: {reply}" for line, reply in replies if reply != "NoPermissionError"]


def granted(user: str) -> set[str]:
    """Return the commands that a user's line grants, in the form in which they are sent."""
    [line] = [line for line in USERS.read_text().splitlines() if line.startswith(f"user {user} ")]
    return {word[1:].replace("|", " ") for word in line.split() if word.startswith("+")}


@pytest.mark.parametrize("user", ["director", *PARTS])
def test_our_users_have_only_the_requested_rights(user: str) -> None:
    containers = {"acl", "client", "cluster", "config", "script", "xgroup", "xinfo"}
    commands = NEEDED[user] if user in PARTS else ALL
    needed = {" ".join(command[:2]) if command[0] in containers else command[0] for command in commands}
    assert granted(user) == needed | set(ASKED)


@pytest.mark.parametrize("part", PARTS)
async def test_part_is_refused_what_only_others_need(guarded: RedisServer, admin: Any, part: Part) -> None:
    async with client(guarded.url_of(part)) as redis:
        assert await find_refused(redis, part) == []
        assert await find_refused(redis) == [], "its name tells which part it is"
    others = [command for command in ALL if command not in NEEDED[part]]
    allowed = [command for command in others if await admin.execute_command("ACL DRYRUN", part, *command) == b"OK"]
    assert allowed == []


@pytest.mark.parametrize("part", PARTS)
async def test_part_is_refused_everything_that_none_needs(guarded: RedisServer, admin: Any, part: Part) -> None:
    await admin.hset(f"{{p{partition_of_model('acme/echo')}}}:rec:a", "status", "starting")
    async with client(guarded.url_of(part)) as redis:
        assert await not_refused(redis, REFUSED_US + REFUSED[part]) == []


async def test_keeper_completes_a_suspension_with_its_own_rights(guarded: RedisServer, admin: Any) -> None:
    async with driving(guarded.admin_url) as driver:
        waits = await driver.submit()
        await Accounts(admin).create(ACCOUNT)
        operator = Services(client(guarded.url_of("api")))
        keeper = Services(client(guarded.url_of("keeper")))
        try:
            await operator.suspensions.suspend(ACCOUNT, "end", "abuse", within_s=0)
            await driver.scripts.enlist(waits, account=ACCOUNT, oldest=lowest_id_at(0))
            assert await keeper.suspensions.settle_all(within_s=5) == 1
            await admin.delete(keys.suspensions())  # as if the operator's command died before it wrote this
            assert await keeper.suspensions.settle_all(within_s=5) == 1
        finally:
            await operator.aclose()
            await keeper.aclose()
        assert (await driver.record(waits)).status == "canceled"
        assert await admin.exists(keys.suspensions())


def test_part_runs_only_scripts_whose_commands_it_may_send() -> None:
    """Look into the text of the scripts: a rare branch of one, that no test reaches, needs its rights too."""
    for part, scripts in SCRIPTS.items():
        for script in scripts.split():
            sent = {" ".join(found).strip().lower() for found in SENT.findall(link(script))}
            assert sent <= granted(part), script


def test_each_script_is_of_a_part_or_of_operators() -> None:
    of_parts = set(" ".join(SCRIPTS.values()).split())
    assert of_parts == {path.stem for path in LUA.glob("*.lua")}


def test_every_right_is_needed_by_our_code() -> None:
    scripts = "\n".join(path.read_text() for path in LUA.rglob("*.lua"))
    python = "\n".join(path.read_text() for room in ROOMS for path in (HOUSE / room).rglob("*.py"))
    by_the_client = {"client setname": "client_name", "multi": "transaction=True", "exec": "transaction=True"}
    by_the_client |= {
        "info": ".info",
        "script load": "script_load",
        "del": ".delete(",
        "publish": "'PUBLISH'",
        "hscan": "redis.hscan",
    }

    def is_used(right: str) -> bool:
        name, _, rest = right.partition(" ")
        spelled = (by_the_client.get(right, f".{name}(") if not rest or right in by_the_client else f"{name}_{rest}",)
        in_lua = f"'{name.upper()}', '{rest.upper()}'" if rest else f"'{name.upper()}'"
        return any(each in python for each in (*spelled, right.upper(), f'("{name}"')) or in_lua in scripts

    assert [right for right in sorted(granted("director")) if not is_used(right)] == []


async def test_our_keys_are_open_to_our_user_only(admin: Any) -> None:
    def spelled(name: str) -> str:
        function = getattr(keys, name)
        given = {each: SAMPLES[each] for each in inspect.signature(function).parameters if each in SAMPLES}
        return str(function(**given))

    async def may(user: str, *command: str) -> bool:
        return bool(await admin.execute_command("ACL DRYRUN", user, *command) == b"OK")

    functions = inspect.getmembers(keys, inspect.isfunction)
    own = [name for name, function in functions if function.__module__ == keys.__name__ and not name.startswith("_")]
    for name in own:
        if name in ("queue_partition", "tag"):
            continue
        command = ("publish", spelled(name), "1") if name.endswith("channel") else ("get", spelled(name))
        assert await may("director", *command), name
        assert await may("keda", "type", spelled(name)) == (name == "live"), name


async def test_our_user_is_refused_everything_else(ours: Redis, admin: Any) -> None:
    await admin.hset(f"{{p{partition_of_model('acme/echo')}}}:rec:a", "status", "starting")
    assert await not_refused(ours, REFUSED_US) == []
    refusal = await admin.execute_command("ACL DRYRUN", "director", "debug", "sleep", "0")
    assert b"no permissions" in refusal, "servers refuse DEBUG for another reason first"


async def test_script_has_only_the_rights_of_its_caller(ours: Redis, admin: Any) -> None:
    await admin.set("stranger", "1")
    for body in ("return redis.call('FLUSHALL')", "return redis.call('GET', 'stranger')"):
        sha = await ours.script_load(body)
        with pytest.raises(exceptions.ResponseError, match=IN_A_SCRIPT):
            await ours.evalsha(sha, 0)
    assert await admin.get("stranger") == b"1"


async def test_kedas_user_can_only_count_the_live_entries_of_a_queue(guarded: RedisServer, admin: Any) -> None:
    await admin.zadd(LIVE, {"a": 1, "b": 2})
    async with Redis.from_url(guarded.url_of("keda"), protocol=2) as keda:
        assert await keda.ping()
        assert await keda.eval(OF_KEDA, 1, LIVE) == 2
        assert await keda.eval(OF_KEDA, 1, ELSEWHERE) == 0, "a queue in which nothing lives has no key"
        assert await not_refused(keda, REFUSED_KEDA) == []
        for body in ("redis.call('FLUSHALL')", "redis.call('ZADD', KEYS[1], 1, 'x')", "redis.call('GET', 'x')"):
            with pytest.raises(exceptions.ResponseError, match=IN_A_SCRIPT):
                await keda.eval(body, 1, LIVE)


@pytest.mark.faults
async def test_user_of_backups_copies_everything_and_reads_and_changes_nothing(
    guarded: RedisServer, admin: Any, tmp_path: Path
) -> None:
    cli = shutil.which("valkey-cli") or shutil.which("redis-cli")
    if cli is None:
        pytest.skip("neither valkey-cli nor redis-cli in PATH: nothing here makes a backup")
    async with Redis.from_url(guarded.url_of("backup"), protocol=2) as backup:
        assert await backup.ping()
        assert (
            await not_refused(backup, ["info", "get secret:files", "config get *", "keys *", "subscribe x", "save"])
            == []
        )
    await admin.set("contact", "1")
    copy = tmp_path / "copy.rdb"
    line = [
        cli,
        "-s",
        str(guarded.socket),
        "--user",
        "backup",
        "--pass",
        "backup",
        "--no-auth-warning",
        "--rdb",
        str(copy),
    ]
    await anyio.run_process(line)
    assert copy.read_bytes().count(b"contact") == 1


async def test_probe_is_answered_but_reads_nothing(guarded: RedisServer) -> None:
    async with Redis.from_url(guarded.url_of("probe"), protocol=2) as probe:
        assert await probe.ping()
        assert await not_refused(probe, ["info", "get secret:files", "config get *", "subscribe x"]) == []
    with pytest.raises(exceptions.ConnectionError, match="Authentication required"):
        async with Redis.from_url(f"unix://{guarded.socket}", protocol=2) as unknown_user:
            await unknown_user.ping()


@pytest.mark.parametrize(
    ("taken", "names"),
    [
        ("-xautoclaim", "'xautoclaim'"),
        ("-xgroup|create", "'xgroup|create'"),
        ("resetkeys", "'{p0}:q:a/b:0:bell'"),
        ("resetchannels", "'{p0}:ch:0'"),
    ],
)
async def test_missing_right_is_named(ours: Redis, admin: Any, taken: str, names: str) -> None:
    part: Part = "keeper" if names == "'xautoclaim'" else "run"
    await check_rights(ours, part)
    await admin.execute_command("ACL SETUSER", "director", taken)
    with pytest.raises(UnsafeBackend, match="lacks rights that are needed") as caught:
        await check_rights(ours, part)
    assert names in str(caught.value)


async def test_rights_are_unknown_where_they_may_not_be_queried(ours: Redis, admin: Any) -> None:
    await admin.execute_command("ACL SETUSER", "director", "-acl|dryrun")
    assert await find_refused(ours) is None
    await check_rights(ours, "api")


async def test_server_of_the_pod_knows_passwords_only_by_their_hashes(tmp_path: Path) -> None:
    shipped, socket = tmp_path / "shipped", tmp_path / "s"
    shutil.copytree(USERS.parent, shipped)
    config = shipped / "redis.conf"
    config.write_text(config.read_text().replace("dir /data", f"dir {tmp_path}"))
    (tmp_path / "valkey-server").symlink_to(binary("valkey"))
    passwords = {"REDIS_PASSWORD": "new & $o/|", "REDIS_PASSWORD_FORMER": "old", "KEDA_PASSWORD": "k"}
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "DATA": str(tmp_path)}
    env = {**paths, "ADMIN_PASSWORD": "a", **passwords}
    here = ("--port", "0", "--unixsocket", str(socket), "--logfile", str(tmp_path / "log"))
    async with await anyio.open_process(["sh", str(shipped / "start.sh"), *here], env=env) as process:
        try:
            await eventually(socket.exists, "it listens")
            for user, password in (("director", "new & $o/|"), ("director", "old"), ("keda", "k"), ("admin", "a")):
                redis: Any = Redis(unix_socket_path=str(socket), username=user, password=password, protocol=2)
                async with redis:
                    assert await redis.ping()
            refused_one: Any = Redis(unix_socket_path=str(socket), username="director", password="", protocol=2)
            async with refused_one:
                with pytest.raises(exceptions.ConnectionError):
                    await refused_one.ping()
            users = (tmp_path / "users.acl").read_text()
            assert not [each for each in passwords.values() if f">{each}" in users or f" {each} " in users]
        finally:
            if process.returncode is None:
                process.terminate()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "command",
    [("api",), ("keeper",), ("doctor",), ("run", "--model", "acme/echo", "--server", "http://127.0.0.1:9")],
    ids=lambda command: command[0],
)
async def test_process_without_a_right_exits_and_names_it(
    guarded: RedisServer, admin: Any, command: tuple[str, ...]
) -> None:
    await admin.execute_command("ACL SETUSER", "director", "-hmget")
    env = dict(os.environ) | {"DIRECTOR_REDIS_URL": guarded.url, "DIRECTOR_PORT": "0"}
    ended = await anyio.run_process([sys.executable, "-m", "director", *command], env=env, check=False)
    assert ended.returncode == 1
    said = ended.stdout + ended.stderr
    assert b"'hmget'" in said
    assert b"Traceback" not in said


@pytest.mark.heavy
async def test_doctor_works_with_the_rights_of_our_user(guarded: RedisServer, admin: Any) -> None:
    line = [sys.executable, "-m", "director", "doctor", "--json", "--redis", guarded.url]
    found = json.loads((await anyio.run_process(line, check=False)).stdout)["checks"]
    told = {check["check"]: (check["verdict"], check["found"]) for check in found}
    assert told["rights"] == ("ok", "our user may do all that is needed")
    assert told["durability"] == ("ok", "always, and always is asked for")
    assert not [check for check, (_, said) in told.items() if "not known" in said]
