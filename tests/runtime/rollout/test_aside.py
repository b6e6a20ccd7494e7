"""Work beside the driver's facts ends when it is stopped, begun or not."""

import asyncio
import inspect

import pytest

from rollpacker.runtime.rollout.aside import Aside


@pytest.mark.parametrize("begin", [Aside.begin, Aside.begin_in_turn])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_work_that_is_stopped_is_over_whether_it_had_begun_or_not(begin, has_begun):
    errors = []
    aside = Aside(on_error=errors.append)
    works = [asyncio.Event().wait() for _ in range(2)]  # of two that take turns, the second has not begun
    for work in works:
        begin(aside, work, "work")
    if has_begun:
        await asyncio.sleep(0)
    await aside.stop()
    assert [inspect.getcoroutinestate(work) for work in works] == [inspect.CORO_CLOSED] * 2
    assert not aside.is_any
    assert errors == []
