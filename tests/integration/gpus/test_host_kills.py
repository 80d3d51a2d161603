"""Test what is left when directors, guards and servers die, or when servers do not end as they should: nothing, or what
the next director adopts. Each test ends with all memory free.
"""

import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from director.gpus.host import LoadFailed
from director.local.launcher.processes import is_alive, mark
from tests.support.eventually import eventually
from tests.support.fake_device import FakeDevices, fake_devices
from tests.support.hosts import a_model, a_pool, hosted_by, owner, until_ready

pytestmark = pytest.mark.faults

GPU = {"gpu0": 8}
SOON_S = 0.5
STUCK_S = 10


@pytest.fixture
def devices() -> Generator[FakeDevices]:
    with fake_devices(gpu0=10) as made:
        yield made
        assert made.holdings() == [], "a server outlived its director"


async def until_allocated(devices: FakeDevices) -> int:
    """Return the process that took the memory."""
    return (await eventually(devices.holdings, "the model has memory"))[0].pid


def guard_of(pid: int) -> int:
    """Return the leader of the session of a server: its guard."""
    return os.getsid(pid)


@pytest.mark.parametrize(
    "habits",
    [
        {"deaf": True},
        {"forks": True},
        {"forks": True, "hides": True},
        {"deaf": True, "forks": True, "hides": True, "hangs": True},
    ],
    ids=["deaf", "forks", "hides", "all"],
)
async def test_memory_is_free_after_rest_whatever_the_server_does(
    tmp_path: Path, devices: FakeDevices, habits: dict[str, bool]
) -> None:
    bad = a_model(devices, "a/bad", memory=GPU, grace_s=0.2, **habits)
    pool = a_pool(tmp_path, devices, bad, a_model(devices, "a/b", memory=GPU))
    async with hosted_by(pool) as host:
        await host.load("a/bad", GPU)
        await until_allocated(devices)
        await host.rest("a/bad")
        await host.load("a/b", GPU)
        await until_ready(host.url("a/b"))


async def test_killed_guard_takes_its_server_along(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, forks=True, deaf=True))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        os.kill(guard_of(await until_allocated(devices)), signal.SIGKILL)
        await eventually(lambda: host.find_held("a/a").presence, "it is gone", until=lambda found: found == "absent")
        assert devices.holdings() == []


async def test_killed_server_frees_its_memory_and_says_how_it_ended(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, forks=True))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        os.kill(await until_allocated(devices), signal.SIGKILL)
        held = await eventually(
            lambda: host.find_held("a/a"), "it is gone", until=lambda held: held.presence == "absent"
        )
        assert held.ended.splitlines()[-1] == "the server ended: killed by SIGKILL"
        assert devices.holdings() == []


async def test_next_director_adopts_a_server_that_was_ready(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, forks=True))
    async with owner(pool) as first:
        assert await first.hear() == []
        await first.ask("load", "a/a", GPU)
        url = await first.ask("url", "a/a")
        await until_ready(url)
        await first.kill()
    async with hosted_by(pool) as second:
        assert list(await second.take_over()) == ["a/a"]
        assert (second.url("a/a"), second.find_held("a/a").presence) == (url, "running")
        await second.load("a/a", GPU)
        await until_ready(url)
        assert devices.loads == ["a/a"]
        await second.rest("a/a")
        assert devices.holdings() == []


@pytest.mark.parametrize("moment", ["loading", "unloading"])
async def test_next_director_sees_to_a_server_left_in_between(
    tmp_path: Path, devices: FakeDevices, moment: str
) -> None:
    slow = a_model(devices, "a/a", memory=GPU, load_s=60 if moment == "loading" else 0, deaf=True, grace_s=0.5)
    pool = a_pool(tmp_path, devices, slow, a_model(devices, "a/b", memory=GPU))
    async with owner(pool) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_allocated(devices)
        if moment == "unloading":
            await first.tell("rest", "a/a")
            await anyio.sleep(0.1)  # in the half second of grace
        await first.kill()
    async with hosted_by(pool) as second:
        adopted = await second.take_over()
        assert list(adopted) == (["a/a"] if moment == "loading" else [])
        await second.rest("a/a")
        await second.load("a/b", GPU)
        await until_ready(second.url("a/b"))


