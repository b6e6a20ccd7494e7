"""A process that is stopped and goes on, as by Ctrl-Z."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from rollpacker.runtime.waiting.watchdog import Watchdog

LATE_S = 2.0
"""A busy process is as late as that."""


@asynccontextmanager
async def stoppable(watchdog: Watchdog) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Have a watchdog watch the running event loop, for which no time passes but that in which nothing runs.

    Gives what lets it pass: so many seconds, or more after each of which the watchdog's thread alone runs.
    """
    loop = asyncio.get_running_loop()
    now = float(math.ceil(loop.time()))

    async def stop(*for_s: float) -> None:
        nonlocal now
        for each_s in for_s:
            watchdog.time()
            now += each_s
        for _ in range(5):  # passes of the loop, in which what is due runs
            await asyncio.sleep(0)

    with_real_time, loop.time = loop.time, lambda: now
    watchdog.start()
    try:
        yield stop
    finally:
        await watchdog.stop()
        loop.time = with_real_time
