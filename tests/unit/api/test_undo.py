from contextlib import suppress
from functools import partial
from weakref import ref

import pytest

from api.web.errors import not_found
from director.core.errors import BackendFull, BackendUnavailable, QueueRefused
from director.store.undo import Undo
from tests.support.garbage import uncollected


def untouched(exc: BackendUnavailable) -> BackendUnavailable:
    exc.is_untouched = True
    return exc


async def reply_of(reply: Exception | str) -> str:
    if isinstance(reply, Exception):
        raise reply
    return reply


async def undone_after(*, reply: Exception | str = "", exc: Exception | None = None) -> list[str]:
    """Return what is undone where the queue replies so, or is not asked, and the block then raises `exc`."""
    done: list[str] = []

    async def later(name: str) -> None:
        done.append(name)

    with suppress(Exception):
        async with Undo() as around:
            around.push(partial(later, "first"))
            async with Undo(around) as undo:
                undo.push(partial(done.append, "second"))
                if reply:
                    await undo.enqueue(reply_of(reply))
            if exc is not None:
                raise exc
    return done


REFUSALS = [QueueRefused("queue_full"), untouched(BackendFull("full")), untouched(BackendUnavailable("away"))]


@pytest.mark.parametrize("reply", REFUSALS, ids=repr)
async def test_refusal_undoes_the_last_step_first(reply: Exception) -> None:
    assert await undone_after(reply=reply) == ["second", "first"]


@pytest.mark.parametrize("exc", [BackendUnavailable("away"), OSError(), not_found()], ids=repr)
async def test_any_failure_before_the_queue_is_asked_undoes(exc: Exception) -> None:
    done: list[str] = []

    async def fail(undo: Undo) -> None:
        undo.push(partial(done.append, "first"))
        raise exc

    with pytest.raises(type(exc)):
        async with Undo() as undo:
            await fail(undo)
    assert done == ["first"]


@pytest.mark.parametrize("reply", ["accepted", BackendUnavailable("away"), BackendFull("full"), OSError()], ids=repr)
async def test_what_may_be_accepted_is_not_undone(reply: Exception | str) -> None:
    assert await undone_after(reply=reply) == []


@pytest.mark.parametrize("exc", [not_found(), QueueRefused("queue_full"), untouched(BackendFull("full"))], ids=repr)
async def test_failure_after_acceptance_undoes_nothing(exc: Exception) -> None:
    assert await undone_after(reply="accepted", exc=exc) == []


@pytest.mark.parametrize("fails", [0, 1, 2])
async def test_failed_step_keeps_neither_the_others_nor_the_refusal(fails: int) -> None:
    done: list[int] = []

    async def step(number: int) -> None:
        if number == fails:
            raise BackendUnavailable("away")
        done.append(number)

    async def fail(undo: Undo) -> None:
        for number in range(3):
            undo.push(partial(step, number))
        await undo.enqueue(reply_of(QueueRefused("queue_full")))

    with pytest.raises(QueueRefused):
        async with Undo() as undo:
            await fail(undo)
    assert done == [number for number in (2, 1, 0) if number != fails]


async def test_failed_step_does_not_hide_a_repeat() -> None:
    async with Undo() as undo:
        undo.push(partial(reply_of, BackendUnavailable("away")))
        await undo.note_repeat()


async def test_repeat_undoes_each_step_once() -> None:
    done: list[str] = []
    async with Undo() as undo:
        undo.push(lambda: done.append("once"))
        await undo.note_repeat()
        await undo.note_repeat()
    assert done == ["once"]


async def test_undo_is_no_garbage_once_it_is_over() -> None:
    async def create() -> ref[Undo]:
        async with Undo() as undo:
            undo.push(lambda: undo)
        return ref(undo)

    with uncollected():
        known = await create()
        assert known() is None