async def test_director_killed_as_it_starts_a_server_leaves_none(tmp_path: Path, devices: FakeDevices) -> None:
    """Whether it dies before or after its guard has its task, the next director can load at once."""
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU), a_model(devices, "a/b", memory=GPU))
    for moment in range(5):
        async with owner(pool) as first:
            await first.hear()
            await first.tell("load", "a/a", GPU)
            await anyio.sleep(0.01 * moment)  # each time a little later: the moments are what is tried
            await first.kill()
        async with hosted_by(pool) as second:
            await second.take_over()
            await second.rest("a/a")
            await second.load("a/b", GPU)
            await until_ready(second.url("a/b"))


async def test_server_of_a_changed_model_is_ended_before_anything_loads(tmp_path: Path, devices: FakeDevices) -> None:
    old = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, forks=True, hides=True))
    async with owner(old) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_ready(await first.ask("url", "a/a"))
        await first.kill()
    new = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, load_s=0.1))
    async with hosted_by(new) as second:
        assert await second.take_over() == {}
        assert devices.holdings() == []
        await second.load("a/a", GPU)
        await until_ready(second.url("a/a"))


async def test_server_that_no_signal_ends_holds_up_only_its_own_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of a broken GPU wait for its driver, perhaps until the next boot."""
    monkeypatch.setattr("director.gpus.host.LEFT_LIMIT_S", 0.1)
    with fake_devices(gpu0=10, gpu1=10) as devices:
        old = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU))
        async with owner(old) as first:
            await first.hear()
            await first.ask("load", "a/a", GPU)
            await until_ready(await first.ask("url", "a/a"))
            await first.kill()
        models = [a_model(devices, "a/a", memory=GPU, load_s=0.1, grace_s=0.1), a_model(devices, "a/b", memory=GPU)]
        new = a_pool(tmp_path, devices, *models, a_model(devices, "a/c", memory={"gpu1": 8}))
        has_ended = threading.Event()
        monkeypatch.setattr("director.gpus.host.end_family", lambda *_: has_ended.wait(STUCK_S))
        async with hosted_by(new) as second:
            left = await second.take_over()
            assert {name: (held.presence, held.place) for name, held in left.items()} == {"a/a": ("leaving", GPU)}
            await second.load("a/c", {"gpu1": 8})
            await until_ready(second.url("a/c"))
            with pytest.raises(LoadFailed, match=r"gpu0.*Others have memory there: a/a"):
                await second.load("a/b", GPU)
            has_ended.set()
            await second.rest("a/a")
            await second.load("a/b", GPU)
            await until_ready(second.url("a/b"))
        assert devices.holdings() == []


async def test_server_of_no_model_that_no_signal_ends_holds_up_only_its_own_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.host.LEFT_LIMIT_S", 0.1)
    with fake_devices(gpu0=10, gpu1=10) as devices:
        async with owner(a_pool(tmp_path, devices, a_model(devices, "a/removed", memory=GPU))) as first:
            await first.hear()
            await first.ask("load", "a/removed", GPU)
            await until_ready(await first.ask("url", "a/removed"))
            await first.kill()
        models = [a_model(devices, "a/b", memory=GPU), a_model(devices, "a/c", memory={"gpu1": 8})]
        has_ended = threading.Event()
        monkeypatch.setattr("director.gpus.host.end_family", lambda *_: has_ended.wait(STUCK_S))
        async with hosted_by(a_pool(tmp_path, devices, *models)) as second:
            assert await second.take_over() == {}
            await second.load("a/c", {"gpu1": 8})
            await until_ready(second.url("a/c"))
            with pytest.raises(LoadFailed, match=r"gpu0.*Others have memory there: a/removed"):
                await second.load("a/b", GPU)
            news = anyio.Event()
            second.on_news = news.set
            has_ended.set()
            await news.wait()
            await second.load("a/b", GPU)
            await until_ready(second.url("a/b"))
        assert devices.holdings() == []


async def test_servers_of_another_pool_on_these_devices_are_ended(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU))
    async with owner(pool) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_allocated(devices)
        await first.kill()
    async with hosted_by(a_pool(tmp_path, devices, *pool.hosted, name="other.toml")) as second:
        assert await second.take_over() == {}
        assert devices.holdings() == []


async def test_guard_and_director_killed_at_once_leave_nothing_to_the_next(
    tmp_path: Path, devices: FakeDevices
) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, forks=True))
    async with owner(pool) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_ready(await first.ask("url", "a/a"))
        guard = guard_of(await until_allocated(devices))
        await first.kill()
        os.kill(guard, signal.SIGKILL)
        await eventually(lambda: mark(guard) is None, "its guard is gone")
    assert devices.holdings() != []
    async with hosted_by(pool) as second:
        assert await second.take_over() == {}
        assert devices.holdings() == []


async def test_server_that_no_director_takes_over_is_ended(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, forks=True, deaf=True, grace_s=0.2))
    async with owner(pool, orphan_s=SOON_S) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_ready(await first.ask("url", "a/a"))
        await first.kill()
    await eventually(devices.holdings, "its guard ended it", until=lambda left: not left)


async def test_adopted_server_outlives_the_time_of_orphans(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU))
    async with owner(pool, orphan_s=1.5) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_ready(await first.ask("url", "a/a"))
        await first.kill()
    async with hosted_by(pool) as second:
        assert list(await second.take_over()) == ["a/a"]
        guard = mark(guard_of(await until_allocated(devices)))
        assert guard is not None
        await anyio.sleep(4)  # the guard looks each second
        assert is_alive(guard)


async def test_director_that_ends_in_order_ends_its_servers(tmp_path: Path, devices: FakeDevices) -> None:
    models = [a_model(devices, f"a/{n}", memory={"gpu0": 2}, forks=True, deaf=True, grace_s=0.3) for n in range(4)]
    async with owner(a_pool(tmp_path, devices, *models)) as first:
        await first.hear()
        for n in range(4):
            await first.ask("load", f"a/{n}", {"gpu0": 2})
            await until_ready(await first.ask("url", f"a/{n}"))
    assert devices.peak == {"gpu0": 8}
    assert devices.holdings() == []


async def test_sleeping_server_keeps_its_process_and_wakes(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(
        tmp_path, devices, a_model(devices, "a/a", memory=GPU, sleeps=True), a_model(devices, "a/b", memory=GPU)
    )
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        first = await until_allocated(devices)
        await host.rest("a/a")
        assert (devices.holdings(), host.find_held("a/a").presence, host.find_held("a/a").place) == ([], "asleep", {})
        await host.load("a/b", GPU)
        await until_ready(host.url("a/b"))
        await host.rest("a/b")
        await host.load("a/a", GPU)
        assert [one.pid for one in devices.holdings()] == [first]


async def test_server_that_refuses_to_sleep_is_ended(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, sleeps=True, refuses_sleep=True))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        await host.rest("a/a")
        assert (devices.holdings(), host.find_held("a/a").presence) == ([], "absent")


async def test_server_whose_answer_to_sleep_never_ends_is_ended(
    tmp_path: Path, devices: FakeDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.host.CALL_LIMIT_S", 1.0)
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, sleeps=True, drips=True))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        with anyio.fail_after(30):
            await host.rest("a/a")
        assert (devices.holdings(), host.find_held("a/a").presence) == ([], "absent")


async def test_server_that_does_not_wake_is_ended_and_loaded_again(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, sleeps=True, refuses_wake=True))
    async with hosted_by(pool) as host:
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))
        await host.rest("a/a")
        with pytest.raises(LoadFailed, match="could not be woken"):
            await host.load("a/a", GPU)
        assert host.find_held("a/a").presence == "absent"
        await host.load("a/a", GPU)
        await until_ready(host.url("a/a"))


async def test_sleeping_server_is_adopted_as_it_sleeps(tmp_path: Path, devices: FakeDevices) -> None:
    pool = a_pool(tmp_path, devices, a_model(devices, "a/a", memory=GPU, sleeps=True))
    async with owner(pool) as first:
        await first.hear()
        await first.ask("load", "a/a", GPU)
        await until_ready(await first.ask("url", "a/a"))
        await first.ask("rest", "a/a")
        await first.kill()
    async with hosted_by(pool) as second:
        assert [held.presence for held in (await second.take_over()).values()] == ["asleep"]
        await second.load("a/a", GPU)
        assert devices.loads == ["a/a", "a/a"]
