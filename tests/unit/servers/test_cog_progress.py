import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from director.servers.runners.cog_follow import Progress
from director.servers.runners.runner import Logged, Produced


def tell(progress: Progress, items: object = None, logs: str | None = None) -> list[Logged | Produced]:
    return list(progress.news(output=None if items is None else Raw(msgspec.json.encode(items)), logs=logs))


@given(order=st.permutations(range(8)))
def test_snapshots_in_any_order_report_everything_once_in_order(order: list[int]) -> None:
    progress = Progress(is_array=True)
    told = [event for n in order for event in tell(progress, list(range(n)), "x" * n)]
    assert [(e.index, bytes(e.item)) for e in told if isinstance(e, Produced)] == [(n, b"%d" % n) for n in range(7)]
    assert "".join(e.text for e in told if isinstance(e, Logged)) == "x" * 7


def test_list_in_callbacks_of_a_scalar_model_is_not_output() -> None:
    assert tell(Progress(is_array=False), ["ok"], "hi") == [Logged("hi")]


def test_output_that_is_not_an_array_does_not_crash() -> None:
    assert tell(Progress(is_array=True), "ok") == []
