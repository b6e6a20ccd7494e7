"""A process that is stopped and goes on, as by Ctrl-Z."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rollpacker.runtime.waiting.watchdog import Watchdog

LATE_S = 2.0
"""A busy event loop is as late as that."""


@asynccontextmanager
async def stoppable(watchdog: Watchdog) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
    """Have a watchdog watch the running event loop; gives what lets so many seconds pass in which nothing runs."""
    loop, passed_s = asyncio.get_running_loop(), 0.0
    time = loop.time

    async def stop(for_s: float) -> None:
        nonlocal passed_s
        passed_s += for_s
        for _ in range(5):  # passes of the loop, in which what is due runs
            await asyncio.sleep(0)

    loop.time = lambda: time() + passed_s
    watchdog.start()
    try:
        yield stop
    finally:
        await watchdog.stop()
