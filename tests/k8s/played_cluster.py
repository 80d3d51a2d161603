"""Play the members of the overlay `ha` as pods on one machine: each has a network namespace, an address that goes with
it, and the kubelet's own line in `/etc/hosts`. A router between them has what kube-proxy keeps: an address for each
Service, which leads to the pod that is there now, and a resolver. Scripts, servers, Sentinels and probes are the real
ones. Needs root.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.k8s.test_redis_pods import SECRETS
from tests.support.eventually import wait_until
from tests.support.manifests import K8S, ROOT
from tests.support.servers import binary

DOMAIN: Final = "director.svc.cluster.local"
RESOLVER: Final = "10.96.0.10"
GATEWAY: Final = "169.254.1.1"
NAMES: Final = ("redis-0", "redis-1", "redis-2")
# Seconds on a cluster from the end of a pod to the first command of the next one, and until its Service leads to it
START_S: Final = 1.5
ENDPOINT_S: Final = 1.0
GRACE_S: Final = 120.0
SOURCES: Final = ("base/redis", "components/sentinel")
URL: Final = f"redis+sentinel://api:api@{','.join(NAMES)}/director?sentinel_password=sentinel"

# Stand in for `valkey-cli`: take a command from the arguments or from each line of the input, and print the answer
CLI: Final = f"""#!{sys.executable} -SI
import os, socket, sys
words = [word for word in sys.argv[1:] if word != "--no-auth-warning"]
at = {{}}
while words and words[0].startswith("-"):
    name, value, *words = words
    at[name] = value
password = at.get("--pass", at.get("-a", os.environ.get("REDISCLI_AUTH")))
lines = [["auth", *([at["--user"]] if "--user" in at else []), password]] if password else []
lines += [words] if words else [line.split() for line in sys.stdin]
def command(line):
    return b"*%d\\r\\n" % len(line) + b"".join(b"$%d\\r\\n%s\\r\\n" % (len(word), word.encode()) for word in line)
def said(answers):
    kind, rest = (line := answers.readline().rstrip())[:1], line[1:]
    if kind == b"*":
        return [one for _ in range(int(rest)) for one in said(answers)]
    return [(answers.read(int(rest) + 2)[:-2] if rest != b"-1" else b"") if kind == b"$" else rest]
where = at.get("-h", os.environ.get("POD_HOST", "127.0.0.1")), int(at.get("-p", os.environ.get("POD_PORT", "6379")))
with socket.create_connection(where, 2) as server, server.makefile("rb") as answers:
    for line in lines:
        server.sendall(command(line))
        found = said(answers)
        if line[0] != "auth":
            print(*(one.decode() for one in found), sep="\\n")
"""
RESOLVE: Final = """
import asyncio, sys
from tests.support.name_server import NameServer
async def main():
    names = dict(pair.split("=") for pair in sys.argv[2:])
    given = {name: [address] for name, address in names.items()}
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: NameServer(given), local_addr=(sys.argv[1], 53))
    await asyncio.Event().wait()
