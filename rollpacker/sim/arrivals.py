"""Finished work that waits to be collected: the modelled side of every `collect`.

Invariant: what is put is collected once, in order, by the one who waits or the next one who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Arrivals(Generic[Item]):
    """A long poll: one call takes all that is there."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, items: Sequence[Item]) -> None:
        if items:
            self._items += items
            self._changed.set()

    async def collect(self) -> Sequence[Item]:
        """Wait until something is there, and take all; nothing once it is closed."""
        while not self._items and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        items, self._items = self._items, []
        return items

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()
