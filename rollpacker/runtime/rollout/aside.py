"""Work that is carried out while the driver handles facts, such as calls to engines and to the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rollpacker.protocols.tasks import end_tasks


class Aside:
    """The tasks of that work.

    Args:
        on_error: Told of what one raised.
        on_end: Told when one has ended.
    """

    def __init__(self, *, on_error: Callable[[Exception], None], on_end: Callable[[], None] = lambda: None) -> None:
        self._on_error = on_error
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    @property
    def is_any(self) -> bool:
        """True while some is under way."""
        return bool(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Carry out work; gives its task, which may be cancelled."""
        task = asyncio.create_task(self._carry_out(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(task, work))
        return task

    def begin_in_turn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Carry out work when all that was begun so before has ended: engines leave their GPUs, or come back."""
        task = self.begin(self._in_turn(work), name)
        task.add_done_callback(lambda _: work.close())  # as in `_end`

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._turn:
            await work

    async def stop(self) -> None:
        """End what is under way."""
        await end_tasks(*self._tasks)

    async def _carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
            self._on_error(error)

    def _end(self, task: asyncio.Task[None], work: Coroutine[Any, Any, None]) -> None:
        work.close()  # else Python warns of it where the task was cancelled before it began
        self._tasks.discard(task)
        self._on_end()