asyncio.run(main())
"""
RULES: Final = """
table ip kube {
    map services { type ipv4_addr : ipv4_addr; }
    set itself { type ipv4_addr . ipv4_addr; }
    set cut { type ipv4_addr; }
    chain arrives { type nat hook prerouting priority dstnat; dnat to ip daddr map @services; }
    chain leaves { type nat hook postrouting priority srcnat; ip saddr . ip daddr @itself masquerade; }
    chain passes { type filter hook forward priority 0; ip saddr @cut drop; ip daddr @cut drop; }
    chain asked { type filter hook input priority 0; }
}
"""


def run(*command: str | Path, stdin: str | None = None) -> str:
    return subprocess.run(command, input=stdin, check=True, timeout=30, capture_output=True, text=True).stdout


def service(name: str) -> str:
    return f"10.96.0.2{NAMES.index(name)}"


class Network:
    """A network namespace that ends with this process, and what runs in it."""

    def __init__(self, name: str) -> None:
        command = ["unshare", "-n", "-u", "--", "sh", "-c", "hostname $0; echo; exec sleep infinity", name]
        self._holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        with self._holder.stdout as said:
            if not said.readline():
                self._holder.wait()
                pytest.skip("network namespaces need root")
        self.pid = self._holder.pid
        self.run("ip", "link", "set", "lo", "up")

    def inside(self, *command: str | Path) -> list[str | Path]:
        return ["setpriv", "--pdeathsig", "KILL", "nsenter", "-t", str(self.pid), "-n", "-u", "--", *command]

    def run(self, *command: str | Path, stdin: str | None = None) -> str:
        return run(*self.inside(*command), stdin=stdin)

    def end(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Container:
    """A command whose first process has the number 1, with the files of its pod in `/etc`."""

    def __init__(self, pod: "Pod", name: str, command: Sequence[str | Path], env: dict[str, str], log: Path) -> None:
        binds = [f"mount --bind {pod.folder}/{file} /etc/{file}" for file in ("hosts", "resolv.conf")]
        script = "; ".join(["set -e", *binds, 'exec "$@"'])
        outer = pod.network.inside("unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child", "--")
        self.name = name
        self._env = env
        self._begun: list[subprocess.Popen[bytes]] = []
        with log.open("a") as out:
            out.write(f"--- {pod.name} {pod.address} {name}\n")
            out.flush()
            command = [*outer, "sh", "-c", script, "sh", *command]
            self._outer = subprocess.Popen(
                command, env=env, cwd=env["DATA"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    @property
    def first(self) -> int | None:
        """The number of its first process on this machine."""
        with suppress(OSError):
            found = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
            return int(found[0]) if found else None
        return None

    @property
    def has_ended(self) -> bool:
        return self._outer.poll() is not None

    def begin(self, *command: str) -> "subprocess.Popen[bytes] | None":
        """Start a command in it, as the kubelet does for probes and hooks. It ends with the container."""
        if (first := self.first) is None:
            return None
        entered = ["nsenter", "-t", str(first), "-m", "-n", "-u", "-p", "--", *command]
        process = subprocess.Popen(entered, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._begun = [*(each for each in self._begun if each.poll() is None), process]
        return process

    def signal(self, number: signal.Signals) -> None:
        if (first := self.first) is not None:
            with suppress(ProcessLookupError):
                os.kill(first, number)

    def wait(self) -> None:
        self._outer.wait(30)
        for process in self._begun:
            process.kill()
            process.wait()


class Probe:
    """A probe of a container, asked every period as the kubelet does. `is_good` after its first good answer."""

    def __init__(self, container: Container, terms: Any, command: Sequence[str]) -> None:
        self._container = container
        self._command = command
        self._period_s = terms.get("periodSeconds", 10)
        self._timeout_s = terms.get("timeoutSeconds", 1)
        self._next_at = 0.0
        self._asking: subprocess.Popen[bytes] | None = None
        self._asked_at = 0.0
        self.is_good = False

    def look(self) -> bool:
        now = time.monotonic()
        if self._asking is not None:
            if self._asking.poll() is not None:
                self.is_good = self._asking.returncode == 0
                self._asking = None
            elif now - self._asked_at > self._timeout_s:
                self._asking.kill()
                self._asking.wait()
                self._asking, self.is_good = None, False
        elif now >= self._next_at:
            self._next_at, self._asked_at = now + self._period_s, now
            self._asking = self._container.begin(*self._command)
        return self.is_good


class Pod:
    """One pod of a member, from its start to its end. The disk is the member's and outlives it."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.name = name
        self.address = cluster.next_address()
        self.folder = cluster.folder / self.address
        self.network = Network(name)
        self.containers: list[Container] = []
        self._cluster = cluster
        self._probes: list[list[Probe]] = []
        (self.folder / "tmp").mkdir(parents=True)
        line = f"{self.address}\t{name}.redis-nodes.{DOMAIN}\t{name}\n" if name in NAMES else ""
        (self.folder / "hosts").write_text(f"127.0.0.1\tlocalhost\n{line}")
        searched = " ".join(DOMAIN.split(".", level)[level] for level in range(3))
        (self.folder / "resolv.conf").write_text(f"nameserver {RESOLVER}\nsearch {searched}\noptions ndots:5\n")
        cluster.connect(self)

    def start(self) -> None:
        """Start the containers of a member, with the commands, environment and probes of its manifest."""
        env = {**SECRETS, "PATH": f"{self._cluster.bin}:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": f"{self.folder}/tmp"}
        env |= {"DATA": str(self._cluster.disk(self.name))}
        self._env = env
        for terms in self._cluster.containers:
            container = self._container(terms)
            self.containers.append(container)
            probes = [terms[kind] for kind in ("startupProbe", "readinessProbe")]
            self._probes.append([Probe(container, probe, self._cluster.command(probe.get("exec"))) for probe in probes])

    def _container(self, terms: Any) -> Container:
        env = self._env | ({"REDISCLI_AUTH": SECRETS["SENTINEL_PASSWORD"]} if terms["name"] == "sentinel" else {})
        log = self._cluster.folder / f"{self.name}.log"
        return Container(self, terms["name"], self._cluster.command(terms), env, log)

    def crash(self, name: str) -> None:
        """Kill one container: the others and the address stay."""
        [container] = [each for each in self.containers if each.name == name]
        container.signal(signal.SIGKILL)
        container.wait()

    def start_again(self, name: str) -> None:
        for number, terms in enumerate(self._cluster.containers):
            if terms["name"] == name:
                self.containers[number] = self._container(terms)

    def is_ready(self) -> bool:
        """Look at each container's probes: the second kind is asked after the first was good."""
        looks = [
            all(probe.look() for probe in probes) for probes in self._probes
        ]  # each is asked, also after a bad one
        return all(looks)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End it as the kubelet does: hooks first, then SIGTERM, then SIGKILL."""
        for _ in self.stopping(grace_s):
            time.sleep(0.05)  # between two looks

    def stopping(self, grace_s: float = GRACE_S) -> Iterator[None]:
        until = time.monotonic() + grace_s
        hooks = {}
        for container, terms in zip(self.containers, self._cluster.containers, strict=True):
            hook = terms.get("lifecycle", {}).get("preStop")
            hooks[container] = container.begin(*self._cluster.command(hook["exec"])) if hook else None
        asked: set[Container] = set()
        while not all(container.has_ended for container in self.containers):
            for container, hook in hooks.items():
                if container not in asked and (hook is None or hook.poll() is not None):
                    asked.add(container)
                    container.signal(signal.SIGTERM)
            if time.monotonic() > until:
                break
            yield
        self.kill()

    def kill(self) -> None:
        """End its processes at once, and its address with them."""
        for container in self.containers:
            container.signal(signal.SIGKILL)
        for container in self.containers:
            container.wait()
        self.containers, self._probes = [], []
        self._cluster.disconnect(self)
        self.network.end()

    def ask(self, *command: str) -> list[str]:
        """Return the lines of the answer of its server. Empty if it does not answer."""
        return self._ask("--user", "admin", "--pass", SECRETS["ADMIN_PASSWORD"], *command)

    def ask_sentinel(self, *command: str) -> list[str]:
        return self._ask("-p", "26379", "-a", SECRETS["SENTINEL_PASSWORD"], *command)

    def _ask(self, *arguments: str) -> list[str]:
        words = [*self.network.inside("timeout", "3", self._cluster.bin / "valkey-cli"), *arguments]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=20).stdout.splitlines()


class Cluster:
    """Three members with their disks and Services, and the router between them."""

    def __init__(self, folder: Path, sources: Path = K8S) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.etc = folder / "etc-redis"
        self.pods: dict[str, Pod] = {}
        self._count = 0
        self._leads: dict[str, Pod | None] = {}
        self._resolver: subprocess.Popen[bytes] | None = None
        self.containers = containers(sources)
        self.bin.mkdir(parents=True)
        self.change_sources(sources)
        for name in ("valkey-server", "valkey-sentinel"):
            (self.bin / name).symlink_to(binary("valkey"))
        (self.bin / "valkey-cli").write_text(CLI)
        (self.bin / "valkey-cli").chmod(0o755)
        self.router = Network("router")
        self._start_router()

    def change_sources(self, sources: Path) -> None:
        """Let pods that start from now on have these scripts and settings."""
        self.containers = containers(sources)
        self.etc = self.folder / f"etc-redis-{self._count}"
        self.etc.mkdir()
        for part in SOURCES:
            for source in (sources / part).iterdir():
                if source.suffix in (".sh", ".acl", ".conf"):
                    (self.etc / source.name).write_text(source.read_text().replace("\ndir /data\n", "\ndir .\n"))

    def command(self, terms: Any) -> list[str]:
        """Return a command of the manifest with our folder of scripts, or one that opens a Sentinel's port."""
        if terms is None:
            return ["valkey-cli", "-p", "26379", "ping"]
        return [part.replace("/etc/redis", str(self.etc)) for part in terms["command"]]

    def _start_router(self) -> None:
        # the machine's own settings are not touched: a namespace has its own
        self.router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.router.run("nft", "-f", "-", stdin=RULES)
        self.router.run("ip", "address", "add", f"{RESOLVER}/32", "dev", "lo")
        self.router.run("ip", "route", "add", "unreachable", "10.96.0.0/16")  # a Service without a pod
        self.router.run("ip", "route", "add", "blackhole", "10.244.0.0/16")  # a pod that is gone
        names = [f"{name}.{DOMAIN}={service(name)}" for name in NAMES]
        resolve = self.router.inside(sys.executable, "-c", RESOLVE, RESOLVER, *names)
        self._resolver = subprocess.Popen(resolve, cwd=ROOT)

    def next_address(self) -> str:
        self._count += 1
        return f"10.244.{self._count // 250}.{self._count % 250 + 1}"

    def disk(self, name: str) -> Path:
        path = self.folder / f"disk-{name}"
        path.mkdir(exist_ok=True)
        return path

    def connect(self, pod: Pod) -> None:
        """Give a pod its address. All it sends goes through the router."""
        link = f"v{pod.address.replace('.', '')}"
        run(
            *("ip", "link", "add", link, "netns", str(self.router.pid), "type", "veth"),
            *("peer", "name", "eth0", "netns", str(pod.network.pid)),
        )
        pod.network.run("ip", "address", "add", f"{pod.address}/32", "dev", "eth0")
        pod.network.run("ip", "link", "set", "eth0", "up")
        self.router.run("ip", "address", "add", f"{GATEWAY}/32", "dev", link)
        self.router.run("ip", "link", "set", link, "up")
        self.router.run("ip", "route", "add", pod.address, "dev", link)
        pod.network.run("ip", "route", "add", "default", "via", GATEWAY, "dev", "eth0", "onlink")
        self.router.run("nft", "add", "element", "ip", "kube", "itself", f"{{ {pod.address} . {pod.address} }}")

    def disconnect(self, pod: Pod) -> None:
        with suppress(subprocess.CalledProcessError):
            self.router.run("ip", "link", "del", f"v{pod.address.replace('.', '')}")

    def lead(self, name: str, pod: Pod | None) -> None:
        """Let the address of a Service lead to this pod, or nowhere. Connections that stand stay."""
        change = "flush map ip kube services\n"
        self._leads[name] = pod
        pairs = [f"{service(each)} : {at.address}" for each, at in self._leads.items() if at is not None]
        change += f"add element ip kube services {{ {', '.join(pairs)} }}\n" if pairs else ""
        self.router.run("nft", "-f", "-", stdin=change)

    def cut(self, *pods: Pod, resolvers: bool = False) -> None:
        """Drop every packet of these pods, and with `resolvers` every second question about a name."""
        for pod in pods:
            self.router.run("nft", "add", "element", "ip", "kube", "cut", f"{{ {pod.address} }}")
        if resolvers:
            rule = "add rule ip kube asked udp dport 53 udp sport & 1 == 1 drop"
            self.router.run("nft", "-f", "-", stdin=rule)

    def mend(self) -> None:
        self.router.run("nft", "-f", "-", stdin="flush set ip kube cut\nflush chain ip kube asked")

    def place(self, name: str) -> Pod:
        """Start a pod of this member, as the scheduler and the kubelet do."""
        pod = Pod(self, name)
        time.sleep(START_S)  # as long as a kubelet takes
        pod.start()
        self.pods[name] = pod
        return pod

    def start(self, *names: str) -> None:
        """Start these members at once, or all of them."""
        for name in names or NAMES:
            self.pods[name] = Pod(self, name)
        time.sleep(ENDPOINT_S)  # as long as an endpoint takes
        for name in names or NAMES:
            self.lead(name, None)
        time.sleep(START_S - ENDPOINT_S)  # as long as a kubelet takes
        for name in names or NAMES:
            self.pods[name].start()
        time.sleep(ENDPOINT_S)  # as long as an endpoint takes
        for name in names or NAMES:
            self.lead(name, self.pods[name])

    def restart(self, name: str, *, limit_s: float = 180) -> None:
        """Replace a member's pod, as a roll does: the next one begins after it ended, and has to get ready."""
        self.pods[name].stop()
        self.start(name)
        self.until(self.pods[name].is_ready, f"{name} is ready", limit_s)

    def roll(self) -> None:
        for name in reversed(NAMES):
            self.restart(name)

    def until(self, holds: Callable[[], bool], what: str, limit_s: float = 120) -> None:
        wait_until(holds, lambda: f"{what}\n{self.report()}", limit_s=limit_s, every_s=0.1)

    def master(self) -> str:
        """Return the only member that is a master, or nothing."""
        found = [name for name, pod in self.pods.items() if pod.ask("role")[:1] == ["master"]]
        return found[0] if len(found) == 1 else ""

    def serves(self) -> bool:
        """Return whether there is one master and two replicas have its data, whatever the Sentinels think."""
        roles = [pod.ask("role") for pod in self.pods.values()]
        return sorted((role + 4 * [""])[3] if role[:1] == ["slave"] else "".join(role[:1]) for role in roles) == [
            *2 * ["connected"],
            "master",
        ]

    def is_whole(self) -> bool:
        """Return whether there is one master, two replicas have its data, and all Sentinels know exactly these."""
        if not (name := self.master()):
            return False
        at = service(name)
        roles = [pod.ask("role") for each, pod in self.pods.items() if each != name]
        if any(role[:1] != ["slave"] or role[1] != at or role[3] != "connected" for role in roles):
            return False
        return all(self.knows(each) == (at, 2, 2) for each in NAMES)

    def knows(self, name: str) -> tuple[str, int, int]:
        """Return which master a member's Sentinel names, and how many replicas and other Sentinels it knows."""
        said = self.pods[name].ask_sentinel("sentinel", "master", "director")
        told = dict(zip(said[::2], said[1::2], strict=False))
        return (told.get("ip", ""), int(told.get("num-slaves", -1)), int(told.get("num-other-sentinels", -1)))

    def announced(self) -> set[str]:
        """Return every address of a member that any Sentinel or server has."""
        found: set[str] = set()
        for pod in self.pods.values():
            for kind in ("replicas", "sentinels"):
                said = pod.ask_sentinel("sentinel", kind, "director")
                found |= {after for before, after in pairwise(said) if before == "ip"}
            found |= set(pod.ask_sentinel("sentinel", "get-master-addr-by-name", "director")[:1])
        return found

    def report(self) -> str:
        lines = [f"{name} {pod.address} {pod.ask('role')[:4]} {self.knows(name)}" for name, pod in self.pods.items()]
        logs = [
            f"{name}.log: " + "".join((self.folder / f"{name}.log").read_text().splitlines(True)[-30:])
            for name in NAMES
        ]
        return "\n".join([*lines, *logs])

    def end(self) -> None:
        for pod in self.pods.values():
            pod.kill()
        if self._resolver is not None:
            self._resolver.kill()
            self._resolver.wait()
        self.router.end()


def containers(sources: Path) -> list[Any]:
    """Return the two containers of a member: command, hooks and probes."""
    base = next(
        each
        for each in yaml.safe_load_all((sources / "base/redis/redis.yaml").read_text())
        if each["kind"] == "StatefulSet"
    )
    patch = yaml.safe_load((sources / "components/sentinel/redis.yaml").read_text())
    [redis] = base["spec"]["template"]["spec"]["containers"]
    own, sentinel = patch["spec"]["template"]["spec"]["containers"]
    probe = redis["readinessProbe"] | own["readinessProbe"]
    return [redis | own | {"readinessProbe": probe}, sentinel]


@contextmanager
def cluster(folder: Path, sources: Path = K8S) -> Iterator[Cluster]:
    if shutil.which("nft") is None or os.geteuid():
        pytest.skip("pods with addresses of their own need root and nft")
    played = Cluster(folder, sources)
    try:
        yield played
    finally:
        played.end()
