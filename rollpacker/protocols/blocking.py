"""Awaits blocking calls that cannot be stopped, so that Ctrl-C need not wait for them.

`asyncio.to_thread` is no use for that: `asyncio.run` joins its threads before it returns. Here the thread is a daemon;
a cancelled caller leaves it behind and it ends with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def in_daemon_thread(call: Callable[[], Result]) -> Result:
    """Run a blocking call in a thread of its own and give what it returns or raises."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # it is a Result where there is no error

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001  (a thread's boundary: raised in the caller)
            error = raised
        with suppress(RuntimeError):  # the loop is closed: there is no caller any more
            loop.call_soon_threadsafe(settle, result, error)

    name = getattr(call, "__qualname__", type(call).__name__)  # the repr of a partial would have its arguments
    threading.Thread(target=run, name=f"blocking: {name}", daemon=True).start()
    return await answer
