from functools import partial
from weakref import ref

import pytest

from api.predictions.intake import Undo
from api.web.errors import not_found
from director.core.errors import BackendFull, BackendUnavailable, QueueRefused
from tests.support.garbage import uncollected


def full(*, is_untouched: bool) -> BackendFull:
    exc = BackendFull("full")
    exc.is_untouched = is_untouched
    return exc


async def undone_after(exc: Exception | None) -> list[str]:
    done: list[str] = []

    async def later(name: str) -> None:
        done.append(name)

    try:
        async with Undo() as undo:
            undo.push(partial(later, "first"))
            undo.push(partial(done.append, "second"))
            if exc is not None:
                raise exc
    except type(exc or AssertionError):
        pass
    return done


@pytest.mark.parametrize("exc", [QueueRefused("queue_full"), not_found(), full(is_untouched=True)], ids=repr)
async def test_refusal_undoes_the_last_step_first(exc: Exception) -> None:
    assert await undone_after(exc) == ["second", "first"]


@pytest.mark.parametrize("exc", [None, BackendUnavailable("away"), full(is_untouched=False), OSError()], ids=repr)
async def test_what_may_be_accepted_is_not_undone(exc: Exception | None) -> None:
    assert await undone_after(exc) == []


async def test_repeat_undoes_each_step_once() -> None:
    done: list[bool] = []
    async with Undo() as undo:
        undo.push(lambda: done.append(undo.is_repeat))
        await undo.note_repeat()
        await undo.note_repeat()
    assert done == [True]


async def test_undo_is_no_garbage_once_it_is_over() -> None:
    async def create() -> ref[Undo]:
        async with Undo() as undo:
            undo.push(lambda: undo.is_repeat)
        return ref(undo)

    with uncollected():
        known = await create()
        assert known() is None
