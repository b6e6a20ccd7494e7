"""A queue for one collector: facts in an inbox, finished work at every `collect`.

Invariant: every item is collected once, in order; after a failure `collect` raises it, once nothing is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Arrivals(Generic[Item]):
    """A long poll of one collector: a call takes all that is there."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._news: asyncio.Future[None] | None = None
        """What the collector waits for."""
        self._is_closed = False
        self._failure: Exception | None = None

    def put(self, items: Iterable[Item]) -> None:
        self._items += items
        if self._items:
            self._wake()

    async def collect(self) -> Sequence[Item]:
        """Wait until something is there, and take all; nothing once it is closed, or the error that ended it."""
        while not self._items and not self._is_closed:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if not self._items and self._failure is not None:
            raise self._failure
        items, self._items = self._items, []
        return items

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """End it by an error; of several the first counts."""
        self._failure = self._failure or error
        self.close()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Pace:
    """Keeps a minimum time between two answers to `collect`: one answer then carries what came meanwhile."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = -interval_s

    async def wait(self) -> None:
        """Return once the interval since the last answer is over."""
        await asyncio.sleep(max(self._last_s + self._interval_s - asyncio.get_running_loop().time(), 0))

    def answered(self) -> None:
        self._last_s = asyncio.get_running_loop().time()
