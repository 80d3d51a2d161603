from tests.bench.slopes import growth

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
