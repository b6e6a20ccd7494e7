"""An engine whose process ends when engines of another degree take its place, and is started again when they leave.

The driver sees one engine all the time: it keeps its name and its log, and `collect` waits while there is no process. A
process that dies by itself raises, as any engine's does.

Invariant: at most one process; between `end` and `rebuild` none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.forwarding import Forwarder
from rollpacker.protocols.rollout import Response


class SlotEngine(Engine, Protocol):
    """An engine whose process can be ended."""

    async def stacks(self) -> str: ...

    async def kill(self) -> None: ...


class RebuiltEngine(Forwarder):
    """Implements `SlotEngine` over one process after the other.

    Args:
        engine: Its name.
        begin: Starts a process; returns it, and what to await until its engine has started.
        stop_s: How long a process may take to end by itself.
    """

    def __init__(
        self, engine: EngineId, begin: Callable[[], tuple[SlotEngine, Awaitable[None]]], *, stop_s: float
    ) -> None:
        super().__init__(SlotEngine)
        self.name = engine
        self._begin = begin
        self._stop_s = stop_s
        self._process: SlotEngine | None = None
        self._is_there = asyncio.Event()

    async def rebuild(self) -> None:
        """Start a process; one that does not start leaves nothing."""
        self._process, started = self._begin()
        try:
            await started
        except BaseException:
            await self.kill()
            raise
        self._is_there.set()

    async def end(self) -> None:
        """End the process, if there is one; nothing may be in flight."""
        process = self._process
        if process is not None:
            self._forget()
            with suppress(TimeoutError, RollpackerError):
                async with asyncio.timeout(self._stop_s):
                    await process.close()
            await process.kill()

    async def kill(self) -> None:
        """End the process, whatever it does."""
        process = self._process
        if process is not None:
            self._forget()
            await process.kill()

    def _forget(self) -> None:
        self._process = None
        self._is_there.clear()

    def _present(self) -> SlotEngine:
        if self._process is None:
            raise EngineFailed(f"{self.name} has no process: another set of engines has its place.")
        return self._process

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._present(), method)(*arguments)

    async def collect(self) -> Sequence[Response]:
        while True:
            await self._is_there.wait()
            process = self._process
            if process is None:
                continue
            try:
                responses = await process.collect()
            except EngineFailed:
                if process is self._process:
                    raise
            else:
                if responses or process is self._process:
                    return responses

    async def close(self) -> None:
        if self._process is not None:
            await self._process.close()
