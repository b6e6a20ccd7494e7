"""The end of tasks."""

import asyncio

from rollpacker.protocols.tasks import end_tasks


async def test_tasks_are_cancelled_at_once_and_have_ended_when_the_call_returns():
    told: list[str] = []

    async def lasting(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(f"{name} is cancelled")
            await asyncio.sleep(0)
            told.append(f"{name} has ended")

    tasks = [asyncio.create_task(lasting(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    await end_tasks(*tasks)
    assert told == ["first is cancelled", "second is cancelled", "first has ended", "second has ended"]
    assert all(task.cancelled() for task in tasks)


async def test_what_tasks_raise_stays_with_them():
    async def failing(*, at_once: bool) -> None:
        try:
            await asyncio.sleep(0 if at_once else 1e9)
        finally:
            raise OSError

    tasks = [asyncio.create_task(failing(at_once=at_once)) for at_once in (True, False)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await end_tasks(*tasks)
    assert [type(task.exception()) for task in tasks] == [OSError, OSError]


async def test_none_is_no_task():
    await end_tasks(None)
