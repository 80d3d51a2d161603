from tests.bench.slopes import growth
from tests.bench.soak import by_restart

SECONDS = [float(at) for at in range(0, 1_800, 15)]


def watched(values: list[float], *, floor: float = 2.0) -> bool:
    return growth("api, memory", "MB", SECONDS, values, floor=floor).is_flat


def test_what_swings_around_a_level_is_flat() -> None:
    assert watched([80 + (number % 7) for number in range(len(SECONDS))])


def test_a_slow_leak_under_noise_grows() -> None:
    assert not watched([80 + (number % 7) + at / 300 for number, at in enumerate(SECONDS)])


def test_little_that_grows_by_less_than_the_floor_is_flat() -> None:
    climbing = [20 + at / 1_800 for at in SECONDS]
    assert watched(climbing, floor=3.0)
    assert not watched(climbing, floor=0.5)


def test_a_restart_hides_no_growth_and_its_first_time_does_not_count() -> None:
    begins = [0.0, 600.0, 1_200.0]
    lives = [max(begin for begin in begins if begin <= at) for at in SECONDS]
    leaks = [50 + (at - life) / 100 for at, life in zip(SECONDS, lives, strict=True)]
    level = [min(60, 40 + (at - life) / 12) for at, life in zip(SECONDS, lives, strict=True)]
    assert not growth("api, memory", "MB", SECONDS, leaks, floor=2.0, begins=begins).is_flat
    assert growth("api, memory", "MB", SECONDS, level, floor=2.0, begins=begins, warm_s=240).is_flat
    assert not growth("api, memory", "MB", SECONDS, level, floor=2.0, begins=begins).is_flat


def test_a_dip_of_a_moment_is_no_growth() -> None:
    assert watched([20 if 100 < at < 160 else 86 for at in SECONDS])


def test_answers_are_sorted_by_the_last_restart_before_them() -> None:
    begun = [(100.0, "the start"), (160.0, "a restart of redis"), (220.0, "a restart of api")]
    others = {"503 with Retry-After": [160.0, 162.5, 219.0, 221.0], "202 starting": [110.0]}
    assert by_restart(others, begun) == {
        "503 with Retry-After after a restart of redis": [0.0, 2.5, 59.0],
        "503 with Retry-After after a restart of api": [1.0],
        "202 starting after the start": [10.0],
    }
