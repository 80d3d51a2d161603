"""Look at a server once, and judge it: one function per check, in one table. Each finding says how to repair it.

`fail`: work is lost, refused or stuck. `warn`: it will be, or an operator should know. What a managed server forbids
(such as CONFIG) stays empty, and the checks say so.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import asdict
from redis.asyncio import Redis

from director.broker.durability import LEAST_VERSIONS, MENDS, STRONGEST_FIRST, levels
from director.broker.inspection import Inspected, first_master, inspect
from director.broker.redis_client import describe, has_password
from director.broker.rights import MEND, find_refused, in_a_line
from director.core.clock import Clock
from director.core.data_bytes import Fullness
from director.core.settings import CommonSettings
from director.core.words import several, some, span
from director.operate import findings as service
from director.operate.findings import MOST, bytes_in_words, is_slow, memory_level, writes_to_disk
from director.operate.kinds import KINDS
from director.operate.overview import Overview
from director.store.services import Services


class Look(Inspected, frozen=True, kw_only=True):
    """A server and its service at one moment. `refused` is None if the server forbids the question."""

    address: str
    settings: CommonSettings
    refused: list[str] | None
    queues: int
    findings: Sequence[service.Finding]

    @property
    def kind(self) -> str:
        return "valkey" if "valkey_version" in self.info else "redis"

    @property
    def version(self) -> str:
        return str(self.info.get("valkey_version") or self.info["redis_version"])


async def look(redis: Redis, settings: CommonSettings, clock: Clock) -> Look:
    """Look at the server, or at one master of a Cluster. Raises BackendUnavailable if it does not answer."""
    one = await first_master(redis)
    services = Services(redis, clock)
    try:
        seen = await Overview.of(services).look()
    finally:
        await services.gatherer.aclose()
    return Look(
        **asdict(await inspect(one, clock)),
        address=describe(settings.redis_url),
        settings=settings,
        refused=await find_refused(one),
        queues=len(seen.queues) + seen.more_queues,
        findings=seen.findings,
    )


Line = tuple[int, int]


class Floor(Struct, frozen=True):
    """One vulnerability: the first line that has it, and for each line its fixing patch. Newer lines never had it."""

    cve: str
    what: str
    kind: str
    since: Line
    closed: Mapping[Line, int]

    def fix(self, line: Line, patch: int) -> str:
        """Return the release to upgrade to, or '' if this one is not affected."""
        if line < self.since or line > max(self.closed):
            return ""
        if patch >= self.closed.get(line, patch + 1):
            return ""
        # A line that never got the fix leads to the next line that did.
        target = min(found for found in self.closed if found >= line)
        return f"{target[0]}.{target[1]}.{self.closed[target]}"


OLDEST: Final = (0, 0)
FORGED: Final = "an error of a script can forge replies"
LUA: Final = "a script can run code in the server"
FLOORS: Final = (
    Floor("CVE-2025-49844", LUA, "redis", OLDEST, {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}),
    Floor("CVE-2025-49844", LUA, "valkey", OLDEST, {(7, 2): 11, (8, 0): 6, (8, 1): 4}),
    Floor("CVE-2022-31144", "XAUTOCLAIM overflows the heap", "redis", (7, 0), {(7, 0): 4}),
    Floor("CVE-2025-62507", "XACKDEL overflows the stack", "redis", (8, 2), {(8, 2): 3}),
    Floor("CVE-2025-67733", FORGED, "valkey", OLDEST, {(7, 2): 12, (8, 0): 7, (8, 1): 6, (9, 0): 2}),
)


def open_holes(kind: str, version: str) -> list[tuple[Floor, str]]:
    major, minor, patch = (*(int(part) for part in version.split(".")[:3] if part.isdecimal()), 0, 0, 0)[:3]
    fixes = [(floor, floor.fix((major, minor), patch)) for floor in FLOORS if floor.kind == kind]
    return [(floor, fix) for floor, fix in fixes if fix]


Verdict = Literal["ok", "warn", "fail"]

SKEW_S: Final = 1.0
CERTIFICATE_S: Final = 14 * 86_400.0
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "-::1", "localhost"})
UNKNOWN: Final = "not known: the server forbids CONFIG GET"
LONGEST_LIST: Final = 3
LONGEST_FIELD: Final = 256  # bytes; the metrics of a run take up to 142, and a webhook's address may be as long


class Finding(Struct, frozen=True, kw_only=True):
    check: str
    verdict: Verdict
    found: str
    fix: str = ""


Answer = tuple[Verdict, str, str]


def examine(look: Look) -> list[Finding]:
    findings = []
    for name, check in CHECKS.items():
        verdict, found, fix = check(look)
        findings.append(Finding(check=name, verdict=verdict, found=found, fix=fix))
    return findings


def has_failed(findings: list[Finding]) -> bool:
    return any(finding.verdict == "fail" for finding in findings)


def ok(found: str) -> Answer:
    return "ok", found, ""


def reachable(look: Look) -> Answer:
    return ok(f"{look.kind} {look.version} at {look.address}")


def version(look: Look) -> Answer:
    least = LEAST_VERSIONS[look.kind]
    if tuple(map(int, look.version.split(".")[:2])) < least:
        return "fail", f"{look.kind} {look.version} is too old", f"upgrade to {least[0]}.{least[1]} or newer"
    return ok(f"{look.version}, and {least[0]}.{least[1]} is needed")


def security(look: Look) -> Answer:
    holes = open_holes(look.kind, look.version)
    if not holes:
        return ok("no known hole")
    said = "; ".join(f"{floor.cve}: {floor.what}" for floor, _ in holes)
    target = max((fix for _, fix in holes), key=lambda fix: tuple(map(int, fix.split("."))))
    return "warn", said, f"upgrade {look.kind} to {target}, unless your distribution has patched this build itself"


def role(look: Look) -> Answer:
    if look.info["role"] != "master":
        host, port = look.info.get("master_host"), look.info.get("master_port")
        return "fail", "this is a replica: it refuses every write", f"name the master, {host}:{port}, or use Sentinels"
    return ok("master")


def durability(look: Look) -> Answer:
    wanted, assumed = look.settings.durability, look.settings.assume_durability
    if look.config is None and not assumed:
        return "fail", UNKNOWN, "name its level in DIRECTOR_ASSUME_DURABILITY"
    reached = {assumed, "memory"} if look.config is None else levels(look.config)
    level = next(word for word in STRONGEST_FIRST if word in reached)
    if wanted not in reached:
        return "fail", f"{level}, and {wanted} is asked for", f"{MENDS[wanted]}, or set DIRECTOR_DURABILITY={level}"
    return ok(f"{level}{' (assumed)' if look.config is None else ''}, and {wanted} is asked for")


def fsync(look: Look) -> Answer:
    if not writes_to_disk(look.info):
        kind = KINDS["redis_disk"]
        return "fail", f"{kind.title}: {kind.detail}", "look at the server's log: is its disk full?"
    if look.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        return "fail", "the log of writes could not be rewritten", "look at the server's log: is its disk full?"
    if look.config is None:
        return ok(UNKNOWN)
    policy, pauses = look.config.get("appendfsync"), look.config.get("no-appendfsync-on-rewrite") == "yes"
    if look.config.get("appendonly") != "yes":
        return ok("there is no log of writes")
    if policy == "no":
        return "fail", "appendfsync no: a power cut may lose any number of writes", "set `appendfsync always`"
    if policy != "always":
        return "warn", f"appendfsync {policy}: a power cut may cost the last 1–2 s", "set `appendfsync always`"
    if pauses:
        return "warn", "no fsync while the log is rewritten", "set `no-appendfsync-on-rewrite no`"
    return ok("appendfsync always")


def eviction(look: Look) -> Answer:
    policy = look.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return "fail", f"{policy}: it would drop whole queues when it is full", "set `maxmemory-policy noeviction`"
    return ok("noeviction")


def memory(look: Look) -> Answer:
    used, system = (int(look.info.get(name, 0)) for name in ("used_memory", "total_system_memory"))
    memory = Fullness.of([look.info])
    if not memory.limit:
        found = f"{bytes_in_words(used)} used, and maxmemory is not set"
        mend = f"set it below the machine's {bytes_in_words(system)}: without it the kernel may kill the server"
        return "warn", found, mend
    found = f"{bytes_in_words(used)} of {bytes_in_words(memory.limit)} used"
    level = memory_level(memory)
    if level is None:
        return ok(found)
    kind = KINDS["redis_full" if memory.part >= 1 else "redis_filling"]
    mend = "raise `maxmemory`, or shorten DIRECTOR_DATA_TTL_S"
    return "fail" if level == "bad" else "warn", f"{kind.title}: {found}", mend


def records(look: Look) -> Answer:
    if look.config is None:
        return ok(UNKNOWN)
    value = look.config.get("hash-max-listpack-value", str(LONGEST_FIELD))
    found = f"hash-max-listpack-value {value}"
    if int(value) < LONGEST_FIELD:
        found += ": a longer field makes its record take more than twice the memory"
        return "warn", found, f"set `hash-max-listpack-value {LONGEST_FIELD}` in the server's configuration"
    return ok(found)


def allocator(look: Look) -> Answer:
    name = look.info.get("mem_allocator", "not known")
    return ok("libc; jemalloc takes 10 to 20 % less time" if name == "libc" else name)


def latency(look: Look) -> Answer:
    answer, script = _spread(look.time_ms), _spread(look.script_ms)
    found = f"ms, median and p99: TIME {answer[0]:.2f} {answer[1]:.2f}, a script {script[0]:.2f} {script[1]:.2f}"
    if is_slow(max(answer[0], script[0])):
        return "warn", f"Redis is slow: {found}", "bring the server nearer, or see what else it does: `SLOWLOG GET`"
    return ok(found)


def clock(look: Look) -> Answer:
    found = f"{look.skew_s:+.2f} s from ours"
    if abs(look.skew_s) > SKEW_S:
        return "warn", found, "let NTP set the clocks of both machines: ids and listings go by ours, leases by its"
    if wrong := next((one for one in look.findings if one.code == "clock_off"), None):
        return "warn", f"{wrong.title}: {wrong.detail}", "let NTP set the clocks of these machines"
    return ok(found)


def certificate(look: Look) -> Answer:
    left_s = look.certificate_left_s
    if left_s is None:
        return ok("none: no TLS to Redis, or its certificate is not verified")
    found = f"Redis's certificate expires in {span(left_s)}"
    if left_s < CERTIFICATE_S:
        return (
            "warn",
            f"{found}: then no process can connect",
            "renew it, and let Redis load it: `CONFIG SET tls-cert-file`",
        )
    return ok(found)


def cluster(look: Look) -> Answer:
    if not look.cluster:
        return ok("not a cluster")
    assigned, state = int(look.cluster["cluster_slots_assigned"]), look.cluster["cluster_state"]
    if state != "ok" or assigned != int(look.cluster["cluster_slots_ok"]):
        return "fail", f"state {state}, {assigned} of 16384 slots assigned", "see `redis-cli --cluster check`"
    return ok(f"{assigned} slots")


def replicas(look: Look) -> Answer:
    least = int((look.config or {}).get("min-replicas-to-write", 0))
    count = int(look.info.get("connected_slaves", 0))
    good = int(look.info.get("min_slaves_good_slaves", count))
    if good < least:
        return "fail", f"{good} good replicas, and writes need {least}", "start the replicas, or see why they lag"
    return ok(f"{count} connected, writes wait for none" if not least else f"{good} good, and writes need {least}")


def password(look: Look) -> Answer:
    if look.config is None:
        url = urlsplit(look.settings.redis_url)
        if has_password(look.settings.redis_url) or url.scheme == "unix" or url.hostname in LOOPBACK:
            return ok("required, or no other machine reaches it")
        return "warn", "the URL has no password, and the server is on the network", "let the server require one"
    if look.config.get("requirepass") or has_password(look.settings.redis_url):
        return ok("required")
    beyond = sorted(set(look.config.get("bind", "*").split() or ["*"]) - LOOPBACK)
    listens = any(look.config.get(name, "0") != "0" for name in ("port", "tls-port"))
    if not listens or not beyond or look.config.get("protected-mode") == "yes":
        return ok("not required, and no other machine reaches it")
    return (
        "fail",
        f"it listens on {' '.join(beyond)} and requires no password",
        "set `requirepass`, or `bind 127.0.0.1`",
    )


def rights(look: Look) -> Answer:
    if look.refused is None:
        return ok("not known: the server forbids ACL DRYRUN")
    if look.refused:
        return "fail", in_a_line(look.refused), MEND
    return ok("our user may do all that is needed")


def of(name: str, fine: str) -> Callable[[Look], Answer]:
    """Return the check that shows all findings of one line of the doctor."""

    def check(look: Look) -> Answer:
        found = [finding for finding in look.findings if KINDS[finding.code].check == name]
        if not found:
            return ok(fine.format(queues=several(look.queues, "queue")))
        verdict: Verdict = "fail" if any(finding.level == "bad" for finding in found) else "warn"
        asks = dict.fromkeys(f"{_commands(finding)} (who acts: {finding.who})" for finding in found)
        named = sum(min(count, LONGEST_LIST) for count in Counter(finding.code for finding in found).values())
        words = [_in_words(one) for one in found]
        more = f"{len(found) - named}{' or' if len(look.findings) == MOST else ''} more"
        return (
            verdict,
            " ".join(words[:named]) + (f" And {more}." if len(found) > named else ""),
            some(list(asks)),
        )

    return check


def _commands(one: service.Finding) -> str:
    return " or ".join(f"`{command}`" for command in one.commands)


def _in_words(one: service.Finding) -> str:
    log = f" Its log ends with: {' | '.join(one.log.splitlines())}" if one.log else ""
    return f"{one.title}{f' ({one.queue})' if one.queue else ''}: {one.detail}{log}"


FINE: Final = {
    "directors": "{queues}, none waits without a director",
    "servers": "no director reports an unwell one",
    "queues": "none with work is paused, no breaker is open, objectives are met",
    "runs": "none hangs, few fail",
    "accounts": "none floods a queue or holds most of the data",
    "dead letters": "none",
    "webhooks": "none overdue",
    "keeper": "nothing waits for one",
    "files": "no process reports that its store of files does not work",
}
CHECKS: Final[dict[str, Callable[[Look], Answer]]] = {
    **{check.__name__: check for check in (reachable, version, security, role, durability, fsync, eviction, memory)},
    **{check.__name__: check for check in (records, allocator, latency, clock, certificate)},
    **{check.__name__: check for check in (cluster, replicas, password, rights)},
    **{name: of(name, fine) for name, fine in FINE.items()},
}


def _spread(times_ms: list[float]) -> tuple[float, float]:
    return median(times_ms), quantiles(times_ms, n=100, method="inclusive")[-1]
